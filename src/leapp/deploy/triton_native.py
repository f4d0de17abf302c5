"""Writes a repository with one model for each node, run by the server's own engines, and an ensemble that connects them.

If state must be kept outside of the ensemble, a small Python model is added that calls the ensemble.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leapp.bundle.sidecars import write_initial_values
from leapp.deploy.triton_config import describe, entries, free_name, safe_name
from leapp.deploy.triton_repository import Repository, write_values
from leapp.errors import BundleError
from leapp.graph.contract import Contract, Port, key, split_key
from leapp.runtime.plan import Plan

_ENGINES = {"onnx": ("onnxruntime", "onnxruntime_onnx"), "jit": ("pytorch", "pytorch_libtorch")}


class NativeRepository(Repository):
    """The models of all nodes, the ensemble, and the Python model if there is one. See ``Repository``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        plan, model = self.plan, self.model
        self._division = _divide(plan)
        self._batched = self.options.max_batch_size > 0
        taken = [model]
        # Model names begin with the name of the graph, because two bundles on one server may have nodes of the same name.
        for wanted in ("wiring", *plan.order):
            taken.append(free_name(f"{model}.{safe_name(wanted)}", taken, "_"))
        self._ensemble = taken[1] if self._division.guarded else model
        self._models = dict(zip(plan.order, taken[2:], strict=True))
        # The outputs of the ensemble: the graph outputs, and the outputs that the Python model feeds back.
        self._requested = list(dict.fromkeys([*plan.outputs, *self._division.above.values()]))

    def write(self) -> tuple[Contract, dict[str, str]]:
        """See ``Repository``."""
        paths: dict[str, str] = {}
        models: dict[str, str] = {}
        for node in self.plan.order:
            self._check_node(node)
            path = self.copy_model(node, self.version_folder(self._models[node]))
            paths[node] = path.relative_to(self.root).as_posix()
            models |= self.write_config(self._node_config(node))
        # An ensemble needs a version directory, and object stores drop empty directories, so it gets a README.
        models |= self._write_joint(self._ensemble_config(), "README", "An ensemble has no model file; see config.pbtxt.\n")
        if self._division.guarded:
            code = Path(__file__).with_name("loop_model.py").read_text(encoding="utf-8")
            models |= self._write_joint(self._loop_config(), "model.py", code)
        contract, graph = self.bundle.contract, self.bundle.graph
        file = write_initial_values(self.root, graph, self.values, contract) if self.values else None
        return self.contract(paths, file), models

    def _write_joint(self, config: dict[str, Any], name: str, text: str) -> dict[str, str]:
        """Write a model that connects the nodes: its configuration, and the one file of its version."""
        folder = self.version_folder(config["name"])
        folder.mkdir(parents=True)
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
        return self.write_config(config)

    def _check_node(self, node: str) -> None:
        described = self.plan.contract.nodes[node]
        backend = described.model.backend
        if backend not in _ENGINES:
            raise BundleError(
                f"Node {node!r} is a .{backend} program, which Triton's PyTorch backend does not run: it takes TorchScript "
                "and compiled packages. Export the node with export_with='onnx', or deploy with --backend python."
            )
        if not described.inputs:
            raise BundleError(f"Node {node!r} takes no input, so nothing would make Triton run it. Use --backend python.")
        for port in (*described.inputs, *described.outputs) if self._batched else ():
            if port.batch_axis != 0:
                raise BundleError(
                    f"{key(node, port.name)!r} does not take any batch as its first axis, so requests cannot be put together. "
                    "Leave --max-batch-size out, or export with leapp.start(..., dynamic_batch=True)."
                )

    def _tensor(self, node: str, side: str, index: int) -> str:
        """The name of a port in the engine of a node. TorchScript has positions instead of names."""
        described = self.plan.contract.nodes[node]
        if described.model.backend == "jit":
            return f"{side}__{index}"
        return (described.inputs if side == "INPUT" else described.outputs)[index].name

    def _node_config(self, node: str) -> dict[str, Any]:
        model, plan = self._models[node], self.plan
        backend, states = plan.contract.nodes[node].model.backend, self._division.inside[node]
        engine, platform = _ENGINES[str(backend)]

        def described_ports(side: str, keys: tuple[str, ...], ports: Mapping[str, Port]) -> dict[str, dict[str, Any]]:
            return {
                k: describe(k, self._tensor(node, side, i), ports[k], backend, batched=self._batched)
                for i, k in enumerate(keys)
            }

        inputs = described_ports("INPUT", plan.input_keys(node), plan.input_ports)
        outputs = described_ports("OUTPUT", plan.output_keys(node), plan.output_ports)
        entering = [entry for where, entry in inputs.items() if where not in states]
        config = self.config(model, entering, list(outputs.values()), platform=platform, backend=engine)
        if states:
            files = write_values(self.root / model / "initial_state", {k: self._start(k) for k in states})
            listed = [_state(inputs[k], outputs[source], files[k]) for k, source in states.items()]
            config["sequence_batching"] = {**self.sequence_batching(), "state": listed}
        elif self._batched:
            config["dynamic_batching"] = {}
        return config

    def _start(self, where: str) -> bytes:
        """The initial bytes of a state: those of one row if the first axis is the batch."""
        data = bytes(self.values[where].data)
        rows = self.plan.input_ports[where].shape[0] if self._batched else 1
        size = len(data) // rows
        if any(data[i * size : (i + 1) * size] != data[:size] for i in range(rows)):
            raise BundleError(f"The rows of {where!r} start from different values; a sequence in a batch has only one row.")
        return data[:size]

    def _graph_inputs(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        return [describe(k, k, self.plan.input_ports[k], None, batched=self._batched) for k in keys]

    def _graph_outputs(self, keys: Iterable[str]) -> list[dict[str, Any]]:
        return [describe(k, self.names[k], self.plan.output_ports[k], None, batched=self._batched) for k in keys]

    def _ensemble_config(self) -> dict[str, Any]:
        inputs = self._graph_inputs([*self.plan.inputs, *self._division.above])
        steps = {"step": [self._step(node) for node in self.plan.order]}
        outputs = self._graph_outputs(self._requested)
        return self.config(self._ensemble, inputs, outputs, platform="ensemble", ensemble_scheduling=steps)

    def _step(self, node: str) -> dict[str, Any]:
        plan, states = self.plan, self._division.inside[node]
        shown = {*self._requested, *plan.edges.values()}
        inputs = {
            self._tensor(node, "INPUT", i): self.names[plan.edges[k]] if k in plan.edges else k
            for i, k in enumerate(plan.input_keys(node))
            if k not in states
        }
        outputs = {self._tensor(node, "OUTPUT", i): self.names[k] for i, k in enumerate(plan.output_keys(node)) if k in shown}
        return {
            "model_name": self._models[node],
            "model_version": self.options.version,
            "input_map": entries(inputs),
            "output_map": entries(outputs),
        }

    def _loop_config(self) -> dict[str, Any]:
        plan, above = self.plan, self._division.above
        files = write_values(self.root / self.model / "initial_state", {k: self._start(k) for k in above})
        lead = [1] if self._batched else []
        feedback = [
            {
                "input": k,
                "output": self.names[above[k]],
                "dtype": plan.input_ports[k].dtype,
                "dims": [*lead, *entry["dims"]],
                "file": files[k],
            }
            for k, entry in zip(above, self._graph_inputs(above), strict=True)
        ]
        settings = {
            "ensemble": self._ensemble,
            "version": self.options.version,
            "requested": [self.names[k] for k in self._requested],
            "outputs": [self.names[k] for k in plan.outputs],
            "idle_seconds": self.options.idle_seconds,
            "feedback": feedback,
        }
        return self.python_config(self._graph_inputs(plan.inputs), self._graph_outputs(plan.outputs), settings)


def _state(entry: dict[str, Any], output: dict[str, Any], file: str) -> dict[str, Any]:
    """A state in a configuration. Its initial value is in a file of the model's directory."""
    form = {"data_type": entry["data_type"], "dims": entry["dims"]}
    return {
        "input_name": entry["name"],
        "output_name": output["name"],
        **form,
        "initial_state": [{**form, "data_file": file, "name": entry["name"]}],
    }


@dataclass(frozen=True, slots=True)
class _Division:
    """Where each feedback is kept.

    Triton can keep a state for one model. Feedback from one node to another, and states that Triton cannot keep, are kept by
    the Python model that calls the ensemble.

    Attributes:
        inside: For each node, the state inputs that the server keeps for its model, with the outputs they take next.
        above: Every other fed-back input, with the output it takes next.
        guarded: Whether the Python model is needed, to keep feedback or to make all states advance together.
    """

    inside: dict[str, dict[str, str]]
    above: dict[str, str]
    guarded: bool


def _divide(plan: Plan) -> _Division:
    """Decide where each feedback of a plan is kept."""
    inside: dict[str, dict[str, str]] = {node: {} for node in plan.order}
    for target, source in plan.feedback.items():
        node = split_key(target)[0]
        # The server finds a state by its output, so an output can feed one state only. And it cannot reshape a state.
        if node == split_key(source)[0] and plan.input_ports[target].shape and source not in inside[node].values():
            inside[node][target] = source
    above = {t: s for t, s in plan.feedback.items() if t not in inside[split_key(t)[0]]}
    shown = {*plan.outputs, *plan.edges.values(), *above.values()}
    for node, states in inside.items():
        # Each step of an ensemble needs at least one input tensor and one output tensor.
        if not set(plan.input_keys(node)) - states.keys() or not shown.intersection(plan.output_keys(node)):
            above |= states
            states.clear()
    stateful = [node for node, states in inside.items() if states]
    return _Division(
        inside, {t: above[t] for t in plan.feedback if t in above}, bool(above) or not _steps_as_one(plan, stateful)
    )


def _steps_as_one(plan: Plan, stateful: list[str]) -> bool:
    """Whether the states in an ensemble always advance together with the whole pipeline.

    An ensemble skips nodes that the requested outputs do not need, and stops in the middle if a node fails or the client
    cancels. So a state is safe only in a single node that runs last and gives all outputs.
    """
    if len(stateful) != 1:
        return not stateful
    (last,) = stateful
    needed = {last}
    for node in reversed(plan.order):
        if node in needed:
            needed |= {split_key(plan.edges[k])[0] for k in plan.input_keys(node) if k in plan.edges}
    return needed == set(plan.order) and all(split_key(output)[0] == last for output in plan.outputs)
