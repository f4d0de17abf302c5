"""NumPy in torch: for each function, an expression over tensors that gives what NumPy gives, on any input.

Most functions are ``torch._numpy``'s. What it lacks and NumPy has in Python runs as NumPy's own code, whose NumPy calls are
recorded one by one. Here stands the rest: functions in C, and those whose Python code looks at values. An expression takes the
arguments of the NumPy function with tensors for arrays, and never writes to them. Shape, dtype and values of every result are
compared with NumPy's own at the time of the call, so an expression raises :class:`Unmapped` for forms it does not cover and
need not repeat NumPy's checks. Nothing here knows tapes or sessions.

A function stands in the module of its subject and enters the table by ``@expression("its name in NumPy")``.
"""

from leapp.capture.numpy.table import moving, searching, signals, statistics, writing
from leapp.capture.numpy.table.kinds import BLIND, CHECKS, READ_OUT, SEQUENCES, THROUGH
from leapp.capture.numpy.table.table import FUNCTIONS, IN_PLACE, Unmapped, lookup
from leapp.capture.numpy.table.ufuncs import NUMBERS, NUMPY_UFUNCS, SCIPY_UFUNCS, UFUNCS, accumulated, reduced

__all__ = [
    "BLIND", "CHECKS", "FUNCTIONS", "IN_PLACE", "NUMBERS", "NUMPY_UFUNCS", "READ_OUT", "SCIPY_UFUNCS", "SEQUENCES", "THROUGH",
    "UFUNCS", "Unmapped", "accumulated", "lookup", "moving", "reduced", "searching", "signals", "statistics", "writing",
]  # fmt: skip
