"""Programs whose number of rows is a parameter: traced with one, run as plain code with others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from leapp import annotate

A = annotate
Tensor = torch.Tensor
FEATURES = 6


class Policy:
    """A program of ``rows`` rows. Its weights do not depend on them."""

    def __init__(self, rows: int, backend: str) -> None:
        self.rows, self.backend = rows, backend
        torch.manual_seed(3)
        self.build()

    def build(self) -> None:
        """Make weights and state."""

    def __call__(self, x: Any) -> Any:
        """One pass."""
        x = A.input_tensors("n", {"x": x})
        return A.output_tensors("n", {"y": self.compute(x)}, export_with=self.backend)

    def compute(self, x: Any) -> Any:
        """What happens inside the node."""
        raise NotImplementedError


class Mlp(Policy):
    """Layers only."""

    def build(self) -> None:
        self.net = nn.Sequential(nn.Linear(FEATURES, 8), nn.ELU(), nn.LayerNorm(8), nn.Linear(8, 3))

    def compute(self, x: Tensor) -> Tensor:
        return self.net(x)


class GruState(Policy):
    """A hidden state with the rows in front."""

    def build(self) -> None:
        self.cell, self.h = nn.GRUCell(FEATURES, 5), torch.zeros(self.rows, 5)

    def compute(self, x: Tensor) -> Tensor:
        h = A.state_tensors("n", {"h": self.h})
        self.h = A.update_state("n", {"h": self.cell(x, h)})
        return torch.tanh(self.h[:, :3])


class LstmStates(Policy):
    """Hidden states with the rows in the middle."""

    def build(self) -> None:
        self.net = nn.LSTM(FEATURES, 5, num_layers=2)
        self.h, self.c = torch.zeros(2, self.rows, 5), torch.zeros(2, self.rows, 5)

    def compute(self, x: Tensor) -> Tensor:
        h, c = A.state_tensors("n", {"h": self.h, "c": self.c})
        y, (h, c) = self.net(x.unsqueeze(0), (h, c))
        self.h, self.c = A.update_state("n", {"h": h, "c": c})
        return y.squeeze(0)


class LstmFresh(Policy):
    """A recurrent layer that makes its own zeros in every pass."""

    def build(self) -> None:
        self.net = nn.LSTM(3, 5, batch_first=True)

    def compute(self, x: Tensor) -> Tensor:
        return self.net(x.view(x.size(0), 2, 3))[0].flatten(1)


class History(Policy):
    """The last observations, shifted by one in each pass."""

    def build(self) -> None:
        self.past, self.net = torch.zeros(self.rows, 3, FEATURES), nn.Linear(3 * FEATURES, 2)

    def compute(self, x: Tensor) -> Tensor:
        past = A.state_tensors("n", {"past": self.past})
        self.past = A.update_state("n", {"past": torch.cat([past[:, 1:], x.unsqueeze(1)], dim=1)})
        return self.net(self.past.flatten(1))


class ModuleBuffers(Policy):
    """A module that keeps its hidden state in a registered buffer."""

    class Recurrent(nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.net = nn.GRU(FEATURES, 5)
            self.register_buffer("hidden", torch.zeros(1, rows, 5))
            self.register_buffer("scale", torch.linspace(1, 2, 5))

        def forward(self, x: Tensor) -> Tensor:
            y, self.hidden = self.net(x.unsqueeze(0), self.hidden)
            return y[0] * self.scale

    def build(self) -> None:
        self.net = self.Recurrent(self.rows)

    def compute(self, x: Tensor) -> Tensor:
        A.module("n", self.net)
        return self.net(x)


class WrittenBuffer(Policy):
    """A tensor that is written in place and lives on."""

    def build(self) -> None:
        self.buffer = torch.zeros(self.rows, 4)

    def compute(self, x: Tensor) -> Tensor:
        buffer = A.register_buffer("n", {"kept": self.buffer})
        buffer[:, 1:] = buffer[:, :3].clone()
        buffer[:, 0] = x.sum(1)
        return buffer * 2.0


class Feedback(Policy):
    """Two nodes; the action goes back into the first."""

    def build(self) -> None:
        self.one, self.two = nn.Linear(FEATURES + 2, 4), nn.Linear(4, 2)
        self.action = torch.zeros(self.rows, 2)

    def __call__(self, x: Tensor) -> Tensor:
        x, last = A.input_tensors("one", {"x": x, "last": self.action})
        z = A.output_tensors("one", {"z": torch.tanh(self.one(torch.cat([x, last], 1)))}, export_with=self.backend)
        z = A.input_tensors("two", {"z": z})
        self.action = A.output_tensors("two", {"action": torch.tanh(self.two(z))}, export_with=self.backend)
        return self.action


class Shapes(Policy):
    """Sizes taken from the tensor in many ways."""

    def compute(self, x: Tensor) -> Tensor:
        rows, features = x.shape
        wide = x.view(rows, 2, -1).transpose(1, 2).reshape(rows * 3, 2).reshape(x.size(0), features)
        zeros = torch.zeros(x.shape[:-1] + (2,), dtype=x.dtype)
        ones = x.new_ones(rows, 1) * rows
        place = torch.arange(x.shape[0]).unsqueeze(1) % 3
        first = torch.tensor([[1.0, 2.0]]).repeat(rows, 1)
        out = torch.empty(rows, 2)
        out[:, 0] = x[:, 0]
        out[:, 1:] = x[torch.arange(rows), x.argmax(1)].unsqueeze(-1)
        assert wide.shape == x.shape
        return torch.cat([wide, zeros, ones, place, first.expand(rows, -1), out], dim=-1)


class AcrossRows(Policy):
    """A batch in which rows depend on each other: as in the code, at every size."""

    def compute(self, x: Tensor) -> Tensor:
        mean = x.sum(0) / x.shape[0]
        return (x - mean) * (1 / x.shape[0]) + x.flip(0) + x.mean(0, keepdim=True) + x[0]


class Attention(Policy):
    """Attention over a few tokens of each row."""

    def build(self) -> None:
        self.layer = nn.TransformerEncoderLayer(FEATURES, 2, 8, dropout=0.0, batch_first=True).eval()
        self.more = nn.MultiheadAttention(FEATURES, 3, batch_first=True)

    def compute(self, x: Tensor) -> Tensor:
        tokens = torch.stack([x, x * 0.5, x.flip(1)], dim=1)
        y = self.layer(tokens)
        return self.more(y, y, y, need_weights=False)[0].mean(1)


class Convolution(Policy):
    """Images made of the observation."""

    def build(self) -> None:
        self.net = nn.Sequential(nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.ReLU(), nn.Flatten()).eval()

    def compute(self, x: Tensor) -> Tensor:
        return self.net(x.reshape(len(x.shape) and x.shape[0], 2, 3))


class Array(Policy):
    """A node of NumPy."""

    def build(self) -> None:
        self.weight = torch.randn(FEATURES, 3).numpy()
        self.offset = np.arange(3, dtype=np.float32)

    def __call__(self, x: Tensor) -> Any:
        a = A.input_tensors("n", {"x": x.numpy()})
        y = np.tanh(a @ self.weight) + self.offset
        y[:, 0] = a[:, ::2].max(axis=1)
        z = np.concatenate([y, a.reshape(a.shape[0], 2, 3)[:, 1], a - a.sum(axis=0) / a.shape[0]], axis=1)
        return A.output_tensors("n", {"y": z}, export_with=self.backend)


class SpreadConstant(Policy):
    """One row that was repeated for every row, made outside the node; and a buffer of that size to be filled."""

    def build(self) -> None:
        self.default = torch.linspace(-1, 1, FEATURES).repeat(self.rows, 1)

    def compute(self, x: Tensor) -> Tensor:
        filled = torch.zeros(self.rows, 2)
        filled[:, :1] = x[:, :1]
        return torch.cat([x - self.default, filled], 1)


@torch.jit.script
def _rotated(q: Tensor, v: Tensor) -> Tensor:
    shape = q.shape
    dot = torch.bmm(q.view(shape[0], 1, 3), v.view(shape[0], 3, 1)).squeeze(-1)
    return torch.cross(q, v, dim=-1) + dot * v


class Scripted(Policy):
    """A scripted helper, which asks for sizes where nobody sees it."""

    def compute(self, x: Tensor) -> Tensor:
        return _rotated(x[:, :3], x[:, 3:])


class Spread(Policy):
    """Statistics of each row."""

    def compute(self, x: Tensor) -> Tensor:
        centred = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)
        return torch.cat([centred[:, None, :, None].squeeze((1, 3)), x.var(1, keepdim=True), 1 - x], 1)


POLICIES = (
    Mlp, GruState, LstmStates, LstmFresh, History, ModuleBuffers, WrittenBuffer, Feedback, Shapes, AcrossRows, Attention,
    Convolution, Array, SpreadConstant, Scripted, Spread,
)  # fmt: skip
