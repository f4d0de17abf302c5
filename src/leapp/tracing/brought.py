"""Nodes whose model the user brings: finds the outputs that can be compared with the model because the code computes them.

The code of such a node may compute what the model computes, or only return placeholders of the right shape.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from leapp.capture.equality import same_bits
from leapp.tracing.node import NodeTrace

Tensor = torch.Tensor

_TRIES = 4


def placeholders(node: NodeTrace) -> set[str]:
    """The outputs that are placeholders: an input handed on, a constant, or random numbers."""
    if node.replay is None or node.tape is None or node.tape.random:
        return set(node.outputs)
    handed_on, seen = set(node.outputs), dict[str, list[Tensor]]({name: [] for name in node.outputs})
    for inputs in _tries(node):
        given = [t.clone() for t in inputs]
        try:
            with torch.no_grad():
                outputs = node.replay(*given)
        except Exception:  # the user's code may reject such inputs with any error
            continue
        unchanged = [now for before, now in zip(inputs, given, strict=True) if same_bits(before, now)]
        for name, value in zip(node.outputs, outputs, strict=True):
            seen[name].append(value.clone())
            if not any(_is_part(value, t) for t in unchanged):
                handed_on.discard(name)
    constant = {name for name, values in seen.items() if all(same_bits(values[0], v) for v in values[1:])}
    return handed_on | constant


def _is_part(value: Tensor, t: Tensor) -> bool:
    """Whether a value is an input, a view of it, or a copy."""
    if value.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() and t.numel():
        return True
    return value.shape == t.shape and value.dtype == t.dtype and same_bits(value, t)


def _tries(node: NodeTrace) -> Iterator[list[Tensor]]:
    """The recorded inputs, then random values like them."""
    for sample in node.samples:
        yield [sample.inputs[name] for name in node.inputs]
    generator = torch.Generator().manual_seed(0)
    for _ in range(_TRIES):
        yield [_other(node.samples[0].inputs[name], generator) for name in node.inputs]


def _other(t: Tensor, generator: torch.Generator) -> Tensor:
    """A random value like ``t``: floats moved by about their mean size, whole numbers shuffled."""
    if t.is_floating_point():
        scale = float(t.float().abs().nan_to_num(0.0, 0.0, 0.0).mean()) or 1.0
        return t + (scale * torch.randn(t.shape, generator=generator)).to(t)
    order = torch.randperm(t.numel(), generator=generator).to(t.device)
    return t.flatten()[order].reshape(t.shape) if t.numel() > 1 else torch.zeros_like(t)
