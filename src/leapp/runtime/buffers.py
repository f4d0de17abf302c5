"""The memory of a plan and the calls of one step.

Everything is decided when the program is built. ONNX sessions are bound once to host arrays, and two sessions that exchange a
value share one array. Values of torch units are kept in registers, a plain list. A call reads one contiguous range of registers
and writes another; the registers of a bound session hold its binding.

State is double-buffered: two frames take turns, and each reads what the other wrote. The last instruction of a step makes the
other frame the next one, by a single assignment. So a step that fails, or is interrupted anywhere, has changed no state.

Knows nothing of the caller's values; ``CallerCode`` brings them in and out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from leapp.graph.contract import Port
from leapp.graph.dtypes import DTYPES
from leapp.runtime.arrays import Array, allocate
from leapp.runtime.load import OnnxUnit, TorchUnit, Unit
from leapp.runtime.plan import Plan

if TYPE_CHECKING:
    from leapp.runtime.guards import Guard


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a value lives: in host memory (one array for each frame) or in a register."""

    port: Port
    arrays: tuple[Array, Array] | None
    register: int = -1

    def array(self, turn: int) -> Array:
        """The host memory of a frame."""
        assert self.arrays is not None
        return self.arrays[turn]

    def value(self, frame: Frame) -> Any:
        """The array or tensor held in a frame, None if there is none."""
        return self.arrays[frame.index] if self.arrays else frame.registers[self.register]


