"""How ATen operators are written as ONNX: two tables, filled by the modules here, which are sorted by subject.

``@replaces(overloads)`` registers a function that writes an overload as other ATen operators while a node is traced. It is
needed where torchlib, the library of torch's own exporter, lacks the overload or computes something else than eager code.
``@translates(overloads)``, in the modules ``onnx_*``, registers a function that writes an overload as ONNX operators. A node
that runs only these overloads is exported without torchlib, which takes seconds to load. A function that returns
``NotImplemented`` leaves the call to the next in line: first ``@replaces``, then ``@translates``, then torchlib. Sizes are
fixed numbers in most traces, so loops over them unroll.
"""

from leapp.export.operators import (
    arithmetic,
    foreach,
    gradients,
    indexing,
    layers,
    linalg,
    onnx_arithmetic,
    onnx_layers,
    onnx_reductions,
    onnx_shapes,
    ordering,
    random_numbers,
    special_functions,
)

# Last, because their functions are asked before those that are registered above.
from leapp.export.operators import complex_numbers, narrow_types, float64  # isort: skip
from leapp.export.operators.table import DECOMPOSITIONS, TRANSLATIONS, whole_composites

__all__ = [
    "DECOMPOSITIONS", "TRANSLATIONS", "arithmetic", "complex_numbers", "float64", "foreach", "gradients",
    "indexing", "layers", "linalg", "narrow_types", "onnx_arithmetic", "onnx_layers", "onnx_reductions", "onnx_shapes",
    "ordering", "random_numbers", "special_functions", "whole_composites",
]  # fmt: skip
