"""NumPy functions that need special treatment, independent of their expressions."""

from __future__ import annotations

import numpy as np

from leapp.capture.numpy.table.registry import named

BLIND = frozenset(
    named(
        "zeros_like ones_like empty_like ndim result_type can_cast min_scalar_type common_type iscomplexobj isrealobj "
        "may_share_memory shares_memory broadcast_shapes tril_indices_from triu_indices_from diag_indices_from "
        "einsum_path"
    )
)
"""Functions that do not look at values."""

READ_OUT = frozenset(named("array_repr array_str array2string trim_zeros"))
"""Functions that make text of values, or return a part of their argument that depends on its values."""

SEQUENCES = frozenset(
    named(
        "concatenate concat stack vstack hstack dstack column_stack block choose select lexsort broadcast_arrays meshgrid "
        "ravel_multi_index einsum ix_ multi_dot",
        np,
        np.linalg,
    )
)
"""Functions for which a list is a list of arrays, not an array."""

CHECKS = {
    **dict.fromkeys(named("partition argpartition"), "shape"),
    **dict.fromkeys(named("eigh svd qr", np.linalg), "magnitude"),
}
"""What to compare for functions whose result is not unique: the order of equal elements, the signs of vectors."""

THROUGH = frozenset(
    named(
        "sum prod max amax min amin any all ptp fix full_like append unstack corrcoef apply_along_axis apply_over_axes"
    )
    + named("trace", np.linalg)
)
"""Functions that run as NumPy's own Python code, whose NumPy calls are recorded: ``np.sum`` calls ``np.add.reduce``."""