@dataclass(slots=True)
class Frame:
    """One of the two sets of registers and calls of a program, which take turns.

    Attributes:
        registers: Values of torch units, bindings of ONNX units.
        calls: What to run, in order.
        register_moves: Registers whose value becomes state, as pairs (register here, register in the next frame).
        register_stores: Registers whose value becomes state in host memory of the next frame: (copy function, from).
        array_copies: Arrays whose value becomes state in other host memory of the next frame: (to, from).
        next: The frame of the next step.
        step: Runs one step and passes the state to the next frame. Called with the caller's inputs, it returns the results, or
            None without any change if the inputs must be checked first. Called with None and checked values, it runs on those.
    """

    index: int
    registers: list[Any] = field(default_factory=list)
    calls: tuple[_Call, ...] = ()
    register_moves: tuple[tuple[int, int], ...] = ()
    register_stores: tuple[tuple[Callable[[Any], Any], int], ...] = ()
    array_copies: tuple[tuple[Array, Array], ...] = ()
    next: Frame = field(init=False, repr=False)
    step: Callable[..., Any] = field(init=False, repr=False)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of an engine.

    Attributes:
        label: The node, for messages.
        function: The function to call, with the registers ``inputs``.
        outputs: The registers that take the results; empty when the results are in host memory.
        single: Whether one bare result comes back instead of a tuple.
        loads: Values to copy into host memory before the call: (copy function, register).
        checks: The expected results: (register, shape, dtype, key).
        guard: Does all checks in one call.
        moves: Results that are inputs of a later call: (from, to).
        when_known: See ``TorchUnit``.
    """

    label: str
    function: Callable[..., Any]
    inputs: range
    outputs: range = range(0)
    single: bool = False
    loads: tuple[tuple[Callable[[Any], Any], int], ...] = ()
    checks: tuple[tuple[int, Any, Any, str], ...] = ()
    guard: Guard | None = None
    moves: tuple[tuple[int, int], ...] = ()
    when_known: Callable[[Callable[[Callable[..., Any]], None]], None] | None = None


class Program:
    """The memory and the calls of a plan: it decides where every value lives, then writes the frames.

    Args:
        plan: The wiring.
        units: The engines, in execution order.
        tensors_enter: Whether the caller's tensors go to torch units as they are, without host memory between.
    """

    def __init__(self, plan: Plan, units: Sequence[Unit], tensors_enter: bool) -> None:
        self._plan = plan
        self._tensors_enter = tensors_enter
        self.resizable = plan.batch is not None
        self.torch = any(isinstance(unit, TorchUnit) for unit in units)
        self._templates: list[tuple[Any, Any]] = []
        self._views: dict[int, Any] = {}
        self._kept: list[Any] = []  # keeps bindings alive: engines refer to them by address only
        onnx = [unit for unit in units if isinstance(unit, OnnxUnit)]
        torch = [unit for unit in units if isinstance(unit, TorchUnit)]
        self.inputs: dict[str, Slot] = {}
        self.outputs: dict[str, Slot] = {}
        self._place_arrays([k for u in onnx for k in u.inputs], [k for u in onnx for k in u.outputs])
        ranges = {unit.label: self._place_torch(unit) for unit in torch}
        self.frames = [Frame(index) for index in range(2 if plan.feedback else 1)]
        calls = [
            self._onnx_calls(unit)
            if isinstance(unit, OnnxUnit)
            else [self._torch_call(unit, ranges[unit.label])] * len(self.frames)
            for unit in units
        ]
        for frame in self.frames:
            frame.calls = tuple([each[frame.index] for each in calls])
            frame.registers = [pair[frame.index] for pair in self._templates]
            frame.next = self.frames[(frame.index + 1) % len(self.frames)]
            self._keep_state(frame)

    def _place_arrays(self, inputs: list[str], outputs: list[str]) -> None:
        """Allocate host memory for every value that an ONNX session reads or writes."""
        ports, made = self._plan.input_ports, self._plan.output_ports
        for key in inputs:
            source = self._plan.feedback.get(key)
            if source in outputs and source not in self.outputs:
                here, there = allocate(ports[key]), allocate(ports[key])
                self.inputs[key] = Slot(ports[key], (here, there))
                self.outputs[source] = Slot(made[source], (there, here))
        for key in outputs:
            if key not in self.outputs:
                self.outputs[key] = _fixed(made[key])
        for key in inputs:
            source = self._plan.edges.get(key)
            if source in self.outputs:
                self.inputs[key] = self.outputs[source]
            elif key not in self.inputs:
                self.inputs[key] = self._memory(key)

    def _place_torch(self, unit: TorchUnit) -> tuple[range, range]:
        """Assign consecutive registers to the inputs of a torch unit, then to its outputs."""
        start = len(self._templates)
        for key in unit.inputs:
            port = self._plan.input_ports[key]
            source = self._plan.edges.get(key) or self._plan.feedback.get(key)
            slot = Slot(port, None, len(self._templates))
            if key in self._plan.edges and source in self.outputs and self.outputs[source].arrays:
                slot = Slot(port, self.outputs[source].arrays, slot.register)
            elif (source in self.outputs and self.outputs[source].arrays) or (
                key in self._plan.inputs and not self._tensors_enter
            ):
                slot = Slot(port, self._memory(key).arrays, slot.register)
            self.inputs[key] = slot
            self._templates.append(self._pair(slot.arrays, port))
        stop = len(self._templates)
        for key in unit.outputs:
            self.outputs[key] = Slot(self._plan.output_ports[key], None, len(self._templates))
            self._templates.append((None, None))
        return range(start, stop), range(stop, len(self._templates))

    def _memory(self, key: str) -> Slot:
        """Host memory for an input: one array, or two for a state."""
        port = self._plan.input_ports[key]
        return Slot(port, (allocate(port), allocate(port))) if key in self._plan.feedback else _fixed(port)

    def _pair(self, arrays: tuple[Array, Array] | None, port: Port) -> tuple[Any, Any]:
        return (self.view(arrays[0], port), self.view(arrays[1], port)) if arrays else (None, None)

    def view(self, array: Array, port: Port) -> Any:
        """The tensor over an array, made once for each array."""
        if id(array) not in self._views:
            from leapp.runtime.torch_engines import tensor_over

            self._views[id(array)] = tensor_over(array, port.dtype)
        return self._views[id(array)]

    def _onnx_calls(self, unit: OnnxUnit) -> list[_Call]:
        """The call in each frame. A binding is an input of the call like any other, in one register of all frames."""
        bindings = [self._bound(unit, frame.index) for frame in self.frames]
        self._kept += bindings
        register = len(self._templates)
        self._templates += [(bindings[0].bound, bindings[-1].bound), (None, None)]
        fed = [(self.inputs[key], self._plan.edges.get(key)) for key in unit.inputs]
        from_torch = [(slot, self.outputs[source]) for slot, source in fed if source and self.outputs[source].arrays is None]
        return [
            _Call(
                unit.label,
                bindings[frame.index].run,
                range(register, register + 2),
                loads=tuple([(self.view(to.array(frame.index), to.port).copy_, made.register) for to, made in from_torch]),
            )
            for frame in self.frames
        ]

    def _bound(self, unit: OnnxUnit, turn: int) -> Binding:
        binding = Binding(unit.session)
        for key, name in unit.inputs.items():
            slot = self.inputs[key]
            binding.read(name, slot.port, slot.array(turn))
        for key, name in unit.outputs.items():
            slot = self.outputs[key]
            binding.write(name, slot.port, slot.array(turn))
        return binding

    def _torch_call(self, unit: TorchUnit, registers: tuple[range, range]) -> _Call:
        from leapp.runtime.guards import Guard
        from leapp.runtime.torch_engines import TORCH_DTYPES

        slots = [(key, self.outputs[key]) for key in unit.outputs]
        checks = tuple((s.register, s.port.shape, TORCH_DTYPES[s.port.dtype], key) for key, s in slots)
        moves = tuple(
            (self.outputs[source].register, self.inputs[target].register)
            for target, source in self._plan.edges.items()
            if source in unit.outputs and target in self.inputs and self.inputs[target].arrays is None
        )
        guard = Guard([slot.port.shape for _, slot in slots], [False] * len(slots)) if slots else None
        return _Call(unit.label, unit.call, *registers, unit.single, (), checks, guard, moves, unit.when_known)

    def _keep_state(self, frame: Frame) -> None:
        """Decide how each state gets from this frame to the next one."""
        moves, stores, copies = [], [], []
        for target, source in self._plan.feedback.items():
            to, made = self.inputs[target], self.outputs[source]
            if to.arrays is None:
                moves.append((made.register, to.register))
            elif made.arrays is None:
                stores.append((self.view(to.arrays[frame.next.index], to.port).copy_, made.register))
            elif to.arrays[frame.next.index] is not made.arrays[frame.index]:
                copies.append((to.arrays[frame.next.index], made.arrays[frame.index]))
        frame.register_moves, frame.register_stores, frame.array_copies = tuple(moves), tuple(stores), tuple(copies)


def _fixed(port: Port) -> Slot:
    array = allocate(port)
    return Slot(port, (array, array))


class Binding:
    """The memory that a session reads and writes in one run.

    It uses the C++ objects of ONNX Runtime where they are found. Their public Python wrappers would add a few calls to every
    step, and most of the time to opening a small model.

    Attributes:
        run: Runs the session on ``bound``. It takes run options as well, or None.
        bound: The binding as ``run`` takes it.
    """

    __slots__ = ("_place", "_public", "bound", "run")

    def __init__(self, session: Any) -> None:
        self._public = session.io_binding()
        run: Any = getattr(getattr(session, "_sess", None), "run_with_iobinding", None)
        bound: Any = getattr(self._public, "_iobinding", None)
        device = _host_memory()
        place: tuple[Any, ...] = (device,)
        if run is None or bound is None or device is None:
            run, bound, place = session.run_with_iobinding, self._public, ("cpu", 0)
        self.run, self.bound, self._place = run, bound, place

    def read(self, name: str, port: Port, array: Array) -> None:
        """Let the session read the value of a port in an array."""
        self.bound.bind_input(name, *self._place, DTYPES[port.dtype].onnx, port.shape, array.__array_interface__["data"][0])

    def write(self, name: str, port: Port, array: Array) -> None:
        """Let the session write the value of a port to an array."""
        self.bound.bind_output(name, *self._place, DTYPES[port.dtype].onnx, port.shape, array.__array_interface__["data"][0])


@functools.cache
def _host_memory() -> Any:
    """ONNX Runtime's C++ object for host memory, if it is found."""
    import onnxruntime as ort

    bare = getattr(ort.OrtDevice.make("cpu", 0), "_get_c_device", None)
    return None if bare is None else bare()
