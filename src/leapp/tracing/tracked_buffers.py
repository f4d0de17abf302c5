"""Tensors that a node writes to: the buffers of modules, and those given to ``register_buffer``.

A tracked buffer is declared like an input. At the end of the pass a buffer that nothing wrote to becomes a constant. A module's
buffer that changed is state. A registered tensor that changed is state if each pass starts with the value that the pass before
left, and scratch memory if every pass starts with the same value.
"""

from __future__ import annotations

import torch

from leapp.capture.equality import same_bits
from leapp.capture.recorder import Recorder
from leapp.capture.tape import snapshot
from leapp.capture.user_line import Where
from leapp.errors import TraceError
from leapp.tracing.node import InputPort, NodeTrace, TrackedBuffer, dtype_name

Tensor = torch.Tensor


def track(node: NodeTrace, name: str, buffer: TrackedBuffer, at: Where) -> None:
    """Declare a buffer. The tensor itself is the input, not an alias of it, so the attribute of its owner is not replaced."""
    t = buffer.tensor
    port = InputPort(name, dtype_name(t), tuple(t.shape), "buffer", None, at)
    node.current.inputs[name] = snapshot(t)
    node.inputs[name] = port
    if node.tape is not None:
        port.slot = node.tape.declare(t, at).slot
    node.buffers.append(buffer)


def tracked(node: NodeTrace, module: torch.nn.Module, leaf: str, name: str) -> TrackedBuffer | None:
    """The tracked buffer of an earlier pass that a module's buffer continues."""
    found = next((b for b in node.buffers if b.module is module and b.name == leaf), None)
    if found is not None:
        return found
    free = (b for b in node.buffers if b.module is not None and b.port not in node.current.inputs)
    return next((b for b in free if b.port.split(" ")[0] == name), None)


def resolve(node: NodeTrace, recorder: Recorder) -> dict[str, tuple[Tensor, Where]]:
    """At the end of the first pass: the buffers that changed, with their new values; the others become constants."""
    tape = node.tape
    written = {m for c in tape.calls for m in c.writes} if tape is not None else set()
    changed: dict[str, tuple[Tensor, Where]] = {}
    for buffer in list(node.buffers):
        port = node.inputs[buffer.port]
        now = buffer.tensor if buffer.module is None else getattr(buffer.module, buffer.name, None)
        moved = now is not buffer.tensor
        if tape is not None and port.slot is not None:
            moved = moved or tape.memory_of[port.slot] in written
        if moved and now is not None:
            port.role = "state"
            changed[buffer.port] = (now, port.where)
            if tape is not None and tape.find(now) is None:
                recorder.constants.slot(tape, now)
        else:
            node.buffers.remove(buffer)
            freeze(node, buffer, node.current.inputs.pop(buffer.port))
    return changed


def freeze(node: NodeTrace, buffer: TrackedBuffer, value: Tensor) -> None:
    """Turn a tracked buffer into a constant of the node."""
    port = node.inputs.pop(buffer.port)
    if node.tape is not None and port.slot is not None:
        node.tape.make_constant(port.slot, value, buffer.tensor, port.where)


def registered_again(node: NodeTrace, name: str, t: Tensor, at: Where) -> bool:
    """Note the value that a registered tensor has in a later pass. ``False`` if it is not tracked any more."""
    buffer = next((b for b in node.buffers if b.module is None and b.port == name), None)
    if buffer is None:
        return False
    node.check(node.inputs[name], t, "buffer", at)
    first = node.samples[0].inputs[name]
    buffer.carried = buffer.carried and buffer.left is not None and same_bits(buffer.left, t)
    buffer.reset = buffer.reset and same_bits(first, t)
    buffer.same_memory = buffer.same_memory and buffer.tensor.data_ptr() == t.data_ptr()
    buffer.tensor = t
    node.current.inputs[name] = snapshot(t)
    return True


def left_by_pass(node: NodeTrace) -> None:
    """Remember what the pass left in the registered tensors."""
    for buffer in node.buffers:
        if buffer.module is None:
            buffer.left = snapshot(buffer.tensor)


def is_scratch(node: NodeTrace, buffer: TrackedBuffer) -> bool:
    """Whether a registered tensor that the node writes to starts every pass from the same value.

    Raises:
        TraceError: If it starts from values that come from somewhere else.
    """
    if node.passes < 2:
        return buffer.fresh
    if buffer.carried != buffer.reset:
        return buffer.reset
    if not buffer.carried:
        raise TraceError(
            f"node '{node.name}': the buffer '{buffer.port}' (registered at {node.inputs[buffer.port].where}) begins a pass "
            "neither with the value that the pass before left nor with that of the first pass, so code outside the node "
            "writes to it. Declare it with annotate.input_tensors()."
        )
    return not buffer.same_memory
