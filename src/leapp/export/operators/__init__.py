"""Operators that torch's ONNX library lacks, or translates to something else than eager computes.

Each is written once as other ATen operators and replaces the original while a node is traced for ONNX. A function that
returns ``NotImplemented`` leaves the operator as it is. Sizes are fixed numbers during the trace, so loops over them
unroll. A function stands in the module of its subject and enters the table by ``@replaces(its overloads)``.
"""

from . import arithmetic, cells, geometry, gradients, indexing, layers, linalg, lists, ordering, special, spectra

# Last, because each goes before what the others have registered.
from . import complexes, narrow, wide  # isort: skip
from .table import BROKEN_COMPOSITES, DECOMPOSITIONS, TRANSLATIONS

__all__ = [
    "BROKEN_COMPOSITES", "DECOMPOSITIONS", "TRANSLATIONS", "arithmetic", "cells", "complexes", "geometry", "gradients",
    "indexing", "layers", "linalg", "lists", "narrow", "ordering", "special", "spectra", "wide",
]  # fmt: skip
