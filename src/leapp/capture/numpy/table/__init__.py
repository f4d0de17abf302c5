"""The table of NumPy functions as expressions on tensors, which give the same values as NumPy on any input.

Most functions are taken from ``torch._numpy``. A function that it lacks and that NumPy has in Python runs as NumPy's own code,
whose NumPy calls are recorded one by one. The modules here have the others: functions in C, and functions whose Python code
reads values. Those that write to an array are other NumPy code too (``rewritten.py``). An expression takes the arguments of the
NumPy function, with tensors for arrays, and never writes to them. Each result is compared with NumPy's at the time of the call,
so an expression need not repeat NumPy's checks. It raises :class:`Unmapped` for forms of the call that it does not cover.
Nothing here knows tapes or sessions.

To add a function, write it in the module of its subject, decorated with ``@expression("its name in NumPy")``.
"""

from leapp.capture.numpy.table import moving, searching, signals, statistics
from leapp.capture.numpy.table.kinds import BLIND, CHECKS, READ_OUT, SEQUENCES, THROUGH
from leapp.capture.numpy.table.registry import FUNCTIONS, Unmapped, lookup
from leapp.capture.numpy.table.rewritten import IN_PLACE, REWRITTEN
from leapp.capture.numpy.table.ufuncs import NUMBERS, NUMPY_UFUNCS, SCIPY_UFUNCS, UFUNCS, accumulated, reduced

__all__ = [
    "BLIND", "CHECKS", "FUNCTIONS", "IN_PLACE", "NUMBERS", "NUMPY_UFUNCS", "READ_OUT", "REWRITTEN", "SCIPY_UFUNCS", "SEQUENCES",
    "THROUGH", "UFUNCS", "Unmapped", "accumulated", "lookup", "moving", "reduced", "searching", "signals", "statistics",
]  # fmt: skip
