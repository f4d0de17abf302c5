"""Substitutes: calls for which another call with the same values is recorded.

*Handlers* run a call for the user's program unchanged, and put an equivalent call on the tape. A handler gets the recorder, the
tape and the call.

*Spelled-out kernels*: in evaluation mode ``nn.MultiheadAttention`` and ``nn.TransformerEncoder`` run fused kernels, on nested
tensors when there is padding. Where a node computes gradients, or under autocast, ``nn.LSTM`` runs layers of oneDNN. Exporters
do not have these kernels. The user's program runs them, and the tape holds functions of this module instead. A nested tensor is
replayed as a padded tensor with an attribute that holds the mask of its real rows.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch code uses

from leapp.capture.tape import Ref, Tape, refer
from leapp.capture.trees import tensors

if TYPE_CHECKING:
    from leapp.capture.recorder import Recorder

Tensor = torch.Tensor
Handler = Callable[["Recorder", Tape, Any, tuple[Any, ...], dict[str, Any]], Any]
_KEEP = "_leapp_keep"


# -- handlers ----------------------------------------------------------------------------------------------------------


def _deepcopy(recorder: Recorder, tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = func(*args, **kwargs)
    tape.same(args[0], result)  # no mode sees the copy inside
    return result


def _construct(recorder: Recorder, tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``torch.tensor``, ``as_tensor`` and ``asarray`` of traced tensors, alone or in nested lists."""
    return constructed(recorder, tape, args[0] if args else kwargs["data"], func(*args, **kwargs))


def constructed(recorder: Recorder, tape: Tape, data: Any, result: Tensor) -> Tensor:
    """Record how ``result`` was made of ``data``, a tensor or nested lists: no mode sees torch read values out of lists."""
    if isinstance(data, Tensor):
        tape.same(data, result)
    else:
        refs = {id(t): tape.find(t) or recorder.constants.slot(tape, t) for t in tensors(data)}
        tape.made(result, assemble, refer(data, refs), result.dtype, result.device)
    return result


