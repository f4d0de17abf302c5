"""Reads and writes the YAML of bundles: written in one fixed layout, read as plain data with limits.

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
"""The most characters of all values together. An alias of two characters can repeat a long text."""

_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Emitter: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_PREFIX = "tag:yaml.org,2002:"


class Flow(list[Any]):
    """A list written on one line: ``[a, b]``."""


_UNUSUAL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")
_ALIKE = re.compile(r"[\x21-\x7e]{1,100}|[\x20-\x7e]{1,32}")
"""Text that both of PyYAML's emitters write in the same way, also as a key: without blanks, or short."""

_RESOLVER: Any = yaml.resolver.Resolver()
_REPRESENTER: Any = yaml.representer.SafeRepresenter()
_SHORT = 64


@functools.lru_cache(4096)
def _known_tag(value: str) -> str:
    return str(_RESOLVER.resolve(yaml.ScalarNode, value, (True, False)))


def _tag(value: str) -> str:
    """The type of an unquoted scalar in YAML. Cached, since a description repeats the same few words."""
    return _known_tag(value) if len(value) <= _SHORT else str(_RESOLVER.resolve(yaml.ScalarNode, value, (True, False)))


def _text_event(text: str) -> tuple[yaml.ScalarEvent, bool]:
    """The event that writes a text, and whether both emitters write it in the same way."""
    # Quoted, because the emitter would write rare line breaks unquoted, and readers take these for blanks.
    style = '"' if _UNUSUAL.search(text) else None
    event = yaml.ScalarEvent(None, _PREFIX + "str", (_tag(text) == _PREFIX + "str", True), text, style=style)
    return event, _ALIKE.fullmatch(text) is not None


_known_text_event = functools.lru_cache(4096)(_text_event)


def _scalar_event(value: Any) -> yaml.ScalarEvent:
    """The event that writes a number, a truth value, a date or None."""
    node = _REPRESENTER.represent_data(value)
    return yaml.ScalarEvent(None, node.tag, (True, False), node.value)


_known_scalar_event = functools.lru_cache(4096)(_scalar_event)
_BEGIN = (yaml.StreamStartEvent(), yaml.DocumentStartEvent(explicit=False))
_END = (yaml.DocumentEndEvent(explicit=False), yaml.StreamEndEvent())
_MAPPING, _MAPPING_END = yaml.MappingStartEvent(None, None, True, flow_style=False), yaml.MappingEndEvent()
_FLOW, _BLOCK = (yaml.SequenceStartEvent(None, None, True, flow_style=flow) for flow in (True, False))
_SEQUENCE_END = yaml.SequenceEndEvent()


class _Events:
    """The events that write a value. Equal values are written again, not as aliases, which readers on robots may not have."""

    def __init__(self, sort_keys: bool) -> None:
        self.list: list[Any] = [*_BEGIN]
        self.alike = True
        self._sort_keys = sort_keys

    def add(self, values: Iterable[Any]) -> None:
        # One loop over the scalars: a description has hundreds of them, and a call takes longer than an event that is known.
        write = self.list.append
        for value in values:
            if isinstance(value, str):
                event, alike = _known_text_event(value) if len(value) <= _SHORT else _text_event(value)
                write(event)
                self.alike = self.alike and alike
            elif isinstance(value, dict):
                write(_MAPPING)
                keys = _sorted(value) if self._sort_keys else value
                self.add([part for key in keys for part in (key, value[key])])
                write(_MAPPING_END)
            elif isinstance(value, (list, tuple)):
                write(_FLOW if isinstance(value, Flow) else _BLOCK)
                self.add(value)
                write(_SEQUENCE_END)
            else:
                write(_known_scalar_event(value) if type(value) is int else _scalar_event(value))


def _sorted(keys: Iterable[Any]) -> Iterable[Any]:
    try:
        return sorted(keys)
    except TypeError:  # keys of several types, in annotations of the user
        return keys


