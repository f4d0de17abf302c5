"""Devices: rewrites recorded calls for the CPU, and reports calls that mix devices.

A node is traced on the device of its tensors. Its model is written for the CPU, so that it runs on every machine: the runtime
moves a model to the device it is opened for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from leapp.capture.replay import Replay
from leapp.capture.tape import Call, Ref
from leapp.capture.trees import ATOMS, leaves, mapped, tensors
from leapp.capture.user_line import Where, where
from leapp.compat.core import registered_device
from leapp.errors import TraceError

Tensor = torch.Tensor
_CPU = torch.device("cpu")
_NOT_DEVICES = ATOMS - {torch.device} | {Ref}
_CARRYING = {"to", "cpu", "cuda", "xpu"}
"""Methods that move a tensor to a device. A registered backend adds a method with its own name."""


def on_cpu(replay: Replay, example: Iterable[Tensor]) -> Replay:
    """The same calls for tensors on the CPU; ``replay`` itself if everything is on the CPU already.

    Args:
        replay: A node as it was recorded.
        example: Inputs on the device where the node was traced.
    """
    program, inputs = replay.program, list(example)
    values = [*inputs, *(constant.value for constant in program.constants.values())]
    if all(v.device == _CPU for v in values) and not any(map(_elsewhere, program.calls)):
        return replay
    carried: set[int] = set()

    def run(index: int, call: Call, args: Any, kwargs: Any) -> Any:
        made = call.func(*args, **kwargs)
        if _carries(call) and isinstance(made, Tensor) and made.device != args[0].device:
            carried.add(index)
        return made

    with torch.no_grad():
        replay.run([t.clone() for t in inputs], run)
    calls = [_moved_call(call, index in carried) for index, call in enumerate(program.calls)]
    constants = {slot: replace(constant, value=constant.value.detach().cpu()) for slot, constant in program.constants.items()}
    for slot, constant in program.constants.items():
        constants[slot].parameter = constant.parameter
    return Replay(replace(program, calls=calls, constants=constants), replay.names)


def _carries(call: Call) -> bool:
    name = getattr(call.func, "__name__", "")
    return name in _CARRYING or name == registered_device()


def _moved_call(call: Call, carried: bool) -> Call:
    """A call rewritten for the CPU. A copy from one device to another stays a copy."""
    if not _carries(call):
        return _moved(call)
    named = {k: v for k, v in call.kwargs.items() if k in ("dtype", "copy", "memory_format")}
    kinds = [a for a in call.args[1:] if isinstance(a, torch.dtype)]
    if kinds:
        named["dtype"] = kinds[0]
    others = [a for a in call.args[1:] if isinstance(a, Ref)]  # x.to(other)
    if carried:
        named["copy"] = True
    return call._replace(func=_to, args=(call.args[0], *others), kwargs=named)


def _to(t: Tensor, *other: Tensor, **named: Any) -> Tensor:
    if other:
        named.setdefault("dtype", other[0].dtype)
    return t.to(**{"dtype": t.dtype, **named})


def _moved(call: Call) -> Call:
    """A call in which every device is the CPU."""
    args, kwargs = mapped((call.args, call.kwargs), lambda v: _CPU if type(v) is torch.device else v, skip=())
    return call._replace(args=args, kwargs={**kwargs, "device": _CPU} if _named_device(call) else kwargs)


def _named_device(call: Call) -> bool:
    """Whether a call has ``device=`` with a text or a number that is not the CPU."""
    device = call.kwargs.get("device")
    return isinstance(device, (str, int)) and device != "cpu"


def _elsewhere(call: Call) -> bool:
    """Whether a call names a device other than the CPU."""
    if _carries(call):
        name = call.func.__name__
        if name not in ("to", "cpu") or any(isinstance(a, str) and a != "cpu" for a in call.args):
            return True
    if _named_device(call):
        return True
    rest = [value for value in (*call.args, *call.kwargs.values()) if type(value) not in _NOT_DEVICES]
    return bool(rest) and any(device != _CPU for device in leaves(rest, torch.device, _NOT_DEVICES))


def refuse_mixed(node: str, traced: Callable[[Tensor], bool], name: str, args: Any, kwargs: Any, error: Exception) -> None:
    """Raise an error that names the tensors, if a call failed because they are on several devices.

    Args:
        node: The open node.
        traced: Tells whether a tensor is a value of that node.
        name: The name of the call.
        args: Its arguments.
        kwargs: Its keyword arguments.
        error: The error that torch raised.
    """
    found = [*tensors(args), *tensors(kwargs)]
    if len({t.device for t in found}) < 2:
        return
    told = [
        f"{'a value of the node' if traced(t) else 'a tensor from outside'} ({str(t.dtype)[6:]} {list(t.shape)}) on {t.device}"
        for t in found
    ]
    raise TraceError(
        f"node '{node}': {name} at {where()} mixes devices: {', '.join(told)}. Move them to one device with .to(), "
        "or make the tensor there with device=."
    ) from error


def require_device(node: str, state: str, first: Tensor | None, following: Tensor, at: Where) -> None:
    """Refuse a state whose next value is on another device than the value before."""
    if first is not None and first.device != following.device:
        raise TraceError(
            f"node '{node}': state '{state}' is on {first.device}, and the update at {at} puts it on {following.device}. "
            f"Move the update with .to('{first.device}')."
        )
