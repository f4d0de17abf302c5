"""Small bundles for the runtime's tests, written straight from modules: no tracing, no session."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from leapp.bundle import RawTensor
from leapp.bundle.contract_yaml import dump_contract
from leapp.bundle.sidecars import describe_model, write_initial_values
from leapp.bundle.trust import remember
from leapp.graph.contract import Contract, Node, Port, Wiring, key

BACKENDS = ("onnx", "jit", "pt2")


@dataclass
class Stage:
    """A node to be: a module, an example for each input, and the names of its outputs."""

    module: torch.nn.Module
    inputs: dict[str, torch.Tensor]
    outputs: list[str]
    backend: str | None
    semantics: dict[str, dict[str, Any]] = field(default_factory=dict)


def results(module: torch.nn.Module, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        found = module(*inputs)
    return found if isinstance(found, tuple) else (found,)


def model_bytes(stage: Stage) -> bytes:
    example, buffer = tuple(stage.inputs.values()), io.BytesIO()
    if stage.backend == "jit":
        torch.jit.save(torch.jit.script(stage.module.eval()), buffer)
    elif stage.backend == "pt2":
        torch.export.save(torch.export.export(stage.module.eval(), example), buffer)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # The older exporter is ten times faster.
            torch.onnx.export(
                stage.module.eval(),
                example,
                buffer,
                dynamo=False,
                verbose=False,
                input_names=list(stage.inputs),
                output_names=stage.outputs,
            )
    return buffer.getvalue()


def port(name: str, value: torch.Tensor, stage: Stage) -> Port:
    dtype = str(value.dtype).removeprefix("torch.")
    return Port(name=name, dtype=dtype, shape=tuple(value.shape), **stage.semantics.get(name, {}))


def write_bundle(
    directory: Path,
    stages: dict[str, Stage],
    data_flow: dict[str, tuple[str, ...]] | None = None,
    feedback_flow: dict[str, tuple[str, ...]] | None = None,
    initial: dict[str, torch.Tensor] | None = None,
    outputs: list[str] | None = None,
    configs: dict[str, Any] | None = None,
) -> Path:
    """Write a bundle named ``g`` and return its YAML. What no flow feeds is an input, what none takes an output."""
    directory.mkdir(parents=True, exist_ok=True)
    flows = [data_flow or {}, feedback_flow or {}]
    taken = {target for flow in flows for targets in flow.values() for target in targets}
    given = {source for flow in flows for source in flow}
    nodes, ins, outs = {}, {}, {}
    for name, stage in stages.items():
        made = results(stage.module, *stage.inputs.values())
        node = Node(
            inputs=tuple(port(n, v, stage) for n, v in stage.inputs.items()),
            outputs=tuple(port(n, v, stage) for n, v in zip(stage.outputs, made, strict=True)),
        )
        if stage.backend is not None:
            path = directory / f"{name}.{ {'onnx': 'onnx', 'jit': 'pt', 'pt2': 'pt2'}[stage.backend] }"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(model_bytes(stage))
            node = Node(inputs=node.inputs, outputs=node.outputs, model=describe_model(path, directory, stage.backend))
        nodes[name] = node
        ins[name] = tuple(p.name for p in node.inputs if key(name, p.name) not in taken)
        outs[name] = tuple(
            p.name
            for p in node.outputs
            if (key(name, p.name) in outputs if outputs is not None else key(name, p.name) not in given)
        )
    wiring = Wiring(
        data_flow=flows[0], feedback_flow=flows[1], configs=configs,
        inputs={k: v for k, v in ins.items() if v}, outputs={k: v for k, v in outs.items() if v},
    )  # fmt: skip
    contract = Contract(nodes=nodes, pipeline=wiring, system={"leapp config version": "1.3"})
    if initial:
        file = write_initial_values(directory, "g", {k: RawTensor.of(v) for k, v in initial.items()}, contract)
        wiring = Wiring(**{f: getattr(wiring, f) for f in wiring.__struct_fields__} | {"initial_values": file})
        contract = Contract(nodes=nodes, pipeline=wiring, system=contract.system)
    path = directory / "g.yaml"
    path.write_text(dump_contract(contract) + "\nintegrity: unsealed\n")
    remember(contract)  # as an export does
    return path


def array(value: Any) -> Any:
    """A copy of a tensor or an array, as an array."""
    return value.detach().numpy().copy() if isinstance(value, torch.Tensor) else value.copy()


def held(runner: Any) -> dict[str, Any]:
    """A copy of a runner's state, as arrays."""
    return {key: array(value) for key, value in runner.state().items()}


class Scale(torch.nn.Module):
    """y = tanh(x W + b): a few ops whose value depends on every input element."""

    def __init__(self, wide: int, out: int, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("w", torch.randn(wide, out, generator=generator))
        self.register_buffer("b", torch.randn(out, generator=generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ self.w + self.b)


class Memory(torch.nn.Module):
    """A leaky state: what it returns depends on all steps before."""

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = 0.5 * h + x.sum() * torch.ones_like(h)
        return new * 2.0 + x.mean(), new


class Sense(torch.nn.Module):
    """The first half of a loop over two nodes."""

    def forward(self, obs: torch.Tensor, mem: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return obs + mem, obs * mem - 1.0


class Fuse(torch.nn.Module):
    """The second half: its output goes back to both nodes."""

    def forward(self, c: torch.Tensor, prev: torch.Tensor) -> torch.Tensor:
        return 0.5 * c + 0.25 * prev


def chain(directory: Path, backends: list[str], width: int = 8) -> tuple[Path, list[torch.nn.Module]]:
    """``n0 -> n1 -> ...``, each a ``Scale``."""
    modules: list[torch.nn.Module] = [Scale(width, width, seed) for seed in range(len(backends))]
    stages = {
        f"n{i}": Stage(m, {"x": torch.randn(2, width)}, ["y"], b)
        for i, (m, b) in enumerate(zip(modules, backends, strict=True))
    }
    flow = {f"n{i}/y": (f"n{i + 1}/x",) for i in range(len(modules) - 1)}
    return write_bundle(directory, stages, flow), modules


def memory(directory: Path, backend: str, initial: torch.Tensor | None = None, **more: Any) -> Path:
    """One node ``p`` with state. ONNX calls the two sides of the state ``h_in`` and ``h_out``."""
    h_in, h_out = ("h_in", "h_out") if backend == "onnx" else ("h", "h")
    stage = Stage(Memory(), {"x": torch.randn(3), h_in: torch.zeros(2)}, ["y", h_out], backend)
    start = torch.tensor([1.0, -2.0]) if initial is None else initial
    return write_bundle(
        directory, {"p": stage}, {}, {f"p/{h_out}": (f"p/{h_in}",)}, {f"p/{h_in}": start}, **more
    )  # fmt: skip


def loop(directory: Path, first: str, second: str) -> Path:
    """``p -> f`` in a step, ``f -> p`` and ``f -> f`` to the next; the two start from different values."""
    stages = {
        "p": Stage(Sense(), {"obs": torch.ones(2), "mem": torch.ones(2)}, ["c", "a"], first),
        "f": Stage(Fuse(), {"c": torch.ones(2), "prev": torch.ones(2)}, ["mo"], second),
    }
    start = {"p/mem": torch.tensor([1.0, 2.0]), "f/prev": torch.tensor([3.0, -3.0])}
    return write_bundle(directory, stages, {"p/c": ("f/c",)}, {"f/mo": ("p/mem", "f/prev")}, start, outputs=["p/a", "f/mo"])
