"""Functions that move elements: reshaping, padding, inserting, joining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from leapp.capture.numpy.table.registry import Unmapped, expression, of_torch
from leapp.capture.numpy.table.tensors import promoted, tensor
from leapp.compat.numpy import NO_VALUE
from leapp.compat.numpy import torch_numpy as tnp

Tensor = torch.Tensor


def _plain(value: Any) -> Any:
    """An argument for NumPy. Raises ``Unmapped`` if it is traced, because it must not depend on the inputs."""
    found = value.numpy() if isinstance(value, Tensor) else value
    if isinstance(found, np.ndarray) and type(found) is not np.ndarray:
        raise Unmapped  # a subclass of ndarray: it is traced
    return found


def _moved(move: Callable[..., Any], a: Tensor, *others: Tensor) -> Tensor:
    """Apply a function that only moves elements. It is run on the numbers of the elements, and its result indexes them."""
    given, numbers, n = [a, *(t.to(a.dtype) for t in others)], [], 0
    for t in given:
        numbers.append(n + np.arange(t.numel()).reshape(tuple(t.shape)))
        n += numbers[-1].size
    places = torch.from_numpy(np.array(move(*numbers)))
    return (torch.cat([t.reshape(-1) for t in given]) if others else a.reshape(-1))[places]


@expression("clip")
def _clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Any:
    low, high = (_given(pair) for pair in ((a_min, min), (a_max, max)))
    numbers = [v for v in (low, high) if type(v) in (int, float)]
    if isinstance(a, Tensor) and a.is_floating_point() and len(numbers) == (low is not None) + (high is not None) > 0:
        return torch.clamp(a, low, high)
    return of_torch(tnp.clip)(a, low, high)  # type: ignore[attr-defined]


def _given(values: tuple[Any, ...]) -> Any:
    return next((v for v in values if v is not None and v is not NO_VALUE), None)


@expression("delete")
def _delete(arr: Any, obj: Any, axis: int | None = None) -> Tensor:
    return _moved(lambda n: np.delete(n, _plain(obj), axis), tensor(arr))


@expression("compress")
def _compress(condition: Any, a: Any, axis: int | None = None) -> Tensor:
    return _moved(lambda n: np.compress(_plain(condition), n, axis), tensor(a))


@expression("insert")
def _insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Tensor:
    return _moved(lambda n, new: np.insert(n, _plain(obj), new, axis), tensor(arr), tensor(values))


@expression("pad")
def _pad(array: Any, pad_width: Any, mode: str = "constant", **options: Any) -> Tensor:
    if callable(mode) or mode not in ("constant", "edge", "reflect", "symmetric", "wrap"):
        raise Unmapped
    width, values = _plain(pad_width), tensor(options.pop("constant_values", 0))
    if mode == "constant":
        return _moved(lambda n, new: np.pad(n, width, constant_values=new), tensor(array), values)
    return _moved(lambda n: np.pad(n, width, mode, **options), tensor(array))  # type: ignore[call-overload]


@expression("reshape")
def _reshape(a: Any, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: bool | None = None) -> Tensor:
    shape = newshape if shape is None else shape
    shape = [shape] if isinstance(shape, int) else list(shape)
    if order == "F":
        return _reversed(_reversed(tensor(a)).reshape(shape[::-1]))
    if order != "C":
        raise Unmapped
    return tensor(a).reshape(shape)


def _reversed(a: Tensor) -> Tensor:
    return a.permute(*range(a.dim())[::-1])


@expression("ravel")
def _ravel(a: Any, order: str = "C") -> Tensor:
    if order not in ("C", "F"):
        raise Unmapped
    return (_reversed(tensor(a)) if order == "F" else tensor(a)).reshape(-1)


@expression("block")
def _block(arrays: Any) -> Tensor:
    def depth(part: Any) -> int:
        return 1 + max(map(depth, part)) if isinstance(part, list) else 0

    def join(part: Any, axis: int) -> Tensor:
        return torch.cat(promoted(*(join(p, axis + 1) for p in part)), axis) if isinstance(part, list) else grown(part)

    def leaves(part: Any) -> list[Tensor]:
        return [leaf for p in part for leaf in leaves(p)] if isinstance(part, list) else [tensor(part)]

    dims = max(depth(arrays), *(leaf.dim() for leaf in leaves(arrays)))

    def grown(part: Any) -> Tensor:
        t = tensor(part)
        return t[(None,) * (dims - t.dim())]

    return join(arrays, -depth(arrays))
