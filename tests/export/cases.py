"""Small nodes, one per operator or habit that policies use, with inputs drawn anew from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Draw = Callable[[torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[..., Any]
    draws: tuple[Draw, ...]
    without: frozenset[str] = frozenset()
    """Backends that refuse this node, in words a user can act on."""
    rtol: float = 1e-4
    atol: float = 1e-5

    def inputs(self, seed: int) -> tuple[torch.Tensor, ...]:
        g = torch.Generator().manual_seed(seed)
        return tuple(draw(g) for draw in self.draws)

    def module(self) -> nn.Module:
        if isinstance(self.run, type):
            torch.manual_seed(7)
            return Tupled(self.run()).eval()
        return Tupled(self.run).eval()


class Tupled(nn.Module):
    """Any callable as a node: a tuple comes out, and a callable module lends its parameters."""

    def __init__(self, run: Callable[..., Any]) -> None:
        super().__init__()
        self.run = run

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = self.run(*inputs)
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def f(*shape: int, scale: float = 2.0, dtype: torch.dtype = torch.float32) -> Draw:
    return lambda g: (torch.randn(*shape, generator=g) * scale).to(dtype)


def pos(*shape: int) -> Draw:
    return lambda g: torch.rand(*shape, generator=g) + 0.1


def unit(*shape: int) -> Draw:
    return lambda g: torch.rand(*shape, generator=g) * 1.8 - 0.9


def i(*shape: int, lo: int = -9, hi: int = 10, dtype: torch.dtype = torch.int64) -> Draw:
    return lambda g: torch.randint(lo, hi, shape, generator=g).to(dtype)


def nz(*shape: int, dtype: torch.dtype = torch.int64) -> Draw:
    """Integers without zero, of both signs."""

    def draw(g: torch.Generator) -> torch.Tensor:
        return (torch.randint(1, 6, shape, generator=g) * (torch.randint(0, 2, shape, generator=g) * 2 - 1)).to(dtype)

    return draw


def b(*shape: int) -> Draw:
    return lambda g: torch.rand(*shape, generator=g) > 0.5


def edge(*shape: int) -> Draw:
    """Floats with NaN, infinities, signed zeros and halves among them."""
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.0, -3.0])

    def draw(g: torch.Generator) -> torch.Tensor:
        x = torch.randn(*shape, generator=g) * 3
        pick = special[torch.randint(0, len(special), shape, generator=g)]
        return torch.where(torch.rand(*shape, generator=g) > 0.4, pick, x)

    return draw


class Recurrent(nn.Module):
    """Whole layers that carry a state, on both ways through time."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm = nn.GRU(5, 3, 2, bidirectional=True), nn.LSTM(5, 3, 2, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out, (h, c) = self.lstm(x)
        return *self.gru(x), out, h, c


def largest(dtype: torch.dtype, *shape: int) -> Draw:
    """Infinities, and the numbers next to them."""
    most = torch.finfo(dtype).max
    special = torch.tensor([math.inf, most, 1.0, -most, -math.inf], dtype=dtype)
    return lambda g: special[torch.randint(0, len(special), shape, generator=g)]


def halves(*shape: int) -> Draw:
    return lambda g: torch.randint(-9, 10, shape, generator=g) / 2


def spd(n: int, batch: tuple[int, ...] = ()) -> Draw:
    """Symmetric, positive definite."""

    def draw(g: torch.Generator) -> torch.Tensor:
        a = torch.randn(*batch, n, n, generator=g)
        return a @ a.mT + n * torch.eye(n)

    return draw


def regular(n: int, batch: tuple[int, ...] = ()) -> Draw:
    """Invertible, and only with row exchanges: the leading entry is zero."""

    def draw(g: torch.Generator) -> torch.Tensor:
        a = torch.randn(*batch, n, n, generator=g) + n * torch.eye(n).roll(1, 0)
        a[..., 0, 0] = 0.0
        return a

    return draw


def distinct(*shape: int) -> Draw:
    """Floats without ties, far apart: order does not hang on rounding."""

    def draw(g: torch.Generator) -> torch.Tensor:
        n = math.prod(shape)
        return (torch.randperm(n, generator=g).float() - n / 2).reshape(shape) / 3

    return draw


def spec(op: Callable[..., Any], *draws: Draw, name: str, **kw: Any) -> Case:
    return Case(name, op, draws, **kw)


# ---------------------------------------------------------------------------------------------------------------- nets
class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.ELU(), nn.Linear(8, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 3))


class Conv(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.ConvTranspose2d(4, 3, 2, stride=2),
            nn.GroupNorm(3, 3),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(12, 2),
        )


