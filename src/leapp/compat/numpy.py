"""What following NumPy needs: torch's own NumPy functions on tensors, and NumPy's mark of an argument that was not given."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch._numpy as torch_numpy
from torch._numpy import _binary_ufuncs_impl as binary_ufuncs
from torch._numpy import _unary_ufuncs_impl as unary_ufuncs

__all__ = ["NO_VALUE", "binary_ufuncs", "torch_numpy", "unary_ufuncs"]

NO_VALUE: Any = np._NoValue
"""The default of arguments for which ``None`` means something."""
