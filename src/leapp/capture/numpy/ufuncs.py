"""Runs ufuncs on traced arrays, and records them in the dtypes in which NumPy computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from leapp.capture.batch.symbolic_size import Followed
from leapp.capture.numpy.indexing import locate
from leapp.capture.numpy.plain import arrays_in, as_tensor, asarray, from_numpy, given, is_number, torch_dtype, unwrapped
from leapp.capture.numpy.scalars import TracedScalar, number_of, number_type
from leapp.capture.numpy.table import NUMBERS, NUMPY_UFUNCS, SCIPY_UFUNCS, UFUNCS, Unmapped, accumulated, reduced
from leapp.capture.numpy.two_runs import TwoRuns
from leapp.capture.user_line import where
from leapp.compat.numpy import PROMOTES_BY_VALUE, dtypes_by_value

Tensor = torch.Tensor


class Ufuncs:
    """Calls of ufuncs and of their methods.

    Args:
        runs: Runs them in both libraries.
    """

    def __init__(self, runs: TwoRuns) -> None:
        self.runs, self.memory = runs, runs.memory

    def ufunc(self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a ufunc, or one of its methods such as ``reduce``."""
        if method == "at":  # a tuple among its arguments is an index, not an array
            inputs = *inputs[:2], *map(self.runs.gathered, inputs[2:])
        else:
            inputs = tuple(map(self.runs.gathered, inputs))
        outs = kwargs.get("out") or ()
        operands = [*arrays_in(inputs), *arrays_in(kwargs)]
        tensors = any(isinstance(v, Tensor) for v in inputs) and not outs and method == "__call__"

        def numpy() -> Any:
            return getattr(ufunc, method)(*unwrapped(inputs), **unwrapped(kwargs))

        if not self.memory.concerned(operands):
            result = self.memory.quietly(numpy)
            return as_tensor(result) if tensors else given(self.memory.follow(result, operands), outs)
        if method == "at":
            target = inputs[0]
            self.runs.write(
                f"{ufunc.__name__}.at", target, operands[1:], numpy,
                lambda t: _at(ufunc, t, self.memory.tensors_for(inputs[1]), *map(self.runs.value_for, inputs[2:])),
            )  # fmt: skip
            return None
        options = {k: v for k, v in kwargs.items() if k != "out"}
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"

        def expression() -> Any:
            return self._ufunc_expression(ufunc, method, inputs, options, outs)

        if outs:
            return self.runs.into(name, outs, operands, numpy, expression)
        result = self.runs.perform(name, operands, numpy, expression)
        return self.to_tensor(result, wrapping=True) if tensors else result

    def operation(self, ufunc: np.ufunc, number: TracedScalar, name: str, args: tuple[Any, ...]) -> Any:
        """Run an operator of a traced number. It gives the value, since it may round differently from the ufunc."""
        args = tuple(map(self.runs.gathered, args))
        result = self.memory.quietly(lambda: getattr(number_of(number), name)(*unwrapped(args)))
        operands = arrays_in((number, *args))
        if result is NotImplemented or not self.memory.concerned(operands):
            return result
        inputs = (*args, number) if name.startswith("__r") else (number, *args)

        def expression() -> Any:
            return self._ufunc_expression(ufunc, "__call__", inputs, {}, ())

        return self.runs.perform(ufunc.__name__, operands, lambda: result, expression)

    def _ufunc_expression(
        self, ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any], outs: tuple[Any, ...]
    ) -> Any:
        name = ufunc.__name__
        function = UFUNCS.get(name) if ufunc in NUMPY_UFUNCS else SCIPY_UFUNCS.get(name)
        allowed = {"where", "dtype", "casting", "subok", "order"} if method == "__call__" else {
            "axis", "dtype", "keepdims", "initial", "where"
        }  # fmt: skip
        if function is None or not set(options) <= allowed:
            raise Unmapped
        if method == "reduce" or method == "accumulate":
            dtypes = _reduce_dtype(ufunc, inputs[0], options.get("dtype"))
            x = self.memory.tensors_for(inputs[0])
            axis = inputs[1] if len(inputs) > 1 else options.get("axis", 0)
            if method == "accumulate":
                return accumulated(name, x, axis, dtypes)
            condition = options.get("where", True)
            return reduced(
                name, x, axis, dtypes, bool(options.get("keepdims", False)), self.runs.value_for(options.get("initial")),
                None if condition is True else self.runs.value_for(condition),
            )  # fmt: skip
        if method == "outer":
            a, b = inputs
            a = (a.array if isinstance(a, TracedScalar) else a)[(Ellipsis,) + (None,) * np.ndim(b)]
            return self._elementwise(ufunc, function, (a, b), options)
        if method != "__call__":
            raise Unmapped
        result = self._elementwise(ufunc, function, inputs, options)
        condition = options.get("where", True)
        if condition is True:
            return result
        if len(outs) != 1:
            raise Unmapped
        return torch.where(self._tensor(condition), result, self.memory.tensors_for(outs[0]))

    def _tensor(self, value: Any) -> Any:
        return self.memory.tensors_for(value if isinstance(value, (TracedScalar, np.ndarray, Tensor)) else asarray(value))

    def _elementwise(
        self, ufunc: np.ufunc, function: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Any:
        """Compute a ufunc on tensors, in the dtypes in which NumPy computes it."""
        dtypes = _loop(ufunc, inputs, options)
        operands: list[Any] = []
        for value, dtype in zip(inputs, dtypes, strict=False):
            wanted = torch_dtype(dtype)
            if wanted is None:
                raise Unmapped
            if isinstance(value, Followed):
                if ufunc.__name__ not in NUMBERS:
                    raise Unmapped
                operands.append(value)
                continue
            if is_number(value):
                number = asarray(value).astype(dtype).item()
                operands.append(number if ufunc.__name__ in NUMBERS else torch.tensor(number, dtype=wanted))
                continue
            t = self._tensor(value)
            operands.append(t if t.dtype == wanted else t.to(wanted))
        if not any(isinstance(v, Tensor) for v in operands):
            raise Unmapped
        found = function(*operands)
        results = found if isinstance(found, tuple) else (found,)
        wanted_of = map(torch_dtype, dtypes[len(inputs) :])
        cast = tuple(r if r.dtype == d else r.to(d) for r, d in zip(results, wanted_of, strict=True))
        return cast if isinstance(found, tuple) else cast[0]

    def wrapped_ufunc(self, ufunc: np.ufunc, inputs: tuple[Any, ...], result: Any, place: int) -> Any:
        """Record a ufunc that NumPy ran on tensors. Called from ``Tensor.__array_wrap__``."""
        operands = arrays_in(inputs)
        tape = self.memory.traced_by(operands)
        if tape is not None:  # NumPy called __array__ of the tensors; that is not an escape here
            here = where()
            while tape.escapes and tape.escapes[-1].kind == "__array__" and tape.escapes[-1].where == here:
                tape.escapes.pop()

        def expression() -> Any:
            found = self._ufunc_expression(ufunc, "__call__", inputs, {}, ())
            return found[place] if isinstance(found, tuple) else found

        return self.to_tensor(self.runs.perform(ufunc.__name__, operands, lambda: result, expression), wrapping=True)

    def to_tensor(self, value: Any, wrapping: bool = False) -> Any:
        """A tensor over the memory of a traced array: ``torch.from_numpy``, or with ``wrapping`` ``Tensor.__array_wrap__``."""
        value = value.array if isinstance(value, TracedScalar) else value
        if isinstance(value, np.ndarray) and type(value) is not np.ndarray:
            found = self.memory.overlay(value)
            if found is not None and not found.flips:
                whole = found.tensor.to(torch.uint8) if wrapping and found.tensor.dtype == torch.bool else found.tensor
                return whole.detach()
            if not wrapping:
                return from_numpy(unwrapped(value))
        return as_tensor(value) if wrapping else from_numpy(value)


def _loop(ufunc: np.ufunc, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[np.dtype[Any], ...]:
    """The dtypes in which NumPy computes a ufunc, inputs first."""
    kinds = dtypes_by_value(unwrapped(inputs)) if PROMOTES_BY_VALUE else map(_kind, inputs)
    more: dict[str, Any] = {}
    if options.get("dtype") is not None:
        more["signature"] = (*(None,) * ufunc.nin, *(np.dtype(options["dtype"]),) * ufunc.nout)
    return ufunc.resolve_dtypes((*kinds, *(None,) * ufunc.nout), **more)


def _kind(value: Any) -> Any:
    """The dtype of an operand. For a Python number its type, which does not widen the dtype of the others."""
    if isinstance(value, Tensor):
        return np.dtype(str(value.dtype).removeprefix("torch."))
    if isinstance(value, Followed):
        return value.__class__
    kind = number_type(value) if isinstance(value, TracedScalar) else type(value)
    if kind in (int, float, complex):
        return kind
    return value.dtype if isinstance(value, (np.ndarray, np.generic)) else asarray(value).dtype


def _reduce_dtype(ufunc: np.ufunc, value: Any, dtype: Any) -> torch.dtype | None:
    if dtype is not None:
        return torch_dtype(dtype)
    given = _kind(value)
    if ufunc.__name__ in ("add", "multiply") and given.kind in "bui" and given.itemsize < 8:
        return torch.int64
    return None


def _at(ufunc: np.ufunc, t: Tensor, index: Any, *values: Any) -> None:
    if ufunc.__name__ not in ("add", "subtract") or not values:
        raise Unmapped
    value = values[0] if isinstance(values[0], Tensor) else torch.tensor(values[0])
    value = value.to(t.dtype)
    view, place, _ = locate(t, index)
    while place and isinstance(place[-1], slice) and place[-1] == slice(None):
        place = place[:-1]
    if any(not isinstance(p, Tensor) for p in place):
        raise Unmapped
    view.index_put_(place, value if ufunc.__name__ == "add" else -value, accumulate=True)
