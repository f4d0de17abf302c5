"""What a pipeline keeps between steps: its state, kept inputs, and the number of rows of both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from leapp.errors import InputError, InputTypeError, UnknownPortError
from leapp.graph.contract import Port, key, split_key
from leapp.runtime.arrays import Array
from leapp.runtime.base import RunnerBase
from leapp.runtime.engine import Engine
from leapp.runtime.values import is_tensor, require_plain, rows_of, to_array


class Stateful(RunnerBase):
    """The methods of a runner that read and set its state."""

    _batch_is_fixed = False

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
            if node is None and rows is None:
                self._engine.reset()
                return
            initial = self._engine.initial
            axes = {k: self._row_axis(k, rows) for k in keys} if rows is not None else {}
            values = {}
            for k in keys:
                values[k] = initial[k]
                if rows is not None:
                    values[k] = self._engine.read(k)
                    chosen: Any = (*(slice(None),) * axes[k], rows)
                    values[k][chosen] = initial[k][chosen]
            self._engine.replace(values)

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
            self._engine.load({k: self._host(k, value) for k, value in values.items()})

    def _state(self) -> dict[str, Array]:
        self._check_runnable()
        with self._lock:
            return {k: self._engine.read(k) for k in self._plan.feedback}

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
                self._engine.replace({where: array})
            else:
                self._engine.kept_inputs[where] = self._own(where, array)

    def _broadcast(self, where: str, port: Port, value: Any) -> Array:
        if isinstance(value, np.generic):
            value = value.item()  # a NumPy number as a Python number, which takes the dtype of the port
        array = to_array(where, _like(port, value), value, self._cast)
        try:
            fitted: Array = np.broadcast_to(array, port.shape).copy()
        except ValueError:
            raise InputError(
                f"Input {where!r}: a value of shape {list(array.shape)} cannot be broadcast to {list(port.shape)}."
            ) from None
        return fitted

    def _refuse_internal(self, where: str) -> None:
        if where in self._plan.edges:
            raise InputError(f"Input {where!r} is fed by {self._plan.edges[where]!r} and cannot be given.")

    # The batch, in pipelines that take any.

    @property
    def batch(self) -> int | None:
        """The number of rows that memory and state are made for; ``None`` for a pipeline of fixed sizes.

        It follows the inputs of a step, or the ``batch`` given to ``reset``.
        """
        return self._plan.batch

    def _resize(self, rows: int) -> None:
        """Make memory for another number of rows, with the initial state in it."""
        if self._batch_is_fixed:
            raise InputError(f"A served bundle runs with one batch: {self.batch} rows, not {rows}.")
        self._engine.resize(rows, self._install)

    def _install(self, engine: Engine) -> None:
        self._engine = engine

    def _rows_of(self, values: Mapping[str, Any]) -> int | None:
        """The number of rows of values for inputs; ``None`` if no value has a batch axis.

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
        """Prepare for the number of rows in the inputs of a step."""
        rows = self._rows_of({**self._engine.kept_inputs, **given})
        if rows is None or rows == self._plan.batch:
            return
        replaced = {self._plan.input_key(name) for name in given}
        for k in self._plan.feedback:
            kept = k not in replaced and self._plan.input_ports[k].batch_axis is not None
            if kept and self._engine.read(k).tobytes() != self._engine.initial[k].tobytes():
                raise InputError(
                    f"The inputs have {rows} rows, but state {k!r} holds what {self._plan.batch} rows left. Call reset() "
                    "before another batch."
                )
        self._resize(rows)


def fix_batch(runner: Stateful) -> None:
    """Make a runner refuse any other number of rows from now on."""
    runner._batch_is_fixed = True


def _rows(mask: Any) -> Array:
    rows = np.asarray(mask.detach().cpu() if is_tensor(mask) else mask)
    if rows.dtype != np.bool_:
        # Integers could be row numbers instead of truth values.
        raise InputTypeError(f"A mask holds one truth value a row, got {rows.dtype}. Convert it to bool.")
    return rows


def _like(port: Port, value: Any) -> Port:
    """The port with the shape of the value, so that only the dtype is checked."""
    if is_tensor(value):
        require_plain(port.name, port, value)
    shape = tuple(value.shape) if hasattr(value, "shape") else np.shape(value)
    return msgspec.structs.replace(port, shape=shape)
