"""``InferenceManager``: a bundle that takes and returns torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor

from leapp.compat.core import copy_all
from leapp.errors import BundleError, InputError
from leapp.graph.contract import Port, split_key
from leapp.graph.formats import is_program
from leapp.runtime.arrays import Array
from leapp.runtime.buffers import Program, Slot
from leapp.runtime.codegen import CallerCode, Names
from leapp.runtime.engine import LocalEngine, NoEngine
from leapp.runtime.guards import Guard
from leapp.runtime.load import EngineOptions, OnnxUnit, TorchUnit
from leapp.runtime.one_node import run_session
from leapp.runtime.plan import Plan
from leapp.runtime.runner import Runner
from leapp.runtime.torch_engines import TORCH_DTYPES, array_over, tensor_over, torch_device
from leapp.runtime.values import misfit, require_plain, to_array

OUT = "==out=="


class _TensorCode:
    """The lines of a step that take and return torch tensors. See ``CallerCode``."""

    def __init__(self, plan: Plan, program: Program, copy: bool, options: EngineOptions) -> None:
        self._plan, self._program, self._copy, self._options = plan, program, copy, options
        # Inputs that go to host memory come first, so that one call copies them all.
        self.inputs = sorted(plan.inputs, key=lambda k: program.inputs[k].arrays is None)
        self._slots = slots = [program.inputs[k] for k in self.inputs]
        self._guard = Guard([s.port.shape for s in slots], [s.arrays is None for s in slots])

    def check(self, name: Names, values: Sequence[str]) -> list[str]:
        taken = ", ".join(values)
        return [
            f"if not {name(self._guard)}.check({taken}):",
            f" values = {name(self._accept)}(({taken},))",
            " if values is None: return None",
            f" {taken}, = values",
        ]

    @cached_property
    def _forms(self) -> tuple[tuple[torch.Size, torch.dtype, str, bool], ...]:
        """The shape, dtype and device of each value, and whether it may lie anywhere in memory. The first step needs them."""
        devices = [_device(self._plan, split_key(k)[0], self._options).type for k in self.inputs]
        return tuple(
            (torch.Size(s.port.shape), TORCH_DTYPES[s.port.dtype], device, s.arrays is None)
            for s, device in zip(self._slots, devices, strict=True)
        )

    def _accept(self, values: tuple[Any, ...]) -> tuple[Tensor, ...] | None:
        """The values for a step; None if a value must be refused or converted, which the slow path does."""
        found = []
        for value, (shape, dtype, device, loose) in zip(values, self._forms, strict=True):
            if (
                value.__class__ is not Tensor
                or value.layout is not torch.strided
                or value.is_nested
                or value.dtype is not dtype
                or value.shape != shape
                or value.requires_grad
                or value.device.type != device
            ):
                return None
            found.append(value.contiguous() if loose else value)
        self._guard.saw(values)
        return tuple(found)

    def load(self, name: Names, values: Sequence[str]) -> list[str]:
        bound = [self._program.view(slot.array(0), slot.port) for slot in self._slots if slot.arrays]
        if len(bound) == 1:
            return [f"{name(bound[0].copy_)}({values[0]})"]
        return [f"{name(copy_all)}({name(bound)}, [{', '.join(values[: len(bound)])}])"] if bound else []

    def result(self, name: Names, where: str, slot: Slot, made: str) -> str:
        if slot.arrays is not None:
            views = [self._program.view(array, slot.port) for array in slot.arrays]
            return f"{name.each([view.clone for view in views])}()" if self._copy else name.each(views)
        return f"{made}.clone()" if self._copy and where in self._plan.feedback.values() else made

    def in_order(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        return [values[k].contiguous() for k in self.inputs]


def _device(plan: Plan, node: str, options: EngineOptions) -> torch.device:
    """The device that a node computes on."""
    # ONNX sessions are bound to host memory whatever provider they compute on.
    if is_program(plan.contract.nodes[node].model.backend):
        return torch_device(options)
    return torch.device("cpu")


class NodeRunner:
    """One node of a loaded bundle, callable on its own: tensors in the order of its inputs, a tuple of tensors out."""

    def __init__(self, owner: InferenceManager, name: str) -> None:
        node = owner.models[name]
        self.name = name
        self.input_descriptions: list[dict[str, Any]] = node["inputs"]
        self.output_descriptions: list[dict[str, Any]] = node["outputs"]
        self.input_names: list[str] = [entry["name"] for entry in self.input_descriptions]
        self.output_names: list[str] = [entry["name"] for entry in self.output_descriptions]
        self.device: torch.device = _device(owner._plan, name, owner._options)
        self._owner = owner
        self._unit: OnnxUnit | TorchUnit | None = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the node's model once, outside the pipeline and its state."""
        if len(inputs) != len(self.input_names):
            raise InputError(f"Node {self.name!r} takes {len(self.input_names)} inputs, got {len(inputs)}.")
        if self._unit is None:
            self._unit = self._owner._unit(self.name)
        return self._owner._call(self._unit, inputs)


