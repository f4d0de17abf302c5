"""What a pipeline keeps between steps: its state, the inputs it holds, and the number of rows both are made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from leapp.errors import InputError, InputTypeError, UnknownPortError
from leapp.graph.contract import Port, key, split_key
from leapp.runtime.arrays import Array
from leapp.runtime.base import Face
from leapp.runtime.buffers import Frame, Program, Slot
from leapp.runtime.values import is_tensor, require_plain, rows_of, spread, to_array

__all__ = ["Stateful"]


class Stateful(Face):
    """A runner's memory, as callers read and write it."""

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
            values = {}
            for k in keys:
                values[k] = self._initial[k]
                if rows is not None:
                    values[k] = self._read(k)
                    chosen: Any = (*(slice(None),) * axes[k], rows)
                    values[k][chosen] = self._initial[k][chosen]
            self._replace(values)
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
            self._replace({k: self._host(k, value) for k, value in values.items()})

    def _state(self) -> dict[str, Array]:
        self._check_runnable()
        with self._lock:
            return {k: self._read(k) for k in self._plan.feedback}

    def set_input_value(self, node_name: str, input_name: str, value: Any) -> None:
        """Set a state, or hold a value for an input that later steps do not give.

        The value is broadcast to the port's shape. Arrays and tensors have the port's dtype, unless the runner was opened
        with ``cast=True``; numbers and lists take it. ``h`` stands for ``h_in`` when an export renamed the port so.

        Raises:
            UnknownPortError: There is no such node or input.
            InputError: The value cannot be broadcast, has another dtype, or another node feeds the input.

        Example:
            >>> pipeline.set_input_value("policy", "h", 0.0)
        """
        self._check_runnable()
        where = self._plan.input_key(key(node_name, input_name))
        port = self._plan.input_ports[where]
        self._refuse_internal(where)
        array = self._broadcast(where, port, value)
        with self._lock:
            if where in self._plan.feedback:
                self._replace({where: array})
            else:
                self._held[where] = self._own(where, array)

    def _broadcast(self, where: str, port: Port, value: Any) -> Array:
        if isinstance(value, np.generic):
            value = value.item()  # a number, whatever NumPy calls its type
        array = to_array(where, _like(port, value), value, self._cast)
        try:
            fitted: Array = np.broadcast_to(array, port.shape).copy()
        except ValueError:
            raise InputError(
                f"Input {where!r}: a value of shape {list(array.shape)} cannot be broadcast to {list(port.shape)}."
            ) from None
        return fitted

    def _read(self, where: str) -> Array:
        """A copy of a state."""
        slot: Slot = self._program.inputs[where]
        value = slot.value(self._program.frame)
        if slot.arrays is None:
            from leapp.runtime.torch_engines import array_over

            value = array_over(value)
        return np.array(value)

    def _replace(self, values: Mapping[str, Array]) -> None:
        """Put values in place of states: all of them, or none if it is interrupted."""
        if values:
            there = self._program.frame.next
            for k in self._plan.feedback:
                _place(self._program.inputs[k], there, values[k] if k in values else self._read(k))
            self._program.frame = there

    def _refuse_internal(self, where: str) -> None:
        if where in self._plan.edges:
            raise InputError(f"Input {where!r} is fed by {self._plan.edges[where]!r} and cannot be given.")

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
        program = Program(plan, self._engines, self._register_inputs)
        for k, value in initial.items():
            _place(program.inputs[k], program.frame, value)
        before = self._plan, self._initial, self._program
        try:
            self._plan, self._initial, self._program = plan, initial, program
            self._prepare()
            # A thread that is about to run a step of the former program is led to this one.
            before[2].frame = program.frame
        except BaseException:
            self._plan, self._initial, self._program = before
            self._prepare()
            raise

    def _rows_of(self, values: Mapping[str, Any]) -> int | None:
        """The number of rows that values for inputs have; ``None`` if they do not tell.

        Raises:
            InputError: They have different numbers of rows.
        """
        found: dict[int, str] = {}
        for name, value in values.items():
            where = self._plan.input_key(name)
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
        replaced = {self._plan.input_key(name) for name in given}
        for k in self._plan.feedback:
            kept = k not in replaced and self._plan.input_ports[k].batch_axis is not None
            if kept and self._read(k).tobytes() != self._initial[k].tobytes():
                raise InputError(
                    f"The inputs have {rows} rows, but state {k!r} holds what {self._plan.batch} rows left. Call reset() "
                    "before another batch."
                )
        self._resize(rows)


def _place(slot: Slot, frame: Frame, value: Array) -> None:
    """Put a value where a frame reads it."""
    if slot.arrays is not None:
        slot.arrays[frame.index][...] = value
    else:
        from leapp.runtime.torch_engines import tensor_over

        # A fresh tensor: the one in the register may be an inference tensor, which cannot be written.
        frame.registers[slot.register] = tensor_over(np.array(value, order="C"), slot.port.dtype)


def _rows(mask: Any) -> Array:
    rows = np.asarray(mask.detach().cpu() if is_tensor(mask) else mask)
    if rows.dtype != np.bool_:
        # Numbers could be meant as row numbers.
        raise InputTypeError(f"A mask holds one truth value a row, got {rows.dtype}. Convert it to bool.")
    return rows


def _like(port: Port, value: Any) -> Port:
    """The port with the shape of the value, so that only the dtype is judged."""
    if is_tensor(value):
        require_plain(port.name, port, value)
    shape = tuple(value.shape) if hasattr(value, "shape") else np.shape(value)
    return msgspec.structs.replace(port, shape=shape)
