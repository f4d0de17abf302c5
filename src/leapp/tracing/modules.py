"""Collects the modules that open nodes call, and names the constants of a node after their parameters and buffers.

The hook on ``forward`` is there only while a node records, because it slows every module of the process down.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from leapp.capture.recorder import Recorder
from leapp.capture.replay import Program
from leapp.tracing.attributes import Attributes
from leapp.tracing.training import TrainingModes


class CalledModules:
    """The modules that ran inside the nodes of a session.

    Args:
        recorder: Knows the open tapes.
        attributes: Looks at what each module holds before it runs.
    """

    def __init__(self, recorder: Recorder, attributes: Attributes) -> None:
        self._recorder, self._attributes = recorder, attributes
        self._hook: Any = None
        self.known: dict[int, weakref.ref[torch.nn.Module]] = {}
        """By identity, outermost first."""
        self.training = TrainingModes(self.known)

    def hook(self, on: bool) -> None:
        """Hook the forward of all modules, or remove the hook."""
        if on and self._hook is None:
            self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._called)
        elif not on and self._hook is not None:
            self._hook.remove()
            self._hook = None

    @property
    def hooked(self) -> bool:
        """Whether the hook is there."""
        return self._hook is not None

    def _called(self, module: torch.nn.Module, _: Any) -> None:
        if self._recorder.tapes:
            if id(module) not in self.known:
                self.known[id(module)] = weakref.ref(module)
                self.training.look(module, self._recorder.tapes[-1].node)
            self._attributes.look(module)


def constant_names(program: Program, modules: Iterable[weakref.ref[torch.nn.Module]]) -> dict[int, str]:
    """A unique dotted name for each constant slot. ``modules`` are those called, outermost first."""
    known: dict[int, str] = {}
    within: set[int] = set()

    def walk(module: torch.nn.Module, path: str) -> None:
        if id(module) in within:
            return
        within.add(id(module))
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            known.setdefault(id(tensor), path + name)
        for name, part in module._modules.items():
            if part is not None:
                walk(part, f"{path}{name}.")

    for ref in modules:
        module = ref()
        if module is not None:
            walk(module, "")
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
    """The prefixes of a dotted name: ``a`` and ``a.b`` for ``a.b.c``. They become modules, so no other name may equal one."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]
