"""The packages that only exporting needs: ``pip install "leapp[export]"``.

A robot installs leapp without them. Code that needs one of them calls ``require`` first, whose error names the command that
installs it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from leapp.errors import MissingDependencyError

__all__ = ["EXPORT", "INSTALL", "has", "require"]

EXPORT = {"onnx": "onnx", "onnxscript": "onnxscript", "onnx_ir": "onnx-ir", "PIL": "pillow"}
"""The packages that an export needs, by import name. ``rich`` is installed with them, for progress on terminals."""

_FOUND: set[str] = set()

INSTALL = 'pip install "leapp[export]"'


def has(module: str) -> bool:
    """Whether a module can be imported. It is not imported. A positive answer is cached, because the search is slow."""
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
