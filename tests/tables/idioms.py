"""How people write policy code: aliasing and mutation, compiled functions, transforms, objects, robot maths."""

# ruff: noqa: E501 -- a row is a line

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import pickle
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.tables.case import Table, bools, distinct, index, ints, normal, quaternion, uniform

T = torch.Tensor
row = Table("idioms")
CASES = row.cases
N34, N33, N4, N23 = normal(3, 4), normal(3, 3), normal(4), normal(2, 3)


def idiom(*draws: Any, **more: Any) -> Any:
    """Add the decorated function as a row."""

    def add(fn: Any) -> Any:
        row(fn.__name__, fn, *draws, **more)
        return fn

    return add


# Views of views, bases and aliases


@idiom(N34)
def write_row_of_row(x: T) -> T:
    y = x * 1
    y[0][2] = 5.0
    return y


@idiom(N34)
def write_through_transpose(x: T) -> T:
    y = x * 1
    y.T[1] = 7.0
    return y


@idiom(N34)
def row_scaled_in_place(x: T) -> T:
    y = x * 1
    r = y[1]
    r.mul_(2)
    return y


@idiom(N34)
def slice_alias_added(x: T) -> T:
    y = x + 0
    v = y[0:2]
    v += 1
    return y


@idiom(N34)
def base_written_view_read(x: T) -> T:
    y = x.clone()
    v = y[:, 1]
    y.mul_(3)
    return v


@idiom(N34)
def base_slice_written_view_read(x: T) -> T:
    y = x.clone()
    v = y.view(-1)
    y[1] = x[0]
    return v * 2


@idiom(N34)
def chunk_written(x: T) -> T:
    y = x.clone()
    a, b = y.chunk(2, dim=1)
    a.add_(b)
    b.zero_()
    return y


@idiom(N34)
def unbind_written(x: T) -> T:
    y = x.clone()
    for i, r in enumerate(y.unbind(0)):
        r.mul_(i + 1)
    return y


@idiom(N34)
def iteration_written(x: T) -> T:
    y = x.clone()
    for r in y:
        r += 1
        r[0] = 0
    return y


@idiom(N34)
def split_written(x: T) -> T:
    y = x.clone()
    first, rest = torch.split(y, [1, 2])
    rest.copy_(first.expand_as(rest))
    return y


@idiom(N34)
def flat_view_written(x: T) -> T:
    y = x.clone()
    y.view(-1)[3:6] = 2.0
    y.flatten()[0] = 9.0
    return y


@idiom(N34)
def narrow_written(x: T) -> T:
    y = x.clone()
    y.narrow(1, 1, 2).exp_()
    return y


@idiom(N34)
def select_written(x: T) -> T:
    y = x.clone()
    y.select(1, 0).copy_(x[:, 3])
    return y


@idiom(N4)
def expand_reads_written_base(x: T) -> T:
    y = x.clone()
    v = y.expand(3, 4)
    y.add_(1)
    return v * 2


@idiom(N34)
def diagonal_written(x: T) -> T:
    y = x.clone()
    y.diagonal().fill_(0)
    torch.diagonal(y, 1).mul_(10)
    return y


@idiom(N34)
def permute_written(x: T) -> T:
    y = x.clone()
    y.permute(1, 0)[0].neg_()
    return y


@idiom(N34)
def view_of_view_of_view(x: T) -> T:
    y = x.clone()
    y.view(2, 6)[1].view(3, 2)[:, 0].add_(100)
    return y


@idiom(N34)
def as_strided_written(x: T) -> T:
    y = x.clone()
    y.as_strided((2, 2), (5, 1), 1).zero_()
    return y


@idiom(N34)
def as_strided_of_transposed(x: T) -> T:
    return (x * 2).t().as_strided((3, 2), (1, 4), 1) + 1


@idiom(N34)
def as_strided_of_transposed_written(x: T) -> T:
    y = x.t() * 2
    y.as_strided((2, 2), (5, 1), 1).mul_(3)
    return y - x.t()


@idiom(N34)
def unfold_written(x: T) -> T:
    y = x.clone()
    windows = y.unfold(1, 2, 2)
    windows.mul_(2)
    windows[:, 1, 0] = x[:, 3]
    return y


@idiom(N34)
def unfold_reads_base(x: T) -> T:
    y = x.clone()
    w = y.unfold(1, 2, 2)
    y[:, 0] = 0
    return w.sum(-1)


@idiom(N34)
def movedim_written(x: T) -> T:
    y = x.clone()
    torch.movedim(y, 0, 1)[2] = x[:, 0]
    return y


@idiom(N34)
def unsqueeze_squeeze_written(x: T) -> T:
    y = x.clone()
    y.unsqueeze(0).squeeze(0).add_(1)
    y[None, ..., None][0, 1].mul_(2)
    return y


@idiom(N34)
def reshape_that_copies(x: T) -> T:
    y = x.clone()
    z = y.T.reshape(-1)
    z.zero_()
    return y + 1


@idiom(N34)
def reshape_that_aliases(x: T) -> T:
    y = x.clone()
    z = y.reshape(-1)
    z[0] = 42.0
    return y


@idiom(N34)
def contiguous_alias(x: T) -> T:
    y = x.clone()
    y.contiguous()[0] = 1.0
    y.T.contiguous()[0] = 5.0
    return y


@idiom(N34)
def to_alias(x: T) -> T:
    y = x.clone()
    y.to(torch.float32).add_(1)
    y.float().mul_(2)
    y.double().mul_(100)
    return y


@idiom(N34)
def dropout_alias(x: T) -> T:
    y = x * 1
    F.dropout(y, 0.5, training=False).mul_(3.0)
    return y


@idiom(N34)
def diagonal_and_parts_written(x: T) -> tuple[T, T]:
    y = torch.zeros(3, 4)
    y.diagonal().copy_(x[:, 0])
    first, last = y.split([1, 3], 1)
    last.unbind(0)[2].sub_(x[1, 1])
    first[::2] = x[:2, 3:]
    return y, last + first


@idiom(N34)
def statistics_made_in_the_node(x: T) -> tuple[T, T, T]:
    y, mean, var = x * 1, torch.zeros(4), torch.ones(4)
    y[0] = 0.0
    return F.batch_norm(y, mean, var, training=True), mean, var


@idiom(N34)
def detach_alias(x: T) -> T:
    y = x.clone()
    y.detach().add_(1)
    y.data.mul_(2)
    return y


@idiom(N34)
def two_names_one_tensor(x: T) -> tuple[T, T]:
    y = z = x.clone()
    y += 1
    z *= 2
    return y, z


@idiom(N34)
def swap_rows(x: T) -> T:
    y = x.clone()
    y[0], y[1] = y[1].clone(), y[0].clone()
    return y


@idiom(N34)
def swap_rows_by_list(x: T) -> T:
    y = x.clone()
    y[[0, 1]] = y[[1, 0]]
    return y


@idiom(N34)
def overlapping_shift(x: T) -> T:
    y = x.clone()
    y[:, 1:] = y[:, :-1].clone()
    y[:, 0] = 0
    return y


@idiom(N34)
def fancy_index_is_a_copy(x: T) -> T:
    y = x.clone()
    y[[0, 1]].zero_()
    y[[0, 1]][0] = 4.0
    return y + 1


@idiom(N34)
def slices_assigned_from_each_other(x: T) -> T:
    y = x.clone()
    y[0:2, 0:2] = y[1:3, 2:4] * 2
    y[2] = y[0] + y[1]
    return y


@idiom(N34)
def views_made_then_written_in_turn(x: T) -> T:
    y = x.clone()
    a, b = y[0], y.T[0]
    a += 1
    b *= 2
    a -= y[1]
    return torch.cat([a, b, y.view(-1)])


@idiom(N34)
def real_view_written(x: T) -> T:
    z = torch.view_as_complex(x.reshape(3, 2, 2).clone())
    torch.view_as_real(z)[..., 0].mul_(3)
    z.imag.add_(1)
    return torch.view_as_real(z).reshape(3, 4)


@idiom(N34)
def result_depends_on_old_value(x: T) -> tuple[T, T]:
    y = x.clone()
    before = y * 2
    y.zero_()
    return before, y + x


