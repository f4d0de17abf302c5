"""Reads the facts that only the page of an export contains.

The page inside a bundle may come from an attacker, so it is never shown; a new page is written. Of its data, only values of the
types that an export writes are used: texts, numbers, lists of known entries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from leapp.graph.contract import Contract
from leapp.graph.validate import ports
from leapp.view.text import visible

_MAX_BYTES = 64 << 20


class _Place(msgspec.Struct, kw_only=True):
    file: str = ""
    line: int | None = None


class _Op(_Place, kw_only=True):
    op: str
    text: str | None = None


class _Constant(_Place, kw_only=True):
    name: str
    shape: list[int]
    dtype: str
    size: int = msgspec.field(name="bytes")


class _Escape(_Place, kw_only=True):
    kind: str
    text: str | None = None
    value: Any = None
    varies: bool | None = None


class _Glue(_Place, kw_only=True):
    node: str
    source: str
    ops: list[str]


class _Figures(msgspec.Struct):
    largest: float | str
    mean: float | str
    count: int
    exact: int
    bins: dict[str, int]
    unlike: int = 0


class _Weight(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    shape: list[int]
    dtype: str
    note: str | None = None
    count: int | None = None
    sampled: int | None = None
    odd: int | None = None
    low: float | None = None
    high: float | None = None
    mean: float | None = None
    bins: list[int] | None = None


class _Weights(msgspec.Struct):
    total: int
    entries: list[_Weight] = msgspec.field(name="list")


class _Node(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str
    parameters: int | None = None
    passed: bool | str | None = None
    pruned: list[str] | None = None
    random: list[str] | None = None
    op_count: int | None = None
    ops: list[_Op] | None = None
    constants: list[_Constant] | None = None
    escapes: list[_Escape] | None = None
    weights: _Weights | None = None


class _Page(msgspec.Struct):
    nodes: list[_Node]
    static: list[str] = []
    glue: list[_Glue] = []
    validation: dict[str, _Figures] = {}


def exported_details(path: Path, contract: Contract) -> dict[str, Any]:
    """The ``details`` for :func:`leapp.view.page` from the page of an export; empty if it is another page."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES)
        found = msgspec.json.decode(text.partition(b'id="data">')[2].partition(b"</script>")[0], type=_Page)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    if [node.name for node in found.nodes] != [visible(name) for name in contract.nodes]:
        return {}
    outputs = {visible(where): where for where in ports(contract.nodes, "outputs")}
    facts = msgspec.to_builtins(found)
    nodes = {
        name: {k: v for k, v in node.items() if k != "name"} for name, node in zip(contract.nodes, facts["nodes"], strict=True)
    }
    return {
        "static_outputs": [outputs[name] for name in found.static if name in outputs],
        "glue": facts["glue"],
        "validation": {outputs[name]: v for name, v in facts["validation"].items() if name in outputs},
        "nodes": nodes,
    }