def assemble(data: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """``torch.tensor`` for nested lists that hold tensors, with ops that stay in the graph."""
    if isinstance(data, Tensor):
        return data.to(dtype=dtype, device=device)
    if any(True for _ in tensors(data)):
        return torch.stack([assemble(d, dtype, device) for d in data])
    return torch.tensor(data, dtype=dtype, device=device)


def _data(recorder: Recorder, tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``x.data`` returns an alias of ``x``; ``x.data = y`` makes ``x`` an alias of ``y``."""
    if len(args) == 1:
        return recorder.calls.run(tape, torch.detach, args[:1])
    target, value = args[0], args[1]
    ref = tape.find(value) or recorder.constants.slot(tape, value)
    func(*args, **kwargs)
    tape.known[id(target)] = Ref(ref.slot, weakref.ref(target))
    return None


def _numpy(recorder: Recorder, tape: Tape, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return recorder.arrays.memory.wrap(func(*args, **kwargs), args[0])


CONSTRUCTORS = frozenset({torch.tensor, torch.as_tensor, torch.asarray})
"""Functions that make a tensor of numbers, lists, arrays or tensors."""

HANDLERS: dict[Any, Handler] = {
    "numpy": _numpy,
    "__deepcopy__": _deepcopy,
    "data": _data,
    **dict.fromkeys(CONSTRUCTORS, _construct),
}
"""Handlers by the name of a call, or by its function."""


# -- spelled-out kernels -----------------------------------------------------------------------------------------------


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``torch._native_multi_head_attention`` for batch-first self-attention: query, key and value are the same tensor."""
    batch, length = query.shape[0], query.shape[1]
    keep = getattr(query, _KEEP, None)
    q, k, v = F.linear(query, qkv_weight, qkv_bias).chunk(3, dim=-1)

    def heads(t: Tensor) -> Tensor:
        return t.reshape(batch, t.shape[1], num_head, embed_dim // num_head).transpose(1, 2)

    scores = (heads(q) / math.sqrt(embed_dim // num_head)) @ heads(k).transpose(-2, -1)
    hidden = _hidden(mask, mask_type)
    if keep is not None:
        hidden = ~keep[:, None, None, :]
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    joined = (weights @ heads(v)).transpose(1, 2).reshape(batch, length, embed_dim)
    out = F.linear(joined, proj_weight, proj_bias)
    if not need_weights:
        return out, None
    return out, weights.mean(dim=1) if average_attn_weights else weights


def _hidden(mask: Tensor | None, mask_type: int | None) -> Tensor | None:
    """The scores that the kernel leaves out. It reads any mask as truth values."""
    if mask is None:
        return None
    hidden = mask.to(torch.bool)
    if mask_type == 1:
        return hidden[:, None, None, :]
    return hidden


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """``torch._transformer_encoder_layer_fwd``."""
    keep = getattr(src, _KEEP, None)

    def attend(x: Tensor) -> Tensor:
        _mark(x, keep)
        return _attention(
            x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
        )[0]

    def feed(x: Tensor) -> Tensor:
        hidden = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(hidden) if use_gelu else F.relu(hidden), ffn_weight_2, ffn_bias_2)

    def norm_1(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(norm_1(src))
        x = x + feed(norm_2(x))
    else:
        x = norm_1(src + attend(src))
        x = norm_2(x + feed(x))
    return _mark(x, keep)


def _mark(t: Tensor, keep: Tensor | None) -> Tensor:
    if keep is not None:
        setattr(t, _KEEP, keep)
    return t


def _from_mask(t: Tensor, mask: Tensor, mask_check: bool = True) -> Tensor:
    """``torch._nested_tensor_from_mask``: the rows where ``mask`` is true."""
    return _mark(t.clone(), mask)


def _to_padded(t: Tensor, padding: float, output_size: Any = None) -> Tensor:
    """``Tensor.to_padded_tensor``. With padding between real rows ``nn.TransformerEncoder`` makes no nested tensor."""
    keep = getattr(t, _KEEP, None)
    if keep is None:
        return t.to_padded_tensor(padding, output_size) if t.is_nested else t  # nested if the program made it
    between = (keep[:, 1:] & ~keep[:, :-1]).any()
    return t.masked_fill((~keep & ~between)[..., None], padding)


def _lstm_layer(
    x: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor, h: Tensor, c: Tensor, reverse: bool, batch_sizes: Any,
    mode: int, hidden: int, layers: int, has_biases: bool, *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """``aten.mkldnn_rnn_layer``, time first. The last result, its workspace, holds the gates and cells of each step here."""
    outputs, kept = [], []
    for now in reversed(x.unbind()) if reverse else x.unbind():
        gates = F.linear(now, w_x, b_x if has_biases else None) + F.linear(h, w_h, b_h if has_biases else None)
        i, f, g, o = gates.chunk(4, -1)
        i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
        kept.append(torch.cat([i, f, g, o, c, h], -1))
        c = f * c + i * g
        h = o * c.tanh()
        outputs.append(h)
    return torch.stack(outputs[::-1] if reverse else outputs), h, c, torch.stack(kept)


def _lstm_layer_backward(
    x: Tensor, w_x: Tensor, w_h: Tensor, b_x: Tensor, b_h: Tensor, h: Tensor, c: Tensor, output: Tensor, h_n: Tensor,
    c_n: Tensor, grad_output: Tensor | None, grad_h: Tensor | None, grad_c: Tensor | None, reverse: bool, *rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """``aten.mkldnn_rnn_layer_backward``, with the workspace of :func:`_lstm_layer`."""
    steps, workspace = x.unbind(), rest[-1].unbind()
    steps = steps[::-1] if reverse else steps
    wanted = torch.zeros_like(output) if grad_output is None else grad_output
    of_outputs = wanted.unbind()[::-1] if reverse else wanted.unbind()
    d_h = torch.zeros_like(h) if grad_h is None else grad_h
    d_c = torch.zeros_like(c) if grad_c is None else grad_c
    d_x: list[Tensor] = []
    d_w_x, d_w_h, d_b = torch.zeros_like(w_x), torch.zeros_like(w_h), torch.zeros_like(w_x[:, 0])
    for now, kept, of_output in reversed(list(zip(steps, workspace, of_outputs, strict=True))):
        i, f, g, o, before, held = kept.chunk(6, -1)
        cell = (f * before + i * g).tanh()
        d_h = d_h + of_output
        d_c = d_c + d_h * o * (1 - cell * cell)
        d_i, d_f, d_g, d_o = d_c * g * i * (1 - i), d_c * before * f * (1 - f), d_c * i * (1 - g * g), d_h * cell * o * (1 - o)
        d_gates = torch.cat([d_i, d_f, d_g, d_o], -1)
        d_x.append(d_gates @ w_x)
        d_w_x, d_w_h, d_b = d_w_x + d_gates.T @ now, d_w_h + d_gates.T @ held, d_b + d_gates.sum(0)
        d_h, d_c = d_gates @ w_h, d_c * f
    return torch.stack(d_x if reverse else d_x[::-1]), d_w_x, d_w_h, d_b, d_b, d_h, d_c


WORKSPACE_LAST: frozenset[Any] = frozenset({_lstm_layer})
"""Functions whose last result the kernel returns only where gradients are computed."""

KERNELS: dict[str, Callable[..., Any]] = {
    "mkldnn_rnn_layer": _lstm_layer,
    "mkldnn_rnn_layer_backward": _lstm_layer_backward,
    "_native_multi_head_attention": _attention,
    "_transformer_encoder_layer_fwd": _encoder_layer,
    "_nested_tensor_from_mask": _from_mask,
    "to_padded_tensor": _to_padded,
    "nested_to_padded_tensor": _to_padded,
}
"""Spelled-out functions by the name of the kernel."""

COVERED: dict[str, Any] = {"_nested_tensor_from_mask_left_aligned": True}
"""Calls that ask about values, with one result each: after this result, the functions here are right for all other results."""
