"""The names of one module or class that others take for a while.

It knows what was under them, so that to put it in place, to look whether it is there and to put it back are each a few steps
of C, however many names there are.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from operator import is_
from types import ModuleType
from typing import Any, Protocol

from leapp.capture.replacing.layout import (
    HEAP_TYPE,
    TP_CALL,
    Dispatching,
    is_open,
    modified,
    own_attributes,
    word,
)
from leapp.capture.replacing.ledgers import ledger_of

__all__ = ["Asked", "Names", "Part", "Undo", "names_of", "set_names"]

Undo = Callable[[], None]
_CLASS: Any = vars(object)["__class__"]


class Part(Protocol):
    """Something that can be put in place of something else, and back.

    Both may be interrupted. What was put in place in part, or put back in part, can be put back all the same.
    """

    def install(self) -> None:
        """Put it in place."""

    def put_back(self) -> None:
        """Put back what was there."""


class Names:
    """Names of a module."""

    def __init__(self, owner: Any, new: Mapping[str, Any]) -> None:
        self._own: dict[str, Any] = own_attributes(owner)
        self._new = dict(new)
        self._old = {name: self._own.get(name) for name in new}
        self._some_absent = any(value is None for value in self._old.values())
        self._ledger = ledger_of(self._own)
        self._state = self._ledger.state()
        self._installed: tuple[Any, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self._new)

    def stand(self) -> bool:
        """Whether the originals are there."""
        now = self._ledger.state()
        if now != self._state:
            if not self._hold(self._old):
                return False
            self._state = now
        return True

    def install(self) -> None:
        """Put the others in place."""
        self._ledger.state()
        self._installed = ()  # should this be interrupted
        self._write(self._new)
        self._installed = self._ledger.made(self)

    def put_back(self) -> None:
        """Put the originals back, but for names that were set since."""
        if self._installed is None:
            return
        if self._ledger.state() == self._installed or self._hold(self._new):
            self._write(self._old)
        else:
            self._write({name: self._old[name] for name, made in self._new.items() if self._own.get(name) is made})
        self._ledger.undone(self)
        self._installed = None

    def _hold(self, values: Mapping[str, Any]) -> bool:
        """Whether these very objects are under the names; ``None`` stands for nothing."""
        return all(map(is_, map(self._own.get, values), values.values()))

    def _write(self, values: Mapping[str, Any]) -> None:
        if self._some_absent:
            for name in [name for name, value in values.items() if value is None]:
                self._own.pop(name, None)
            values = {name: value for name, value in values.items() if value is not None}
        self._own.update(values)


class _OfClass(Names):
    """Names of a class; those that have slots are set as anybody would."""

    def __init__(self, owner: type, new: Mapping[str, Any]) -> None:
        super().__init__(owner, new)
        self._owner = owner
        self._slots = [name for name in new if name.startswith("__")]

    def _write(self, values: Mapping[str, Any]) -> None:
        slots = [name for name in self._slots if name in values]
        for name in slots:
            delattr(self._owner, name) if values[name] is None else setattr(self._owner, name, values[name])
        if len(slots) < len(values):
            super()._write({name: value for name, value in values.items() if name not in slots} if slots else values)
            modified(self._owner)


class _OfBuiltin(Names):
    """Names of a class that lets nobody change it, so nobody has. Of its slots the one for calls follows."""

    def __init__(self, owner: type, new: Mapping[str, Any]) -> None:
        super().__init__(owner, new)
        self._owner = owner
        self._slot = word(id(owner) + TP_CALL) if "__call__" in new and not owner.__flags__ & HEAP_TYPE else None
        self._call = None if self._slot is None else self._slot.value

    def install(self) -> None:
        self._installed = ()
        self._own.update(self._new)
        modified(self._owner)
        if self._slot is not None:
            self._slot.value = word(id(Dispatching) + TP_CALL).value

    def put_back(self) -> None:
        if self._installed is None:
            return
        if self._slot is not None:
            self._slot.value = self._call
        self._write(self._old)
        modified(self._owner)
        self._installed = None


class Asked:
    """A module of which so many functions are replaced that it answers for itself: it changes its class for a while.

    Args:
        module: The module.
        standing: What it answers with, by the identity of what it has, and of that itself.
    """

    def __init__(self, module: ModuleType, standing: Mapping[int, Any]) -> None:
        self._module, self._before = module, type(module)
        find, put = self._before.__getattribute__, self._before.__setattr__

        def answer(self: ModuleType, name: str) -> Any:
            value = find(self, name)
            return standing.get(id(value), value)

        def accept(self: ModuleType, name: str, value: Any) -> None:
            made = standing.get(id(value))
            put(self, name, made.__wrapped__ if made is not None and made is value else value)

        def reduce(self: ModuleType, _: Any) -> Any:
            # Picklers that know modules know them by their type, which is another now.
            return importlib.import_module, (self.__name__,)

        own = {
            "__slots__": (), "__getattribute__": answer, "__setattr__": accept, "__reduce_ex__": reduce,
            "__class__": property(lambda _: self._before),
        }  # fmt: skip
        self._kind = type(self._before.__name__, (self._before,), own)
        for name in ("__slots__", "__module__", "__doc__"):  # a module would seem to have them
            own_attributes(self._kind).pop(name, None)

    def install(self) -> None:
        """Let it answer."""
        _CLASS.__set__(self._module, self._kind)

    def put_back(self) -> None:
        """Let it be what it was."""
        if type(self._module) is self._kind:
            _CLASS.__set__(self._module, self._before)


def names_of(owner: Any, new: Mapping[str, Any]) -> Names:
    """The names of a module or a class, and what shall be under them."""
    if isinstance(owner, ModuleType):
        return Names(owner, new)
    return (_OfClass if is_open(owner) else _OfBuiltin)(owner, new)


def set_names(owner: Any, new: Mapping[str, Any]) -> Undo:
    """Set names of a module or a class, and give what puts the old ones back."""
    names = names_of(owner, new)
    names.install()
    return names.put_back