@idiom(N34)
def saved_view_then_rebind(x: T) -> tuple[T, T]:
    y = x.clone()
    v = y[0]
    y = y + 1
    v.fill_(3)
    return y, v + x[0]


# Plain tensors made before or inside


@idiom(N34)
def zeros_filled_by_slices(x: T) -> T:
    obs = torch.zeros(3, 6)
    obs[:, :4] = x
    obs[:, 4] = x.sum(1)
    obs[:, 5] = 1.0
    return obs


@idiom(N34)
def empty_filled(x: T) -> T:
    out = torch.empty(2, 3, 4)
    out[0] = x
    out[1] = -x
    return out


@idiom(N34)
def zeros_written_through_view(x: T) -> T:
    buf = torch.zeros(12)
    grid = buf.view(3, 4)
    grid[1] = x[0]
    grid += 1
    buf[::2] *= 2
    return buf + grid.sum()


@idiom(N34)
def view_made_before_the_write(x: T) -> T:
    buf = torch.ones(3, 4)
    first = buf[0]
    buf.add_(x)
    return first * 2


@idiom(N34)
def zeros_loop(x: T) -> T:
    out = torch.zeros(3)
    for i in range(3):
        for j in range(4):
            out[i] += x[i, j] * j
    return out


@idiom(N34)
def accumulate_in_scalar(x: T) -> T:
    total = torch.tensor(0.0)
    for r in x:
        total += r.max()
    return total


@idiom(N34)
def constant_not_written_by_trace(x: T) -> T:
    table = torch.arange(4.0)
    a = x * table
    table += 1
    return a + table


@idiom(N34)
def constant_changed_between_uses(x: T) -> T:
    scale = torch.ones(4)
    a = x * scale
    scale.mul_(3)
    b = x * scale
    scale[0] = 10
    return a + b + x * scale


@idiom(N34)
def scatter_into_zeros(x: T) -> T:
    return torch.zeros(3, 8).scatter_(1, torch.tensor([[0, 2, 4, 6]] * 3), x)


@idiom(N34, index(5, 3))
def index_add_into_zeros(x: T, y: T) -> T:
    return torch.zeros(5, 4).index_add_(0, y, x)


@idiom(N34)
def copy_into_zeros(x: T) -> T:
    buf = torch.zeros(3, 4)
    buf.copy_(x)
    buf[1:].clamp_(-0.5, 0.5)
    return buf


@idiom(N34)
def triu_indices_into_zeros(x: T) -> T:
    m = torch.zeros(3, 3)
    i, j = torch.triu_indices(3, 3, 1)
    m[i, j] = x[0, :3]
    m[j, i] = -x[0, :3]
    return m


@idiom(N34, setup=lambda: torch.zeros(3, 4))
def buffer_made_before(buf: T, x: T) -> T:
    buf[:] = x
    buf[0] += 1
    return buf * 2


@idiom(N34, setup=lambda: torch.zeros(2, 3, 4))
def buffer_made_before_one_row(buf: T, x: T) -> T:
    buf[1] = x
    return buf.sum(0)


@idiom(N34, setup=lambda: torch.ones(3, 4))
def buffer_made_before_added(buf: T, x: T) -> T:
    buf.add_(x)
    buf *= 2
    return buf + x


@idiom(N34, setup=lambda: (lambda b: {"base": b, "row": b[1], "flat": b.view(-1)})(torch.arange(12.0).view(3, 4).clone()))
def views_made_before(s: dict[str, T], x: T) -> T:
    s["row"].add_(x[0])
    s["flat"][0] = x[1, 1]
    return s["base"] * 1


@idiom(N34, setup=lambda: (lambda b: {"base": b, "row": b[1]})(torch.zeros(3, 4)))
def view_made_before_read_after_base_write(s: dict[str, T], x: T) -> T:
    s["base"].copy_(x)
    return s["row"] + 1


@idiom(N34, setup=lambda: [torch.zeros(3, 4) for _ in range(3)])
def list_of_buffers(bufs: list[T], x: T) -> T:
    for i, b in enumerate(bufs):
        b.copy_(x * i)
    return torch.stack(bufs)


# Arrays over the memory of tensors


def mirrored(n: int = 12) -> tuple[T, Any]:
    """A buffer and the array over its memory."""
    buf = torch.zeros(n)
    return buf, buf.numpy()


@idiom(N34, setup=mirrored)
def mirror_made_before(s: tuple[T, Any], x: T) -> T:
    buf, mirror = s
    buf.copy_(x.view(-1) * 2)
    return x * mirror.sum()


@idiom(N34, setup=mirrored)
def mirror_read_as_tensor(s: tuple[T, Any], x: T) -> T:
    buf, mirror = s
    buf[:] = x.view(-1)
    return torch.from_numpy(mirror).view(3, 4) + torch.as_tensor(mirror).view(3, 4) * x * torch.tensor(mirror[2])


@idiom(N34, setup=mirrored)
def mirror_written(s: tuple[T, Any], x: T) -> T:
    buf, mirror = s
    buf.copy_(x.view(-1))
    mirror[3:] *= 2
    mirror[0] = 7
    return buf.view(3, 4) + x


@idiom(N34, setup=lambda: (lambda a: (torch.from_numpy(a), a))(np.ones((3, 4), np.float32)))
def mirror_lends_its_memory(s: tuple[T, Any], x: T) -> T:
    buf, array = s
    buf.add_(x)
    return torch.from_numpy(np.sin(array) + array[::-1]) + x


@idiom(N34, setup=lambda: (lambda a: (torch.from_numpy(a[2:14]), a))(np.ones(16, np.float32)))
def mirror_of_a_part(s: tuple[T, Any], x: T) -> T:
    buf, array = s
    buf.copy_(x.view(-1))
    array[2] += 1
    array[:2] = 5
    return x * array[3] + array[4:8] + torch.from_numpy(array[0:2] * 2).sum()


@idiom(N34)
def mirror_made_inside(x: T) -> T:
    buf = torch.zeros(3, 4)
    mirror = buf.numpy()
    buf[1:] = x[1:]
    return x + torch.from_numpy(mirror * 3)


@idiom(N34)
def mirror_lends_inside(x: T) -> T:
    array = np.zeros((3, 4), np.float32)
    buf = torch.from_numpy(array)
    buf[:, 1] = x[:, 0]
    return x * array.max(axis=0)


@idiom(normal(5, 4), setup=lambda: (lambda m: (m, m.running_var.numpy()))(nn.BatchNorm1d(4)))
def mirror_of_statistics(s: tuple[Any, Any], x: T) -> T:
    norm, mirror = s
    with torch.no_grad():
        return norm(x) * mirror


@idiom(N34, setup=lambda: np.memmap(tempfile.TemporaryFile(), np.float32, "w+", shape=(3, 4)))
def memory_mapped_buffer(m: Any, x: T) -> T:
    m[:] = x.numpy() * 2
    return x + torch.from_numpy(np.array(m))


# Inputs written


@idiom(N34)
def input_added_in_place(x: T) -> T:
    x += 1
    return x * 2


@idiom(N34)
def input_row_written(x: T) -> T:
    x[0] = 0
    x[1].mul_(2)
    return x + 1


@idiom(N34, N34)
def input_copied_into_input(x: T, y: T) -> T:
    x.copy_(x + y)
    return x + y


@idiom(N34)
def input_returned_as_is(x: T) -> tuple[T, T]:
    return x, x + 1


@idiom(N34)
def input_view_returned(x: T) -> T:
    return x[1:]


@idiom(N34)
def input_written_and_returned(x: T) -> T:
    x.clamp_(-0.5, 0.5)
    return x


@idiom(N34)
def input_alias_before_write(x: T) -> tuple[T, T]:
    v = x.view(-1)
    x.mul_(2)
    return v, x


# Modules and buffers


class RunningMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((4,), 0.5))
        self.register_buffer("count", torch.tensor(3.0))

    def forward(self, x: T) -> T:
        self.count += 1
        self.mean.lerp_(x.mean(0), 1 / 4)
        self.mean[0] += x[0, 0]
        return (x - self.mean) / self.count


class Reassigned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: T) -> T:
        offset = self.offset + x.mean(0)
        return x * self.scale + offset


