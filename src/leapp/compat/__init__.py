"""Everything that leapp uses of torch, onnxscript, NumPy and CPython and that those do not promise to keep.

No other module of leapp touches a private name of these packages; ``tests/test_compat.py`` reads the source to be sure, and
imports every name here on each supported version. A new release is looked at here first. Each name says why it is needed.

The modules differ in what it costs to import them: ``core`` needs torch alone, ``graphs`` its tracers,
``onnx_exporter`` its ONNX exporter, which takes a second to load.
"""

from __future__ import annotations

import re

import torch

from leapp.errors import MissingDependencyError

__all__ = ["OLDEST"]

OLDEST = (2, 7)
"""The oldest torch whose private parts are the ones named here."""

if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < OLDEST:
    raise MissingDependencyError(
        f"leapp needs torch {'.'.join(map(str, OLDEST))} or newer where it traces or runs torch models; this is torch "
        f"{torch.__version__}: pip install -U torch."
    )
