"""Whether a stream is a terminal that shows colours and moving lines."""

from __future__ import annotations

import os
from typing import Any


def is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal.

    In a program without a console ``sys.stderr`` is ``None``, and some programs put an object there that has no ``isatty()``.
    """
    try:
        return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"
    except (AttributeError, ValueError):  # a closed stream raises ValueError
        return False