@idiom(N34, setup=RunningMean)
def module_buffer_in_place(m: nn.Module, x: T) -> T:
    with torch.no_grad():
        return m(x)


@idiom(N34, setup=Reassigned)
def module_buffer_read(m: nn.Module, x: T) -> T:
    return m(x).detach()


@idiom(N34, setup=lambda: nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 2)))
def mlp(m: nn.Module, x: T) -> T:
    return m(x)


@idiom(N34, setup=lambda: nn.Linear(4, 4))
def module_used_twice(m: nn.Module, x: T) -> T:
    return m(torch.tanh(m(x)))


@idiom(N34, setup=lambda: nn.Linear(4, 4))
def weight_tied_by_hand(m: nn.Linear, x: T) -> T:
    return F.linear(m(x), m.weight.t())


@idiom(N34, setup=lambda: nn.Linear(4, 4))
def module_in_no_grad(m: nn.Module, x: T) -> T:
    with torch.no_grad():
        return m(x) * 2


@idiom(N34, setup=lambda: nn.Linear(4, 4))
def module_in_inference_mode(m: nn.Module, x: T) -> T:
    with torch.inference_mode():
        return m(x) + 1


@idiom(N34, setup=lambda: nn.Linear(4, 4))
def module_with_hook(m: nn.Linear, x: T) -> T:
    handle = m.register_forward_hook(lambda mod, args, out: out * 2)
    try:
        return m(x)
    finally:
        handle.remove()


@idiom(N34, setup=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).eval())
def module_parametrised(m: nn.Module, x: T) -> T:
    return m(x)


@idiom(N34, setup=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
def module_weight_norm(m: nn.Module, x: T) -> T:
    return m(x)


@idiom(N34, setup=lambda: nn.Linear(4, 4))
def module_functional_call(m: nn.Module, x: T) -> T:
    params = {k: v * 2 for k, v in m.named_parameters()}
    return torch.func.functional_call(m, params, (x,))


@idiom(N34, setup=lambda: nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]))
def module_ensemble(ms: nn.ModuleList, x: T) -> T:
    return torch.stack([m(x) for m in ms]).mean(0)


@idiom(N34, setup=lambda: nn.ParameterDict({"std": nn.Parameter(torch.full((4,), 0.3))}))
def parameter_dict(m: nn.ParameterDict, x: T) -> T:
    return x / m["std"].exp()


# Compiled before the session


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 5)

    def forward(self, x: T) -> T:
        return self.gru(x)[0]


@functools.cache
def scripted_recurrent() -> Any:
    return torch.jit.script(Recurrent())


@torch.jit.script
def scripted_quat_rotate_inverse(q: T, v: T) -> T:
    q_w = q[:, 0]
    q_vec = q[:, 1:]
    a = v * (2.0 * q_w**2 - 1.0).unsqueeze(-1)
    b = torch.cross(q_vec, v, dim=-1) * q_w.unsqueeze(-1) * 2.0
    c = q_vec * torch.bmm(q_vec.view(q.shape[0], 1, 3), v.view(q.shape[0], 3, 1)).squeeze(-1) * 2.0
    return a - b + c


@torch.jit.script
def scripted_wrap_to_pi(angles: T) -> T:
    wrapped = (angles + torch.pi) % (2 * torch.pi)
    return torch.where((wrapped == 0) & (angles > 0), torch.pi, wrapped - torch.pi)


@torch.jit.script
def scripted_writes(x: T) -> T:
    y = torch.zeros_like(x)
    for i in range(x.size(0)):
        y[i] = x[i] * i
    y += 1
    return y


@torch.jit.script
def scripted_branches_on_shape(x: T, scale: float = 2.0, flip: bool = False) -> T:
    if x.dim() == 2 and not flip:
        return x * scale
    return -x


@torch.jit.script
def scripted_tuple(x: T) -> tuple[T, T]:
    return x.sum(1), x.max(dim=1)[0]


row("script_quat_rotate_inverse", lambda q, v: scripted_quat_rotate_inverse(q, v), quaternion(5), normal(5, 3))
row("script_wrap_to_pi", lambda x: scripted_wrap_to_pi(x * 4), N34)
row("script_writes", lambda x: scripted_writes(x * 2), N34)
row("script_shape_branch", lambda x: scripted_branches_on_shape(x, 3.0), N34)
row("script_tuple", lambda x: scripted_tuple(x), distinct(3, 4))
row("script_result_used_twice", lambda x: (lambda y: y * y.T.mT + scripted_wrap_to_pi(y))(scripted_wrap_to_pi(x)), N34)
row("script_writes_caller", lambda s, x: s(x.clone(), x), N34, setup=lambda: torch.jit.script(_add_into))
row("script_module", lambda m, x: m(x), N34, setup=lambda: torch.jit.script(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))))
row("traced_module", lambda m, x: m(x), N34, setup=lambda: torch.jit.trace(nn.Sequential(nn.Linear(4, 8), nn.ELU()), torch.zeros(3, 4)))
row("traced_function", lambda f, x, y: f(x, y), N34, N34, setup=lambda: torch.jit.trace(lambda a, b: torch.sin(a) * b + 1, (torch.zeros(3, 4), torch.zeros(3, 4))))
row("frozen_script_module", lambda m, x: m(x), N34, setup=lambda: torch.jit.freeze(torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval())))
row("script_gru_module", lambda m, x: m(x), normal(3, 2, 4), setup=lambda: copy.deepcopy(scripted_recurrent()))


def _add_into(y: T, x: T) -> T:
    y += x
    return y * 2


@idiom(N34)
def script_made_inside(x: T) -> T:
    return torch.jit.script(_add_into)(x.clone(), x)


@idiom(N34, setup=lambda: torch.compile(lambda a: torch.sin(a) + a.sum(), backend="eager"))
def compiled_function(f: Any, x: T) -> T:
    return f(x) * 2


@idiom(N34, setup=lambda: torch.compile(nn.Linear(4, 2), backend="eager"))
def compiled_module(m: Any, x: T) -> T:
    return m(x)


@torch.compile(backend="eager", fullgraph=True)
def _compiled_at_import(x: T, y: T) -> T:
    return torch.where(x > y, x, y * 2)


row("compiled_at_import", lambda x, y: _compiled_at_import(x, y), N34, N34)

# Autograd and functional transforms


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: T, limit: float) -> T:
        ctx.save_for_backward(x)
        return x.clamp(-limit, limit) + x.sin()

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return grad, None


class SetupContext(torch.autograd.Function):
    @staticmethod
    def forward(x: T, y: T) -> T:
        return x * y + 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        x, y = ctx.saved_tensors
        return grad * y, grad * x


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: T) -> T:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, grad: T) -> Any:
        return grad * 3


row("autograd_function", lambda x: Clip.apply(x, 0.5) * 2, N34)
row("autograd_function_setup_context", lambda x, y: SetupContext.apply(x, y), N34, N34)
row("autograd_function_in_place", lambda x: Marked.apply(x.clone()) + x, N34)
row("autograd_function_requires_grad", lambda m, x: Clip.apply(m(x), 0.3), N34, setup=lambda: nn.Linear(4, 4))


@idiom(N34)
def autograd_grad(x: T) -> T:
    y = x.detach().clone().requires_grad_(True)
    energy = (y.sin() * y).sum()
    (g,) = torch.autograd.grad(energy, y)
    return g


@idiom(N34)
def autograd_grad_of_input(x: T) -> T:
    with torch.enable_grad():
        y = x.requires_grad_(True) if not x.requires_grad else x
        g = torch.autograd.grad((y**3).sum(), y)[0]
    x.requires_grad_(False)
    return g.detach() + 1


@idiom(N34, setup=lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
def autograd_gradient_guidance(m: nn.Module, x: T) -> T:
    y = x.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad(m(y).sum(), y)
    return x - 0.1 * g


@idiom(N34)
def autograd_backward(x: T) -> T:
    y = x.detach().clone().requires_grad_()
    (y.exp() * 2).sum().backward()
    assert y.grad is not None
    return y.grad + 1


@idiom(N34)
def autograd_create_graph(x: T) -> T:
    y = x.detach().clone().requires_grad_()
    (g,) = torch.autograd.grad((y**3).sum(), y, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), y)
    return h


