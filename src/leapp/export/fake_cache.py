"""torch's fake tensors, which have no memory, with a cache of what operators return for them.

Torch computes the form of a result (its sizes, strides and type) at a hundred times the cost of a small operator. The
form depends only on the forms of the arguments, so it is computed once for each kind of call in a process. Knows nothing of
graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch

from leapp.compat.tracers import FakeTensor, FakeTensorMode

Form = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int, torch.device]
"""Type, sizes, strides, offset and device of a tensor."""

_LARGEST = 10_000
"""How many kinds of calls are remembered."""

_Result = tuple[type | None, tuple[Form, ...]]
"""The kind of sequence, or ``None`` for a single tensor, and the forms of the tensors in it."""

_known: dict[Any, _Result] = {}


class _UnknownError(Exception):
    """A tensor that has more properties than its form says."""


class FakeValues:
    """The fake tensors of one trace."""

    hides: type[torch.Tensor] = FakeTensor

    def __init__(self) -> None:
        self._mode = _mode()
        # Forms are found by identity, so each tensor is kept alive.
        self._forms: dict[int, tuple[torch.Tensor, Form]] = {}

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor of the same form."""
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and _is_plain(tensor):
            return self._made(_form(tensor, tensor.device))
        return self._mode.from_tensor(tensor.detach())

    def run(self, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """The fake tensors that an operator returns.

        Args:
            func: The overload. It writes to none of its arguments.
            args: Its arguments.
            named: Its keywords.
        """
        try:
            key = func, self._key(args), tuple(named), self._key(named.values()), torch.get_default_dtype()
            found = _known.get(key)
        except (_UnknownError, TypeError):
            with self._mode:
                return func(*args, **named)
        if found is None:
            with self._mode:
                out = func(*args, **named)
            self._learn(key, out)
            return out
        kind, forms = found
        return self._made(forms[0]) if kind is None else kind(map(self._made, forms))

    def _key(self, values: Iterable[Any]) -> tuple[Any, ...]:
        key: list[Any] = []
        for value in values:
            if isinstance(value, torch.Tensor):
                if id(value) not in self._forms:
                    raise _UnknownError
                key.append(self._forms[id(value)][1])
            elif isinstance(value, (list, tuple)):
                key.append(self._key(value))
            else:
                key += type(value), value  # True, 1 and 1.0 are equal, but not the same argument
        return tuple(key)

    def _learn(self, key: Any, out: Any) -> None:
        """Remember the form of a result, if it has no other properties."""
        kind, parts = (None, [out]) if isinstance(out, torch.Tensor) else (type(out), out)
        if kind not in (None, list, tuple) or not all(type(p) is FakeTensor and _is_plain(p) for p in parts):
            return
        forms = tuple(_form(part, part.fake_device) for part in cast(Sequence[FakeTensor], parts))
        self._forms |= {id(part): (part, form) for part, form in zip(parts, forms, strict=True)}
        if len(_known) < _LARGEST:
            _known[key] = kind, forms

    def _made(self, form: Form) -> torch.Tensor:
        dtype, shape, stride, offset, device = form
        if offset:
            room = offset + 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
            elem = torch.empty(max(room, 0), dtype=dtype, device="meta").as_strided(shape, stride, offset)
        else:
            elem = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
        made = FakeTensor(self._mode, elem, device)
        self._forms[id(made)] = made, form
        return made


@functools.cache
def _mode() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
        and getattr(tensor, "constant", None) is None
    )


def _form(tensor: torch.Tensor, device: torch.device) -> Form:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), device
