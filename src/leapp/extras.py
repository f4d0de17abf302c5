"""The packages that only exporting needs: ``pip install "leapp[export]"``.

A robot installs leapp without them. What needs one of them asks here first and refuses with the command that installs it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from leapp.errors import MissingDependencyError

__all__ = ["EXPORT", "INSTALL", "has", "require"]

EXPORT = {"onnx": "onnx", "onnxscript": "onnxscript", "onnx_ir": "onnx-ir", "PIL": "pillow"}
"""What an export cannot do without, by the name it is imported by. ``rich`` is installed with them, for terminals."""

_FOUND: set[str] = set()

INSTALL = 'pip install "leapp[export]"'


def has(module: str) -> bool:
    """Whether a module can be imported. It is not imported; once found it stays found, since looking takes long."""
    if module not in _FOUND and (module in sys.modules or find_spec(module) is not None):
        _FOUND.add(module)
    return module in _FOUND


def require(what: str, *modules: str) -> None:
    """Refuse ``what`` if one of ``modules`` is not installed.

    Args:
        what: The subject of the sentence: ``"Fusing"``.
        *modules: Keys of ``EXPORT``; all of them by default.

    Raises:
        MissingDependencyError: With the command that installs what is missing.
    """
    missing = [package for module, package in EXPORT.items() if (not modules or module in modules) and not has(module)]
    if missing:
        raise MissingDependencyError(f"{what} needs {', '.join(missing)}, which this install of leapp lacks: {INSTALL}.")