def gradient(name: str, fn: Callable[[T], T], *draws: Any, setup: Any = None, **more: Any) -> None:
    """A row that gives the gradient of a function by its input, and by the parameters of a module."""

    def run(x: T) -> T:
        y = x.detach().clone().requires_grad_()
        return torch.autograd.grad((fn(y) ** 2).sum(), y)[0]

    def run_module(m: nn.Module, x: T) -> tuple[T, ...]:
        y = x.detach().clone().requires_grad_()
        return torch.autograd.grad((fn(m(y)) ** 2).sum(), [y, *m.parameters()])

    row(f"gradient_{name}", run if setup is None else run_module, *draws, setup=setup, **more)


for _kind in ("silu", "mish", "gelu", "elu", "softplus", "hardswish", "leaky_relu", "logsigmoid"):
    gradient(_kind, getattr(F, _kind), N34)
gradient("conv1d", torch.tanh, normal(2, 4, 9), setup=lambda: nn.Conv1d(4, 6, 3, dilation=2, groups=2, padding=2))
gradient("conv2d", torch.tanh, normal(2, 3, 8, 7), setup=lambda: nn.Conv2d(3, 5, 3, stride=2, padding=1))
gradient("conv3d", torch.tanh, normal(1, 2, 4, 5, 4), setup=lambda: nn.Conv3d(2, 3, (2, 3, 1), stride=(1, 2, 1)))
gradient("conv_transpose", torch.tanh, normal(2, 4, 5, 5), setup=lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1))
gradient("avg_pool2d", lambda x: F.avg_pool2d(x, 2), normal(2, 3, 8, 7))
gradient("attention", lambda x: F.scaled_dot_product_attention(x, x * 2, x + 1), normal(2, 3, 5, 4))
gradient("attention_causal", lambda x: F.scaled_dot_product_attention(x, x * 2, x + 1, is_causal=True), normal(2, 3, 5, 4))
gradient("attention_mask", lambda x: F.scaled_dot_product_attention(x, x * 2, x + 1, attn_mask=torch.ones(5, 5).tril().log(), scale=0.3), normal(2, 3, 5, 4))
gradient("transformer_layer", torch.tanh, normal(2, 5, 8), setup=lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True))

gradient("lstm", lambda y: y[0].tanh(), normal(3, 2, 4), setup=lambda: nn.LSTM(4, 6, 2, bidirectional=True), apart=("jit",))
gradient("gru", lambda y: y[0].tanh(), normal(3, 2, 4), setup=lambda: nn.GRU(4, 6))

row("autograd_jacobian", lambda x: torch.autograd.functional.jacobian(lambda v: v.sin() * v.sum(), x), N4)
row("func_vmap", lambda x, y: torch.func.vmap(torch.dot)(x, y), N34, N34)
row("func_vmap_dims", lambda x, y: torch.vmap(lambda a, b: a * b.sum(), in_dims=(1, None), out_dims=1)(x, y), N34, N4)
row("func_vmap_nested", lambda x: torch.vmap(torch.vmap(lambda v: v.sin() + 1))(x), N34)
row("func_vmap_closure", lambda x, y: torch.vmap(lambda a: a @ y)(x), N34, normal(4, 2))
row("func_vmap_module", lambda m, x: torch.vmap(m)(x), normal(5, 3, 4), setup=lambda: nn.Linear(4, 2))
row("func_grad", lambda x: torch.func.grad(lambda v: (v**2).sum() * v[0])(x), N4)
row("func_grad_constant", lambda c, x: torch.func.grad(lambda v: (v.sin() * c).sum())(x), N4, setup=lambda: torch.tensor([1.0, 2.0, 3.0, 4.0]))
row("func_grad_and_value", lambda x: torch.func.grad_and_value(lambda v: (v**3).sum())(x), N4)
row("func_jacrev", lambda x: torch.func.jacrev(lambda v: v.tanh() * v.sum())(x), N4)
row("func_jacfwd", lambda x: torch.func.jacfwd(lambda v: v.tanh() * v.sum())(x), N4)
row("func_hessian", lambda x: torch.func.hessian(lambda v: (v.sin() * v).sum())(x), N4)
row("func_jvp", lambda x, y: torch.func.jvp(lambda v: v.sin(), (x,), (y,)), N4, N4)
row("func_vjp", lambda x, y: torch.func.vjp(lambda v: v.sin() * 2, x)[1](y)[0], N4, N4)
row("func_vmap_grad", lambda x: torch.vmap(torch.func.grad(lambda v: (v**2).sum()))(x), N34)
row("func_vmap_jacrev_kinematics", lambda x: torch.vmap(torch.func.jacrev(lambda q: torch.stack([q[0].cos() + (q[0] + q[1]).cos(), q[0].sin() + (q[0] + q[1]).sin()])))(x), normal(3, 2))
row("checkpoint", lambda m, x: checkpoint(m, x, use_reentrant=False), N34, setup=lambda: nn.Linear(4, 4))
row("checkpoint_reentrant", lambda m, x: checkpoint(m, x, use_reentrant=True), N34, setup=lambda: nn.Linear(4, 4))
row("checkpoint_function", lambda x, y: checkpoint(lambda a, b: (a @ b.T).tanh(), x, y, use_reentrant=False), N34, N34)


@idiom(N34, setup=lambda: nn.Linear(4, 4), rtol=3e-2, atol=3e-2)
def autocast(m: nn.Module, x: T) -> T:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = m(x)
    return y.float()


@idiom(N34, normal(4, 2), rtol=3e-2, atol=3e-2)
def autocast_matmul(x: T, y: T) -> T:
    with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        z = x @ y
        with torch.autocast("cpu", enabled=False):
            w = x.float() @ y.float()
    return z.float() + w


@idiom(N34)
def no_grad_block(x: T) -> T:
    with torch.no_grad():
        y = x * 2
        y += 1
    return y


@torch.no_grad()
def _decorated(x: T) -> T:
    return x.exp()


row("no_grad_decorator", lambda x: _decorated(x) + 1, N34)


@idiom(N34)
def inference_mode_block(x: T) -> T:
    with torch.inference_mode():
        y = x * 2
        y[0] = 1
        z = y.view(-1)
    return z.clone() + 1


@idiom(N34)
def inference_mode_buffer(x: T) -> T:
    with torch.inference_mode():
        buf = torch.zeros(3, 4)
        buf[1:] = x[:2]
        buf += x
        return buf * 2


@idiom(N34)
def targets_without_elements(x: T) -> tuple[T, ...]:
    """A call with ``out=`` gives a tensor without elements the shape of its result."""
    total, wide = torch.empty(0), torch.empty(0, dtype=torch.float64)
    torch.add(x, 1.0, out=total)
    total[0].mul_(3.0)
    torch.cat([x, total], out=wide)
    return total, wide + 1


@idiom(N34)
def resized_in_place(x: T) -> tuple[T, ...]:
    y = x.new()
    y.resize_as_(x)
    y[:2] = x[1:] * 2
    y[2] = y[0] + y[1]
    z = x.clone()
    flat = z.view(-1)
    z.resize_(2, 3)
    z[1] = 5.0
    return y, z, flat


@idiom(N34)
def nested_rows(x: T) -> T:
    return torch.nested.as_nested_tensor([x[0, :2], x[1], x[2, 1:]]).to_padded_tensor(-1.0)


@idiom(N34)
def inference_mode_then_numpy(x: T) -> tuple[Any, ...]:
    """An array over a tensor that was made in inference mode may be written to after it."""
    with torch.inference_mode():
        action = torch.tanh(x).cpu().numpy()
        scratch = np.zeros(4, np.float32)
        scratch[:2] = action[0, :2]
    action[0, 0] = 0.5
    action *= 2.0
    action[action > 1] = 1.0
    np.clip(action[1], -0.2, 0.2, out=action[1])
    scratch[2:] = action[2, :2]
    again = torch.from_numpy(scratch)
    again[0] += 3.0
    return action, scratch, again * 2