class InferenceManager(Runner):
    """A bundle that takes and returns torch tensors.

    Example:
        >>> manager = InferenceManager("policy/policy.yaml")
        >>> outputs = manager.run_policy({"policy/obs": obs})
    """

    _engine: LocalEngine | NoEngine
    _tensors_enter = True

    def _caller_code(self) -> Callable[[Plan, Program], CallerCode]:
        return partial(_TensorCode, copy=self._copy, options=self._options)

    def run_policy(self, inputs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Run one step.

        Args:
            inputs: A value for each of ``inputs``. A key of ``feedback_inputs`` replaces that state for this step.

        Returns:
            A value for each of ``outputs``.

        Raises:
            InputError: A value is missing or does not fit. The state is untouched then.
            UnknownPortError: A key names no input. The state is untouched then.

        Example:
            >>> action = manager.run_policy({"policy/obs": obs})["policy/action"]
        """
        # Written by ``codegen`` when the bundle was opened: all the time of a step is spent there, or in ``_step_checked``.
        made = self._engine.frame.step(inputs)
        return self._step_checked(inputs) if made is None else made

    __call__ = run_policy

    def state(self) -> dict[str, Tensor]:
        """A copy of all state, for ``load_state``.

        Example:
            >>> list(manager.state())
            ['policy/h_in']
        """
        return {k: self._own(k, value) for k, value in self._state().items()}

    def zeros_input(self) -> dict[str, Tensor]:
        """A zero for each input.

        Example:
            >>> outputs = manager(manager.zeros_input())
        """
        return self._zeros()

    def get_mock_input(self) -> dict[str, Tensor]:
        """A random value for each input: normal floats, integers from 0 to 255 (127 for int8), random truth values.

        Example:
            >>> outputs = manager(manager.get_mock_input())
        """
        return {k: self._random(k, self._plan.input_ports[k]) for k in self._plan.inputs}

    def _random(self, where: str, port: Port) -> Tensor:
        # Drawn from torch's generator, so that torch.manual_seed makes it repeatable.
        dtype = TORCH_DTYPES[port.dtype]
        if dtype.is_floating_point or dtype.is_complex:
            value = torch.randn(port.shape).to(dtype)
        else:
            value = torch.randint(0, {"bool": 2, "int8": 128}.get(port.dtype, 256), port.shape).to(dtype)
        return value.to(_device(self._plan, split_key(where)[0], self._options))

    # What clients read.

    @cached_property
    def nodes(self) -> dict[str, NodeRunner]:
        """The nodes by name."""
        return {name: NodeRunner(self, name) for name in self._plan.contract.nodes}

    @property
    def organized_pipeline_connections(self) -> dict[str, dict[str, list[tuple[str, str]]]]:
        """For each output of each node, where its value goes: (node, input), or ("==out==", key) for a result."""
        found: dict[str, dict[str, list[tuple[str, str]]]] = {name: {} for name in self._plan.contract.nodes}
        for flow in (self._plan.edges, self._plan.feedback):
            for target, source in flow.items():
                node, port = split_key(source)
                found[node].setdefault(port, []).append(split_key(target))
        for where in self._plan.outputs:
            node, port = split_key(where)
            found[node].setdefault(port, []).append((OUT, where))
        return found

    @property
    def value_dict(self) -> dict[str, dict[str, Tensor]]:
        """A copy of what is held between steps: state, values in host memory, and the last outputs under "==out==".

        Values that only passed through TorchScript, the caller's own inputs among them, are not kept.
        """
        with self._lock:
            engine = self._engine
            if isinstance(engine, NoEngine):
                engine.refuse()
            found: dict[str, dict[str, Tensor]] = {name: {} for name in self._plan.contract.nodes}
            for where, slot in engine.program.inputs.items():
                frame = engine.frame if where in self._plan.feedback else engine.ran
                value = engine.kept_inputs.get(where, slot.value(frame))
                if value is not None:
                    node, port = split_key(where)
                    found[node][port] = _copied(value, slot.port)
            outputs = {k: (slot.value(engine.ran), slot.port) for k, slot in engine.program.outputs.items()}
            found[OUT] = {k: _copied(*outputs[k]) for k in self._plan.outputs if outputs[k][0] is not None}
            return found

    # One node alone.

    def _unit(self, node: str) -> OnnxUnit | TorchUnit:
        if node in self._plan.missing:
            raise BundleError(f"The bundle has no model for node {node!r}.")
        return self._units(self._plan, [node])[0]

    def _call(self, unit: OnnxUnit | TorchUnit, inputs: tuple[Any, ...]) -> tuple[Tensor, ...]:
        plan = self._plan
        rows = self._rows_of(dict(zip(unit.inputs, inputs, strict=True))) if plan.batch is not None else None
        plan = plan if rows is None else plan.at(rows)
        values = [self._fit(k, plan.input_ports[k], value) for k, value in zip(unit.inputs, inputs, strict=True)]
        if isinstance(unit, TorchUnit):
            with torch.no_grad():
                result = unit.call(*(value.contiguous() for value in values))
            return (result,) if unit.single else result
        arrays = [array_over(value) for value in values]
        made = run_session(plan, unit, arrays)
        return tuple(tensor_over(a, plan.output_ports[k].dtype) for k, a in zip(unit.outputs, made, strict=True))

    # How values come in.

    def _fit(self, where: str, port: Port, value: Any) -> Tensor:
        device = _device(self._plan, split_key(where)[0], self._options)
        if isinstance(value, Tensor):
            require_plain(where, port, value)
            if value.device.type != device.type:
                raise misfit(where, port, f"a tensor on {value.device}", f"Move it to {device}.")
            if tuple(value.shape) == port.shape and value.dtype is TORCH_DTYPES[port.dtype]:
                return value.detach()
            value = value.cpu()
        array = to_array(where, port, value, self._cast)
        return self._own(where, array.copy())

    def _host(self, where: str, value: Tensor) -> Array:
        return to_array(where, self._plan.input_ports[where], value.cpu(), False)

    def _own(self, where: str, array: Array) -> Tensor:
        port = self._plan.input_ports[where]
        return tensor_over(array, port.dtype).to(_device(self._plan, split_key(where)[0], self._options))

    def _duplicate(self, value: Tensor) -> Tensor:
        return value.clone()

    def _finite(self, value: Tensor) -> bool:
        return bool(torch.isfinite(value).all())


def _copied(value: Any, port: Port) -> Tensor:
    copy: Tensor = tensor_over(value.copy(), port.dtype) if isinstance(value, ndarray) else value.clone()
    return copy
