"""YAML as bundles use it: written in one fixed layout, read as plain data with bounds.

The writer and the reader handle dicts, lists and scalars. ``contract_yaml`` knows what the keys mean.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from leapp.errors import BundleError

MAX_BYTES = 4 * 1024 * 1024
_MAX_DEPTH = 40
_MAX_VALUES = 200_000
_MAX_NUMBER = 400
_MAX_TEXT = 4 * MAX_BYTES
"""Characters of all values together. A long text is repeated by aliases that take two characters each."""

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Emitter: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_PREFIX = "tag:yaml.org,2002:"


class Flow(list[Any]):
    """A list written on one line: ``[a, b]``."""


_UNUSUAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_ALIKE = re.compile(r"[\x21-\x7e]{1,100}|[\x20-\x7e]{1,32}")
"""Text that both of PyYAML's emitters spell alike, as a key too: without blanks, or short."""

_RESOLVER: Any = yaml.resolver.Resolver()
_REPRESENTER: Any = yaml.representer.SafeRepresenter()
_SHORT = 64


@functools.lru_cache(4096)
def _known_tag(value: str) -> str:
    return str(_RESOLVER.resolve(yaml.ScalarNode, value, (True, False)))


def _tag(value: str) -> str:
    """The type that YAML sees in a scalar without quotes. A description says the same few words over and over."""
    return _known_tag(value) if len(value) <= _SHORT else str(_RESOLVER.resolve(yaml.ScalarNode, value, (True, False)))


def _text_event(text: str) -> tuple[yaml.ScalarEvent, bool]:
    """The event that writes a text, and whether both emitters spell it alike."""
    # Left to itself the emitter puts rare line breaks into plain text, where a reader takes them for blanks.
    style = '"' if _UNUSUAL.search(text) else None
    event = yaml.ScalarEvent(None, _PREFIX + "str", (_tag(text) == _PREFIX + "str", True), text, style=style)
    return event, _ALIKE.fullmatch(text) is not None


_known_text_event = functools.lru_cache(4096)(_text_event)
_BEGIN = (yaml.StreamStartEvent(), yaml.DocumentStartEvent(explicit=False))
_END = (yaml.DocumentEndEvent(explicit=False), yaml.StreamEndEvent())
_MAPPING, _MAPPING_END = yaml.MappingStartEvent(None, None, True, flow_style=False), yaml.MappingEndEvent()
_FLOW, _BLOCK = (yaml.SequenceStartEvent(None, None, True, flow_style=flow) for flow in (True, False))
_SEQUENCE_END = yaml.SequenceEndEvent()


class _Events:
    """The events that write a value. Equal values are written out again: readers on robots do not know anchors."""

    def __init__(self, sort_keys: bool) -> None:
        self.list: list[Any] = [*_BEGIN]
        self.alike = True
        self._sort_keys = sort_keys

    def add(self, value: Any) -> None:
        if isinstance(value, str):
            event, alike = _known_text_event(value) if len(value) <= _SHORT else _text_event(value)
            self.list.append(event)
            self.alike = self.alike and alike
        elif isinstance(value, dict):
            self.list.append(_MAPPING)
            for key in _sorted(value) if self._sort_keys else value:
                self.add(key)
                self.add(value[key])
            self.list.append(_MAPPING_END)
        elif isinstance(value, (list, tuple)):
            self.list.append(_FLOW if isinstance(value, Flow) else _BLOCK)
            for item in value:
                self.add(item)
            self.list.append(_SEQUENCE_END)
        else:
            node = _REPRESENTER.represent_data(value)
            self.list.append(yaml.ScalarEvent(None, node.tag, (True, False), node.value))


def _sorted(keys: Iterable[Any]) -> Iterable[Any]:
    try:
        return sorted(keys)
    except TypeError:  # keys of several types, in what a user adds
        return keys


def dump(value: dict[str, Any], *, sort_keys: bool) -> str:
    """One mapping in block style. Only ``Flow`` lists are written on one line."""
    events = _Events(sort_keys)
    events.add(value)
    # The emitter in C breaks and escapes unusual text differently, and a contract must give the same bytes everywhere.
    emitter = _Emitter if events.alike else yaml.SafeDumper
    return str(yaml.emit([*events.list, *_END], Dumper=emitter, allow_unicode=True))


def parse(text: str, name: str) -> Any:
    """Read one YAML document into plain data.

    Duplicate keys, tags, merge keys, keys that are not scalars, runaway aliases, deep nesting and several documents are
    refused. Dates stay text.

    Args:
        text: The document.
        name: The file, for messages.

    Raises:
        BundleError: If the document is not acceptable.
    """
    if len(text) > MAX_BYTES:
        raise BundleError(f"{name}: larger than {MAX_BYTES} characters, too large for a bundle description.")
    loader = _Parser(text)
    try:
        return _Builder(loader, name).document()
    except (yaml.YAMLError, yaml.reader.ReaderError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}, line {mark.line + 1}" if mark is not None else name
        raise BundleError(f"{where}: not readable as YAML: {getattr(error, 'problem', None) or error}.") from error
    finally:
        loader.dispose()


