"""Private names for NumPy: torch's NumPy functions on tensors, NumPy's default of missing arguments, dtypes of NumPy 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch._numpy as torch_numpy
from torch._numpy import _binary_ufuncs_impl as binary_ufuncs
from torch._numpy import _unary_ufuncs_impl as unary_ufuncs

__all__ = ["NO_VALUE", "PROMOTES_BY_VALUE", "binary_ufuncs", "dtypes_by_value", "torch_numpy", "unary_ufuncs"]

NO_VALUE: Any = np._NoValue
"""NumPy's default of arguments for which ``None`` has a meaning."""

PROMOTES_BY_VALUE = int(np.__version__.partition(".")[0]) < 2
"""Whether the value of a number influences the dtype of a result, as in NumPy 1. Since NumPy 2 only its type does."""


def dtypes_by_value(operands: Sequence[Any]) -> list[np.dtype[Any]]:
    """The dtypes of a ufunc's operands in NumPy 1. Beside an array, a number has the smallest dtype that holds it."""
    arrays = [np.asarray(operand) for operand in operands]
    common, own = np.result_type(*arrays), [array.dtype for array in arrays]
    if common == np.result_type(*own):
        return own
    found = []
    for array, dtype in zip(arrays, own, strict=True):
        # The smallest dtype of a whole number may be unsigned although the arrays are signed.
        small = common if (dtype.kind in "fc") == (common.kind in "fc") else np.min_scalar_type(array)
        found.append(dtype if array.ndim else small)
    return found
