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
    dtypes = [np.asarray(operand).dtype for operand in operands]
    common = np.result_type(*operands)
    if common == np.result_type(*dtypes):
        return dtypes
    # Of numbers as wide in kind as the arrays, the smallest dtype may be unsigned where the arrays are not.
    same_kind = [(d.kind in "fc") == (common.kind in "fc") for d in dtypes]
    small = [common if same else np.min_scalar_type(o) for o, same in zip(operands, same_kind, strict=True)]
    return [d if np.ndim(o) else s for o, d, s in zip(operands, dtypes, small, strict=True)]