def line_of(text: str, path: tuple[str | int, ...]) -> int | None:
    """The line on which the value at ``path`` stands, or the nearest enclosing one, in text ``parse`` accepted."""
    node = yaml.compose(text, Loader=_Parser)
    line: int | None = None
    for step in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == step), None)
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            found = (node.value[step], node.value[step])
        else:
            found = None
        if found is None:
            break
        line = found[0].start_mark.line + 1
        node = found[1]
    return line


_NO_KEY: Any = object()


@dataclass(slots=True)
class _Open:
    """A mapping or sequence whose end has not been read yet."""

    value: dict[Any, Any] | list[Any]
    anchor: str | None
    start: int
    size: int
    height: int = 1
    key: Any = _NO_KEY


class _Builder:
    """Builds values from parser events, without recursion, so that every bound is checked while reading."""

    def __init__(self, loader: Any, name: str) -> None:
        self._loader = loader
        self._name = name
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int, int, int]] = {}  # value, values in it, characters in it, levels of it
        self._count = 0
        self._size = 0
        self._root: Any = _NO_KEY

    def document(self) -> Any:
        documents = 0
        next_event = self._loader.get_event
        while (event := next_event()) is not None:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                self._scalar(event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._begin(event, {} if kind is yaml.MappingStartEvent else [])
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self._end(event)
            elif kind is yaml.AliasEvent:
                self._alias(event)
            elif kind is yaml.DocumentStartEvent:
                documents += 1
                if documents > 1:
                    raise self._refuse(event, "several documents in one file")
        return None if self._root is _NO_KEY else self._root

    def _refuse(self, event: Any, what: str) -> BundleError:
        return BundleError(f"{self._name}, line {event.start_mark.line + 1}: {what}.")

    def _grow(self, event: Any, by: int = 1, size: int = 0) -> None:
        self._count += by
        self._size += size
        if self._size > _MAX_TEXT:
            raise self._refuse(event, f"more than {_MAX_TEXT} characters, aliases included")
        if self._count > _MAX_VALUES:
            raise self._refuse(event, f"more than {_MAX_VALUES} values, aliases included")

    def _begin(self, event: Any, value: dict[Any, Any] | list[Any]) -> None:
        if event.tag is not None:
            raise self._refuse(event, f"the tag {event.tag!r} is not allowed, a bundle holds plain data only")
        if len(self._stack) >= _MAX_DEPTH:
            raise self._refuse(event, f"nested deeper than {_MAX_DEPTH} levels")
        self._grow(event)
        self._stack.append(_Open(value, event.anchor, self._count, self._size))

    def _end(self, event: Any) -> None:
        closed = self._stack.pop()
        if closed.anchor is not None:
            count, size = self._count - closed.start + 1, self._size - closed.size
            self._anchors[closed.anchor] = (closed.value, count, size, closed.height)
        self._put(closed.value, event, closed.height)

    def _scalar(self, event: Any) -> None:
        text = event.value
        self._grow(event, 1, len(text))
        if event.tag is not None:
            raise self._refuse(event, f"the tag {event.tag!r} is not allowed, a bundle holds plain data only")
        value = text
        if event.implicit[0]:  # without quotes
            try:
                value = _known_value(text) if len(text) <= _SHORT else _value(text)
            except ValueError as error:
                raise self._refuse(event, str(error)) from error
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, 1, len(text), 0)
        self._put(value, event)

    def _alias(self, event: Any) -> None:
        if event.anchor not in self._anchors:
            raise self._refuse(event, f"the alias *{event.anchor} refers to nothing before it")
        value, count, size, height = self._anchors[event.anchor]
        self._grow(event, count, size)
        if len(self._stack) + height > _MAX_DEPTH:
            raise self._refuse(event, f"nested deeper than {_MAX_DEPTH} levels")
        self._put(value, event, height)

    def _put(self, value: Any, event: Any, height: int = 0) -> None:
        if not self._stack:
            self._root = value
            return
        parent = self._stack[-1]
        if height >= parent.height:
            parent.height = height + 1
        if isinstance(parent.value, list):
            parent.value.append(value)
        elif parent.key is _NO_KEY:
            if isinstance(value, (dict, list)):
                raise self._refuse(event, "a key must be a single value")
            if value in parent.value:
                raise self._refuse(event, f"the key {value!r} appears twice")
            parent.key = value
        else:
            parent.value[parent.key] = value
            parent.key = _NO_KEY


_CONSTRUCTOR = yaml.constructor.SafeConstructor()
_SCALARS: dict[str, Any] = {
    "null": _CONSTRUCTOR.construct_yaml_null,
    "bool": _CONSTRUCTOR.construct_yaml_bool,
    "int": _CONSTRUCTOR.construct_yaml_int,
    "float": _CONSTRUCTOR.construct_yaml_float,
}


def _value(text: str) -> Any:
    """The value of a scalar without quotes.

    Raises:
        ValueError: It has none. The message says why.
    """
    tag = _tag(text).removeprefix(_PREFIX)
    if tag == "merge":
        raise ValueError("merge keys (<<) are not supported, write the keys out")
    if tag not in _SCALARS:
        return text
    if len(text) > _MAX_NUMBER:
        raise ValueError(f"a number of {len(text)} characters")
    try:
        return _SCALARS[tag](yaml.ScalarNode(_PREFIX + tag, text))
    except (ValueError, OverflowError, IndexError) as error:
        raise ValueError(f"{text[:40]!r} is not a usable {tag}") from error


_known_value = functools.lru_cache(4096)(_value)
