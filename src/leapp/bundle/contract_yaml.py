"""Translates a ``Contract`` to the YAML of a bundle and back.

``docs/format.md`` describes the layout. This module knows the keys, their order and their types; it opens no file.
"""

from __future__ import annotations

import re
import warnings
from typing import Any, NoReturn, TypeVar

import msgspec

from leapp.bundle import yaml_text
from leapp.bundle.files import is_sha256
from leapp.bundle.yaml_text import Flow
from leapp.errors import BundleError, visible
from leapp.graph.contract import Contract, ModelFile, Node, Port, Wiring
from leapp.graph.validate import port_problem, repeated, wiring_problem

MODELS, PIPELINE, SYSTEM = "models", "pipeline", "system information"
VERSION = "leapp config version"
"""The key in the system information that names the version of the format."""
TARGET = "leapp target"
"""The key in the system information that names the target of a bundle."""

_T = TypeVar("_T", bound=msgspec.Struct)
_PATH_IN_MESSAGE = re.compile(r" - at `\$(.*)`$")
_MODEL_KEYS = ("model_path", "md5sum", "sha256sum", "backend")
PORT_KEYS = frozenset(Port.__struct_fields__) - {"extra"}
"""The keys of a port that the format defines. All others are annotations."""
_FILE_KEYS = frozenset(ModelFile.__struct_fields__) - {"extra"}
_OLDEST = "1.0"
_BAD_NAME = re.compile(r"[\x00-\x1f\x7f]")


def dump_contract(contract: Contract) -> str:
    """The YAML of a contract: three mappings, each followed by a blank line."""
    sections = (
        ({MODELS: {name: _node_entry(node) for name, node in contract.nodes.items()}}, False),
        ({PIPELINE: _pipeline_entry(contract.pipeline, contract.system.get(TARGET))}, True),
        ({SYSTEM: contract.system}, True),
    )
    return "".join(yaml_text.dump(section, sort_keys=sort_keys) + "\n" for section, sort_keys in sections)


def _port_entry(port: Port) -> dict[str, Any]:
    """The YAML entry of a port. Keys that are not set are left out; ``extra`` comes last."""
    entry: dict[str, Any] = {"name": port.name, "dtype": port.dtype, "shape": Flow(port.shape), "type": port.type}
    optional = {key: getattr(port, key) for key in ("kind", "element_names", "temporal_period_ms", "batch_axis")}
    return {**entry, **{key: _flow(value) for key, value in optional.items() if value is not None}, **port.extra}


def _node_entry(node: Node) -> dict[str, Any]:
    model = node.model
    fixed = {key: getattr(model, key) for key in (*_MODEL_KEYS, "warp_segments")}
    return {
        "inputs": [_port_entry(port) for port in node.inputs],
        "outputs": [_port_entry(port) for port in node.outputs],
        "parameters": {**fixed, **model.extra},
    }