@idiom(N34)
def grad_mode_switched(x: T) -> T:
    with torch.set_grad_enabled(False):
        y = x * 3
    with torch.enable_grad():
        return y - 1


@idiom(N34)
def device_context(x: T) -> T:
    with torch.device("cpu"):
        return x + torch.ones(4) * torch.arange(4)


@idiom(N34)
def default_dtype_context(x: T) -> T:
    old = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.linspace(0, 1, 4)
    finally:
        torch.set_default_dtype(old)


# Custom operators

_LIBRARY = torch.library.Library("leapp_tables", "DEF")
_LIBRARY.define("scaled_sum(Tensor x, float scale) -> Tensor")
_LIBRARY.impl("scaled_sum", lambda x, scale: (x * scale).cumsum(0), "CompositeImplicitAutograd")
_LIBRARY.define("bump_(Tensor(a!) x, float by) -> Tensor(a!)")
_LIBRARY.impl("bump_", lambda x, by: x.add_(by), "CompositeImplicitAutograd")


@torch.library.custom_op("leapp_tables::hinge", mutates_args=())
def hinge(x: T, limit: float) -> T:
    return torch.relu(x - limit)


@hinge.register_fake
def _(x: T, limit: float) -> T:
    return torch.empty_like(x)


row("library_op", lambda x: torch.ops.leapp_tables.scaled_sum(x, 2.0) + 1, N34)
row("library_op_in_place", lambda x: torch.ops.leapp_tables.bump_(x.clone(), 3.0) * 2, N34)
row("library_custom_op", lambda x: hinge(x, 0.2) * 2, N34)
row("aten_direct", lambda x, y: torch.ops.aten.add.Tensor(x, y, alpha=2) + torch.ops.aten.relu(x), N34, N34)
row("aten_direct_in_place", lambda x: torch.ops.aten.mul_.Tensor(x.clone(), x), N34)

# Objects


@dataclasses.dataclass
class Observation:
    pos: T
    vel: T

    def stacked(self) -> T:
        return torch.cat([self.pos, self.vel], -1)


class Pose(NamedTuple):
    position: T
    rotation: T


class Metres(torch.Tensor):
    """A tensor subclass without behaviour of its own."""