def dump(value: dict[str, Any], *, sort_keys: bool) -> str:
    """One mapping in block style. Only ``Flow`` lists are written on one line."""
    events = _Events(sort_keys)
    events.add([value])
    # The emitter in C breaks and escapes unusual text differently, and a contract must give the same bytes on all systems.
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
        return _document(loader, name)
    except (yaml.YAMLError, yaml.reader.ReaderError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{name}, line {mark.line + 1}" if mark is not None else name
        raise BundleError(f"{where}: not readable as YAML: {getattr(error, 'problem', None) or error}.") from error
    finally:
        loader.dispose()


def line_of(text: str, path: tuple[str | int, ...]) -> int | None:
    """The line of the value at ``path``, or of the nearest value around it, in a text that ``parse`` accepted."""
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
    """A mapping or sequence whose end has not been read yet, with the counts at its beginning."""

    value: Any
    is_list: bool
    anchor: str | None = None
    count: int = 0
    size: int = 0
    height: int = 1
    key: Any = _NO_KEY


def _document(loader: Any, name: str) -> Any:
    """Build a value from parser events, without recursion, so that every bound is checked while reading."""
    # One loop without function calls: a description has hundreds of events, and a call takes longer than an event.
    top = document = _Open([], True)
    stack: list[_Open] = []
    anchors: dict[str, tuple[Any, int, int, int]] = {}  # value, values in it, characters in it, levels of it
    documents = count = size = 0
    next_event = loader.get_event
    while (event := next_event()) is not None:
        kind = type(event)
        height = 0
        if kind is yaml.ScalarEvent:
            value = text = event.value
            count += 1
            size += len(text)
            if size > _MAX_TEXT or count > _MAX_VALUES:
                raise _too_much(name, event, size)
            if event.tag is not None:
                raise _refused(name, event, f"the tag {event.tag!r} is not allowed, a bundle holds plain data only")
            if event.implicit[0]:  # without quotes
                try:
                    value = _known_value(text) if len(text) <= _SHORT else _value(text)
                except ValueError as error:
                    raise _refused(name, event, str(error)) from error
            if event.anchor is not None:
                anchors[event.anchor] = value, 1, len(text), 0
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            if event.tag is not None:
                raise _refused(name, event, f"the tag {event.tag!r} is not allowed, a bundle holds plain data only")
            if len(stack) >= _MAX_DEPTH:
                raise _refused(name, event, f"nested deeper than {_MAX_DEPTH} levels")
            count += 1
            if count > _MAX_VALUES:
                raise _too_much(name, event, size)
            stack.append(top)
            is_list = kind is yaml.SequenceStartEvent
            top = _Open([] if is_list else {}, is_list, event.anchor, count, size)
            continue
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            value, height = top.value, top.height
            if top.anchor is not None:
                anchors[top.anchor] = value, count - top.count + 1, size - top.size, height
            top = stack.pop()
        elif kind is yaml.AliasEvent:
            if event.anchor not in anchors:
                raise _refused(name, event, f"the alias *{event.anchor} refers to nothing before it")
            value, values, characters, height = anchors[event.anchor]
            count += values
            size += characters
            if size > _MAX_TEXT or count > _MAX_VALUES:
                raise _too_much(name, event, size)
            if len(stack) + height > _MAX_DEPTH:
                raise _refused(name, event, f"nested deeper than {_MAX_DEPTH} levels")
        else:
            documents += kind is yaml.DocumentStartEvent
            if documents > 1:
                raise _refused(name, event, "several documents in one file")
            continue
        if height >= top.height:
            top.height = height + 1
        if top.is_list:
            top.value.append(value)
        elif top.key is not _NO_KEY:
            top.value[top.key] = value
            top.key = _NO_KEY
        elif isinstance(value, (dict, list)):
            raise _refused(name, event, "a key must be a single value")
        elif value in top.value:
            raise _refused(name, event, f"the key {value!r} appears twice")
        else:
            top.key = value
    return document.value[0] if document.value else None


def _refused(name: str, event: Any, what: str) -> BundleError:
    return BundleError(f"{name}, line {event.start_mark.line + 1}: {what}.")


def _too_much(name: str, event: Any, size: int) -> BundleError:
    found = f"{_MAX_TEXT} characters" if size > _MAX_TEXT else f"{_MAX_VALUES} values"
    return _refused(name, event, f"more than {found}, aliases included")


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
