"""What NumPy offers no hook for: seeing what is done with a plain array.

``plain[i] = traced`` and ``plain += 1`` run in C and ask nobody. While a session follows arrays, the slots of ``np.ndarray``
for subscripts, operators, comparisons and iteration point to CPython's own dispatch to the methods of those names, and these
are ordinary Python functions. An array that receives traced values changes its class in place, as ``__class__`` assignment
would do if built-in types allowed it, and gets its class back at the end. Nothing here knows tapes or torch.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import MethodType
from typing import Any, NamedTuple

import numpy as np

from leapp.capture.standins import StandIn

__all__ = [
    "NUMBER_TYPES", "OPERATORS", "ORIGINAL", "Constructor", "Hooks", "change_class", "make_type", "new_number", "no_sequence",
    "set_attributes", "supported", "watch_buffer",
]  # fmt: skip

# Of CPython's PyObject, PyTypeObject and PyMappingMethods: the same in every release since 3.8, without free threading.
_WORD = ctypes.sizeof(ctypes.c_void_p)
_OB_TYPE, _TP_BASICSIZE, _TP_AS_NUMBER, _TP_AS_SEQUENCE, _TP_AS_MAPPING = (n * _WORD for n in (1, 4, 12, 13, 14))
_TP_REPR, _TP_CALL, _TP_STR = (n * _WORD for n in (11, 16, 17))
_TP_AS_BUFFER, _TP_RICHCOMPARE, _TP_ITER, _TP_INIT, _TP_NEW = (n * _WORD for n in (20, 25, 27, 37, 39))
_TP_DEALLOC, _BOOL = 6 * _WORD, 9 * _WORD
_SUBSCRIPT, _ASS_SUBSCRIPT, _ITEM, _CONTAINS = (n * _WORD for n in (1, 2, 3, 7))
_NUMBER_SLOTS = [n * _WORD for n in range(36) if n != 17]  # one is reserved
_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8
_DEFAULT_FLAGS = 1 << 18 | 1 << 10  # a type others may derive from; without garbage collection, like ndarray

ORIGINAL: Mapping[str, Callable[..., Any]] = dict(np.ndarray.__dict__)
"""NumPy's own methods, whatever is hooked at the moment."""

NUMBER_TYPES = frozenset(np.dtype(c).type for c in "?bBhHiIlLqQefdFD")


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("pfunc", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )  # fmt: skip


_BINARY = "add sub mul truediv floordiv mod divmod pow matmul and or xor lshift rshift".split()
OPERATORS = [
    *(f"__{p}{n}__" for n in _BINARY for p in ("", "r", "i") if (p, n) != ("i", "divmod")),
    *(f"__{n}__" for n in "neg pos abs invert bool int float index lt le eq ne gt ge iter contains".split()),
]
"""What CPython reaches through slots, apart from subscripts."""


class _Dispatching:
    """Its slots are CPython's dispatch to Python methods."""

    def __new__(cls) -> _Dispatching:
        return super().__new__(cls)

    def __init__(self) -> None: ...

    for _name in (*OPERATORS, "__getitem__", "__setitem__", "__call__", "__repr__", "__str__"):
        vars()[_name] = lambda self, *args: None
    del _name


_METHODS = frozenset(OPERATORS) | {"__getitem__", "__setitem__", "__repr__", "__str__"}