def _pipeline_entry(pipeline: Wiring, target: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    for key in ("data_flow", "feedback_flow", "inputs", "outputs"):
        entry[key] = {source: Flow(targets) for source, targets in getattr(pipeline, key).items()}
    if target == "isaac-ros":
        # Isaac ROS 4.4 and 4.5 read the feedback from this key only.
        entry["feedback_connections"] = entry["feedback_flow"]
    if pipeline.initial_values is not None:
        entry["initial_values"] = pipeline.initial_values
    if pipeline.configs is not None:
        entry["configs"] = pipeline.configs
    return entry


def _flow(value: Any) -> Any:
    return Flow(_flow(item) for item in value) if isinstance(value, (list, tuple)) else value


def contract_of(document: Any, name: str, text: str) -> Contract:
    """The contract a parsed document describes.

    Args:
        document: What ``parse`` returned for ``text``.
        name: The file, for messages.
        text: The source, to find the line of a mistake.

    Raises:
        BundleError: If a key is missing, has the wrong type, or names something that does not exist.
    """
    return _Reader(name, text).contract(document)


class _Reader:
    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._text = text

    def contract(self, document: Any) -> Contract:
        top = self._mapping(document, ())
        for key in (MODELS, PIPELINE, SYSTEM):
            if key not in top:
                self._fail((), f"the section '{key}' is missing, this is not a complete bundle description")
        system = self._mapping(top[SYSTEM], (SYSTEM,))
        self._check_version(system)
        nodes = {
            self._word(name, (MODELS, name), slash=True): self._node(entry, (MODELS, name))
            for name, entry in self._mapping(top[MODELS], (MODELS,)).items()
        }
        pipeline = self._pipeline(self._mapping(top[PIPELINE], (PIPELINE,)))
        if problem := wiring_problem(nodes, pipeline):
            self._fail(*problem)
        return Contract(nodes=nodes, pipeline=pipeline, system=dict(system))

    def _fail(self, path: tuple[str | int, ...], what: str) -> NoReturn:
        line = yaml_text.line_of(self._text, path)
        where = f"{self._name}, line {line}" if line is not None else self._name
        raise BundleError(f"{where}: {_dotted(path)}: {what}." if path else f"{where}: {what}.")

    def _mapping(self, value: Any, path: tuple[str | int, ...]) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._fail(path, f"expected a mapping, got {_kind(value)}")
        for key in value:
            if not isinstance(key, str):
                self._fail((*path, key), f"expected a text key, got {key!r}; put it in quotes")
        return value

    def _word(self, value: Any, path: tuple[str | int, ...], *, slash: bool = False) -> str:
        if not isinstance(value, str) or not value or _BAD_NAME.search(value) or ("/" in value and not slash):
            self._fail(path, f"{value!r} is not a usable name")
        return value

    def _check_version(self, system: dict[str, Any]) -> None:
        path = (SYSTEM, VERSION)
        if VERSION not in system:
            warnings.warn(
                f"{visible(self._name)}: 'leapp config version' is missing in '{SYSTEM}'; read as version {_OLDEST}.",
                stacklevel=2,
            )
        version = system.get(VERSION, _OLDEST)
        if isinstance(version, float):
            version = str(version)
        # Without a regular expression, which would be compiled in each process for this text alone.
        parts = version.split(".") if isinstance(version, str) else []
        if len(parts) != 2 or not all(part.isdecimal() and len(part) <= 6 for part in parts):
            self._fail(path, f"expected a version such as '1.3', got {version!r}")
        if parts[0] != "1":
            self._fail(path, f"version {version} is not supported, this leapp reads 1.x")

    def _convert(self, value: Any, type_: type[_T], path: tuple[str | int, ...]) -> _T:
        try:
            return msgspec.convert(value, type_, strict=True)
        except msgspec.ValidationError as error:
            message = str(error)
            found = _PATH_IN_MESSAGE.search(message)
            steps = re.findall(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]", found.group(1)) if found else []
            inner = tuple(int(index) if index.isdigit() else (key or index) for key, index in steps)
            self._fail((*path, *inner), _PATH_IN_MESSAGE.sub("", message).replace("`", "'"))

    def _node(self, value: Any, path: tuple[str | int, ...]) -> Node:
        entry = self._mapping(value, path)
        for key in ("inputs", "outputs", "parameters"):
            if key not in entry:
                self._fail(path, f"'{key}' is missing")
        return Node(
            inputs=self._ports(entry["inputs"], (*path, "inputs")),
            outputs=self._ports(entry["outputs"], (*path, "outputs")),
            model=self._model(entry["parameters"], (*path, "parameters")),
        )

    def _ports(self, value: Any, path: tuple[str | int, ...]) -> tuple[Port, ...]:
        if not isinstance(value, list):
            self._fail(path, f"expected a list, got {_kind(value)}")
        ports = tuple(self._port(entry, (*path, index)) for index, entry in enumerate(value))
        if problem := repeated(ports):
            self._fail((*path, *problem.path), problem.text)
        return ports

    def _port(self, value: Any, path: tuple[str | int, ...]) -> Port:
        port = self._split(value, Port, PORT_KEYS, path)
        self._word(port.name, (*path, "name"))
        if problem := port_problem(port):
            self._fail((*path, *problem.path), problem.text)
        return port

    def _model(self, value: Any, path: tuple[str | int, ...]) -> ModelFile:
        entry = self._mapping(value, path)
        for key in _MODEL_KEYS:
            if key not in entry:
                self._fail(path, f"'{key}' is missing")
        model = self._split(entry, ModelFile, _FILE_KEYS, path)
        if model.model_path is not None and not is_sha256(model.sha256sum):
            self._fail((*path, "sha256sum"), f"expected 64 hexadecimal digits, got {model.sha256sum!r}")
        return model

    def _split(self, value: Any, type_: type[_T], known: frozenset[str], path: tuple[str | int, ...]) -> _T:
        """Known keys become fields, the rest ``extra``."""
        entry = self._mapping(value, path)
        extra = {} if entry.keys() <= known else {key: item for key, item in entry.items() if key not in known}
        return self._convert({**entry, "extra": extra}, type_, path)

    def _pipeline(self, entry: dict[str, Any]) -> Wiring:
        known = set(Wiring.__struct_fields__)
        fields = {key: value for key, value in entry.items() if key in known}
        older = entry.get("feedback_connections")
        if older is not None and fields.setdefault("feedback_flow", older) != older:
            self._fail((PIPELINE, "feedback_connections"), "says something else than 'feedback_flow'")
        for key in ("data_flow", "inputs", "outputs"):
            if key not in fields:
                self._fail((PIPELINE,), f"'{key}' is missing")
        return self._convert(fields, Wiring, (PIPELINE,))


def _dotted(path: tuple[str | int, ...]) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
