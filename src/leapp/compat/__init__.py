"""All private names of torch, onnxscript, NumPy and CPython that leapp uses. They may change with any release.

No other module of leapp uses a private name of these packages. ``tests/test_compat.py`` checks that in the source, and imports
every name here on each supported version. Start here when a new release breaks something. Each docstring says why the name is
needed.

The modules differ in what it costs to import them: ``core`` needs torch alone, ``graphs`` its tracers,
``onnx_exporter`` its ONNX exporter, which takes a second to load.
"""

from __future__ import annotations

import re

import torch

from leapp.errors import MissingDependencyError

__all__ = ["OLDEST"]

OLDEST = (2, 7)
"""The oldest torch that has the private names used here."""

if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < OLDEST:
    raise MissingDependencyError(
        f"leapp needs torch {'.'.join(map(str, OLDEST))} or newer where it traces or runs torch models; this is torch "
        f"{torch.__version__}: pip install -U torch."
    )
