"""What NumPy offers no hook for: seeing what is done with a plain array.

``plain[i] = traced`` and ``plain += 1`` run in C and ask nobody. While a session follows arrays, the slots of ``np.ndarray``
for subscripts, operators, comparisons and iteration point to CPython's own dispatch to the methods of those names, and these
are ordinary Python functions. An array that receives traced values changes its class in place, as ``__class__`` assignment
would do if built-in types allowed it, and gets its class back at the end. Nothing here knows tapes or torch.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from leapp.capture.replacing.classes import NEW, WatchedBuffer, standing_in
from leapp.capture.replacing.layout import (
    HEAP_TYPE,
    OB_TYPE,
    OPERATORS,
    WORD,
    Dispatching,
    is_open,
    own_attributes,
    supported,
    word,
)
from leapp.capture.replacing.ledgers import Ledger, ledger_of
from leapp.capture.replacing.owners import Part, names_of

__all__ = ["NUMBER_TYPES", "ORIGINAL", "Hooks", "change_class", "make_type", "new_number", "no_sequence"]

# Of CPython's PyTypeObject, PyNumberMethods, PySequenceMethods and PyMappingMethods.
_TP_REPR, _TP_AS_NUMBER, _TP_AS_SEQUENCE, _TP_AS_MAPPING, _TP_STR = (n * WORD for n in (11, 12, 13, 14, 17))
_TP_RICHCOMPARE, _TP_ITER, _TP_NEW = (n * WORD for n in (25, 27, 39))
_SUBSCRIPT, _ASS_SUBSCRIPT, _ITEM, _CONTAINS = (n * WORD for n in (1, 2, 3, 7))
_NUMBER_SLOTS = [n * WORD for n in range(36) if n != 17]  # one is reserved
_DEFAULT_FLAGS = 1 << 18 | 1 << 10  # a type others may derive from; without garbage collection, like ndarray

ORIGINAL: Mapping[str, Callable[..., Any]] = dict(np.ndarray.__dict__)
"""NumPy's own methods, whatever is hooked at the moment."""

NUMBER_TYPES = frozenset(np.dtype(c).type for c in "?bBhHiIlLqQefdFD")
_METHODS = frozenset(OPERATORS) | {"__getitem__", "__setitem__", "__repr__", "__str__"}
_NEW = {t: NEW(word(id(t) + _TP_NEW).value or 0) for t in NUMBER_TYPES} if supported() else {}


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("pfunc", ctypes.c_void_p))


class _Spec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("basicsize", ctypes.c_int), ("itemsize", ctypes.c_int), ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )  # fmt: skip


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
        word((word(id(kind) + _TP_AS_SEQUENCE).value or 0) + _ITEM).value = None


def change_class(array: np.ndarray[Any, Any], to: type) -> None:
    """Make ``array`` an instance of ``to``, which must be ``np.ndarray`` or come from :func:`make_type`."""
    old = type(array)
    if old is to or to.__basicsize__ != old.__basicsize__:
        return
    # An instance holds a reference to its class, unless the class is a static one.
    if to.__flags__ & HEAP_TYPE:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(to))
    word(id(array) + OB_TYPE).value = id(to)
    if old.__flags__ & HEAP_TYPE:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(old))


def _kinds(kind: type) -> Iterator[type]:
    """A class and those derived from it, apart from what :func:`make_type` made."""
    yield kind
    derived: type
    for derived in kind.__subclasses__():
        if derived not in _made:
            yield from _kinds(derived)


def _own_bases(kinds: list[type]) -> Iterator[type]:
    """Classes that derive from the first one, and their bases, as far as anybody can set a method there."""
    found = dict.fromkeys(base for kind in kinds[1:] for base in kind.__mro__)
    return (base for base in found if is_open(base) and base not in kinds[0].__mro__)


class _Redirected(NamedTuple):
    """A slot of a class, what is in it, and the slot function that asks for a Python method."""

    word: ctypes.c_void_p
    original: int | None
    python: int | None

    def install(self) -> None:
        """Let CPython ask for the Python method."""
        self.word.value = self.python

    def put_back(self) -> None:
        """Let CPython call what it called."""
        self.word.value = self.original


