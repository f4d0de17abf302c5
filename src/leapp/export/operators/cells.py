"""Recurrent cells. Torch computes them with writes into their own intermediate values, which take the slower way to a graph."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import linear

from leapp.export.operators.table import aten, replaces


@replaces(aten.gru_cell.default)
def _gru_cell(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    entering, within = linear(x, w_ih, b_ih).chunk(3, 1), linear(h, w_hh, b_hh).chunk(3, 1)
    reset, update = (within[0] + entering[0]).sigmoid(), (within[1] + entering[1]).sigmoid()
    new = (entering[2] + within[2] * reset).tanh()
    return (h - new) * update + new


@replaces(aten.lstm_cell.default)
def _lstm_cell(
    x: Tensor, hx: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    h, c = hx
    i, f, g, o = (linear(h, w_hh, b_hh) + linear(x, w_ih, b_ih)).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@replaces(aten.rnn_tanh_cell.default)
def _rnn_tanh_cell(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    return (linear(h, w_hh, b_hh) + linear(x, w_ih, b_ih)).tanh()


@replaces(aten.rnn_relu_cell.default)
def _rnn_relu_cell(
    x: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    return (linear(h, w_hh, b_hh) + linear(x, w_ih, b_ih)).relu()
