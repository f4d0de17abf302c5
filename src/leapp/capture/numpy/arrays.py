"""Follows NumPy arrays inside a node: NumPy computes the values that the program sees, and torch records the same calls.

The classes of traced arrays and numbers, and the functions that a node replaces, call the methods of :class:`Arrays`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy import ndarray

from leapp.capture.aliasing import geometry, same_storage
from leapp.capture.batch.symbolic_size import bare, numbers
from leapp.capture.call_kinds import Kind
from leapp.capture.equality import same_bits
from leapp.capture.numpy.indexing import basic, chosen, is_basic, leading_mask, locate, runs_backwards
from leapp.capture.numpy.overlays import Overlays
from leapp.capture.numpy.plain import (
    Array,
    arrays_in,
    bare_view,
    by_name,
    digits,
    owner_of,
    silent_numpy,
    unwrapped,
    without_out,
)
from leapp.capture.numpy.plain import given as in_their_places
from leapp.capture.numpy.scalars import TracedScalar
from leapp.capture.numpy.table import BLIND, CHECKS, IN_PLACE, READ_OUT, REWRITTEN, SEQUENCES, THROUGH, Unmapped, lookup
from leapp.capture.numpy.traced import set_current
from leapp.capture.numpy.two_runs import TwoRuns
from leapp.capture.numpy.ufuncs import Ufuncs
from leapp.capture.substitutes import constructed
from leapp.capture.trees import ATOMS, leaves, mapped
from leapp.capture.user_line import asked_by_capture

if TYPE_CHECKING:
    from leapp.capture.recorder import Recorder

Tensor = torch.Tensor
_NO_ARRAYS = frozenset({Tensor, torch.nn.Parameter, *ATOMS})
# As they are before a session replaces them.
_FULL_LIKE, _SHAPES = np.full_like, (np.size, np.shape)


class Arrays:
    """The array calls of one session: indexing, functions, and torch calls with arrays among their arguments."""

    def __init__(self, recorder: Recorder) -> None:
        self.memory = Overlays(recorder)
        self.runs = TwoRuns(self.memory)
        self.ufuncs = Ufuncs(self.runs)

    def begin(self) -> None:
        """Receive the calls on traced arrays."""
        set_current(self)

    def end(self) -> None:
        """Receive no more calls."""
        set_current(None)
        self.memory.clear()

    # -- indexing --------------------------------------------------------------------------------------------------------

    def getitem(self, array: Array, index: Any) -> Any:
        """``array[index]``."""
        plain = bare_view(array)
        place = unwrapped(index)
        operands = [array, *arrays_in(index)]
        if not self.memory.concerned(operands):
            return self.memory.follow(ndarray.__getitem__(plain, place), [array])
        if isinstance(index, str):
            return self.memory.wrap(ndarray.__getitem__(plain, index))
        if not is_basic(index):
            return self._chosen(array, index, ndarray.__getitem__(plain, place), operands)
        result = ndarray.__getitem__(plain, place)
        found = self.memory.overlay(array)
        if found is None:
            return result
        self.memory.refresh(found.tensor)
        parts, flips = basic(index, array.shape, found.flips)
        t = found.tensor[parts]
        if isinstance(result, np.generic):
            return self.runs.perform("__getitem__", operands, lambda: result, lambda: t.clone())
        made = self.memory.wrap(result)
        self.memory.attach(made, t, flips, found.root)
        return made

    def _chosen(self, array: Array, index: Any, result: Any, operands: list[Any]) -> Any:
        """The result of an index with traced values. For single numbers NumPy returns a view, and so does torch."""
        view = isinstance(result, np.ndarray) and owner_of(result) is owner_of(array)
        found = self.memory.overlay(array) if view else None
        if found is not None and not found.flips:
            self.memory.refresh(found.tensor)
            t = self.runs.attempt(self.memory.traced_by(operands), lambda: found.tensor[chosen(self.memory.tensors_for(index))])
            if t is not None:
                row = self.memory.wrap(result)
                self.memory.attach(row, t, (), found.root)
                return row
        apart = result.copy(order="K") if view else result
        made = self.runs.perform("__getitem__", operands, lambda: apart, lambda: self._picked(array, index))
        if view:
            made.flags.writeable = False
        return made

    def _picked(self, array: Array, index: Any) -> Tensor:
        t = self.memory.tensor(array)
        if t is None:
            raise Unmapped
        view, place, added = locate(t, self.memory.tensors_for(index))
        found = view[place]
        return found.squeeze(0) if added else found

    def setitem(self, array: Array, index: Any, value: Any) -> None:
        """``array[index] = value``."""
        plain = bare_view(array)
        at, number = unwrapped(index), unwrapped(value)
        operands = [*arrays_in(index), *arrays_in(value)]

        def record(target: Tensor) -> None:
            view, place = target, basic(index, array.shape, ())[0] if is_basic(index) else None
            if place is None:
                view, place, _ = locate(target, self.memory.tensors_for(index))
            new = self.runs.value_for(value)
            if isinstance(new, Tensor) and not is_basic(index):
                new = new.to(target.dtype)  # as NumPy does; torch does so for slices only
            if isinstance(new, Tensor) and same_storage(new, target) and not self._in_place_already(view, place, new):
                new = new.clone()  # NumPy copies within one memory correctly, torch does not
            mask = leading_mask(place)
            if mask is not None and isinstance(value, np.ndarray) and self._dynamic(value):
                # As many values as the mask has true elements. masked_scatter_ says so, and exporters need not prove it.
                view.masked_scatter_(mask.reshape([*mask.shape, *[1] * (view.dim() - mask.dim())]).expand_as(view), new)
            else:
                view[place] = new

        if not self.memory.concerned([array, *operands]):
            ndarray.__setitem__(plain, at, number)
            return
        if isinstance(index, str):
            self.setitem(ndarray.__getitem__(plain, index), ..., value)
            return
        if is_basic(index) and runs_backwards(index):
            self.setitem(self.getitem(array, index), ..., value)
            return
        self.runs.write("__setitem__", array, operands, lambda: ndarray.__setitem__(plain, at, number), record)

    def _in_place_already(self, view: Tensor, place: Any, new: Tensor) -> bool:
        """Whether an assignment assigns a part of an array to itself, as the last step of ``x[0] += 1``."""
        if any(isinstance(p, Tensor) for p in place):
            return False
        with self.memory.recorder.silence():
            return geometry(view[place]) == geometry(new)

    # -- functions -------------------------------------------------------------------------------------------------------

    def function(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call of a function of NumPy."""
        operands = arrays_in((args[1:] if function is _FULL_LIKE else args, kwargs))  # of full_like only the value
        name = f"np.{function.__name__}"
        given, options, outs = without_out(function, args, kwargs)

        def numpy() -> Any:
            return function(*unwrapped(args), **unwrapped(kwargs))

        if function in BLIND or not self.memory.concerned(operands):
            return in_their_places(self.memory.follow(self.memory.quietly(numpy), operands), outs)
        if function in READ_OUT:
            result = self.memory.quietly(numpy)
            result = result.copy() if isinstance(result, np.ndarray) else result
            self.memory.escape(self.memory.traced_by(operands), name, operands, result)
            return result
        if function in _SHAPES:
            array = next(iter((*args, *kwargs.values())))
            return self.shape_read(array, function.__name__, numpy()) if isinstance(array, np.ndarray) else numpy()
        if function in IN_PLACE:
            return self._in_place(function, name, args, kwargs, numpy)
        if function in THROUGH:
            result = function._implementation(*map(_giving_arrays, args), **kwargs)
            if not any(self.memory.traced(a) is not None for a in arrays_in(result)):
                self.memory.escape(self.memory.traced_by(operands), name, operands, result)
            return result

        def expression() -> Any:
            known, own = lookup(function), REWRITTEN.get(function) or getattr(function, "_implementation", None)
            if known is None and isinstance(own, FunctionType):  # run NumPy's own Python code, whose NumPy calls are recorded
                return own(*given, **options)
            if known is None:
                raise Unmapped
            ready = given if function in SEQUENCES else map(self.runs.gathered, given)
            return known(*(self.memory.tensors_for(a) for a in ready), **self.memory.tensors_for(options))

        if outs:
            return self.runs.into(name, outs, operands, numpy, expression)
        return self.runs.perform(name, operands, numpy, expression, CHECKS.get(function, "values"))

    def _in_place(
        self, function: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], numpy: Callable[[], Any]
    ) -> Any:
        bound = by_name(IN_PLACE[function], args, kwargs)
        first, target = next(iter(bound.items()))
        rest = {n: v for n, v in bound.items() if n != first}

        def record(t: Tensor) -> None:
            array = self.memory.wrap(silent_numpy(t), t)
            IN_PLACE[function](array, **{n: self.runs.gathered(v) for n, v in rest.items()})

        return self.runs.write(name, target, arrays_in(rest), numpy, record)

    def shape_read(self, array: Array, kind: str, value: Any) -> Any:
        """The shape of an array as the program gets it: traced numbers where it depends on the batch.

        A shape that depends on values is reported as an escape.
        """
        if self._dynamic(array):
            self.memory.escape(self.memory.traced(array), kind, [array], value)
        tape = self.memory.traced(array) if self.memory.recorder.batched and not asked_by_capture() else None
        found = None if tape is None or tape.batch is None else self.memory.overlay(array)
        if tape is None or tape.batch is None or found is None:
            return value
        question = "numel" if kind == "size" and value == array.size else kind
        with self.memory.recorder.silence():
            answer = tape.batch.asked(question, found.tensor, (found.tensor,), {}, value)
        return tuple(answer) if isinstance(answer, torch.Size) else answer

    def both(
        self, name: str, original: Callable[..., Any], expression: Callable[..., Any], args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:  # fmt: skip
        """Call a function of another package that has a torch form: run both and compare."""
        operands = arrays_in((args, kwargs))
        if not operands or not self.memory.concerned(operands):
            return original(*args, **kwargs)

        def numpy() -> Any:
            return original(*unwrapped(args), **unwrapped(kwargs))

        def torch_form() -> Any:
            return expression(*(self.memory.tensors_for(a) for a in args), **self.memory.tensors_for(kwargs))

        return self.runs.perform(name, operands, numpy, torch_form)

    def followed(self, arguments: Any, result: Any) -> Any:
        """The result of a call. If the batch size was an argument and the result is not traced, the batch size is baked in."""
        if self.memory.recorder.batched:
            number = next(numbers(arguments), None)
            if number is not None and not any(self.memory.traced(a) is not None for a in arrays_in((result,))):
                number.owner.bake("the batch size becomes a plain number in a NumPy call")
        return result

    def _dynamic(self, array: Array) -> bool:
        """Whether the shape of an array depends on values."""
        if not any(tape.dynamic for tape in self.memory.recorder.tapes):
            return False
        tape, found = self.memory.traced(array), self.memory.overlay(array)
        with self.memory.recorder.silence():
            ref = None if found is None or tape is None else tape.find(found.tensor)
        return ref is not None and tape is not None and ref.slot in tape.dynamic

    def through(self, function: Any, name: str, array: Array, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that returns plain values, and report them as an escape."""
        result = function(*unwrapped((array, *args)), **unwrapped(kwargs))
        source = _SOURCES.get(name) if isinstance(result, (bool, int, float)) and not args else None
        self.memory.escape(self.memory.traced(array), name, [array], result if source is None else digits(result), source)
        return result

    # -- torch calls on arrays -------------------------------------------------------------------------------------------

    def number(self, scalar: Any, beside: Tensor) -> Any:
        """A traced number for a torch call: like a Python number, it does not change the dtype of the tensor beside it."""
        t = self.memory.tensor(scalar)
        if t is None or not t.dtype.is_floating_point or beside.dtype.is_complex:
            return t
        return t.to(beside.dtype if beside.dtype.is_floating_point else torch.get_default_dtype())

    def replaced(
        self, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a torch call with tensors for arrays."""
        if not kwargs and all(type(a) in _NO_ARRAYS for a in args):
            return args, kwargs
        scalars = list(leaves((args, kwargs), TracedScalar, slices=False))
        if scalars:
            return self._numbered(func, kind, (args, kwargs), scalars)
        # The argument of __array_wrap__ must stay an array.
        if kind.name != "__array_wrap__" and any(isinstance(a, np.ndarray) for a in arrays_in((args, kwargs))):
            with suppress(Unmapped):
                return self._torch_arguments(args), self._torch_arguments(kwargs)
        return args, kwargs

    def numbers_in(self, value: Any) -> Any:
        """The arguments of a torch call that is not recorded, with NumPy's own numbers in place of traced ones."""
        if not self.memory.seen:
            return value
        found = {id(a): unwrapped(a) for a in leaves(value, TracedScalar, slices=False)}
        return _exchanged(value, found.get) if found else value

    def _numbered(self, func: Any, kind: Kind, given: tuple[Any, Any], scalars: list[Any]) -> tuple[Any, Any]:
        """The arguments of a torch call with traced numbers among them.

        The call is tried with tensors in place of the numbers. If the results are the same, these arguments are returned;
        otherwise the numbers are reported as escapes and passed as plain numbers.
        """
        numbers: dict[int, Any] = {id(s): unwrapped(s) for s in scalars}
        if self.memory.concerned(scalars):
            overlays = {id(s): self.memory.tensor(s.array) for s in scalars}
            with self.memory.recorder.silence():
                wanted = None if kind.random or None in overlays.values() else _tried(func, given, numbers)
            for dtype in (_dtype_beside(given, wanted), None) if wanted else ():
                tensors = {i: self.memory.recorded_call(Tensor.to, t, dtype) if dtype else t for i, t in overlays.items()}
                with self.memory.recorder.silence():
                    same = _same_results(wanted, _tried(func, given, tensors))
                if same:
                    return self._torch_arguments(_exchanged(given, tensors.get))  # type: ignore[no-any-return]
            for s in scalars:
                name, value = f"{kind.name}, which takes a number", digits(numbers[id(s)].item())
                self.memory.escape(self.memory.traced(s), name, [s], value, _number)
        return self._torch_arguments(_exchanged(given, numbers.get))  # type: ignore[no-any-return]

    def _torch_arguments(self, value: Any) -> Any:
        traced = (TracedScalar, np.ndarray)
        return mapped(value, lambda v: self.memory.tensors_for(v) if isinstance(v, traced) else v, slices=False)

    def construct(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """``torch.tensor``, ``as_tensor`` or ``asarray`` of traced arrays, alone or in lists; ``None`` if none is traced."""
        data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        alone = data.array if isinstance(data, TracedScalar) else data
        found = [a for a in arrays_in(data) if isinstance(a, np.ndarray)]
        if not found or not self.memory.concerned(found):
            return None
        result: Tensor = function(*unwrapped(args), **unwrapped(kwargs))
        whole = self.memory.tensor(alone) if isinstance(alone, np.ndarray) else None
        tape = self.memory.traced_by(found)
        if whole is not None and result.dtype == whole.dtype and result.data_ptr() == whole.data_ptr():
            alias: Tensor = self.memory.recorded_call(torch.Tensor.detach, whole)
            return alias
        if tape is None:
            if whole is not None and result.dtype == whole.dtype:
                self.memory.copy_source(whole, result)
            return result
        for number in numbers(data):
            number.owner.bake(f"{function.__name__} takes the batch size as a plain number")
        return constructed(self.memory.recorder, tape, bare(self._torch_arguments(data)), result)


def _giving_arrays(value: Any) -> Any:
    """A function argument that returns a 0-d array in place of a traced number, whose value NumPy would read."""
    if not isinstance(value, FunctionType):
        return value

    def call(*args: Any, **kwargs: Any) -> Any:
        found = value(*args, **kwargs)
        return found.array if isinstance(found, TracedScalar) else found

    return call


def _exchanged(value: Any, by_identity: Callable[[int], Any]) -> Any:
    """A nested argument in which the values that ``by_identity`` knows by ``id()`` are replaced."""
    return mapped(value, lambda v: v if (found := by_identity(id(v))) is None else found, slices=False)


def _tried(func: Any, given: tuple[Any, Any], standing: dict[int, Any]) -> list[Tensor] | None:
    """The tensors that a call returns, or leaves in its arguments, with ``standing`` in place of some arguments.

    The call runs on copies. Where torch needs a number, it would read it out of a tensor unseen; the copies require gradients,
    because then torch refuses.
    """
    copies = {id(t): t.detach().clone() for t in arrays_in(given) if isinstance(t, Tensor)}
    try:
        with torch.enable_grad():
            others = {
                i: v.detach().clone().requires_grad_(v.dtype.is_floating_point) if isinstance(v, Tensor) else v
                for i, v in standing.items()
            }
            args, kwargs = _exchanged(given, (copies | others).get)
            result = func(*args, **kwargs)
    except Exception:  # torch raises many types; if the call itself is wrong, the real call raises the error
        return None
    found = [t for t in arrays_in([result]) if isinstance(t, Tensor)]
    return [*found, *copies.values()] if found or result is None else None


def _dtype_beside(given: Any, results: list[Tensor]) -> torch.dtype | None:
    """The dtype that torch gives to a number beside tensors."""
    found = [t.dtype for t in [*results, *arrays_in(given)] if isinstance(t, Tensor)]
    return next((d for d in found if d.is_floating_point), None)


def _same_results(a: list[Tensor] | None, b: list[Tensor] | None) -> bool:
    return a is not None and b is not None and len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and same_bits(x, y) for x, y in zip(a, b, strict=True)
    )  # fmt: skip


def _number(t: Tensor) -> Any:
    return digits(t.item())


_SOURCES: dict[str, Any] = {
    "__bool__": torch.Tensor.__bool__, "__int__": torch.Tensor.__int__, "__index__": torch.Tensor.__int__,
    "__float__": _number, "item": _number,
}  # fmt: skip
