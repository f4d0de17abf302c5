"""NumPy in torch: for each function, an expression over tensors that gives what NumPy gives, on any input.

Most functions are ``torch._numpy``'s. Here stands what it lacks or does otherwise. An expression takes the arguments of the
NumPy function with tensors for arrays, and never writes to them. Shape, dtype and values of every result are compared with
NumPy's own at the time of the call, so an expression raises :class:`Unmapped` for forms it does not cover and need not repeat
NumPy's checks. Nothing here knows tapes or sessions.

A function stands in the module of its subject and enters the table by ``@expression("its name in NumPy")``.
"""

from leapp.capture.numpy.table import linalg, moving, reductions, searching, signals, statistics, writing
from leapp.capture.numpy.table.kinds import BLIND, CHECKS, DATA_SHAPED, SEQUENCES, TEXTS, THROUGH
from leapp.capture.numpy.table.table import FUNCTIONS, IN_PLACE, Unmapped, lookup
from leapp.capture.numpy.table.ufuncs import NUMBERS, NUMPY_UFUNCS, SCIPY_UFUNCS, UFUNCS, accumulated, reduced

__all__ = [
    "BLIND", "CHECKS", "DATA_SHAPED", "FUNCTIONS", "IN_PLACE", "NUMBERS", "NUMPY_UFUNCS", "SCIPY_UFUNCS", "SEQUENCES",
    "TEXTS", "THROUGH", "UFUNCS", "Unmapped", "accumulated", "linalg", "lookup", "moving", "reduced", "reductions",
    "searching", "signals", "statistics", "writing",
]  # fmt: skip
