"""Names for the constants of a node: the names their modules gave them, where they have one."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from leapp.capture.replay import Program

__all__ = ["constant_names"]


def constant_names(program: Program, modules: Iterable[weakref.ref[torch.nn.Module]]) -> dict[int, str]:
    """A unique dotted name for each constant slot. ``modules`` are those called, outermost first."""
    known: dict[int, str] = {}
    within: set[int] = set()
    for ref in modules:
        module = ref()
        if module is None or id(module) in within:
            continue
        for path, part in module.named_modules():
            within.add(id(part))
            for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
                known.setdefault(id(tensor), f"{path}.{name}" if path else name)
    names: dict[int, str] = {}
    taken: set[str] = set()
    passed: set[str] = set()
    for slot, constant in program.constants.items():
        origin = constant.origin()
        name = known.get(id(origin), f"constant_{len(names)}") if origin is not None else f"constant_{len(names)}"
        above = _above(name)
        while name in taken or name in passed or not taken.isdisjoint(above):
            name += "_"
            above = _above(name)
        names[slot] = name
        taken.add(name)
        passed.update(above)
    return names


def _above(name: str) -> list[str]:
    """The places that a dotted name leads through: a name may neither be one nor lead through another name."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