class Logged(torch.Tensor):
    """A tensor subclass with a ``__torch_function__`` of its own."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


row("object_dataclass", lambda x, y: Observation(x, y * 2).stacked(), N34, N34)
row("object_dataclass_replace", lambda x, y: dataclasses.replace(Observation(x, y), vel=y + 1).stacked(), N34, N34)
row("object_namedtuple", lambda x, y: Pose(x, y)._replace(position=x * 2), N34, N34)
row("object_dict_of_lists", lambda x, y: {"a": [x, y * 2], "b": (x + y,)}, N34, N34)
row("object_deepcopy", lambda x: copy.deepcopy(x * 2).add_(1) + x, N34)
row("object_deepcopy_input", lambda x: copy.deepcopy(x) * 2, N34)
row("object_deepcopy_list", lambda x, y: sum(copy.deepcopy([x * 2, y * 3])), N34, N34)
row("object_copy", lambda x: copy.copy(x * 2) + 1, N34)
row("object_pickle", lambda x: pickle.loads(pickle.dumps(x * 2)) + x, N34)
row("object_subclass", lambda x: torch.Tensor(x.as_subclass(Metres) * 2 + 1).as_subclass(torch.Tensor), N34)
row("object_subclass_logged", lambda x: (x.as_subclass(Logged).sin() * 2).as_subclass(torch.Tensor), N34)
row("object_subclass_constant", lambda m, x: (x * m).as_subclass(torch.Tensor), N34, setup=lambda: torch.arange(4.0).as_subclass(Metres))
row("object_is_tensor", lambda x: x * 2 if type(x) is torch.Tensor else x * 0, N34)
row("object_isinstance", lambda x: x * 2 if isinstance(x, torch.Tensor) and torch.is_tensor(x) else x * 0, N34)
row("object_tensor_in_dict_key_by_id", lambda x: {id(x): x * 3}[id(x)], N34)
row("object_hash_key", lambda x: {x: x * 3}[x], N34)
row("object_attribute", lambda x: (setattr(x, "note", 2.0), x * x.note)[1], N34)
row("object_parameter_of_value", lambda x: nn.Parameter(x * 2) * 3, N34)
row("object_partial", lambda x, y: functools.partial(torch.add, alpha=3)(x, y), N34, N34)
row("object_reduce", lambda x, y, z: functools.reduce(torch.matmul, [x, y, z]), N33, N33, N33)
row("object_generator", lambda x: torch.stack(list(r * 2 for r in x)), N34)


class Filter:
    """State kept on an object between two calls."""

    def __init__(self) -> None:
        self.last = torch.full((4,), 0.5)

    def __call__(self, x: T) -> T:
        self.last = 0.9 * self.last + 0.1 * x
        return self.last


row("object_state_within_call", lambda f, x: torch.stack([f(r) for r in x]), N34, setup=Filter)

# Building tensors of traced numbers

row("build_tensor_of_elements", lambda x: torch.tensor([x[0], x[1]]) * 2, N4)
row("build_tensor_nested", lambda x: torch.tensor([[x[0], 1.0], [0.0, x[1]]]), N4)
row("build_tensor_of_tensor", lambda x: torch.tensor(x) * 2, N34)
row("build_as_tensor", lambda x: torch.as_tensor(x, dtype=torch.float64) + 1, N34)
row("build_as_tensor_list", lambda x: torch.as_tensor([x[0], x[2]]) + 1, N4)
row("build_stack_elements", lambda x: torch.stack([x[0], x[1] * 2, -x[2]]), N4)
row("build_asarray", lambda x: torch.asarray(x) + 1, N34)
row("build_float_tensor_list", lambda x: torch.cat([x[:1], torch.tensor([1.0]), x[1:2]]), N4)
row("build_rotation_matrix", lambda x: torch.stack([torch.stack([x.cos(), -x.sin()]), torch.stack([x.sin(), x.cos()])]), normal())
row("build_numpy_round_trip", lambda x: torch.from_numpy(x.numpy() * 2) + 1, N34)
row("unpack_columns", lambda x: (lambda a, b, c, d: a * d - b * c)(*x.unbind(-1)), N34)
row("unpack_star", lambda x: (lambda first, *rest: first + sum(rest))(*x), N34)
row("unpack_assignment", lambda x: [a := x[0], b := x[1]] and a * b, N34)
row("enumerate_zip", lambda x, y: torch.stack([a * i + b for i, (a, b) in enumerate(zip(x, y))]), N34, N34)
row("len_and_range", lambda x: sum(x[i] * i for i in range(len(x))), N34)
row("sorted_by_constant", lambda x: torch.stack([x[i] for i in sorted(range(3), key=lambda j: -j)]), N34)

# Robot maths


def quat_mul(a: T, b: T) -> T:
    w1, x1, y1, z1 = a.unbind(-1)
    w2, x2, y2, z2 = b.unbind(-1)
    ww = (z1 + x1) * (x2 + y2)
    yy = (w1 - y1) * (w2 + z2)
    zz = (w1 + y1) * (w2 - z2)
    xx = ww + yy + zz
    qq = 0.5 * (xx + (z1 - x1) * (x2 - y2))
    return torch.stack([qq - ww + (z1 - y1) * (y2 - z2), qq - xx + (x1 + w1) * (x2 + w2), qq - yy + (w1 - x1) * (y2 + z2), qq - zz + (z1 + y1) * (w2 - x2)], dim=-1)


def quat_conjugate(q: T) -> T:
    shape = q.shape
    q = q.reshape(-1, 4)
    return torch.cat((q[..., 0:1], -q[..., 1:]), dim=-1).view(shape)


def quat_apply(q: T, v: T) -> T:
    shape = v.shape
    q, v = q.reshape(-1, 4), v.reshape(-1, 3)
    xyz = q[:, 1:]
    t = xyz.cross(v, dim=-1) * 2
    return (v + q[:, 0:1] * t + xyz.cross(t, dim=-1)).view(shape)


def euler_from_quat(q: T) -> tuple[T, T, T]:
    w, x, y, z = q[:, 0], q[:, 1], q[:, 2], q[:, 3]
    roll = torch.atan2(2.0 * (w * x + y * z), 1 - 2 * (x * x + y * y))
    sin_pitch = 2.0 * (w * y - z * x)
    pitch = torch.where(torch.abs(sin_pitch) >= 1, torch.sign(sin_pitch) * (math.pi / 2.0), torch.asin(sin_pitch))
    yaw = torch.atan2(2.0 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    return roll % (2 * torch.pi), pitch % (2 * torch.pi), yaw % (2 * torch.pi)


def matrix_from_quat(q: T) -> T:
    r, i, j, k = torch.unbind(q, -1)
    s = 2.0 / (q * q).sum(-1)
    o = torch.stack((1 - s * (j * j + k * k), s * (i * j - k * r), s * (i * k + j * r), s * (i * j + k * r), 1 - s * (i * i + k * k), s * (j * k - i * r), s * (i * k - j * r), s * (j * k + i * r), 1 - s * (i * i + j * j)), -1)
    return o.reshape(q.shape[:-1] + (3, 3))


def axis_angle_from_quat(q: T, eps: float = 1e-6) -> T:
    q = q * (1.0 - 2.0 * (q[..., 0:1] < 0.0))
    mag = torch.linalg.norm(q[..., 1:], dim=-1)
    half = torch.atan2(mag, q[..., 0])
    angle = 2.0 * half
    s = torch.where(angle.abs() > eps, torch.sin(half) / angle, 0.5 - angle * angle / 48)
    return q[..., 1:4] / s.unsqueeze(-1)


def rotation_6d(m: T) -> T:
    a, b = m[..., :3], m[..., 3:]
    x = F.normalize(a, dim=-1)
    y = F.normalize(b - (x * b).sum(-1, keepdim=True) * x, dim=-1)
    return torch.stack([x, y, torch.cross(x, y, dim=-1)], -2)


def quat_slerp(a: T, b: T, tau: float) -> T:
    dot = (a * b).sum(-1, keepdim=True)
    b = torch.where(dot < 0, -b, b)
    dot = dot.abs().clamp(max=1.0)
    angle = torch.acos(dot)
    s = torch.sin(angle)
    near = s.abs() < 1e-6
    mixed = (torch.sin((1 - tau) * angle) * a + torch.sin(tau * angle) * b) / torch.where(near, torch.ones_like(s), s)
    return torch.where(near, a, mixed)


def yaw_quat(q: T) -> T:
    qw, qx, qy, qz = q[:, 0], q[:, 1], q[:, 2], q[:, 3]
    yaw = torch.atan2(2 * (qw * qz + qx * qy), 1 - 2 * (qy * qy + qz * qz))
    out = torch.zeros_like(q)
    out[:, 3] = torch.sin(yaw / 2)
    out[:, 0] = torch.cos(yaw / 2)
    return F.normalize(out, dim=-1)


def skew(v: T) -> T:
    m = torch.zeros(v.shape[0], 3, 3)
    m[:, 0, 1] = -v[:, 2]
    m[:, 0, 2] = v[:, 1]
    m[:, 1, 0] = v[:, 2]
    m[:, 1, 2] = -v[:, 0]
    m[:, 2, 0] = -v[:, 1]
    m[:, 2, 1] = v[:, 0]
    return m


def quat_from_matrix(m: T) -> T:
    m00, m01, m02, m10, m11, m12, m20, m21, m22 = torch.unbind(m.reshape(m.shape[:-2] + (9,)), dim=-1)
    q_abs = torch.stack([1.0 + m00 + m11 + m22, 1.0 + m00 - m11 - m22, 1.0 - m00 + m11 - m22, 1.0 - m00 - m11 + m22], dim=-1)
    q_abs = torch.where(q_abs > 0, q_abs, 0).sqrt()
    rows = torch.stack([torch.stack([q_abs[..., 0] ** 2, m21 - m12, m02 - m20, m10 - m01], -1), torch.stack([m21 - m12, q_abs[..., 1] ** 2, m10 + m01, m02 + m20], -1), torch.stack([m02 - m20, m10 + m01, q_abs[..., 2] ** 2, m12 + m21], -1), torch.stack([m10 - m01, m20 + m02, m21 + m12, q_abs[..., 3] ** 2], -1)], -2)
    candidates = rows / (2.0 * q_abs[..., None].max(torch.tensor(0.1)))
    return candidates[F.one_hot(q_abs.argmax(dim=-1), num_classes=4) > 0.5, :].reshape(m.shape[:-2] + (4,))


Q5, V5 = quaternion(5), normal(5, 3)
row("quat_mul", quat_mul, Q5, Q5)
row("quat_conjugate", lambda q: quat_mul(q, quat_conjugate(q) * 2) + q, Q5)
row("quat_apply", quat_apply, Q5, V5)
row("quat_euler", euler_from_quat, Q5)
row("quat_matrix", matrix_from_quat, Q5)
row("quat_axis_angle", axis_angle_from_quat, Q5)
row("quat_slerp", lambda a, b: quat_slerp(a, b, 0.3), Q5, Q5)
row("quat_yaw", yaw_quat, Q5)
row("quat_error", lambda a, b: axis_angle_from_quat(quat_mul(a, quat_conjugate(b))), Q5, Q5)
row("quat_from_matrix", lambda q: quat_from_matrix(matrix_from_quat(q)), Q5)
row("rotation_6d", rotation_6d, normal(5, 6))
row("skew_symmetric", lambda v, w: skew(v) @ w.unsqueeze(-1), V5, V5)
row("frame_transform", lambda p, q, v: quat_apply(quat_conjugate(q), v - p), V5, Q5, V5)
row("projected_gravity", lambda q: scripted_quat_rotate_inverse(q, torch.tensor([0.0, 0.0, -1.0]).repeat(5, 1)), Q5)
row("wrap_to_pi", lambda x: torch.atan2(torch.sin(x * 5), torch.cos(x * 5)), N34)
row("heading_command", lambda q, h: 0.5 * scripted_wrap_to_pi(h - torch.atan2(quat_apply(q, torch.tensor([1.0, 0, 0]).repeat(5, 1))[:, 1], quat_apply(q, torch.tensor([1.0, 0, 0]).repeat(5, 1))[:, 0])), Q5, uniform(-3, 3, 5))
row("rodrigues", lambda v: torch.matrix_exp(skew(v)), V5)
row("two_link_kinematics", lambda q: torch.stack([torch.cumsum(q, -1).cos().sum(-1), torch.cumsum(q, -1).sin().sum(-1)], -1), normal(3, 2))

# Policy plumbing


@idiom(normal(2, 4), normal(2, 5, 4))
def history_roll_assign(x: T, h: T) -> tuple[T, T]:
    h = torch.roll(h, shifts=-1, dims=1)
    h[:, -1] = x
    return h, h.flatten(1)


@idiom(normal(2, 4), normal(2, 5, 4))
def history_shift_in_place(x: T, h: T) -> T:
    h[:, :-1] = h[:, 1:].clone()
    h[:, -1] = x
    return h.reshape(2, -1)


@idiom(normal(2, 4), normal(2, 5, 4))
def history_cat(x: T, h: T) -> T:
    return torch.cat([h[:, 1:], x.unsqueeze(1)], dim=1)


@idiom(normal(2, 4), setup=lambda: torch.zeros(2, 3, 4))
def history_buffer_object(h: T, x: T) -> T:
    h.copy_(h.roll(1, 1))
    h[:, 0] = x
    return h.flatten(1) * 2


@idiom(normal(2, 4), index(5), normal(5, 2, 4))
def circular_buffer(x: T, p: T, buf: T) -> T:
    buf = buf.clone()
    buf[p] = x
    order = (torch.arange(5) + p + 1) % 5
    return buf[order].transpose(0, 1)


# Rows and elements that a traced number chooses are views of what they were taken from


@idiom(normal(4, 5), index(4))
def chosen_row_written(x: T, i: T) -> list[T]:
    y = x.clone()
    y[i][1:3] = 7.0
    r = y[i]
    r *= 2
    r.view(-1)[0] = 5.0
    return [y, r]


@idiom(normal(4, 5), index(4))
def chosen_row_reads_written_base(x: T, i: T) -> list[T]:
    y = x.clone()
    r = y[i]
    part = r[1:]
    y.mul_(2)
    return [y, r, part]


@idiom(normal(4, 5), index(4))
def chosen_rows_overlap(x: T, i: T) -> list[T]:
    y = x.clone()
    a, b, c = y[i], y[3 - i], y[i]
    a += 1
    b *= c
    c.zero_()
    torch._foreach_add_([y[i], y[(i + 1) % 4]], 2.0)
    return [y, a, b, c]


@idiom(normal(4, 5), index(4))
def chosen_row_counted_on(x: T, i: T) -> T:
    y, k = x.clone(), i.clone()
    r = y[k]
    k += 1
    k %= 4
    r.fill_(3.0)
    y[k].add_(9)
    y[k] = r * 2
    return y


@idiom(normal(4, 5), index(4))
def chosen_row_of_plain_buffer(x: T, i: T) -> list[T]:
    buffer, other = torch.arange(20.0).view(4, 5), torch.ones(4, 5)
    r = buffer[i]
    r[:2] = x[0, :2]
    seen = other[i]
    other[0] = x[1]
    return [buffer * 2, r, other, seen]


@idiom(normal(4, 5), index(4))
def chosen_row_of_buffer_written_plainly(x: T, i: T) -> list[T]:
    buffer = torch.arange(20.0).view(4, 5)
    r = buffer[i]
    buffer[:, 1:].sub_(0.25)
    r.view(-1)[2:].neg_()
    return [buffer + x, r * x[0]]


@idiom(normal(4, 5), index(4))
def chosen_elements_written(x: T, i: T) -> T:
    y = x.clone()
    y[i, i].mul_(3)
    y[0][i].add_(1)
    y[:, i] += 1
    y.T[i][1:] = 0.0
    y[i, i] = y[0, 0]
    y[i] = y[i - 1]
    return y


@idiom(normal(4, 5), index(2))
def chosen_column_beside_itself(x: T, i: T) -> list[T]:
    y = x.clone()
    c = y[:, i]
    c *= 2
    y[:, 0] += c
    torch.add(y[:, 1], c, out=y[:, 1])
    return [y, c]


@idiom(normal(4, 5), index(4))
def chosen_row_of_input_written(x: T, i: T) -> T:
    x[i][0] = 1.0
    x[i] *= 2
    return x


@idiom(N34, bools(3))
def reset_by_mask(x: T, done: T) -> T:
    h = x.clone()
    h[done] = 0.0
    return h


@idiom(N34, bools(3))
def reset_by_product(x: T, done: T) -> T:
    return x * (~done).float().unsqueeze(-1)


@idiom(N34, setup=lambda: {"mean": torch.tensor([0.1, 0.2, 0.3, 0.4]), "var": torch.tensor([1.0, 2.0, 3.0, 4.0])})
def normaliser(s: dict[str, T], x: T) -> T:
    return torch.clamp((x - s["mean"]) / torch.sqrt(s["var"] + 1e-8), -5.0, 5.0)


@idiom(N34)
def batch_standardise(x: T) -> T:
    return (x - x.mean(0, keepdim=True)) / (x.std(0, keepdim=True) + 1e-6)


@idiom(N34, setup=lambda: torch.tensor([[-1.0, 1.0], [-2.0, 2.0], [0.0, 1.0], [-3.0, 0.5]]))
def action_scaling(limits: T, x: T) -> T:
    low, high = limits[:, 0], limits[:, 1]
    a = torch.tanh(x)
    return torch.max(torch.min(low + 0.5 * (a + 1.0) * (high - low), high), low)


@idiom(N34, N34)
def action_rate_limit(x: T, prev: T) -> T:
    return prev + (x - prev).clamp(-0.1, 0.1)


@idiom(N34, N34, N34)
def pd_controller(target: T, q: T, dq: T) -> T:
    kp, kd = torch.tensor([20.0, 20, 30, 30]), 0.5
    return (kp * (target - q) - kd * dq).clip(-33.5, 33.5)


@idiom(normal(3, 3), normal(3, 4), normal(3, 2), setup=lambda: {"lin": 2.0, "ang": 0.25, "q": torch.tensor([0.1, 0.8, -1.5, 0.0])})
def observation_concat(s: dict[str, Any], v: T, q: T, c: T) -> T:
    parts = [v * s["lin"], (q - s["q"]) * 1.0, c * torch.tensor([s["lin"], s["ang"]])]
    return torch.cat(parts, dim=-1).clip(-100.0, 100.0)


@idiom(uniform(0, 1, 3))
def gait_phase(t: T) -> T:
    phase = torch.fmod(t.unsqueeze(-1) + torch.tensor([0.0, 0.5, 0.5, 0.0]), 1.0)
    return torch.cat([torch.sin(2 * torch.pi * phase), torch.cos(2 * torch.pi * phase), (phase < 0.5).float()], -1)


@idiom(uniform(0, 3, 2, 1, 6, 8))
def depth_image(d: T) -> T:
    d = torch.where(d > 2.5, torch.zeros_like(d), d)
    d = (d.clip(0.1, 2.0) - 0.1) / 1.9 - 0.5
    return F.interpolate(d[:, :, 1:-1, :], size=(3, 4), mode="bilinear", align_corners=False)


@idiom(ints(0, 256, 6, 8, 3, dtype=torch.uint8))
def image_to_tensor(img: T) -> T:
    x = img.permute(2, 0, 1).contiguous().float().div(255)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return x.sub_(mean[:, None, None]).div_(std[:, None, None]).unsqueeze(0)


@idiom(distinct(3, 6))
def discrete_action(logits: T) -> tuple[T, T]:
    a = logits.argmax(-1)
    return a, F.log_softmax(logits, -1).gather(-1, a.unsqueeze(-1)).squeeze(-1)


@idiom(normal(3, 6), bools(3, 6))
def masked_logits(logits: T, mask: T) -> T:
    return torch.where(mask, logits, torch.finfo(logits.dtype).min).softmax(-1)


@idiom(normal(2, 4), setup=lambda: nn.Linear(6, 4))
def diffusion_loop(net: nn.Module, x: T) -> T:
    betas = torch.linspace(1e-3, 0.02, 5)
    alphas = torch.cumprod(1 - betas, 0)
    for k in reversed(range(5)):
        t = torch.full((2, 2), k / 5.0)
        eps = net(torch.cat([x, t], -1))
        x0 = ((x - (1 - alphas[k]).sqrt() * eps) / alphas[k].sqrt()).clamp(-1, 1)
        x = alphas[max(k - 1, 0)].sqrt() * x0 + (1 - alphas[max(k - 1, 0)]).sqrt() * eps
    return x


@idiom(normal(2, 4), setup=lambda: nn.Linear(4, 4))
def euler_integration(net: nn.Module, x: T) -> T:
    dt = 1.0 / 8
    for _ in range(8):
        x = x + dt * torch.tanh(net(x))
    return x


@idiom(normal(2, 3, 4), normal(2, 8), setup=lambda: nn.GRUCell(4, 8))
def recurrent_unrolled(cell: nn.Module, x: T, h: T) -> T:
    outs = []
    for t in range(x.shape[1]):
        h = cell(x[:, t], h)
        outs.append(h)
    return torch.stack(outs, 1)


@idiom(normal(2, 8))
def sinusoidal_embedding(x: T) -> T:
    freqs = torch.exp(torch.arange(4) * -(math.log(10000.0) / 3))
    emb = x[:, :1] * freqs[None, :]
    return torch.cat((emb.sin(), emb.cos()), dim=-1) + x


@idiom(normal(2, 3, 8))
def rotary_embedding(x: T) -> T:
    inv = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
    ang = torch.outer(torch.arange(3.0), inv)
    cos, sin = torch.cat([ang, ang], -1).cos(), torch.cat([ang, ang], -1).sin()
    half = torch.cat((-x[..., 4:], x[..., :4]), -1)
    return x * cos + half * sin


@idiom(normal(2, 5, 4))
def causal_attention_by_hand(x: T) -> T:
    s = x @ x.mT / math.sqrt(4)
    s = s.masked_fill(torch.triu(torch.ones(5, 5, dtype=torch.bool), 1), float("-inf"))
    return s.softmax(-1) @ x


@idiom(normal(2, 6), normal(4, 6))
def vector_quantise(x: T, book: T) -> tuple[T, T]:
    i = torch.cdist(x, book).argmin(-1)
    return i, book[i] + x - x.detach()


@idiom(uniform(-2, 2, 3))
def two_hot_encoding(x: T) -> T:
    bins = torch.linspace(-2, 2, 5)
    i = torch.searchsorted(bins, x).clamp(1, 4)
    w = (x - bins[i - 1]) / (bins[i] - bins[i - 1])
    out = torch.zeros(3, 5)
    out.scatter_(1, (i - 1).unsqueeze(1), (1 - w).unsqueeze(1))
    out.scatter_add_(1, i.unsqueeze(1), w.unsqueeze(1))
    return out


row("symlog_symexp", lambda x: torch.sign(x) * torch.log(torch.abs(x) + 1) + torch.sign(x) * torch.expm1(x.abs()), N34)
row("exponential_smoothing", lambda x, y: torch.lerp(y, x, 0.2).add_(0.0), N34, N34)
row("dead_zone", lambda x: torch.where(x.abs() < 0.2, torch.zeros_like(x), x - 0.2 * x.sign()), N34)
row("one_euro_filter", lambda x, y: (lambda c: (c := 1 / (1 + 1 / (2 * math.pi * (1 + 0.5 * (x - y).abs()) * 0.02))) * x + (1 - c) * y)(0), N34, N34)
row("height_scan", lambda x, z: torch.clip(z[:, None] - 0.5 - x, -1.0, 1.0), N34, normal(3))
row("joint_reorder", lambda x: x[:, torch.tensor([0, 2, 1, 3])][:, [3, 2, 1, 0]] * 2, N34)
row("joint_reorder_write", lambda x: (o := torch.zeros_like(x), o.__setitem__((slice(None), [2, 0, 3, 1]), x))[0], N34)
row("mirror_left_right", lambda x: torch.cat([x[..., 2:], x[..., :2]], -1) * torch.tensor([1.0, -1.0, 1.0, -1.0]), N34)
row("polynomial_features", lambda x: torch.stack([x**i for i in range(4)], -1), N34)
row("fourier_features", lambda b, x: torch.cat([(x @ b).sin(), (x @ b).cos()], -1), N34, setup=lambda: torch.randn(4, 5))
row("top_action_one_hot", lambda x: F.one_hot(x.argmax(-1), 4).to(x.dtype) * 2, distinct(3, 4))
row("chained_where_ladder", lambda x: torch.where(x < -1, -1.0, torch.where(x < 0, -0.5, torch.where(x < 1, 0.5, 1.0))), N34)
row("lookup_table", lambda t, x: t[x.clamp(0, 3)] * 2, ints(-2, 6, 5), setup=lambda: torch.tensor([1.0, 10.0, 100.0, 1000.0]))
row("linear_interpolation", lambda x: (lambda i: torch.tensor([0.0, 1.0, 4.0, 9.0])[i] + (x - i) * (torch.tensor([0.0, 1.0, 4.0, 9.0])[i + 1] - torch.tensor([0.0, 1.0, 4.0, 9.0])[i]))(x.floor().long().clamp(0, 2)), uniform(0, 3, 5))
row("clamp_mixed_bounds_and_index", lambda x, i: x.clamp(0.05, 2)[i] + x[i].clamp(-1, 0.5), N34, index(3, 4))
row("clamp_mixed_bounds_of_integers", lambda x: x.clamp(-0.5, 2), ints(-4, 5, 6))
COLUMNS = torch.tensor([True, False, True, True])
CELLS = torch.tensor([[True, False], [False, True], [True, True]])


@idiom(N34, normal(3, 3))
def write_columns_by_mask(x: T, v: T) -> T:
    y = x * 2
    y[:, COLUMNS] = v
    y[..., COLUMNS] += v.flip(1)
    return y


@idiom(normal(5, 3, 2, 3), normal(5, 4, 3))
def write_cells_by_mask(x: T, v: T) -> T:
    y = x * 2
    y[:, CELLS] = v
    return y


@idiom(normal(3, 4, 3), normal(3, 3, 2), normal(3, 1, 3))
def write_part_of_columns_by_mask(x: T, v: T, w: T) -> T:
    y = x * 2
    y[:, COLUMNS, 1:] = v
    y[:, ~COLUMNS] = w
    return y


@idiom(N34, ints(0, 2, 4))
def columns_of_a_mask_copied(x: T, m: T) -> T:
    """Between two tensors, also if no column is chosen."""
    y, z = x * 2, x.repeat(2, 1).view(2, 3, 4) * 3
    y[:, m > 0] = x[:, m > 0] + 1
    z[..., m > 0] -= x[:, m > 0]
    z[1, 1:, m > 1] = 9.0
    return y + z[0] * z[1]


def rows_chosen(g: torch.Generator) -> T:
    """One of three rows in every traced pass, any number of them in other runs."""
    return torch.arange(3) == 1 if g.initial_seed() in (1, 4) else torch.rand(3, generator=g) < 0.6


@idiom(N34, rows_chosen, setup=lambda: nn.Linear(4, 2))
def one_row_of_a_mask(layer: nn.Linear, x: T, m: T) -> T:
    y, places = x * 2, m.nonzero().squeeze(-1)
    y[m] = x[m] - 1
    y[m, 1:3] = layer(x[m])
    y[places] += x[places]
    y[places, 0] = x[places, 3]
    return y


@idiom(bools(3, 4), bools(3, 4))
def truth_values_filled(a: T, b: T) -> T:
    """Python's bools as values that are written."""
    chosen = torch.where(a, b, False) | torch.where(b, True, a) ^ a.masked_fill(b, True)
    written = a.clone().masked_fill_(b, False).index_fill(1, torch.tensor([1]), True)
    written = written.scatter(1, torch.tensor([[0], [2], [3]]), True) & torch.full_like(b, True) & b.new_full((3, 4), True)
    return torch.stack([chosen, written, a.clone().fill_(False) | b])


