"""Operators that torch's ONNX library lacks or translates wrongly, written here once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["REPLACED", "decompositions", "translations"]

aten = torch.ops.aten

REPLACED: tuple[Any, ...] = ()
"""Overloads whose translation in the library is wrong and gives way to ours."""


def decompositions() -> dict[Any, Callable[..., Any]]:
    """ATen overloads written as other ATen operators."""
    return {}


def translations() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """ATen overloads written as ONNX operators."""
    yield from ()