class Gru(nn.Module):
    def __init__(self, layers: int = 2, bidirectional: bool = False) -> None:
        super().__init__()
        self.gru = nn.GRU(5, 7, layers, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return self.gru(x, h)


class BiGru(Gru):
    def __init__(self) -> None:
        super().__init__(1, True)


class Lstm(nn.Module):
    def __init__(self, layers: int = 2, bidirectional: bool = False, batch_first: bool = False) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 7, layers, bidirectional=bidirectional, batch_first=batch_first)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> Any:
        y, (h, c) = self.lstm(x, (h, c))
        return y, h, c


class BiLstm(Lstm):
    def __init__(self) -> None:
        super().__init__(1, True, True)


class RnnTanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(5, 7)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        return self.rnn(x, h)


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.lstm, self.rnn = nn.GRUCell(4, 6), nn.LSTMCell(4, 6), nn.RNNCell(4, 6)
        self.relu, self.bare = nn.RNNCell(4, 6, nonlinearity="relu"), nn.GRUCell(4, 6, bias=False)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> Any:
        hx, cx = self.lstm(x, (h, h))
        return self.gru(x, h), hx, cx, self.rnn(x, h), self.relu(x, h), self.bare(x, h)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x)


class Mha(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> Any:
        return self.mha(q, k, k)


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(10, 4, padding_idx=0)

    def forward(self, x: torch.Tensor) -> Any:
        return self.emb(x)


class Normaliser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.randn(6))
        self.register_buffer("var", torch.rand(6) + 0.1)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.clamp((x - self.mean) / torch.sqrt(self.var + 1e-5), -5, 5)