@idiom(N34, bools(3))
def rows_of_a_mask_ranked(x: T, m: T) -> T:
    return x[m].sort(0).values.cumsum(0).sum(0) + x[m].sort(0, descending=True).values.sum(0)


def rows_or_none(g: torch.Generator) -> T:
    """No row in the runs of the exported model, some in other runs."""
    return torch.rand(3, generator=g) < (0.0 if g.initial_seed() in (2, 3) else 0.6)


@idiom(N34, rows_or_none)
def reductions_of_no_row(x: T, m: T) -> T:
    rows = x[m]
    return (rows > 0).any(0).float() + (rows > 0).all(0).float() + rows.mean(0).nan_to_num(7.0) + rows.sum(0)


def few_rows(g: torch.Generator) -> T:
    """No row and one row in the runs of the exported model, two or three in other runs."""
    return torch.arange(3) < {2: 0, 3: 1}.get(g.initial_seed(), 2 + g.initial_seed() % 2)


@idiom(N34, few_rows)
def deviations_of_few_rows(x: T, m: T) -> T:
    rows = x[m]
    spread = rows.std(0).nan_to_num(7.0) + rows.var(0, correction=0).nan_to_num(3.0)
    return spread + rows.std(dim=(0, 1)).nan_to_num(5.0) + rows.var(1).sum(0)


row("masked_mean", lambda x, m: (x * m).sum(1) / m.sum(1).clamp(min=1), N34, bools(3, 4))
row("running_max_pool", lambda x: x.unfold(1, 2, 1).amax(-1), N34)
row("point_cloud_centre", lambda p: (p - p.mean(1, keepdim=True)) / p.norm(dim=-1).amax(1)[:, None, None], normal(2, 7, 3))
row("pairwise_difference", lambda x: (x[:, None, :] - x[None, :, :]).norm(dim=-1), N34)
row("cost_min_selection", lambda x, c: x[c.argmin()], N34, distinct(3))
row("mppi_weights", lambda c, u: (torch.softmax(-(c - c.min()) / 0.5, 0)[:, None] * u).sum(0), normal(6), normal(6, 2))
