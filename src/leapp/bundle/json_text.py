"""JSON text read into plain data, with the rule that a key appears once.

A reader that takes the first of two equal keys and one that takes the last would see two files in one.
"""

from __future__ import annotations

import json
from typing import Any


def parse(data: bytes) -> Any:
    """The value of a JSON text in UTF-8.

    Raises:
        ValueError: The bytes are not JSON, a key appears twice, or values are nested too deeply.
    """
    try:
        return json.loads(data.decode(), object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found
