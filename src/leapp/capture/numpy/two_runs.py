"""Runs a call on arrays twice: NumPy computes the result, and an expression on the tensors over the arrays is recorded.

The two results are compared. If they differ, or if there is no expression, the call is an escape.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray

from leapp.capture.aliasing import geometry, same_storage
from leapp.capture.batch.symbolic_size import bare
from leapp.capture.handled import note_raised
from leapp.capture.numpy.overlays import Overlay, Overlays, flipped
from leapp.capture.numpy.plain import (
    Array,
    agree,
    arrays_in,
    asarray,
    bare_view,
    from_numpy,
    given,
    ordinary,
    owner_of,
    silent_numpy,
    torch_dtype,
    unwrapped,
)
from leapp.capture.numpy.scalars import TracedScalar, scalar
from leapp.capture.numpy.table import Unmapped
from leapp.capture.numpy.table.tensors import tensor
from leapp.capture.tape import Tape
from leapp.compat.numpy import torch_numpy
from leapp.errors import LeappError

Tensor = torch.Tensor
_TOLERANCE = {np.dtype(n): t for n, t in {"e": 1e-2, "f": 1e-4, "F": 1e-4, "d": 1e-9, "D": 1e-9}.items()}
_LOOSE = 1e-3
_CANNOT = (
    Unmapped, TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, NotImplementedError,
    torch_numpy.linalg.LinAlgError,
)  # fmt: skip
"""The errors that an expression raises for a form of a call that it does not cover. The call is then an escape."""


_OLDER = (
    "written to an array that the node does not follow (it was made before the node: give it to the node with "
    "array = annotate.register_buffer(node, {name: array}))"
)


_array = np.array  # the original: a session replaces np.array
_NUMBERS: dict[type, Callable[..., Any]] = {float: np.float64, int: np.int64, bool: np.bool_}


_NO_MATCH: Any = object()
"""Marks that NumPy and torch computed different values."""


class _Run(NamedTuple):
    """A call that runs in both libraries.

    Attributes:
        tape: The tape that its operands belong to.
        first: How many values the tape had before the call.
        check: What to compare: ``values``, their ``magnitude``, or the ``shape`` alone.
        operands: The arrays and tensors among its arguments.
    """

    tape: Tape | None
    first: int
    check: str
    operands: list[Any]


class TwoRuns:
    """Runs calls in both libraries.

    Args:
        memory: The tensors over arrays.
    """

    def __init__(self, memory: Overlays) -> None:
        self.memory = memory

    def perform(
        self, name: str, operands: list[Any], numpy: Callable[[], Any], expression: Callable[[], Any],
        check: str = "values",
    ) -> Any:  # fmt: skip
        """Run a call in NumPy and record it in torch; an escape if the two do not agree."""
        with self.memory.recorder.lock:
            tape = self.memory.traced_by(operands)
            first = 0 if tape is None else len(tape.memory_of)
            found = self.attempt(tape, expression)
            try:
                result = self.memory.quietly(numpy)
            except (ValueError, ArithmeticError) as error:
                note_raised(tape, name, error)
                raise
            wrapped = self._wrapped(result, found, _Run(tape, first, check, operands))
            if wrapped is _NO_MATCH:
                self.memory.escape(tape, name, operands, result)
                return result
            return wrapped

    @staticmethod
    def attempt(tape: Tape | None, expression: Callable[[], Any]) -> Any:
        """The result of an expression; ``None`` if it does not cover the call, or reads a value out of the graph itself."""
        mark = 0 if tape is None else len(tape.escapes)
        try:
            found = expression()
        except LeappError:
            raise
        except _CANNOT:
            found = None
        if tape is not None and len(tape.escapes) > mark:
            del tape.escapes[mark:]
            found = None
        return found

    def _wrapped(self, result: Any, found: Any, run: _Run) -> Any:
        """The result of a call with the recorded values attached, or ``_NO_MATCH``."""
        if isinstance(result, (np.ndarray, np.generic)):
            return self._wrapped_leaf(result, found, run)
        if isinstance(result, (tuple, list)):
            return self._wrapped_sequence(result, found, run)
        if type(result) in _NUMBERS:
            made = self._wrapped_leaf(_NUMBERS[type(result)](result), found, run)
            weak = made is not _NO_MATCH and type(result) is not bool
            return scalar(made.array, type(result)) if weak and self.memory.traced(made.array) is not None else made
        return _NO_MATCH

    def _wrapped_sequence(self, result: Any, found: Any, run: _Run) -> Any:
        if not isinstance(found, (tuple, list)) or len(found) != len(result):
            found = [None] * len(result)
        items, traced = [], False
        for r, f in zip(result, found, strict=True):
            item = r
            if type(r) is float and isinstance(f, Tensor):
                item = self._wrapped(r, f, run)
            elif isinstance(r, (np.ndarray, np.generic)) and not isinstance(f, int):
                item = self._wrapped_leaf(r, f, run)
                if item is _NO_MATCH and self._constant(r, f, run.tape):
                    item = r
            if item is _NO_MATCH:
                return _NO_MATCH
            items.append(item)
            traced = traced or item is not r
        if not traced:
            return _NO_MATCH
        return type(result)(*items) if hasattr(result, "_fields") else type(result)(items)

    def _wrapped_leaf(self, result: Any, found: Any, run: _Run) -> Any:
        t = unwrap(found, self.memory)
        dtype = torch_dtype(result.dtype)
        view = self._view(result, t, run) if isinstance(result, np.ndarray) else None
        if view is not None:
            return view
        with self.memory.recorder.silence():
            fits = t is not None and dtype is not None and tuple(t.shape) == result.shape
            same_type = t is not None and t.dtype == dtype
        if t is None or not fits:
            return _NO_MATCH
        t = t if same_type else t.to(dtype)
        if not self._known(t, run.tape):
            return _NO_MATCH if run.tape is not None else result
        if run.check != "shape" and not self._agree(result, t, run.check == "magnitude"):
            return _NO_MATCH
        number = isinstance(result, np.generic)
        plain: Array = asarray(result)
        if any(s < 0 for s in plain.strides) or owner_of(plain) is not plain:
            plain = plain.copy(order="K")
        made = self.memory.wrap(plain, self._rebind(t, plain, run))
        return scalar(made) if number else made

    def _constant(self, result: Any, found: Any, tape: Tape | None) -> bool:
        """Whether one of several results does not depend on traced values."""
        t = unwrap(found, self.memory)
        if t is None or self._known(t, tape):
            return False
        return self._agree(result, t.to(torch_dtype(result.dtype)), magnitude=False)

    def _known(self, t: Tensor, tape: Tape | None) -> bool:
        with self.memory.recorder.silence():
            return tape.find(t) is not None if tape is not None else self.memory.recorder.source(t) is not None

    def _view(self, result: Array, t: Tensor | None, run: _Run) -> Array | None:
        """``result`` as a traced array, if it is a view of memory that is known already; else ``None``.

        If the expression does not return the same view, the position of ``result`` in memory is used. That is allowed only if
        there is one traced operand, since the position must not depend on another traced value.
        """
        found = self.memory.overlay(result) if self.memory.is_root(owner_of(result)) else None
        if found is None:
            return None
        with self.memory.recorder.silence():
            same = (
                t is not None and not found.flips and geometry(found.tensor) == geometry(t)
                and same_storage(found.tensor, t)
            )  # fmt: skip
        if not same:
            viewed = [t.dtype for t in self.memory.over(run.operands) if self.memory.traced(t) is not None]
            if viewed != [found.tensor.dtype] or self.memory.traced(result) is None:
                return None
        made = self.memory.wrap(result)
        self.memory.attach(made, t if t is not None and same else found.tensor, found.flips, found.root)
        return made

    def _agree(self, result: Any, t: Tensor, magnitude: bool) -> bool:
        a, b = asarray(result), silent_numpy(t)
        return agree(np.abs(a), np.abs(b), _LOOSE) if magnitude else agree(a, b, _TOLERANCE.get(b.dtype, 0.0))

    def _rebind(self, t: Tensor, plain: Array, run: _Run) -> Tensor:
        """A tensor over the memory of NumPy's result, which takes the slot of torch's result ``t``."""
        with self.memory.recorder.silence():
            new = ordinary(from_numpy(plain))
            self.memory.hold(plain, new)
            if run.tape is None:
                self.memory.copy_source(t, new)
            elif not run.tape.move(t, new, run.first):
                run.tape.same(t, new)
        return new

    # -- writing ---------------------------------------------------------------------------------------------------------

    def write(
        self, name: str, target: Array, operands: list[Any], numpy: Callable[[], Any], record: Callable[[Tensor], Any]
    ) -> Any:
        """Run a call that changes ``target``. ``record`` writes the same to a tensor, or returns the new value of it."""
        plain = bare_view(target)
        with self.memory.recorder.lock:
            before = plain.copy()
            result = self.memory.quietly(numpy)
            after = plain.copy()
            found, tape = self.memory.overlay(target), self.memory.traced_by(operands)
            if found is None:
                self.memory.escape(tape, name, operands, after)
            if found is None or not self.memory.concerned([target, *operands]):
                return result
            if type(target) is ndarray and tape is not None:
                self.memory.escape(tape, f"{name}: {_OLDER}", operands, after)
            tape = self.memory.traced_by([target, *operands])
            ndarray.__setitem__(plain, ..., before)
            try:
                if not self._recorded(tape, found, after, record):
                    ndarray.__setitem__(plain, ..., before)
                    self.memory.escape(tape, name, operands, after)
                    with self.memory.recorder.silence():
                        frozen = from_numpy(after.copy())
                    self._store(found, frozen)
            finally:
                ndarray.__setitem__(plain, ..., after)
            return result

    def into(
        self, name: str, outs: tuple[Any, ...], operands: list[Any], numpy: Callable[[], Any], expression: Callable[[], Any]
    ) -> Any:
        """Run a call whose results are written to the arrays ``outs``."""
        found: Tensor | None = None
        if len(outs) == 1:  # with several arrays the results are escapes
            found = self.attempt(self.memory.traced_by(operands), lambda: unwrap(expression(), self.memory))

        def record(_: Tensor) -> Tensor:
            if found is None:
                raise Unmapped
            return found

        first, *others = (out for out in outs if out is not None)
        result = self.write(name, first, operands, numpy, record)
        for out in others:
            self.write(name, out, operands, lambda: None, record)
        return given(result, outs)

    def _recorded(self, tape: Tape | None, found: Overlay, after: Array, record: Callable[[Tensor], Any]) -> bool:
        def expression() -> bool:
            target = flipped(found.tensor, found.flips) if found.flips else found.tensor
            new = record(target)
            if new is not None or found.flips:
                self._store(found, target if new is None else unwrap(new, self.memory))
            with self.memory.recorder.silence():
                now = found.tensor.detach().numpy()
                now = np.flip(now, found.flips) if found.flips else now
                return agree(after, now, _TOLERANCE.get(now.dtype, 0.0))

        return bool(self.attempt(tape, expression))

    def _store(self, found: Overlay, value: Any) -> None:
        value = value.to(found.tensor.dtype) if value.dtype != found.tensor.dtype else value
        found.tensor.copy_(flipped(value, found.flips) if found.flips else value)

    # -- making ----------------------------------------------------------------------------------------------------------

    def make(self, original: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        """``np.array``, ``np.asarray`` and similar functions, on arrays, tensors and nested lists of them."""
        operands = arrays_in(data)
        plain = unwrapped(data)

        def numpy() -> Any:
            return original(plain, *args, **kwargs)

        result = self.memory.quietly(numpy)
        if not operands or not self.memory.concerned(operands):
            return result
        if isinstance(plain, np.ndarray) and np.may_share_memory(result, plain):
            if isinstance(data, Tensor):
                return self.memory.wrap(result, data) if result is plain else self.memory.wrap(result)
            return data if result is plain else self.memory.wrap(result)
        dtype = torch_dtype(result.dtype)

        def expression() -> Any:
            if dtype is None:
                raise Unmapped
            found = tensor(bare(self.memory.tensors_for(data))).to(dtype)
            whole = isinstance(data, (TracedScalar, np.ndarray, Tensor))
            return (found.clone() if whole else found).reshape(result.shape)

        return self.perform(original.__name__, operands, lambda: result, expression)

    def gathered(self, value: Any) -> Any:
        """One array made of a list that contains arrays or tensors; any other value as it is."""
        return self.make(_array, value) if isinstance(value, (list, tuple, deque)) and arrays_in(value) else value

    def value_for(self, value: Any) -> Any:
        """A value for torch, with a tensor in place of an array and a Python number in place of NumPy's."""
        value = self.gathered(value)
        value = asarray(value) if isinstance(value, (list, tuple, deque)) else value
        value = value.array if isinstance(value, TracedScalar) else value
        if isinstance(value, np.ndarray):
            return self.memory.tensor(value)
        return value.item() if isinstance(value, np.generic) else value


def unwrap(found: Any, memory: Overlays) -> Tensor | None:
    """The tensor in the result of an expression."""
    if isinstance(found, Tensor):
        return found
    found = found.array if isinstance(found, TracedScalar) else found
    found = memory.tensor(found) if isinstance(found, np.ndarray) else getattr(found, "tensor", None)
    return found if isinstance(found, Tensor) else None
