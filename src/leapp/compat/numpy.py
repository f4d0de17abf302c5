"""What following NumPy needs: torch's own NumPy functions on tensors, NumPy's mark of an argument that was not given, and the
dtypes in which NumPy 1 computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch._numpy as torch_numpy
from torch._numpy import _binary_ufuncs_impl as binary_ufuncs
from torch._numpy import _unary_ufuncs_impl as unary_ufuncs

__all__ = ["NO_VALUE", "PROMOTES_BY_VALUE", "binary_ufuncs", "dtypes_by_value", "torch_numpy", "unary_ufuncs"]

NO_VALUE: Any = np._NoValue
"""The default of arguments for which ``None`` means something."""

PROMOTES_BY_VALUE = int(np.__version__.partition(".")[0]) < 2
"""NumPy 1 looks at the value of a number to choose the dtype of a result; from NumPy 2 on its type alone decides."""


def dtypes_by_value(operands: Sequence[Any]) -> list[np.dtype[Any]]:
    """The dtypes that NumPy 1 takes the operands of a ufunc for: beside an array, a number has the smallest that holds it."""
    arrays = [np.asarray(operand) for operand in operands]
    common, own = np.result_type(*arrays), [array.dtype for array in arrays]
    if common == np.result_type(*own):
        return own
    found = []
    for array, dtype in zip(arrays, own, strict=True):
        # The smallest dtype of a whole number may be unsigned where the arrays are not.
        small = common if (dtype.kind in "fc") == (common.kind in "fc") else np.min_scalar_type(array)
        found.append(dtype if array.ndim else small)
    return found
