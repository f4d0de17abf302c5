"""Compiled code of other packages: it reads the memory of the arrays it is given, and asks nobody.

Its functions, and the methods of its classes, are therefore replaced while a session follows arrays: given a traced array they
get the plain one, and that its value left the graph is noted. NumPy and torch have ways of their own to be seen. The runtime of
leapp hands its inputs to engines, so its classes are treated likewise, for tensors and arrays.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType, WrapperDescriptorType
from typing import Any

from leapp.capture.numpy.plain import arrays_in
from leapp.capture.numpy.traced import listening
from leapp.capture.replacing.layout import is_open, own_attributes, supported
from leapp.capture.replacing.ledgers import ledger_of
from leapp.capture.replacing.owners import Names, Part, names_of
from leapp.capture.replacing.standins import PickledByName, StandIn
from leapp.capture.replacing.surveys import Survey

__all__ = [
    "SEEN_OTHERWISE", "compiled_callables", "insisting", "insisting_classes", "reading", "running", "runtime_methods",
]  # fmt: skip

SEEN_OTHERWISE = frozenset(
    {"numpy", "torch", "functorch", "torchgen", "leapp", "msgspec", "yaml", "typing_extensions", *sys.stdlib_module_names}
)
"""Packages that have other ways to be seen, and those that leapp and torch bring along, which know no arrays."""
# Names of types that C extensions, Cython, pybind11 and nanobind give their functions and methods.
_FUNCTIONS = frozenset({"builtin_function_or_method", "cython_function_or_method", "fused_cython_function", "nb_func"})
_FORTRAN = "fortran"  # what f2py calls the class of its functions
_RUNTIME = ("leapp.runtime", "leapp.client")
_METHODS = _FUNCTIONS | {"method_descriptor", "instancemethod", "nb_method"}


def reading(original: Callable[..., Any], name: str, package: str = "") -> Callable[..., Any]:
    """``original``, of a ``package``, as a reader of traced arrays."""

    @functools.wraps(original, updated=())
    def read(*args: Any, **kwargs: Any) -> Any:
        arrays = listening()
        if arrays is None or not arrays.concerned(arrays_in((args, kwargs))):
            return original(*args, **kwargs)
        return arrays.read_out(name, original, args, kwargs, package)

    return read


def insisting(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``original``, which insists on numbers of certain types, as a reader of traced numbers."""

    @functools.wraps(original, updated=())
    def insist(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except TypeError:
            arrays = listening()
            if arrays is None or not arrays.concerned(arrays_in((args, kwargs))):
                raise
        return arrays.read_out(name, original, args, kwargs)

    return insist


def insisting_classes(modules: Iterable[ModuleType]) -> Iterator[tuple[type, dict[str, Any]]]:
    """The classes of ``modules`` that insist on types of numbers, and methods to put into them."""
    for kind in {v for m in modules for v in vars(m).values() if isinstance(v, type) and not is_open(v)}:
        methods: dict[str, Any] = {}
        for name, value in vars(kind).items():
            if type(value).__name__ == "classmethod_descriptor":
                methods[name] = classmethod(insisting(_unbound(value), f"{kind.__name__}.{name}"))
            elif type(value).__name__ == "method_descriptor" and not name.startswith("_"):
                methods[name] = insisting(value, f"{kind.__name__}.{name}")
        yield kind, methods


def _unbound(method: Any) -> Callable[..., Any]:
    def call(cls: type, *args: Any, **kwargs: Any) -> Any:
        return method.__get__(None, cls)(*args, **kwargs)

    return functools.wraps(method, updated=())(call)


def runtime_methods(followed: set[type]) -> list[Names]:
    """The methods to replace in the loaded classes of leapp that run bundles, but for those ``followed`` already."""
    packages = [sys.modules[name] for name in _RUNTIME if name in sys.modules]
    modules = [module for package in packages for module in vars(package).values() if isinstance(module, ModuleType)]
    kinds = [v for m in modules for v in vars(m).values() if isinstance(v, type) and v.__module__ == m.__name__]
    new = [kind for kind in kinds if kind not in followed]
    followed.update(new)
    return [readers for kind in new if (readers := _readers(kind)) is not None]


def _readers(kind: type) -> Names | None:
    known = _known_readers.get(kind)
    if known is None or not known.stand():
        methods = {n: running(v, f"{kind.__name__}.{n}") for n, v in vars(kind).items() if _runs(n, v)}
        known = _known_readers[kind] = names_of(kind, methods)
    return known if known else None


_known_readers: dict[type, Names] = {}


def _runs(name: str, value: Any) -> bool:
    return isinstance(value, FunctionType) and not hasattr(value, "__wrapped__") and (name == "__call__" or name[0] != "_")


def running(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``original`` as a reader of traced tensors and arrays, of which it gets the tensors as such."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        arrays = listening()
        if arrays is None or not arrays.concerned(arrays_in((args, kwargs))):
            return original(*args, **kwargs)
        return arrays.read_out(name, original, args, kwargs, tensors=True)

    return run


def _callables(module: ModuleType) -> tuple[dict[Any, Part] | None, list[type]]:
    """What to replace in a module and in the classes it has: functions and methods, by whose they are."""
    held = own_attributes(module)
    name = held.get("__name__")
    if not isinstance(name, str):
        return None, []
    functions: dict[str, Any] = {}
    classes: dict[int, type] = {}
    for attribute, value in list(held.items()):
        if issubclass(type(value), type):  # asking the value itself could load a lazy module
            classes[id(value)] = value
        elif type(value).__name__ in _FUNCTIONS:
            if not _is_seen(getattr(value, "__module__", None) or _of_instance(value) or name):
                made = reading(value, f"{name}.{attribute}", _top(name))
                functions[attribute] = StandIn(made, value, name, attribute)
        elif callable(value):
            classes[id(type(value))] = type(value)
    found: dict[Any, Part] = {kind: names_of(kind, methods) for kind in classes.values() if (methods := _methods(kind))}
    if functions:
        found |= {module: names_of(module, functions), name: PickledByName(list(functions.values()))}
    return found or None, list(classes.values())


_survey = Survey(_callables)


def compiled_callables(modules: Sequence[ModuleType], new: bool = False) -> list[Part]:
    """What to replace in ``modules`` and in their classes; in ``new`` ones, besides what is replaced already."""
    found: dict[Any, Part] = {}
    for part in _survey.within(modules) if new else _survey.of(modules):
        found |= part
    return list(found.values())


def _methods(kind: type) -> dict[str, Any]:
    """The methods to replace in a class, the same ones for every module that has it; none if they are replaced already."""
    own = vars(kind)
    state, known = _methods_of.get(kind, ((), {}))
    if any(own.get(name) is made for name, made in known.items()):
        return {}
    now = ledger_of(own_attributes(kind)).state()
    if now != state:
        known = dict(_find_methods(kind))
        _methods_of[kind] = now, known
    return known


_methods_of: weakref.WeakKeyDictionary[type, tuple[tuple[Any, ...], dict[str, Any]]] = weakref.WeakKeyDictionary()


def _find_methods(kind: type) -> Iterator[tuple[str, Any]]:
    module = getattr(kind, "__module__", None)
    if kind.__name__ == _FORTRAN and supported():  # its instances are kept in many places, so the class itself is changed
        yield "__call__", reading(vars(kind)["__call__"], "a Fortran function", "scipy")
    if not isinstance(module, str) or _is_seen(module):
        return
    for name, value in list(vars(kind).items()):
        static = isinstance(value, staticmethod)
        function = value.__func__ if isinstance(value, staticmethod) else value
        if type(function).__name__ in _METHODS and not name.startswith("__"):
            made = reading(function, f"{kind.__name__}.{name}", _top(module))
            yield name, staticmethod(made) if static else made
    call = next((vars(b)["__call__"] for b in kind.__mro__ if "__call__" in vars(b)), None)
    if isinstance(call, WrapperDescriptorType) and not issubclass(kind, type) and is_open(kind):
        yield "__call__", reading(call, f"a {kind.__name__}", _top(module))


def _of_instance(value: Any) -> str | None:
    """The module of the object that a bound built-in method belongs to."""
    owner = value.__self__ if isinstance(value, BuiltinFunctionType) else None
    return None if owner is None or isinstance(owner, ModuleType) else type(owner).__module__


def _is_seen(module: str) -> bool:
    return _top(module) in SEEN_OTHERWISE


def _top(module: str) -> str:
    return module.partition(".")[0]
