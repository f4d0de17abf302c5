"""A repository with one model for each node, run by the server's own engines, and an ensemble that wires them.

Where state must be kept above the ensemble, a small Python model stands in front of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leapp.bundle import Bundle, RawTensor
from leapp.bundle.sidecars import write_initial_values
from leapp.deploy.triton_config import (
    TritonOptions,
    describe,
    entries,
    free_name,
    instance_group,
    output_names,
    safe_name,
    sequence_batching,
    versions,
)
from leapp.deploy.triton_files import copy_model, move_models, write_config, write_values
from leapp.errors import BundleError
from leapp.graph.contract import Contract, Port, key, split_key
from leapp.runtime.plan import Plan

_ENGINES = {"onnx": ("onnxruntime", "onnxruntime_onnx"), "jit": ("pytorch", "pytorch_libtorch")}


def write_native(
    bundle: Bundle, plan: Plan, values: Mapping[str, RawTensor], model: str, root: Path, options: TritonOptions
) -> tuple[Contract, dict[str, str]]:
    """Write the models of all nodes and the ones that join them.

    Returns:
        The contract as seen from ``root``, and the models with what runs each.
    """
    return _Repository(bundle, plan, values, model, root, options).write()


class _Repository:
    def __init__(
        self, bundle: Bundle, plan: Plan, values: Mapping[str, RawTensor], model: str, root: Path, options: TritonOptions
    ) -> None:
        self._bundle, self._plan, self._values, self._root, self._options = bundle, plan, values, root, options
        self._division = _divide(plan)
        self._batched = options.max_batch_size > 0
        self._names = output_names(plan)
        self._model = model
        taken = [model]
        # Names begin with that of the graph: a server of several bundles may have two nodes of the same name.
        for wanted in ("wiring", *plan.order):
            taken.append(free_name(f"{model}.{safe_name(wanted)}", taken, "_"))
        self._ensemble = taken[1] if self._division.guarded else model
        self._models = dict(zip(plan.order, taken[2:], strict=True))

    def write(self) -> tuple[Contract, dict[str, str]]:
        """Write everything."""
        paths: dict[str, str] = {}
        models: dict[str, str] = {}
        for node in self._plan.order:
            self._check_node(node)
            path = copy_model(self._bundle, node, self._root / self._models[node] / str(self._options.version))
            paths[node] = path.relative_to(self._root).as_posix()
            models |= write_config(self._root, self._node_config(node))
        models |= self._write_joint(self._ensemble_config(), None)
        if self._division.guarded:
            code = Path(__file__).with_name("loop_model.py").read_text(encoding="utf-8")
            models |= self._write_joint(self._loop_config(), code)
        contract, graph = self._bundle.contract, self._bundle.graph
        file = write_initial_values(self._root, graph, self._values, contract) if self._values else None
        return move_models(contract, paths, file), models

    def _write_joint(self, config: dict[str, Any], code: str | None) -> dict[str, str]:
        """Write a model that has no file of its own. An ensemble needs a version directory all the same."""
        folder = self._root / config["name"] / str(self._options.version)
        folder.mkdir(parents=True)
        # Object stores do not keep empty directories.
        name, text = ("model.py", code) if code is not None else ("README", "An ensemble: config.pbtxt says it all.\n")
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
        return write_config(self._root, config)

    # Nodes.

    def _check_node(self, node: str) -> None:
        described = self._plan.contract.nodes[node]
        backend = described.model.backend
        if backend not in _ENGINES:
            raise BundleError(
                f"Node {node!r} is a .{backend} program, which Triton's PyTorch backend does not run: it takes TorchScript "
                "and compiled packages. Export the node with export_with='onnx', or deploy with --backend python."
            )
        if not described.inputs:
            raise BundleError(f"Node {node!r} takes no input, so nothing would make Triton run it. Use --backend python.")
        if self._batched:
            self._check_batched(node)

    def _check_batched(self, node: str) -> None:
        described = self._plan.contract.nodes[node]
        for port in (*described.inputs, *described.outputs):
            if port.batch_axis != 0:
                raise BundleError(
                    f"{key(node, port.name)!r} does not take any batch as its first axis, so requests cannot be put together. "
                    "Leave --max-batch-size out, or export with leapp.start(..., dynamic_batch=True)."
                )

    def _tensor(self, node: str, side: str, index: int) -> str:
        """The name of a port in the engine of a node. TorchScript has positions instead of names."""
        described = self._plan.contract.nodes[node]
        if described.model.backend == "jit":
            return f"{side}__{index}"
        return (described.inputs if side == "INPUT" else described.outputs)[index].name

    def _node_config(self, node: str) -> dict[str, Any]:
        model, options = self._models[node], self._options
        backend, states = self._plan.contract.nodes[node].model.backend, self._division.inside[node]
        engine, platform = _ENGINES[str(backend)]

        def described_ports(side: str, keys: tuple[str, ...], ports: Mapping[str, Port]) -> dict[str, dict[str, Any]]:
            return {
                k: describe(k, self._tensor(node, side, i), ports[k], backend, batched=self._batched)
                for i, k in enumerate(keys)
            }

        inputs = described_ports("INPUT", self._plan.input_keys(node), self._plan.input_ports)
        outputs = described_ports("OUTPUT", self._plan.output_keys(node), self._plan.output_ports)
        config: dict[str, Any] = {
            "name": model,
            "platform": platform,
            "backend": engine,
            "max_batch_size": options.max_batch_size,
            "version_policy": versions(options),
            "input": [entry for where, entry in inputs.items() if where not in states],
            "output": list(outputs.values()),
            "instance_group": instance_group(options, engine=True),
        }
        if states:
            files = write_values(self._root / model / "initial_state", {k: self._start(k) for k in states})
            config["sequence_batching"] = {
                **sequence_batching(options),
                "state": [_state(inputs[k], outputs[source], files[k]) for k, source in states.items()],
            }
        elif self._batched:
            config["dynamic_batching"] = {}
        return config

    def _start(self, where: str) -> bytes:
        """The initial bytes of a state: those of one row if the first axis is the batch."""
        data = bytes(self._values[where].data)
        rows = self._plan.input_ports[where].shape[0] if self._batched else 1
        size = len(data) // rows
        if any(data[i * size : (i + 1) * size] != data[:size] for i in range(rows)):
            raise BundleError(f"The rows of {where!r} start from different values; a sequence in a batch has only one row.")
        return data[:size]

    # What joins them.

    def _joint_config(self, name: str, inputs: list[str], outputs: list[str]) -> dict[str, Any]:
        plan, batched = self._plan, self._batched
        return {
            "name": name,
            "max_batch_size": self._options.max_batch_size,
            "version_policy": versions(self._options),
            "input": [describe(k, k, plan.input_ports[k], None, batched=batched) for k in inputs],
            "output": [describe(k, self._names[k], plan.output_ports[k], None, batched=batched) for k in outputs],
        }

    def _requested(self) -> list[str]:
        """The outputs the ensemble gives: those of the graph, and those that are fed back above it."""
        return list(dict.fromkeys([*self._plan.outputs, *self._division.above.values()]))

    def _ensemble_config(self) -> dict[str, Any]:
        requested = self._requested()
        config = self._joint_config(self._ensemble, [*self._plan.inputs, *self._division.above], requested)
        shown = {*requested, *self._plan.edges.values()}
        return {
            **config,
            "platform": "ensemble",
            "ensemble_scheduling": {"step": [self._step(node, shown) for node in self._plan.order]},
        }

    def _step(self, node: str, shown: set[str]) -> dict[str, Any]:
        plan, states = self._plan, self._division.inside[node]
        inputs = {
            self._tensor(node, "INPUT", i): self._names[plan.edges[k]] if k in plan.edges else k
            for i, k in enumerate(plan.input_keys(node))
            if k not in states
        }
        outputs = {self._tensor(node, "OUTPUT", i): self._names[k] for i, k in enumerate(plan.output_keys(node)) if k in shown}
        return {
            "model_name": self._models[node],
            "model_version": self._options.version,
            "input_map": entries(inputs),
            "output_map": entries(outputs),
        }

    def _loop_config(self) -> dict[str, Any]:
        plan, above = self._plan, self._division.above
        files = write_values(self._root / self._model / "initial_state", {k: self._start(k) for k in above})
        config = self._joint_config(self._model, list(plan.inputs), list(plan.outputs))
        lead = [1] if self._batched else []
        feedback = [
            {
                "input": k,
                "output": self._names[source],
                "dtype": plan.input_ports[k].dtype,
                "dims": [*lead, *describe(k, k, plan.input_ports[k], None, batched=self._batched)["dims"]],
                "file": files[k],
            }
            for k, source in above.items()
        ]
        found = {
            "ensemble": self._ensemble,
            "version": self._options.version,
            "requested": [self._names[k] for k in self._requested()],
            "outputs": [self._names[k] for k in plan.outputs],
            "idle_seconds": self._options.idle_seconds,
            "feedback": feedback,
        }
        return {
            **config,
            "backend": "python",
            "instance_group": instance_group(self._options, engine=False),
            "sequence_batching": sequence_batching(self._options),
            "parameters": entries({"leapp": {"string_value": json.dumps(found, ensure_ascii=False)}}),
        }


def _state(entry: dict[str, Any], output: dict[str, Any], file: str) -> dict[str, Any]:
    """A state in a configuration. It starts from the bytes in a file of the model's directory."""
    form = {"data_type": entry["data_type"], "dims": entry["dims"]}
    return {
        "input_name": entry["name"],
        "output_name": output["name"],
        **form,
        "initial_state": [{**form, "data_file": file, "name": entry["name"]}],
    }