class _Slots:
    """The slots to redirect: of ``np.ndarray``, of classes that have them from there, of numbers."""

    def __init__(self) -> None:
        self._owners: list[weakref.ref[type]] = []
        self._slots: list[_Redirected] = []
        self._originals: list[int | None] = []
        self._kinds: list[type] = []
        """The classes whose slots are redirected, which must not die meanwhile."""
        self._bases: list[tuple[type, Ledger, tuple[Any, ...]]] = []
        """Those and their own bases, and the state of each."""

    def install(self) -> None:
        """Redirect them."""
        kinds = list(_kinds(np.ndarray))
        # The slots of classes that are gone are no longer to be read.
        if [owner() for owner in self._owners] != kinds or [slot.value for slot, _, _ in self._slots] != self._originals:
            self._owners = []  # should this be interrupted
            self._slots = list(_slots(kinds))
            self._originals = [original for _, original, _ in self._slots]
            self._owners = [weakref.ref(kind) for kind in kinds]
        self._bases = [(base, ledger := ledger_of(own_attributes(base)), ledger.state()) for base in _own_bases(kinds)]
        self._kinds = kinds
        for slot, _, python in self._slots:
            slot.value = python

    def put_back(self) -> None:
        """Put their functions back."""
        for slot, original, _ in self._slots if self._kinds else ():
            slot.value = original
        for base, ledger, state in self._bases:
            for name in _METHODS.intersection(vars(base)) if ledger.state() != state else ():
                setattr(base, name, vars(base)[name])  # set meanwhile, and the slots of all that derive from it go by it
        self._kinds, self._bases = [], []


def _slots(kinds: list[type]) -> Iterator[_Redirected]:
    tables = ((_TP_AS_MAPPING, [_SUBSCRIPT, _ASS_SUBSCRIPT]), (_TP_AS_NUMBER, _NUMBER_SLOTS), (_TP_AS_SEQUENCE, [_CONTAINS]))
    for table, slots in tables:
        python = word(id(Dispatching) + table).value or 0
        found = [address for kind in kinds if (address := word(id(kind) + table).value)]
        for slot in slots:
            yield from _inherited(python + slot, [address + slot for address in found])
    for slot in (_TP_RICHCOMPARE, _TP_ITER, _TP_REPR, _TP_STR):
        yield from _inherited(id(Dispatching) + slot, [id(kind) + slot for kind in kinds])
    for number in NUMBER_TYPES:
        yield from _inherited(id(Dispatching) + _TP_NEW, [id(number) + _TP_NEW])


def _inherited(source: int, places: list[int]) -> Iterator[_Redirected]:
    """The first of ``places``, and those that have the same in them."""
    original = word(places[0]).value
    for place in dict.fromkeys(places):
        if word(place).value == original:
            yield _Redirected(word(place), original, word(source).value)


_VIEW_METHODS = {n: m for n, m in vars(memoryview).items() if n in "__getitem__ __iter__ __eq__ tolist tobytes hex".split()}
_VIEW_SLOTS = ((_TP_AS_MAPPING, _SUBSCRIPT), (None, _TP_ITER), (None, _TP_RICHCOMPARE))


def _watched_views(tell: Callable[[Any], None]) -> Iterator[Part]:
    """What lets ``tell`` be called with each ``memoryview`` that is read."""

    def telling(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            tell(self)
            return original(self, *args, **kwargs)

        return method

    yield names_of(memoryview, {name: telling(original) for name, original in _VIEW_METHODS.items()})
    yield WatchedBuffer(memoryview, tell)
    for table, slot in _VIEW_SLOTS:
        start, python = (id(k) if table is None else word(id(k) + table).value or 0 for k in (memoryview, Dispatching))
        place = word(start + slot)
        if place.value:
            yield _Redirected(place, place.value, word(python + slot).value)


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
        numbers = [names_of(number, {"__new__": standing_in(number, "__new__", make)}) for number in NUMBER_TYPES]
        memory = [WatchedBuffer(np.ndarray, tell), *_watched_views(tell)]
        self._parts: list[Part] = [names_of(np.ndarray, methods), *numbers, *memory, _Slots()]
        self._installed = False

    def install(self) -> None:
        """Replace everything, and make CPython ask for it."""
        if not self._installed:
            self._installed = True
            for part in self._parts:
                part.install()

    def put_back(self) -> None:
        """Put NumPy's own back."""
        if self._installed:
            for part in reversed(self._parts):
                part.put_back()
            self._installed = False
