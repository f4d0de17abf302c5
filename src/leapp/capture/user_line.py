"""Finds the line of the user's code that is running.

This must be fast, because every recorded call keeps its line: only the code object and the instruction are stored, and file,
line and text are looked up when a message needs them.
"""

from __future__ import annotations

import functools
import itertools
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import NamedTuple

import numpy as np
import torch

from leapp.compat.python import getframe

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_CAPTURE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STDLIB = (sysconfig.get_paths()["stdlib"] + os.sep, "<frozen ")
# dist-packages is Debian's name, which Python in NVIDIA's containers uses too.
_SITE = re.compile(re.escape(os.sep) + "(site|dist)-packages" + re.escape(os.sep))
_PACKAGES = tuple(f"{os.sep}{name}{os.sep}" for name in ("torch", "numpy", "functorch"))
# torch and NumPy may lie outside of site-packages: built from source, or on PYTHONPATH.
_OWN = (_HERE, *(os.path.dirname(str(package.__file__)) + os.sep for package in (torch, np)))

_new = tuple.__new__  # skips NamedTuple's argument checks


class Where(NamedTuple):
    """A line of the user's program, kept as the instruction that ran there."""

    code: CodeType
    instruction: int

    @property
    def line(self) -> int:
        """The line number."""
        lines = (line for start, end, line in self.code.co_lines() if line is not None and start <= self.instruction < end)
        return next(lines, self.code.co_firstlineno)

    @property
    def file(self) -> str:
        """Path of the source file as Python knows it."""
        return self.code.co_filename

    @property
    def text(self) -> str:
        """The source line, stripped, or an empty string when the source is not available."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def quoted(self) -> str:
        """The place followed by its source line, if that is available."""
        return quoted_line(self.file, self.line, self.text)

    def __str__(self) -> str:
        return line_name(self.file, self.line)


def quoted_line(file: str, line: int, text: str) -> str:
    """A line as messages quote it: ``policy.py:12: x = float(y)``, without the text if that is not known."""
    return f"{line_name(file, line)}: {text}" if text else line_name(file, line)


def line_name(file: str, line: int) -> str:
    """A line as messages name it: ``policy.py:12``, or ``cell 2, line 3`` of a notebook."""
    number = cell(file)
    return f"{file}:{line}" if number is None else f"cell {number}, line {line}"


def cell(file: str) -> int | None:
    """The number of the notebook cell that IPython compiled under this file name, if it did."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", lambda file: None)
    found = re.fullmatch(r"In\[(\d+)\]", (name_of(file) or ("", ""))[1])
    return int(found[1]) if found else None


@functools.cache
def is_library(file: str) -> bool:
    """Whether a file belongs to leapp, torch, NumPy or the standard library."""
    if file.startswith(_OWN):
        return True
    return any(p in file for p in _PACKAGES) if _SITE.search(file) else file.startswith(_STDLIB)


def package_of(file: str) -> str:
    """The name of the installed package that a file belongs to, or an empty string."""
    *_, path = _SITE.split(file)
    return path.partition(os.sep)[0] if path != file else ""


@functools.cache
def is_installed(file: str) -> bool:
    """Whether a file belongs to a library or another installed package, not to the user's program."""
    return is_library(file) or _SITE.search(file) is not None


def frames() -> Iterator[FrameType]:
    """The frames of the caller's stack, innermost first."""
    frame: FrameType | None = getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_frames() -> Iterator[FrameType]:
    """The frames of the caller's stack that run code of the user's program, innermost first."""
    return (frame for frame in frames() if not is_installed(frame.f_code.co_filename))


def asked_by_leapp() -> bool:
    """Whether leapp's own code outside of ``leapp.capture`` made the call that is being recorded."""
    files = (frame.f_code.co_filename for frame in frames())
    return next((file.startswith(_HERE) for file in files if not file.startswith(_CAPTURE)), False)


def asked_by_capture() -> bool:
    """Whether code of ``leapp.capture`` reads the shape of an array."""
    return getframe(3).f_code.co_filename.startswith(_CAPTURE)


def where(depth: int = 1, beyond: str = "") -> Where:
    """The innermost frame of the caller's stack that is user code: neither leapp, torch, NumPy nor the standard library.

    Args:
        depth: How many frames to leave out.
        beyond: A package to leave out as well, if code outside of it is on the stack.
    """
    first = getframe(depth)
    frame: FrameType | None = (_caller_of(beyond) or first) if beyond else first
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            return _new(Where, (code, frame.f_lasti))
        frame = frame.f_back
    return Where(first.f_code, first.f_lasti)


def came_through(module: str, user: CodeType) -> bool:
    """Whether a function of ``module``, or of one below it, runs between here and the user's code."""
    between = itertools.takewhile(lambda frame: frame.f_code is not user, frames())
    return any(f"{frame.f_globals.get('__name__', '')}.".startswith(f"{module}.") for frame in between)


def _caller_of(package: str) -> FrameType | None:
    """The frame that called the outermost function of a package."""
    within = [frame for frame in frames() if frame.f_globals.get("__name__", "").partition(".")[0] == package]
    return within[-1].f_back if within else None
