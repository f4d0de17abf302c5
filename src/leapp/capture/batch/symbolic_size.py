"""Traced numbers that depend on the batch size: a size of a traced tensor, and numbers that the user's code computes from it.

Such a number is an ``int`` or a ``float`` to the user's code and to torch, and has a slot on the tape. It holds its value for
several batch sizes, called worlds (``shape_worlds.py``). Where it becomes a plain number, or where a comparison gives another
result in another world, it reports that to its owner: there the batch size is baked into the node.

Knows nothing of tapes: the owner records the numbers that are derived.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from leapp.capture.trees import ATOMS_BUT_SIZES, leaves, mapped

if TYPE_CHECKING:
    from leapp.capture.batch.follower import Follower

class Measure:
    """A recorded call whose result is a number and not a tensor."""

    __slots__ = ("__name__", "function")

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", str(function))

    def __call__(self, *args: Any) -> Any:
        """The number."""
        return self.function(*args)


class _Reading:
    """The ``node`` attribute that torch's C++ code reads of a ``SymInt``, for numbers that reach it without passing a mode.

    To read the value converts the number, and the number reports that.
    """

    def __init__(self, number: Any, whole: bool) -> None:
        self._number, self._whole = number, whole

    def is_int(self) -> bool:
        return self._whole

    def is_float(self) -> bool:
        return not self._whole

    def is_bool(self) -> bool:
        return False

    is_nested_int = is_constant = is_bool

    def is_symbolic(self) -> bool:
        return True

    has_hint = is_symbolic

    def maybe_as_int(self) -> None:
        return None

    constant_int = nested_int = maybe_as_int

    def guard_int(self, *_: Any) -> int:
        return int(self._number)

    def guard_float(self, *_: Any) -> float:
        return float(self._number)


def reading(number: Any, whole: bool) -> Any:
    """The object that torch reads as ``number.node``. ``whole`` is true for an integer, false for a float."""
    return _Reading(number, whole)


def _derive(function: Callable[..., Any], *args: Any) -> Any:
    """Compute ``function`` of traced and plain numbers in every world. Returns a traced number."""
    mine = next(a for a in args if isinstance(a, Followed))
    if not all(isinstance(a, (Followed, int, float)) for a in args):
        return NotImplemented
    count = len(mine.values)
    values = tuple(function(*(a.values[w] if isinstance(a, Followed) else a for a in args)) for w in range(count))
    return mine.owner.derived(function, args, values)


def _decide(function: Callable[[Any, Any], bool], mine: Followed, other: Any) -> Any:
    """Compare two numbers. If the result depends on the batch size, that is reported to the owner."""
    if not isinstance(other, (Followed, int, float)):
        return NotImplemented
    others = other.values if isinstance(other, Followed) else (other,) * len(mine.values)
    answers = [bool(function(a, b)) for a, b in zip(mine.values, others, strict=True)]
    # A comparison with == is always reported: a few worlds do not show that the size never equals the number.
    equal = function in (operator.eq, operator.ne) and not isinstance(other, Followed) and other >= 1
    if equal or any(answer != answers[0] for answer in answers):
        mine.owner.bake(f"the batch size is compared with {other!r}")
    return answers[0]


def _binary(name: str, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        return _derive(function, other, self) if reflected else _derive(function, self, other)

    return method


def _comparison(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, name)

    def method(self: Any, other: Any) -> Any:
        return _decide(function, self, other)

    return method


class Followed:
    """A number with its value in every world. The first value is the one that the user's program sees.

    Args:
        values: The number in every world.
        owner: Records numbers that are derived from this one, and notes where it becomes a plain number.
        ref: The slot on the tape.
    """

    def __init__(self, values: tuple[Any, ...], owner: Follower, ref: Any) -> None:
        self.values, self.owner, self.ref = values, owner, ref
        self.node = reading(self, isinstance(values[0], int))

    __add__, __radd__ = _binary("add"), _binary("add", reflected=True)
    __sub__, __rsub__ = _binary("sub"), _binary("sub", reflected=True)
    __mul__, __rmul__ = _binary("mul"), _binary("mul", reflected=True)
    __mod__, __rmod__ = _binary("mod"), _binary("mod", reflected=True)
    __pow__, __rpow__ = _binary("pow"), _binary("pow", reflected=True)
    __truediv__, __rtruediv__ = _binary("truediv"), _binary("truediv", reflected=True)
    __floordiv__, __rfloordiv__ = _binary("floordiv"), _binary("floordiv", reflected=True)
    __eq__, __ne__ = _comparison("eq"), _comparison("ne")
    __lt__, __le__, __gt__, __ge__ = _comparison("lt"), _comparison("le"), _comparison("gt"), _comparison("ge")

    def __neg__(self) -> Any:
        return _derive(operator.neg, self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return _derive(operator.abs, self)

    def __bool__(self) -> bool:
        answers = [bool(v) for v in self.values]
        if any(answer != answers[0] for answer in answers):
            self.owner.bake("the batch size decides a condition")
        return answers[0]

    def __hash__(self) -> int:
        return hash(self.values[0])

    def __int__(self) -> int:
        self.owner.bake("the batch size becomes a plain number")
        return int(self.values[0])

    __index__ = __trunc__ = __floor__ = __ceil__ = __int__

    def __round__(self, digits: int | None = None) -> Any:
        return self if isinstance(self.values[0], int) else round(float(self), digits)

    def __float__(self) -> float:
        self.owner.bake("the batch size becomes a plain number")
        return float(self.values[0])

    def __repr__(self) -> str:
        return repr(self.values[0])

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.values[0], spec)


class Extent(Followed, torch.SymInt):
    """An integer that depends on the batch size. torch accepts it as a ``SymInt``, Python as an ``int``."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int


class Share(Followed, torch.SymFloat):
    """A float that depends on the batch size, such as ``1 / x.shape[0]``."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float


Number = Extent | Share


def number(values: tuple[Any, ...], owner: Follower, ref: Any) -> Number:
    """A number with these values in all worlds."""
    return (Extent if isinstance(values[0], int) else Share)(values, owner, ref)


def numbers(value: Any) -> Iterator[Number]:
    """Every number in a nested value that depends on the batch size."""
    return leaves(value, Followed, ATOMS_BUT_SIZES)


def bare(value: Any) -> Any:
    """A nested value with every number that depends on the batch size replaced by its plain value."""
    return mapped(value, lambda v: v.values[0] if isinstance(v, Followed) else v, ATOMS_BUT_SIZES)