@dataclass(frozen=True, slots=True)
class _Division:
    """Where feedback is kept.

    Triton can hold a state for one model. Feedback from one node to another, and states that this mechanism cannot express,
    are held by the Python model above the ensemble.

    Attributes:
        inside: For each node, the state inputs that the server keeps for its model, with the outputs they take next.
        above: Every other fed-back input, with the output it takes next.
        guarded: Whether a model must stand above the ensemble, to hold feedback or to keep the states in step.
    """

    inside: dict[str, dict[str, str]]
    above: dict[str, str]
    guarded: bool


def _divide(plan: Plan) -> _Division:
    """Decide where each feedback of a plan is kept."""
    inside: dict[str, dict[str, str]] = {node: {} for node in plan.order}
    for target, source in plan.feedback.items():
        node = split_key(target)[0]
        # The server finds a state by its output, so an output can be one state only; and it cannot reshape a state.
        if node == split_key(source)[0] and plan.input_ports[target].shape and source not in inside[node].values():
            inside[node][target] = source
    above = {t: s for t, s in plan.feedback.items() if t not in inside[split_key(t)[0]]}
    shown = {*plan.outputs, *plan.edges.values(), *above.values()}
    for node, states in inside.items():
        # A step of an ensemble needs a tensor that goes in and one that comes out.
        if not set(plan.input_keys(node)) - states.keys() or not shown.intersection(plan.output_keys(node)):
            above |= states
            states.clear()
    stateful = [node for node, states in inside.items() if states]
    return _Division(
        inside, {t: above[t] for t in plan.feedback if t in above}, bool(above) or not _steps_as_one(plan, stateful)
    )


def _steps_as_one(plan: Plan, stateful: list[str]) -> bool:
    """Whether the states in an ensemble take a step together with the whole pipeline, or not at all.

    An ensemble skips nodes that the outputs a client chose do not need, and it stops in the middle when a node fails or
    the client gives up. So a state is safe only in the one node that comes last and gives all outputs.
    """
    if len(stateful) != 1:
        return not stateful
    (last,) = stateful
    needed = {last}
    for node in reversed(plan.order):
        if node in needed:
            needed |= {split_key(plan.edges[k])[0] for k in plan.input_keys(node) if k in plan.edges}
    return needed == set(plan.order) and all(split_key(output)[0] == last for output in plan.outputs)
