"""What the two faces of a running pipeline share: opening, inspection, state, held inputs.

A face adds one thing: how values come in and go out (NumPy arrays, torch tensors). All state lives in the program;
every public method that touches it holds the lock, so a runner shared by threads is slow at worst, never wrong.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from leapp.bundle.layout import MODELS, PIPELINE, SYSTEM, dump_contract
from leapp.bundle.onnx_files import external_files
from leapp.bundle.packages import check_package
from leapp.bundle.reading import Bundle, model_file, open_bundle, read_initial_values, read_model
from leapp.bundle.text import parse
from leapp.errors import BundleError, InputError, InputTypeError, UnknownPortError
from leapp.graph.contract import Port, key, split_key
from leapp.graph.html import describe_contract
from leapp.runtime.arrays import Array, allocate, is_float
from leapp.runtime.binding import Bound, Reordering, reorder
from leapp.runtime.engines import EngineOptions, Unit, load_units
from leapp.runtime.latency import Latency, measure
from leapp.runtime.memory import Unnamed
from leapp.runtime.plan import Plan, make_plan
from leapp.runtime.ports import PortInfo, describe
from leapp.runtime.program import Program, Slot
from leapp.runtime.recording import Recorder, Recording, Replay, RunStep, compare, read_recording
from leapp.runtime.values import from_raw, is_tensor, rows_of, spread, to_array

__all__ = ["NonFinite", "Runner"]

NonFinite = Literal["ignore", "warn", "raise"]


class Runner:
    """A loaded bundle. Use ``leapp.runtime.Pipeline`` or ``leapp.InferenceManager``.

    Args:
        model_path: The bundle's YAML file or its directory, or a bundle that is already open.
        threads: Threads of one ONNX session.
        providers: ONNX Runtime execution providers. None takes CUDA when present, then the CPU.
        device: Where TorchScript and ``.pt2`` nodes run. None takes CUDA when present, else the CPU.
        cast: Convert inputs of another dtype when the kind fits, such as float64 to float32.
        sticky: Reuse the last value of an input that is not given (zeros before the first).
        nonfinite: What to do about NaN and infinity in inputs.
        copy: Return outputs on memory of their own. False returns views that the next step overwrites.
        allow_code: TorchScript and ``.pt2`` models are programs. None accepts them unless they bring native code or
            pickled objects along, True accepts these too, False refuses all programs.
        allow_outside: Accept model files outside the bundle's directory.
        expect_digest: Refuse any bundle but the one with this digest.
    """

    _register_inputs = False

    def __init__(
        self,
        model_path: str | os.PathLike[str] | Bundle,
        *,
        threads: int = 1,
        providers: Sequence[str] | None = None,
        device: str | None = None,
        cast: bool = False,
        sticky: bool = False,
        nonfinite: NonFinite = "ignore",
        copy: bool = True,
        allow_code: bool | None = None,
        allow_outside: bool = False,
        expect_digest: str | None = None,
    ) -> None:
        if nonfinite not in ("ignore", "warn", "raise"):
            raise InputError(f"nonfinite is 'ignore', 'warn' or 'raise', not {nonfinite!r}.")
        self.model_path = model_path
        if isinstance(model_path, Bundle):
            self._bundle = model_path
        else:
            self._bundle = open_bundle(model_path, allow_outside=allow_outside, expect_digest=expect_digest)
        self._plan: Plan = make_plan(self._bundle.contract)
        self._allow_code = allow_code
        if allow_code is False:
            self._refuse_code()
        self._options = EngineOptions(threads, tuple(providers) if providers is not None else None, device)
        self._cast, self._sticky, self._nonfinite, self._copy = cast, sticky, nonfinite, copy
        self._lock = threading.RLock()
        self._held: dict[str, Any] = {}
        self._initial = self._initial_values()
        self._plain = not sticky and nonfinite == "ignore"
        self._program: Any = None
        if not self._plan.missing:
            self._program = self._load()
            self._prepare()
            self.reset()

    # Opening.

    def _refuse_code(self) -> None:
        for name, node in self._plan.contract.nodes.items():
            if node.model.backend in ("jit", "pt2"):
                raise BundleError(
                    f"Node {name!r} is a {node.model.backend} model, which is a program; allow_code=False refuses it."
                )

    def _model(self, node: str) -> bytes | Path:
        data = read_model(self._bundle, node)
        backend = self._plan.contract.nodes[node].model.backend
        if backend == "onnx":
            # Reading has walked the whole model; a second walk pays only where the word occurs at all.
            outside = b"location" in data and external_files(data, node)
            return model_file(self._bundle, node) if outside else data
        assert backend is not None
        check_package(data, backend, f"The {backend} model of node {node!r}", allow_native=self._allow_code is True)
        return data

    def _units(self, nodes: Sequence[str], options: EngineOptions) -> list[Unit]:
        def model(node: str) -> bytes | Path:
            found = self._model(node)
            return unnamed.hold(found) if isinstance(found, bytes) else found

        with Unnamed() as unnamed:
            return load_units(self._plan, nodes, model, options)

    def _load(self) -> Program:
        self._engines = self._units(self._plan.order, self._options)
        return Program(self._plan, self._engines, self._register_inputs)

    def _initial_values(self) -> dict[str, Array]:
        stored = read_initial_values(self._bundle)
        ports = self._plan.input_ports
        return {k: from_raw(stored[k]) if k in stored else allocate(ports[k]) for k in self._plan.feedback}

    # The batch, in pipelines that take any.

    @property
    def batch(self) -> int | None:
        """The number of rows that memory and state are made for; ``None`` for a pipeline of fixed sizes.

        It follows the inputs of a step, or what ``reset`` is told.
        """
        return self._plan.batch

    def _resize(self, rows: int) -> None:
        """Make memory for another number of rows, with the initial state in it."""
        if rows < 1:
            raise InputError(f"A batch has one row or more, not {rows}.")
        plan = self._plan.at(rows)
        initial = {k: spread(k, v, plan.input_ports[k]) for k, v in self._initial.items()}
        program, former = Program(plan, self._engines, self._register_inputs), self._program
        self._plan, self._initial, self._program = plan, initial, program
        self._prepare()
        # A thread that is about to run a step of the former program is led to this one.
        former.frame = program.frame
        for k, value in initial.items():
            self._write(k, value)

    def _rows_of(self, values: Mapping[str, Any]) -> int | None:
        """The number of rows that values for inputs have; ``None`` if they do not tell.

        Raises:
            InputError: They have different numbers of rows.
        """
        found: dict[int, str] = {}
        for name, value in values.items():
            where = self._resolve(name)
            rows = rows_of(value, self._plan.input_ports[where])
            if rows is not None:
                found.setdefault(rows, where)
        if len(found) > 1:
            (rows, one), (others, other), *_ = found.items()
            raise InputError(f"Input {one!r} has {rows} rows and {other!r} has {others}: all inputs share one batch.")
        return next(iter(found), None)

    def _follow_batch(self, given: Mapping[str, Any]) -> None:
        """Prepare for the number of rows that a step is given."""
        rows = self._rows_of({**self._held, **given})
        if rows is None or rows == self._plan.batch:
            return
        replaced = {self._resolve(name) for name in given}
        for k in self._plan.feedback:
            kept = k not in replaced and self._plan.input_ports[k].batch_axis is not None
            if kept and self._read(k).tobytes() != self._initial[k].tobytes():
                raise InputError(
                    f"The inputs have {rows} rows, but state {k!r} holds what {self._plan.batch} rows left. Call reset() "
                    "before another batch."
                )
        self._resize(rows)

    def _prepare(self) -> None:
        """Build what the face needs for its step."""
        raise NotImplementedError

    def _check_runnable(self) -> None:
        if self._plan.missing:
            names = ", ".join(map(repr, self._plan.missing))
            raise BundleError(f"The bundle has no model for node {names}, so it can be inspected but not run.")

    # Inspection.

    @property
    def inputs(self) -> list[str]:
        """The keys a step takes."""
        return list(self._plan.inputs)

    @property
    def outputs(self) -> list[str]:
        """The keys a step returns."""
        return list(self._plan.outputs)

    @property
    def feedback_inputs(self) -> list[str]:
        """The keys that hold state between steps."""
        return list(self._plan.feedback)

    @property
    def digest(self) -> str | None:
        """The digest of the bundle, if it is sealed."""
        return self._bundle.digest

    @property
    def configs(self) -> dict[str, Any]:
        """What was given as ``graph_configs`` at export."""
        return dict(self._plan.contract.pipeline.configs or {})

    @property
    def frequency(self) -> float | None:
        """The rate in hertz the pipeline was made for, if the bundle says."""
        return self.configs.get("frequency")

    @property
    def leapp_description(self) -> dict[str, Any]:
        """The bundle's YAML as plain values."""
        description: dict[str, Any] = parse(dump_contract(self._plan.contract), "bundle")
        return description

    @property
    def models(self) -> dict[str, Any]:
        """The ``models`` part of the description."""
        models: dict[str, Any] = self.leapp_description[MODELS]
        return models

    @property
    def pipeline(self) -> dict[str, Any]:
        """The ``pipeline`` part of the description."""
        pipeline: dict[str, Any] = self.leapp_description[PIPELINE]
        return pipeline

    @property
    def system_info(self) -> dict[str, Any]:
        """The ``system information`` part of the description."""
        system: dict[str, Any] = self.leapp_description[SYSTEM]
        return system

    @property
    def input_ports(self) -> dict[str, PortInfo]:
        """The catalogue of inputs."""
        return {k: describe(k, self._plan.input_ports[k], "input") for k in self._plan.inputs}

    @property
    def output_ports(self) -> dict[str, PortInfo]:
        """The catalogue of outputs."""
        return {k: describe(k, self._plan.output_ports[k], "output") for k in self._plan.outputs}

    @property
    def feedback_ports(self) -> dict[str, PortInfo]:
        """The catalogue of inputs that hold state."""
        return {k: describe(k, self._plan.input_ports[k], "feedback") for k in self._plan.feedback}

    @property
    def ports(self) -> list[PortInfo]:
        """The whole catalogue: inputs, feedback, outputs."""
        return [*self.input_ports.values(), *self.feedback_ports.values(), *self.output_ports.values()]

    def __repr__(self) -> str:
        what = f"{len(self._plan.contract.nodes)} nodes, takes {self.inputs}, returns {self.outputs}"
        return f"<{type(self).__name__} {self._bundle.graph!r}: {what}>"

    def _repr_html_(self) -> str:
        return describe_contract(f"{type(self).__name__} {self._bundle.graph}", self._plan.contract, self.digest)

    def inputs_by_kind(self, kind: object) -> list[PortInfo]:
        """All inputs of a kind, given as a string or as an enum member.

        Example:
            >>> [port.key for port in pipeline.inputs_by_kind("state/joint/position")]
            ['policy/obs']
        """
        return [port for port in self.input_ports.values() if port.kind == _kind(kind)]

    def outputs_by_kind(self, kind: object) -> list[PortInfo]:
        """All outputs of a kind, given as a string or as an enum member.

        Example:
            >>> [port.key for port in pipeline.outputs_by_kind("target/joint/position")]
            ['policy/action']
        """
        return [port for port in self.output_ports.values() if port.kind == _kind(kind)]

    def input_by_kind(self, kind: object) -> PortInfo | None:
        """The first input of a kind, or None.

        Example:
            >>> pipeline.input_by_kind("state/joint/position").element_names
            ('hip', 'knee')
        """
        return next(iter(self.inputs_by_kind(kind)), None)

    def output_by_kind(self, kind: object) -> PortInfo | None:
        """The first output of a kind, or None.

        Example:
            >>> pipeline.output_by_kind("kp") is None
            True
        """
        return next(iter(self.outputs_by_kind(kind)), None)

    def bind(
        self, inputs: Mapping[str, Sequence[str]] | None = None, outputs: Mapping[str, Sequence[str]] | None = None
    ) -> Bound:
        """The same pipeline for vectors in the robot's order.

        Args:
            inputs: For an input key, the names of the elements in the order the robot gives them.
            outputs: For an output key, the names of the elements in the order the robot wants them.

        Raises:
            InputError: Some names are not those of their port. The message lists missing and extra ones of every port.
            UnknownPortError: A key names no input or output.

        Example:
            >>> robot = pipeline.bind(inputs={"policy/obs": ["knee", "hip"]})
            >>> outputs = robot({"policy/obs": np.array([0.3, -0.1], np.float32)})  # knee first
        """
        entering, leaving = inputs or {}, outputs or {}
        for where, keys in [(k, self.inputs) for k in entering] + [(k, self.outputs) for k in leaving]:
            if where not in keys:
                raise UnknownPortError(f"{where!r} cannot be bound; there are {keys}.")
        ports = self._plan.input_ports, self._plan.output_ports
        orders: tuple[dict[str, Reordering], dict[str, Reordering]] = ({}, {})
        problems = []
        for side, names in enumerate((entering, leaving)):
            for k, given in names.items():
                try:
                    orders[side][k] = reorder(k, ports[side][k], given, side == 0)
                except InputError as error:
                    problems.append(str(error))
        if problems:
            raise InputError("\n".join(problems))
        return Bound(self, *orders)

    # State.

    def reset(self, node: str | None = None, mask: Any = None, *, batch: int | None = None) -> None:
        """Put the state back to its initial values.

        Without arguments, values held by ``set_input_value`` are forgotten too.

        Args:
            node: Reset the state of this node only.
            mask: One truth value a row: reset these rows of every state. The rows are along the batch axis, which is the
                first one in a pipeline of fixed sizes.
            batch: The number of rows of the steps to come, in a pipeline that takes any. By default it follows the first
                step after the reset.

        Example:
            >>> pipeline.reset()
        """
        self._check_runnable()
        if node is not None and node not in self._plan.contract.nodes:
            raise UnknownPortError(f"There is no node {node!r}; there are {sorted(self._plan.contract.nodes)}.")
        if batch is not None and (self._plan.batch is None or node is not None or mask is not None):
            fixed = self._plan.batch is None
            why = "the bundle has fixed sizes" if fixed else "it makes all state anew, so leave out node and mask"
            raise InputError(f"reset(batch={batch}): {why}.")
        keys = [k for k in self._plan.feedback if node is None or split_key(k)[0] == node]
        rows = None if mask is None else _rows(mask)
        with self._lock:
            if batch is not None and batch != self._plan.batch:
                self._resize(batch)
            axes = {k: self._row_axis(k, rows) for k in keys} if rows is not None else {}
            for k in keys:
                if rows is None:
                    self._write(k, self._initial[k])
                else:
                    value = self._read(k)
                    chosen: Any = (*(slice(None),) * axes[k], rows)
                    value[chosen] = self._initial[k][chosen]
                    self._write(k, value)
            if node is None and rows is None:
                self._held.clear()

    def _row_axis(self, where: str, rows: Array) -> int:
        """The axis of a state along which a mask chooses rows."""
        port = self._plan.input_ports[where]
        axis = 0 if self._plan.batch is None else port.batch_axis
        if axis is None:
            raise InputError(f"State {where!r} has no batch axis, so single rows of it cannot be reset.")
        if rows.shape != port.shape[axis : axis + 1]:
            raise InputError(f"The mask has the shape {list(rows.shape)}, but state {where!r} {list(port.shape)}.")
        return axis

    def _state(self) -> dict[str, Array]:
        self._check_runnable()
        with self._lock:
            return {k: self._read(k) for k in self._plan.feedback}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what ``state`` returned.

        Raises:
            UnknownPortError: A key is missing or names no state. Nothing is changed then.
            InputError: A value does not fit. Nothing is changed then.

        Example:
            >>> kept = pipeline.state()
            >>> pipeline.load_state(kept)
        """
        self._check_runnable()
        if set(state) != set(self._plan.feedback):
            raise UnknownPortError(f"The state has the keys {sorted(state)}, expected {sorted(self._plan.feedback)}.")
        with self._lock:
            rows = self._rows_of(state) if self._plan.batch is not None else None
            ports = self._plan.input_ports if rows is None else self._plan.at(rows).input_ports
            values = {k: self._fit(k, ports[k], v) for k, v in state.items()}
            if rows is not None and rows != self._plan.batch:
                self._resize(rows)
            for k, value in values.items():
                self._write(k, self._host(k, value))

    def set_input_value(self, node_name: str, input_name: str, value: Any) -> None:
        """Set a state, or hold a value for an input that later steps do not give.

        The value is broadcast to the port's shape and cast to its dtype. ``h`` stands for ``h_in`` when an export
        renamed the port so.

        Raises:
            UnknownPortError: There is no such node or input.
            InputError: The value cannot be broadcast, or another node feeds the input.

        Example:
            >>> pipeline.set_input_value("policy", "h", 0.0)
        """
        self._check_runnable()
        where = self._resolve(key(node_name, input_name))
        port = self._plan.input_ports[where]
        self._refuse_internal(where)
        array = self._broadcast(where, port, value)
        with self._lock:
            if where in self._plan.feedback:
                self._write(where, array)
            else:
                self._held[where] = self._own(where, array)

    def _broadcast(self, where: str, port: Port, value: Any) -> Array:
        array = to_array(where, _like(port, value), value, True)
        try:
            fitted: Array = np.broadcast_to(array, port.shape).copy()
        except ValueError:
            raise InputError(
                f"Input {where!r}: a value of shape {list(array.shape)} cannot be broadcast to {list(port.shape)}."
            ) from None
        return fitted

    def warm_up(self, steps: int = 3) -> None:
        """Run a few steps on zeros, so that engines finish their preparations, and put the state back.

        Example:
            >>> pipeline.warm_up()
        """
        self._check_runnable()
        with self._lock:
            before, held = self._state(), dict(self._held)
            for _ in range(steps):
                self(self._zeros())
            for k, value in before.items():
                self._write(k, value)
            self._held = held

    def _read(self, where: str) -> Array:
        """A copy of a state."""
        slot: Slot = self._program.inputs[where]
        value = slot.value(self._program.frame)
        if slot.arrays is None:
            from leapp.runtime.torch_engines import array_over

            value = array_over(value)
        return np.array(value)

    def _write(self, where: str, value: Array) -> None:
        slot = self._program.inputs[where]
        if slot.arrays is not None:
            slot.arrays[self._program.frame.index][...] = value
        else:
            from leapp.runtime.torch_engines import tensor_over

            # A fresh tensor: the one in the register may be an inference tensor, which cannot be written.
            fresh = tensor_over(np.array(value, order="C"), slot.port.dtype)
            self._program.frame.registers[slot.register] = fresh

    # Runs, kept and measured.

    def record(self, path: str | os.PathLike[str]) -> Recorder:
        """A step function that keeps inputs, outputs, state and time of every step, to be used in a ``with`` block.

        Args:
            path: The ``.npz`` or ``.mcap`` file written at the end of the block.

        Raises:
            MissingDependencyError: The file is an ``.mcap`` and the package that writes it is not installed.

        Example:
            >>> with pipeline.record("run.npz") as step:
            ...     outputs = step({"policy/obs": obs})
        """
        self._check_runnable()
        return Recorder(path, self if self._plan.batch is None else self._in_one_batch(), self._state, self._passed, self._lock)

    def _in_one_batch(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """A step for the present number of rows only, because a recording has one form."""
        batch = self._plan.batch

        def step(inputs: Mapping[str, Any]) -> dict[str, Any]:
            if self._rows_of(inputs) not in (None, batch):
                raise InputError(f"A recording has one batch, this one {batch} rows. Call reset(batch=...) before record().")
            return self(inputs)

        return step

    def _passed(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Copies of all that a step took, held values included, and of all that it made."""
        return self._arrays({**self._held, **inputs}, self._plan.input_ports), self._arrays(outputs, self._plan.output_ports)

    def replay(self, path: str | os.PathLike[str], rtol: float = 0.0, atol: float = 0.0) -> Replay:
        """Give a recording's inputs to this bundle, from the recorded state on, until a step differs.

        Outputs and state are compared. Where the recorded run was reset or given a state, so is this one. The state is
        left as the last step made it.

        Args:
            path: What ``record`` wrote.
            rtol: How much a value may differ, relative to the recorded one.
            atol: How much a value may differ in any case.

        Raises:
            InputError: The file is no recording of a bundle with these ports.

        Example:
            >>> pipeline.replay("run.npz").difference
        """
        recording = self.read_recording(path)
        difference = None
        for index, (made, want) in enumerate(zip(self.follow(recording), recording.steps(), strict=True)):
            if made.state is not None and want.state is not None:
                difference = compare(index - 1, made.state, want.state, rtol, atol)
            if difference is None:
                difference = compare(index, made.outputs, want.outputs, rtol, atol)
            if difference is not None:
                return Replay(difference.step + 1, difference)
        return Replay(len(recording.inputs), None)

    def read_recording(self, path: str | os.PathLike[str], *, outputs: bool = True) -> Recording:
        """Read what ``record`` wrote.

        Args:
            path: The ``.npz`` or ``.mcap`` file.
            outputs: Whether to read the recorded outputs, which must then be outputs of this bundle.

        Raises:
            InputError: The file is no recording of a bundle with these ports.

        Example:
            >>> recording = pipeline.read_recording("run.npz")
            >>> first = recording.inputs[0], recording.outputs[0]
        """
        made = {k: self._plan.output_ports[k] for k in self._plan.outputs}
        kept = {k: self._plan.input_ports[k] for k in self._plan.feedback}
        return read_recording(path, self._plan.input_ports, made if outputs else None, kept)

    def follow(self, recording: Recording) -> Iterator[RunStep]:
        """Give a recording's inputs to this bundle step by step, from the recorded state on.

        Where the recorded run was reset or given a state, so is this one; elsewhere the bundle's own state goes on. The
        state is left as the last step made it.

        Args:
            recording: What ``read_recording`` returned.

        Example:
            >>> recording = pipeline.read_recording("run.npz")
            >>> actions = [step.outputs["policy/action"] for step in pipeline.follow(recording)]
        """
        self._check_runnable()
        for inputs, state, placed in zip(recording.inputs, recording.state, recording.placed, strict=True):
            if placed:
                self.load_state(state)
            found = None if placed else self._state()
            yield RunStep(found, self._own_arrays(self(inputs)))

    def bench(self, steps: int = 1000, rate: float | None = None) -> Latency:
        """Time steps on random inputs and put the state back.

        Args:
            steps: How many.
            rate: Start them at this rate in hertz, and count those that are late.

        Raises:
            InputError: Steps or rate are not positive.

        Example:
            >>> latency = pipeline.bench(steps=100)
        """
        if steps < 1 or (rate is not None and not rate > 0):
            raise InputError(f"bench takes at least one step and a positive rate, got steps={steps} and rate={rate}.")
        inputs, before, held = self.get_mock_input(), self._state(), self._held
        self.warm_up()
        try:
            return measure(lambda: self(inputs), steps, rate)
        finally:
            self.load_state(before)
            self._held = held

    def _arrays(self, values: Mapping[str, Any], ports: Mapping[str, Port]) -> dict[str, Array]:
        """Copies of inputs or outputs, as arrays."""
        found = {}
        for name, value in values.items():
            where = name if name in ports else self._resolve(name)
            array = to_array(where, ports[where], value.cpu() if is_tensor(value) else value, True)
            found[where] = np.array(array)
        return found

    def _own_arrays(self, outputs: dict[str, Any]) -> dict[str, Array]:
        """The outputs of a step, as arrays that nobody else changes."""
        return self._arrays(outputs, self._plan.output_ports)

    # Inputs, the careful way. Faces look first whether all is as expected, and come here when it is not.

    def _gather(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Check everything a caller gave. Changes nothing but the batch, and that only where no state depends on it.

        Returns:
            The value of each input, of each overridden state, and of each input to hold once the step is done.
        """
        if not isinstance(given, Mapping):
            raise InputTypeError(f"A step takes a mapping from 'node/port' to values, got {type(given).__name__}.")
        if self._plan.batch is not None:
            self._follow_batch(given)
        values: dict[str, Any] = {}
        overrides: dict[str, Any] = {}
        for name, value in given.items():
            where = self._resolve(name)
            self._refuse_internal(where)
            if where in values or where in overrides:
                raise InputError(f"Input {where!r} is given twice.")
            port = self._plan.input_ports[where]
            fitted = self._fit(where, port, value)
            self._check_finite(where, port, fitted)
            (overrides if where in self._plan.feedback else values)[where] = fitted
        missing = [k for k in self._plan.inputs if k not in values and k not in self._held]
        if missing and not self._sticky:
            raise InputError(f"Missing input {', '.join(map(repr, missing))}. A step takes {self.inputs}.")
        held = {**self._held, **{k: self._own(k, allocate(self._plan.input_ports[k])) for k in missing}}
        values = {k: values[k] if k in values else held[k] for k in self._plan.inputs}
        if self._sticky:
            held |= {k: self._duplicate(v) for k, v in values.items()}
        return values, overrides, held

    def _step_carefully(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step on whatever was given. A step that fails leaves the state and the held inputs as they were."""
        with self._lock:
            values, overrides, held = self._gather(given)
            before = {k: self._read(k) for k in overrides}
            try:
                for k, value in overrides.items():
                    self._write(k, self._host(k, value))
                results: dict[str, Any] = self._program.frame.step(None, self._in_order(values))
            except BaseException:
                for k, value in before.items():
                    self._write(k, value)
                raise
            self._held = held
            return results

    def _resolve(self, where: object) -> str:
        ports = self._plan.input_ports
        if not isinstance(where, str):
            raise InputTypeError(f"Inputs are named 'node/port', got {where!r}.")
        if where in ports:
            return where
        if f"{where}_in" in ports:
            return f"{where}_in"
        node, port = split_key(where)
        if not node or not port:
            raise InputError(f"Inputs are named 'node/port', got {where!r}.")
        known = self._plan.contract.nodes.get(node)
        if known is None:
            raise UnknownPortError(f"Input {where!r}: there is no node {node!r}; there are {list(self._plan.order)}.")
        raise UnknownPortError(
            f"Input {where!r}: node {node!r} has no input {port!r}; it has {[p.name for p in known.inputs]}."
        )

    def _refuse_internal(self, where: str) -> None:
        if where in self._plan.edges:
            raise InputError(f"Input {where!r} is fed by {self._plan.edges[where]!r} and cannot be given.")

    def _check_finite(self, where: str, port: Port, value: Any) -> None:
        if self._nonfinite == "ignore" or not is_float(port) or self._finite(value):
            return
        message = f"Input {where!r} holds NaN or infinity."
        if self._nonfinite == "raise":
            raise InputError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=5)

    # What a face provides.

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step."""
        raise NotImplementedError

    def _fit(self, where: str, port: Port, value: Any) -> Any:
        """The value in the form the face loads."""
        raise NotImplementedError

    def _host(self, where: str, value: Any) -> Array:
        """A value in the form the face loads, as an array."""
        raise NotImplementedError

    def _own(self, where: str, array: Array) -> Any:
        """An array nobody else holds, in the form the face loads."""
        raise NotImplementedError

    def _in_order(self, values: Mapping[str, Any]) -> list[Any]:
        """The values of all inputs as the step takes them."""
        raise NotImplementedError

    def _duplicate(self, value: Any) -> Any:
        """A copy of a value in the form the face loads."""
        raise NotImplementedError

    def _finite(self, value: Any) -> bool:
        """Whether a value has neither NaN nor infinity."""
        raise NotImplementedError

    def get_mock_input(self) -> dict[str, Any]:
        """A random value for each input."""
        raise NotImplementedError

    def _zeros(self) -> dict[str, Any]:
        return {k: self._own(k, allocate(self._plan.input_ports[k])) for k in self._plan.inputs}


def _rows(mask: Any) -> Array:
    rows = np.asarray(mask.detach().cpu() if is_tensor(mask) else mask)
    if rows.dtype != np.bool_:
        # Numbers could be meant as row numbers.
        raise InputTypeError(f"A mask holds one truth value a row, got {rows.dtype}. Convert it to bool.")
    return rows


def _kind(kind: object) -> object:
    return getattr(kind, "value", kind)


def _like(port: Port, value: Any) -> Port:
    """The port with the shape of the value, so that only the dtype is judged."""
    import msgspec

    shape = tuple(value.shape) if hasattr(value, "shape") else np.shape(value)
    return msgspec.structs.replace(port, shape=shape)