class Shared(nn.Module):
    """One layer used twice: its weight must be stored once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(torch.relu(self.layer(x)))


# ------------------------------------------------------------------------------------------------ writes through views
def slice_write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(3, 6)
    out[:, :4] = x
    out[:, 4:] += y
    out[1].mul_(2.0)
    out.t()[0].sub_(1.0)
    return out


def mask_write(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[x < 0] = 0.5
    x[x > 1] *= -1
    return x


def mask_write_values(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[y] = torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape)[y] * 2
    return x


def index_write(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[torch.tensor([2, 0])] = y
    x[:, torch.tensor([1, 3])] = -1.0
    x[torch.tensor([0, 1]), torch.tensor([0, 2])] = 9.0
    return x


def history_roll(buffer: torch.Tensor, obs: torch.Tensor) -> torch.Tensor:
    buffer = buffer.roll(-1, dims=1)
    buffer[:, -1] = obs
    return buffer


def view_chain(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    base = x.clone()
    a, c = base.view(4, 3).split([1, 3])
    a.fill_(2.0)
    c[::2].copy_(torch.ones(2, 3))
    base.diagonal(0).add_(5)
    return base, a, c


def unused(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + 1


def constant_only(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 2, torch.arange(4.0), torch.ones(2, 2, dtype=torch.int64)


def integrate(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        v = v - 0.1 * x
        x = x + 0.1 * v
    return x


def quaternion(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    q = F.normalize(q, dim=-1)
    w, xyz = q[..., :1], q[..., 1:]
    t = torch.cross(xyz, v, dim=-1) * 2
    return v + w * t + torch.linalg.cross(xyz, t)


def fft_power(x: torch.Tensor) -> torch.Tensor:
    return torch.fft.rfft(x).abs()


def complex_mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = torch.complex(x, y) * torch.complex(y, x)
    return torch.view_as_real(z)


def rotary(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(z * torch.polar(torch.ones_like(p), p)).flatten(-2)


ONNX = frozenset({"onnx", "onnx-torchscript"})

NETS = [
    Case("mlp", Mlp, (f(2, 6),)),
    Case("mlp_3d", Mlp, (f(2, 3, 6),)),
    Case("mlp_1d", Mlp, (f(6),)),
    Case("conv", Conv, (f(1, 3, 16, 16),)),
    Case("gru", Gru, (f(2, 3, 5), f(2, 2, 7))),
    Case("bigru", BiGru, (f(2, 3, 5), f(2, 2, 7))),
    Case("lstm", Lstm, (f(3, 2, 5), f(2, 2, 7), f(2, 2, 7))),
    Case("bilstm", BiLstm, (f(2, 3, 5), f(2, 2, 7), f(2, 2, 7))),
    Case("rnn", RnnTanh, (f(3, 2, 5), f(1, 2, 7))),
    Case("cells", Cells, (f(2, 4), f(2, 6))),
    Case("transformer", Transformer, (f(2, 3, 8),)),
    Case("mha", Mha, (f(2, 3, 8), f(2, 5, 8))),
    Case("mha_unbatched", Mha, (f(3, 8), f(5, 8))),
    Case("embedding", Embedding, (i(2, 3, lo=0, hi=10),)),
    Case("normaliser", Normaliser, (f(2, 6, scale=20),)),
    Case("shared", Shared, (f(2, 16),)),
    Case("sdpa_4d", F.scaled_dot_product_attention, (f(2, 2, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 4))),
    Case("sdpa_3d", F.scaled_dot_product_attention, (f(2, 3, 4), f(2, 5, 4), f(2, 5, 4))),
    Case("sdpa_2d", F.scaled_dot_product_attention, (f(3, 4), f(5, 4), f(5, 4))),
    Case(
        "sdpa_causal",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (f(2, 1, 5, 4), f(2, 1, 5, 4), f(2, 1, 5, 4)),
    ),
    Case(
        "sdpa_causal_3d",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (f(2, 5, 4), f(2, 5, 4), f(2, 5, 4)),
    ),
    Case(
        "sdpa_mask",
        lambda q, k, v, m: F.scaled_dot_product_attention(
            q, k, v, attn_mask=m | torch.eye(3, 5, dtype=torch.bool) | torch.tensor([True, False, False, False, False])
        ),
        (f(2, 1, 3, 4), f(2, 1, 5, 4), f(2, 1, 5, 4), b(3, 5)),
    ),
    Case(
        "sdpa_bias_scale",
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.3),
        (f(2, 1, 3, 4), f(2, 1, 5, 4), f(2, 1, 5, 4), f(3, 5)),
    ),
    Case(
        "sdpa_gqa",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        (f(2, 4, 3, 4), f(2, 2, 5, 4), f(2, 2, 5, 4)),
    ),
    Case("einsum", lambda a, c: torch.einsum("bij,bjk->bik", a, c), (f(2, 3, 4), f(2, 4, 5))),
    Case("einsum_trace", lambda a: torch.einsum("bii->b", a), (f(2, 3, 3),)),
    Case("quaternion", quaternion, (f(5, 4), f(5, 3))),
    Case("integrate", integrate, (f(4), f(4))),
]

def _einsum_view_written(x: torch.Tensor) -> Any:
    y = x * 1
    turned = torch.einsum("ij->ji", y)
    turned += 1.0
    return y, turned * 2


def _strided_part_written(x: torch.Tensor) -> Any:
    y = torch.zeros(12) + x.mean()
    part = y.as_strided((2, 2), (5, 1), 1)
    part.copy_(x[:2, :2])
    y[2:4] += 1.0
    return y, part * 2


def _repeated_rows_written(x: torch.Tensor) -> Any:
    y = x * 1
    y.expand(2, 3, 4).masked_fill_(x > 0, 0.5)
    return y


def _reshaped_copy_written(x: torch.Tensor) -> Any:
    """Of a tensor that is not in order in memory reshape() returns a copy. Replaced operators must not change the order."""
    kept = torch.exp2(x.t()), F.logsigmoid(x.t())
    copies = [y.reshape(-1).add_(1.0) for y in kept]
    viewed = x.t().index_add(0, torch.tensor([0]), x.t()[:1])
    viewed.contiguous().zero_()
    return *kept, *copies, viewed * 2


def _taken_by_place(x: torch.Tensor) -> Any:
    """The places count from the start of the memory, not of the tensor."""
    part, turned = (x * 1)[1:], x.t().exp2()
    return part.as_strided((2, 2), (3, 1), 1) * 1, part.as_strided((2, 2), (3, 1)) * 1, turned.as_strided((2, 3), (3, 1)) * 1


def _windows_written(x: torch.Tensor) -> Any:
    y, z = x * 1, x * 2
    y.unfold(0, 2, 2)[0, 1] += 3.0
    z.unfold(-1, 2, 3).zero_()
    return y, z


WRITES = [
    Case("slice_write", slice_write, (f(3, 4), f(3, 2))),
    Case("mask_write", mask_write, (f(3, 4),)),
    Case("mask_write_values", mask_write_values, (f(3, 4), b(3, 4))),
    Case("index_write", index_write, (f(3, 4), f(2, 4))),
    Case("history_roll", history_roll, (f(2, 5, 3), f(2, 3))),
    Case("view_chain", view_chain, (f(3, 4),)),
    Case(
        "index_put_accumulate", lambda x, j, y: x.clone().index_put_((j,), y, accumulate=True), (f(5), i(8, lo=0, hi=5), f(8))
    ),
    Case("index_add", lambda x, j, y: x.clone().index_add_(0, j, y), (f(5, 2), i(8, lo=0, hi=5), f(8, 2))),
    Case("index_copy", lambda x, y: x.index_copy(0, torch.tensor([3, 1]), y), (f(5, 2), f(2, 2))),
    Case("index_fill", lambda x: x.index_fill(1, torch.tensor([0, 2]), -3.0), (f(3, 4),)),
    Case("masked_fill", lambda x, m: x.masked_fill(m, -1e9), (f(3, 4), b(3, 4))),
    Case("masked_scatter", lambda x, m, y: x.masked_scatter(m, y), (f(3, 4), b(3, 4), f(3, 4))),
    Case("scatter", lambda x, j, y: x.scatter(1, j.argsort(1), y), (f(3, 4), distinct(3, 4), f(3, 4))),
    Case("scatter_add", lambda x, j, y: x.scatter_add(1, j, y), (f(3, 4), i(3, 6, lo=0, hi=4), f(3, 6))),
    *[
        Case(
            f"scatter_reduce_{how}",
            lambda x, j, y, how=how: x.scatter_reduce(1, j, y, how),
            (f(3, 4), i(3, 6, lo=0, hi=4), f(3, 6)),
        )
        for how in ("sum", "prod", "amax", "amin", "mean")
    ],
    Case(
        "scatter_reduce_excluded",
        lambda x, j, y: x.scatter_reduce(1, j, y, "amax", include_self=False),
        (f(3, 4), i(3, 6, lo=0, hi=4), f(3, 6)),
    ),
    Case("fill_diagonal", lambda x: x.clone().fill_diagonal_(3.0), (f(4, 4),)),
    Case("write_einsum_view", _einsum_view_written, (f(3, 4),)),
    Case("write_strided_part", _strided_part_written, (f(3, 4),)),
    Case("write_reshaped_copy", _reshaped_copy_written, (f(3, 4),)),
    Case("read_by_place", _taken_by_place, (f(3, 4),)),
    Case("write_windows", _windows_written, (f(5, 8),)),
    Case("write_repeated_rows", _repeated_rows_written, (f(3, 4),), without=frozenset({"onnx"})),
    Case("put_slice_step", lambda x, y: torch.slice_scatter(x, y, 1, 0, 6, 2), (f(2, 6), f(2, 3))),
    Case("select_scatter", lambda x, y: torch.select_scatter(x, y, 1, -2), (f(2, 6), f(2))),
    Case("diagonal_scatter", lambda x, y: torch.diagonal_scatter(x, y, 1), (f(4, 4), f(3))),
    Case("setitem_negative_step", lambda x: x.clone().__setitem__((..., 0), 1.0) or x.flip(-1), (f(2, 3),)),
    Case("as_strided", lambda x: torch.as_strided(x, (3, 2), (1, 2), 1), (f(12),)),
    Case("unfold", lambda x: x.unfold(1, 3, 2), (f(2, 9),)),
    Case("copy_inplace_cast", lambda x: torch.zeros(3, dtype=torch.int64).copy_(x), (f(3, scale=5),)),
    Case("out_add", lambda x, y: torch.add(x, y, out=torch.empty(3)), (f(3), f(3))),
    Case("out_target", lambda x, y: torch._C._nn.mse_loss(x, target=y, reduction=0, out=torch.empty(0)), (f(3), f(3))),
    Case("clamp_inplace", lambda x: x.clone().clamp_(-1, 1).neg_().relu_(), (f(3, 4),)),
]

PORTS = [
    Case("pass_through", lambda x, y: (x, y * 2), (f(2), f(2))),
    Case("pass_through_only", lambda x: x, (f(2),)),
    Case("same_twice", lambda x: (lambda y: (y, y))(x * 2), (f(2),)),
    Case("constant_only", constant_only, (f(2),)),
    Case("unused_input", unused, (f(2), f(3))),
    Case(
        "scalar",
        lambda x, y: (x * y + 1, x.unsqueeze(0)),
        (lambda g: torch.randn((), generator=g), lambda g: torch.randn((), generator=g)),
    ),
    Case("empty", lambda x: (x * 2, torch.cat([x, torch.ones(2, 3)])), (f(0, 3),)),
    Case("int_ports", lambda x, y: (x + y, x.float() / 3), (i(4), i(4, dtype=torch.int32))),
    Case("small_ints", lambda x, y: (x.int() + y.int(), x, y), (i(4, dtype=torch.int8), i(4, lo=0, hi=200, dtype=torch.uint8))),
    Case("bool_ports", lambda x, y: (x & y, x | y, x ^ y, ~x, x.float()), (b(6), b(6))),
    Case("half", lambda x: (x * 2 + 1, x.float().exp()), (f(4, dtype=torch.float16),), rtol=1e-2),
    Case("bfloat16", lambda x: x.float() * 2, (f(4, dtype=torch.bfloat16),), rtol=1e-2),
    Case("double", lambda x: (x.sin() + 1e-9, x.float()), (f(4, dtype=torch.float64),), rtol=1e-12, atol=1e-12),
    Case("mixed_types", lambda x, n, m: (x * n, x + m, n + m, n / 2, n * 1.5), (f(4), i(4), b(4))),
    Case("int_scalar_type", lambda n: (n * 2, n + 0.5, n**2), (i(4, dtype=torch.int32),)),
]
