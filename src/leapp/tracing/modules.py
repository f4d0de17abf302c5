"""The modules that open nodes call. Their forward is hooked only while a node records: a hook slows every module down."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from leapp.capture.recorder import Recorder
from leapp.tracing.attributes import Attributes
from leapp.tracing.training import TrainingModes

__all__ = ["CalledModules"]


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
