"""Reads JSON text into plain data, and refuses a key that appears twice.

Of two equal keys, one reader may take the first and another the last, and they would read different data from one file.
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
        return _DECODER.decode(data.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key appears twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)
