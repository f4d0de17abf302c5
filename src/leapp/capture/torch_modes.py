"""The two torch modes, which report calls to the recorder.

The function mode sees every torch API call and records it whole, so that tapes stay readable. Some calls cannot be recorded
whole, because they depend on their context (functorch levels, autocast, tensor subclasses, autograd inside a node) or never
reach Python (TorchScript, C++ extensions, backward). For these the dispatch mode records the ATen ops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from leapp.capture.batch.symbolic_size import bare, numbers
from leapp.capture.call_kinds import KINDS, Kind, classify
from leapp.capture.devices import refuse_mixed
from leapp.capture.handled import RAISED_BY_TORCH, note_raised
from leapp.capture.substitutes import CONSTRUCTORS
from leapp.capture.traced_calls import PLAIN, batch_numbers
from leapp.capture.trees import tensors
from leapp.capture.user_line import where
from leapp.compat.core import DispatchMode as TorchDispatchMode
from leapp.compat.core import HigherOrderOperator, functorch_level
from leapp.compat.modes import DisableTorchFunction, Unseen, any_autocast, backward_task, is_functorch_wrapped
from leapp.errors import TraceError

if TYPE_CHECKING:
    from leapp.capture.recorder import Recorder

class FunctionMode(TorchFunctionMode):
    """Sees every torch API call of the thread."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = KINDS.get(func) or classify(func)
        if kwargs is None:
            kwargs = {}
        recorder = self.recorder
        tapes = recorder.tapes
        if recorder.batched:
            args, kwargs, _ = batch_numbers(args, kwargs)
        if recorder is not type(recorder).current:
            return func(*args, **kwargs)  # another thread ended the session
        if not tapes:
            made = recorder.arrays.memory.seen and func in CONSTRUCTORS
            if kind.metadata or not (made or kind.random or kind.writes or recorder.published.concerns(args, kwargs)):
                return func(*recorder.arrays.numbers_in(args), **recorder.arrays.numbers_in(kwargs))
        elif kind.metadata and not (recorder.dynamic or kind.tracks_grad):
            return func(*recorder.arrays.numbers_in(args), **kwargs) if len(args) > 1 else func(*args, **kwargs)
        elif (
            kind.autograd
            or recorder.autograd
            or any_autocast()
            or functorch_level() is not None
            or (types and not PLAIN.issuperset(types))
            or (kind.hidden_writes and torch.is_inference_mode_enabled())  # no version counter shows the write
        ):
            return self._aside(func, kind, args, kwargs)
        guard = Unseen()
        try:
            if recorder.shared:
                with recorder.lock:
                    return recorder.calls.called(func, kind, args, kwargs, whole=True)
            if kind.plain and len(tapes) == 1 and not recorder.dynamic and "out" not in kwargs:
                return recorder.calls.called_simply(tapes[0], func, kind, args, kwargs)
            return recorder.calls.called(func, kind, args, kwargs, whole=True)
        except RuntimeError as error:
            for tape in tapes:
                refuse_mixed(tape.node, tape.owns, kind.name, args, kwargs, error)
            if tapes and isinstance(error, RAISED_BY_TORCH):
                note_raised(recorder.owner(tensors((args, kwargs))), kind.name, error)
            raise
        finally:
            del guard  # a traceback would keep it

    def _aside(self, func: Any, kind: Kind, args: Any, kwargs: Any) -> Any:
        """Leave the call to the dispatch mode. Only calls without an ATen form are handled here."""
        if kind.metadata or kind.handled:
            leaves = list(tensors(args))
            if leaves and not is_functorch_wrapped(leaves[0]):
                guard = Unseen()
                try:
                    return self.recorder.calls.called(func, kind, args, kwargs, whole=True)
                finally:
                    del guard
        for number in numbers((args, kwargs)) if self.recorder.batched else ():
            number.owner.bake(f"{kind.name} is recorded as its single operations, which take the batch size as a plain number")
            return func(*bare(args), **bare(kwargs))
        args, kwargs = self.recorder.arrays.replaced(func, kind, args, kwargs)
        return func(*args, **kwargs)


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the ATen ops of calls that the function mode did not record."""

    supports_higher_order_operators = True

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder = self.recorder
        kwargs = kwargs or {}
        with DisableTorchFunction():
            if not recorder.tapes:
                return func(*args, **kwargs)
            if isinstance(func, HigherOrderOperator):
                refuse_functions(recorder, str(func), args, kwargs)
                return func(*args, **kwargs)
            if backward_task() != -1:
                _refuse_unseen(recorder, func, args, kwargs)
            with recorder.lock:
                return recorder.calls.called(func, classify(func), args, kwargs, whole=False)


def refuse_functions(recorder: Recorder, name: str, args: Any, kwargs: Any) -> None:
    """Refuse an operator that runs functions of the program on a value of an open node. Call it inside ``silence()``."""
    tape = recorder.owner(tensors((args, kwargs)))
    if tape is not None:
        raise TraceError(
            f"node '{tape.node}': {name} at {where()} runs functions that cannot be recorded as one call. "
            "Use torch.where() or ordinary Python control flow instead."
        )


def _refuse_unseen(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> None:
    """Refuse a backward pass that reads a tensor that autograd saved inside a call which was recorded whole: no mode saw it."""
    leaves = list(tensors((args, kwargs)))
    tape = recorder.owner(leaves)
    if tape is None:
        return
    for t in leaves:
        constant = tape.constant_ids.get(id(t))
        known = constant is not None and constant[0].tensor() is t
        # A former value: for example a gradient that the pass before accumulated.
        known = known or t in recorder.plain_calls.made_inside or t in recorder.former_values
        if known or tape.find(t) is not None:
            continue
        if t._is_view() or isinstance(t, torch.nn.Parameter) or not t.dim():
            continue
        raise TraceError(
            f"node '{tape.node}': the backward pass at {where()} needs a value that autograd saved inside a torch call, "
            "which leapp recorded as one call. Call requires_grad_() on the declared input before the computation."
        )
