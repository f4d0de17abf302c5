"""Standing in for the functions of other modules without anybody noticing.

A function written in Python gets other code for a while and stays the object it is. Any other function has a stand-in under its
name that is equal to it, passes for one of its type, and is pickled as what the name means. Nothing here knows sessions.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

__all__ = ["PickledByName", "Recoded", "StandIn", "caller", "twin"]

_TARGET = "what is called"


def twin(function: Any) -> Any:
    """A copy of a function written in Python, to be called while that has other code; any other function as it is."""
    if type(function) is not FunctionType:
        return function
    made = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    functools.update_wrapper(made, function)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


class Recoded:
    """Lets calls of functions go to others, which must not call them but their twins.

    Args:
        functions: The functions, each with what is called in its place.
    """

    def __init__(self, functions: Iterable[tuple[Any, Callable[..., Any]]]) -> None:
        self._codes = [(function, function.__code__, _leading_to(function, made)) for function, made in functions]

    def stand(self) -> bool:
        """Whether the functions have the code that their twins have."""
        return all(function.__code__ is before for function, before, _ in self._codes)

    def install(self) -> None:
        """Give the functions their other code."""
        for function, _, code in self._codes:
            function.__code__ = code

    def put_back(self) -> None:
        """Give the functions their own code back."""
        for function, before, code in self._codes:
            if function.__code__ is code:
                function.__code__ = before


def _leading_to(function: FunctionType, made: Callable[..., Any]) -> CodeType:
    """Code with the parameters of ``function`` that calls ``made``."""
    signature = inspect.signature(function, follow_wrapped=False)
    names = {p.name: inspect.Parameter(p.name, p.kind) for p in signature.parameters.values()}
    stars: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    given = [
        f"{n}={n}" if p.kind is p.KEYWORD_ONLY else stars.get(p.kind, "") + n
        for n, p in names.items()
    ]  # fmt: skip
    source = f"def call{inspect.Signature(list(names.values()))}: return {_TARGET!r}({', '.join(given)})"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a text is called, which it is not
        module = compile(source, __file__, "exec", dont_inherit=True)
    code: CodeType = next(c for c in module.co_consts if isinstance(c, CodeType))
    consts = tuple(made if c == _TARGET else c for c in code.co_consts)
    return code.replace(co_consts=consts, co_freevars=function.__code__.co_freevars, co_name=function.__code__.co_name)


def caller() -> Any:
    """The frame that has called a replacement, asked for by that."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame


class StandIn(functools.partial):  # type: ignore[type-arg]
    """Stands in for a function. Calling it costs no frame of its own."""

    def __new__(cls, made: Callable[..., Any], original: Any, module: str, name: str) -> StandIn:
        """Make ``made`` pass for ``original``, which is ``name`` in ``module``."""
        self = super().__new__(cls, made)
        functools.update_wrapper(self, original, updated=())
        vars(self).update(__place__=f"{module}:{name}", **{k: v for k, v in vars(made).items() if k != "__wrapped__"})
        return self

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(vars(self)["__wrapped__"])

    def __eq__(self, other: object) -> bool:
        mine = vars(self)["__wrapped__"]
        return other is self or bool(mine == (vars(other)["__wrapped__"] if isinstance(other, StandIn) else other))

    def __hash__(self) -> int:
        return hash(vars(self)["__wrapped__"])

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["__wrapped__"], name)

    def __repr__(self) -> str:
        return repr(vars(self)["__wrapped__"])

    def __copy__(self) -> StandIn:
        return self

    def __deepcopy__(self, _: Any) -> StandIn:
        return self

    def __reduce__(self) -> Any:
        return _reduce({id(self.__wrapped__): self.__place__}, None, self.__wrapped__)


class PickledByName:
    """Lets those whom others stand in for be pickled by their names, as ever."""

    def __init__(self, stand_ins: Sequence[Any]) -> None:
        self._places = {id(s.__wrapped__): s.__place__ for s in stand_ins}
        self._kinds = {type(s.__wrapped__) for s in stand_ins} - {FunctionType}
        self._added: dict[type, tuple[Any, Any]] = {}

    def install(self) -> None:
        """Say so to pickle."""
        table = copyreg.dispatch_table
        for kind in self._kinds:
            before = table.get(kind)
            made = functools.partial(_reduce, self._places, before)
            self._added[kind] = made, before
            table[kind] = made

    def put_back(self) -> None:
        """Let pickle do as it did, but for kinds that somebody spoke for since."""
        table = copyreg.dispatch_table
        for kind, (made, before) in self._added.items():
            if table.get(kind) is not made:
                continue
            if before is None:
                del table[kind]
            else:
                table[kind] = before
        self._added.clear()


def _reduce(places: dict[int, str], before: Callable[[Any], Any] | None, function: Any) -> Any:
    reduced = before(function) if before is not None else function.__reduce_ex__(4)
    place = places.get(id(function)) if isinstance(reduced, str) else None  # pickle would look for the very object there
    return reduced if place is None else (pkgutil.resolve_name, (place,))