def _word(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p.from_address(address)


@functools.cache
def supported() -> bool:
    """Whether this interpreter lays its objects out as this module expects."""
    return (
        sys.implementation.name == "cpython"
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and all(_word(id(t) + _TP_BASICSIZE).value == t.__basicsize__ for t in (np.ndarray, np.float32, _Dispatching))
        and _word(id(np.ndarray) + _OB_TYPE).value == id(type)
    )


# A type's own __new__ refuses to work while its slot is replaced, so the function in the slot is called itself.
_New = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_Init = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
_CONSTRUCTORS: dict[str, tuple[int, Any]] = {"__new__": (_TP_NEW, _New), "__init__": (_TP_INIT, _Init)}
_NEW = {t: _New(_word(id(t) + _TP_NEW).value or 0) for t in NUMBER_TYPES} if supported() else {}


class Constructor:
    """``__new__`` or ``__init__`` of a class written in C, and what ``make`` makes of it."""

    def __init__(self, kind: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        offset, prototype = _CONSTRUCTORS[name]
        self._kind, self._slot = kind, _word(id(kind) + offset)
        original = prototype(self._slot.value or 0)

        def construct(first: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(first, args, id(kwargs) if kwargs else None)
            return made if name == "__new__" else None

        self._attributes = {name: _standing_in(kind, name, make(construct))}
        self._python = _word(id(_Dispatching) + offset).value

    def install(self) -> Callable[[], None]:
        """Replace it; give what undoes it."""
        slot, before = self._slot, self._slot.value
        undo = set_attributes(self._kind, self._attributes)
        slot.value = self._python

        def put_back() -> None:
            slot.value = before
            undo()

        return put_back


class _Method(StandIn):
    """Stands in for a method."""

    def __get__(self, instance: Any, kind: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)


def _standing_in(kind: type, name: str, made: Callable[..., Any]) -> Any:
    """``made`` as the ``__new__`` or ``__init__`` of a class."""
    place = vars(kind)[name], kind.__module__, f"{kind.__name__}.{name}"
    return staticmethod(StandIn(made, *place)) if name == "__new__" else _Method(made, *place)


def new_number(kind: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What NumPy's own constructor of a number type gives."""
    base = next(b for b in kind.__mro__ if b in _NEW)
    return _NEW[base](kind, args, id(kwargs) if kwargs else None)


_specs: list[Any] = []  # what CPython keeps pointers to
_made: set[type] = set()


def make_type(name: str, bases: tuple[type, ...]) -> Any:
    """A type laid out in memory as ``np.ndarray`` is; a class statement would add a header for garbage collection."""
    create = ctypes.pythonapi.PyType_FromSpecWithBases
    create.restype, create.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object]
    spec = _Spec(name.encode(), 0, 0, _DEFAULT_FLAGS, (_Slot * 1)())
    _specs.append(spec)
    kind = create(ctypes.addressof(spec), bases)
    _made.add(kind)
    return kind


def no_sequence(kind: type) -> None:
    """Let C code see that instances of ``kind``, a class made in Python, are no sequences even if they have subscripts."""
    if supported():
        _word((_word(id(kind) + _TP_AS_SEQUENCE).value or 0) + _ITEM).value = None


_GetBuffer = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p, ctypes.c_int)


def watch_buffer(kind: type, tell: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``tell`` whenever the memory of an instance of ``kind`` is asked for through the buffer protocol, until undone."""
    place = _word(_word(id(kind) + _TP_AS_BUFFER).value or 0)
    before = place.value
    place.value = ctypes.cast(_telling(before or 0, tell), ctypes.c_void_p).value
    return lambda: setattr(place, "value", before)


@functools.cache
def _telling(address: int, tell: Callable[[Any], None]) -> Any:
    original = _GetBuffer(address)

    def get_buffer(instance: Any, view: int, flags: int) -> int:
        tell(instance)
        try:
            return int(original(instance, view, flags))
        except Exception as error:
            return _Failure(error)

    return _GetBuffer(get_buffer)


class _Failure(int):
    """What a callback of ctypes returns to fail with an error of its own.

    Ctypes lets no error out of a callback, but the last thing it does is to let go of the result. Here that means to ask for
    the truth of it, which raises the error where C code expects it.
    """

    def __new__(cls, error: Exception) -> _Failure:
        made = super().__new__(cls, -1)
        vars(made)["error"] = error.with_traceback(None)
        return made

    def __bool__(self) -> bool:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # it is about to be freed, and has nobody else who could do that
        raise vars(self).pop("error")


if supported():
    _word(id(_Failure) + _TP_DEALLOC).value = _word((_word(id(_Dispatching) + _TP_AS_NUMBER).value or 0) + _BOOL).value


def change_class(array: np.ndarray[Any, Any], to: type) -> None:
    """Make ``array`` an instance of ``to``, which must be ``np.ndarray`` or come from :func:`make_type`."""
    old = type(array)
    if old is to or to.__basicsize__ != old.__basicsize__:
        return
    # An instance holds a reference to its class, unless the class is a static one.
    if to.__flags__ & _HEAP_TYPE:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(to))
    _word(id(array) + _OB_TYPE).value = id(to)
    if old.__flags__ & _HEAP_TYPE:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(old))


def _kinds(kind: type) -> Iterator[type]:
    """A class and those derived from it, apart from what :func:`make_type` made."""
    yield kind
    derived: type
    for derived in kind.__subclasses__():
        if derived not in _made:
            yield from _kinds(derived)


class _Redirected(NamedTuple):
    """A slot of a class, what is in it, and the slot function that asks for a Python method."""

    word: ctypes.c_void_p
    original: int | None
    python: int | None


_plan: tuple[list[weakref.ref[type]], list[_Redirected]] = [], []
"""The slots of the session before, and whose they are."""


def _redirected(kinds: tuple[type, ...]) -> list[_Redirected]:
    """The slots to redirect: of ``np.ndarray`` (the first of ``kinds``), of classes that have them from there, of numbers."""
    global _plan
    owners, slots = _plan
    if [owner() for owner in owners] != list(kinds) or any(slot.word.value != slot.original for slot in slots):
        _plan = [weakref.ref(kind) for kind in kinds], list(_slots(kinds))
    return _plan[1]


def _slots(kinds: tuple[type, ...]) -> Iterator[_Redirected]:
    tables = ((_TP_AS_MAPPING, [_SUBSCRIPT, _ASS_SUBSCRIPT]), (_TP_AS_NUMBER, _NUMBER_SLOTS), (_TP_AS_SEQUENCE, [_CONTAINS]))
    for table, slots in tables:
        python = _word(id(_Dispatching) + table).value or 0
        found = [address for kind in kinds if (address := _word(id(kind) + table).value)]
        for slot in slots:
            yield from _inherited(python + slot, [address + slot for address in found])
    for slot in (_TP_RICHCOMPARE, _TP_ITER, _TP_REPR, _TP_STR):
        yield from _inherited(id(_Dispatching) + slot, [id(kind) + slot for kind in kinds])
    for number in NUMBER_TYPES:
        yield from _inherited(id(_Dispatching) + _TP_NEW, [id(number) + _TP_NEW])


def _inherited(source: int, places: list[int]) -> Iterator[_Redirected]:
    """The first of ``places``, and those that have the same in them."""
    original = _word(places[0]).value
    for place in dict.fromkeys(places):
        if _word(place).value == original:
            yield _Redirected(_word(place), original, _word(source).value)


_VIEW_METHODS = {n: m for n, m in vars(memoryview).items() if n in "__getitem__ __iter__ __eq__ tolist tobytes hex".split()}
_VIEW_SLOTS = ((_TP_AS_MAPPING, _SUBSCRIPT), (None, _TP_ITER), (None, _TP_RICHCOMPARE))


def _watch_views(tell: Callable[[Any], None]) -> Iterator[Callable[[], None]]:
    """Call ``tell`` with each ``memoryview`` that is read, until undone."""
    yield set_attributes(memoryview, _view_methods(tell))
    yield watch_buffer(memoryview, tell)
    for table, slot in _VIEW_SLOTS:
        start, python = (id(k) if table is None else _word(id(k) + table).value or 0 for k in (memoryview, _Dispatching))
        word = _word(start + slot)
        if word.value:
            yield functools.partial(setattr, word, "value", word.value)
            word.value = _word(python + slot).value


@functools.cache
def _view_methods(tell: Callable[[Any], None]) -> dict[str, Callable[..., Any]]:
    def telling(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            tell(self)
            return original(self, *args, **kwargs)

        return method

    return {name: telling(original) for name, original in _VIEW_METHODS.items()}


class Hooks:
    """Methods of ``np.ndarray``, and the constructors of NumPy's numbers, replaced while a session follows arrays.

    Args:
        methods: The methods by name.
        make: Called as ``make(type, *args, **kwargs)`` in place of the number types.
        tell: Called with an array whose memory is asked for, and with a view of memory that is read.
    """

    def __init__(
        self, methods: Mapping[str, Callable[..., Any]], make: Callable[..., Any], tell: Callable[[Any], None]
    ) -> None:
        self._tell = tell
        numbers = [(number, {"__new__": _standing_in(number, "__new__", make)}) for number in NUMBER_TYPES]
        self._new = [(kind, _own(kind), attributes) for kind, attributes in [(np.ndarray, methods), *numbers]]
        self._old = [{name: own.get(name) for name in new} for _, own, new in self._new]
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Replace everything, and make CPython ask for it."""
        if self._undo:
            return
        for kind, own, new in self._new:
            own.update(new)
            _modified(kind)
        self._undo.append(self._put_attributes_back)
        self._undo.append(watch_buffer(np.ndarray, self._tell))
        self._undo += _watch_views(self._tell)
        kinds = tuple(_kinds(np.ndarray))
        sizes = [len(vars(kind)) for kind in kinds]
        slots = _redirected(kinds)
        for slot in slots:
            slot.word.value = slot.python

        def put_back() -> None:
            for slot in slots:
                slot.word.value = slot.original
            for kind, size in zip(kinds[1:], sizes[1:], strict=True):
                for name in _METHODS.intersection(vars(kind)) if len(vars(kind)) != size else ():
                    setattr(kind, name, vars(kind)[name])  # set meanwhile, and its slot goes by it

        self._undo.append(put_back)

    def remove(self) -> None:
        """Put NumPy's own back."""
        while self._undo:
            self._undo.pop()()

    def _put_attributes_back(self) -> None:
        for (kind, own, _), old in zip(self._new, self._old, strict=True):
            own.update(old)
            for name, value in old.items():
                if value is None:
                    del own[name]
            _modified(kind)


def set_attributes(owner: type, attributes: Mapping[str, Any]) -> Callable[[], None]:
    """Set attributes of a class, maybe a built-in one, and give what puts the old ones back, but for those set since."""
    own = vars(owner)
    before = {name: own.get(name) for name in attributes}
    _update(owner, attributes)

    def put_back() -> None:
        _update(owner, {name: before[name] for name, made in attributes.items() if own.get(name) is made})

    if "__call__" not in attributes or owner.__flags__ & _HEAP_TYPE:
        return put_back
    slot = _word(id(owner) + _TP_CALL)
    original, slot.value = slot.value, _word(id(_Dispatching) + _TP_CALL).value

    def undo() -> None:
        slot.value = original
        put_back()

    return undo


def _update(owner: type, attributes: Mapping[str, Any]) -> None:
    if owner.__flags__ & (_HEAP_TYPE | _IMMUTABLE_TYPE) == _HEAP_TYPE:
        for name, value in attributes.items():
            delattr(owner, name) if value is None else setattr(owner, name, value)
        return
    own = _own(owner)
    own.update(attributes)
    for name, value in attributes.items():
        if value is None:
            del own[name]
    _modified(owner)


def _own(owner: type) -> dict[str, Any]:
    """The dictionary of a built-in class: it takes what the class refuses, but no slot follows."""
    own: dict[str, Any] = gc.get_referents(owner.__dict__)[0]
    return own


_modified = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyType_Modified", ctypes.pythonapi))
"""Tells CPython that the dictionary of a class has changed."""
