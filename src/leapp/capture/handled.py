"""Finds calls whose exceptions the program handles.

Whether ``np.linalg.inv(x)`` or ``math.acos(x)`` raises depends on the values. If a ``try`` statement goes on after it, the
exception decides what runs next, and a model holds one of the cases. leapp reads the source for that: such a statement makes
no call that could be recorded.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterable, Iterator

import numpy as np
import torch

from leapp.capture.tape import Call, Escape, Tape
from leapp.capture.user_line import Where, where

_RAISING = frozenset({"linalg_cholesky", "linalg_inv", "linalg_solve", "cholesky", "inverse", "inv", "solve"})
"""Recorded functions of torch that raise for some values. NumPy's are recorded as torch's."""
_CATCHING = frozenset({"Exception", "BaseException", "RuntimeError", "ValueError", "LinAlgError"})
"""The classes of exceptions that catch what these functions, or those of ``math``, raise."""
RAISED_BY_TORCH: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
_BY_VALUE = (ArithmeticError, np.linalg.LinAlgError, RAISED_BY_TORCH)
CURE = "compute what both cases need, as torch.linalg.inv_ex() does, limit the values first, or choose with torch.where()"


def note_raised(tape: Tape | None, name: str, error: Exception) -> None:
    """Note that a call on traced values raised. If the pass goes on, the program handles the exception."""
    if tape is not None and (isinstance(error, _BY_VALUE) or (name.startswith("math.") and isinstance(error, ValueError))):
        tape.escapes.append(Escape(f"{name} raises {type(error).__name__}", where(), str(error), cure=CURE))


def handled(calls: Iterable[Call]) -> Iterator[tuple[str, Where]]:
    """The calls that may raise because of their values, inside a ``try`` statement that then goes on, with their lines."""
    ranges: dict[str, list[range]] = {}
    for func, at in dict.fromkeys((c.func, c.where) for c in calls):
        of_math = re.search(r"\bmath\.\w+(?=\()", at.text) if "math" in at.code.co_names else None
        name = of_math.group() if of_math else getattr(func, "__name__", "")
        if not of_math and name not in _RAISING:
            continue
        if at.file not in ranges:
            ranges[at.file] = list(_tried(at.file))
        if any(at.line in lines for lines in ranges[at.file]):
            yield name, at


def _tried(file: str) -> Iterator[range]:
    """The lines of all ``try`` statements in a file that go on after an exception of these classes."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # of a notebook's cell with magic commands
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(map(_goes_on, node.handlers)):
            yield range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)


def _goes_on(handler: ast.ExceptHandler) -> bool:
    caught = ast.walk(handler.type) if handler.type is not None else [ast.Name("Exception")]
    names = {n.id if isinstance(n, ast.Name) else n.attr for n in caught if isinstance(n, (ast.Name, ast.Attribute))}
    return not names.isdisjoint(_CATCHING) and not isinstance(handler.body[-1], ast.Raise)
