"""How ATen operators are written as ONNX.

Two tables say it. An overload in the first, by ``@replaces(overloads)``, is written as other ATen operators while a node is
traced: torch's ONNX library lacks it, or translates it to something else than eager computes. One in the second, by
``@translates(overloads)``, is written as ONNX operators. A function that returns ``NotImplemented`` leaves the operator to the
next: to the second table, and then to torch's library. A function stands in the module of its subject. Sizes are fixed numbers
in most traces, so loops over them unroll.
"""

from leapp.export.operators import (
    arithmetic,
    cells,
    geometry,
    gradients,
    indexing,
    layers,
    linalg,
    lists,
    onnx_arithmetic,
    onnx_layers,
    onnx_reductions,
    onnx_shapes,
    ordering,
    special,
    spectra,
)

# Last, because each is asked before what was registered so far.
from leapp.export.operators import complexes, narrow, wide  # isort: skip
from leapp.export.operators.table import DECOMPOSITIONS, TRANSLATIONS, whole_composites

__all__ = [
    "DECOMPOSITIONS", "TRANSLATIONS", "arithmetic", "cells", "complexes", "geometry", "gradients", "indexing", "layers",
    "linalg", "lists", "narrow", "onnx_arithmetic", "onnx_layers", "onnx_reductions", "onnx_shapes", "ordering", "special",
    "spectra", "whole_composites", "wide",
]  # fmt: skip
