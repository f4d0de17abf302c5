"""Traces nodes that write to tensors, as operators that write to none.

A write becomes an operator that makes a new value, and that value stands for the tensor from then on. The hidden tensors have
memory of their own, which tells what a write reaches: a view hands its new value on to the tensor that it was taken from, and
any other view is taken again before it is read. Only memory that the node has made may be written to. Knows nothing of graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from leapp.capture.aliasing import storage_id
from leapp.compat.core import taken_apart
from leapp.export.hidden_values import HiddenTensor, HiddenValues
from leapp.export.op_tracer import GraphBuilder, NotPlainError, OperatorRules, OpTracer

aten: Any = torch.ops.aten


@dataclass(slots=True)
class _View:
    """How an operator took a tensor from another without copying."""

    parent: HiddenTensor
    func: Any
    args: Sequence[Any]
    named: Mapping[str, Any]
    position: int
    """Its place among the results of ``func``."""
    version: int
    """The version of its memory that its value was taken from."""


class WriteTracer(OpTracer):  # type: ignore[no-untyped-call]
    """Replaces writes by operators that make new values."""

    as_in_memory = True

    def __init__(self, rules: OperatorRules, builder: GraphBuilder, values: HiddenValues) -> None:
        super().__init__(rules, builder, values)
        self._memory = values
        self._versions: dict[int | None, int] = {}
        self._own: set[int | None] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if func._schema.is_mutable and func is not aten.detach_.default:
            return self._write(func, args, named)
        if _is_view(func) and isinstance(args[0], HiddenTensor):
            return self._view(func, args, named)
        rule, composite = self._rules.of(func), taken_apart(func)
        if rule.queries or (rule.decompose is None and rule.composite is not None):
            return super().__torch_dispatch__(func, types, args, named)
        eager = None if rule.decompose is None and composite is None else self._values.run(func, args, named)
        if composite is not None and self._shares(eager, args, named):
            # An operator that is otherwise not taken apart, such as einsum("ij->ji", x).
            with self:
                return composite(*args, **named)
        out = super().__torch_dispatch__(func, types, args, named)
        if _is_view(func):
            return out
        if rule.decompose is not None:
            out = self._laid_out(func, out, eager)
        return self._in_own_memory(func, args, named, out)

    def entry(self, value: Any) -> Any:
        """What stands for an argument in the graph. A view of memory that was written to since is taken again."""
        view = value.view_of if isinstance(value, HiddenTensor) else None
        if view is not None and view.version != (version := self._version(value)):
            view.version = version
            again = super().__torch_dispatch__(view.func, (), (view.parent, *view.args), view.named)
            self.remember(value, super().entry(_parts(again)[view.position]))
        return super().entry(value)

    def _version(self, tensor: HiddenTensor) -> int:
        """How many writes to the memory of a tensor were seen."""
        return self._versions.get(storage_id(tensor.hidden), 0)

    def _view(self, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Run an operator whose results share the memory of its first argument."""
        composite = taken_apart(func)
        if composite is not None:
            with self:
                return composite(*args, **named)
        if func is aten.as_strided.default:
            args = self._by_place(*args, **named)
            named = {}
        # The graph gets what replaces the operator, which may copy. The program gets the view.
        taken = super().__torch_dispatch__(func, (), args, named)
        out = self._values.run(func, args, named)
        for position, (view, like) in enumerate(zip(_parts(out), _parts(taken), strict=True)):
            self.remember(view, super().entry(like))
            view.view_of = _View(args[0], func, args[1:], named, position, self._version(view))
        return out

    def _by_place(
        self, x: HiddenTensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
    ) -> Sequence[Any]:
        """The arguments of as_strided() for the tensor that has all of the memory, of which ``x`` may be a part."""
        offset, dtype = x.storage_offset() if storage_offset is None else storage_offset, x.dtype
        while x.view_of is not None:
            x = x.view_of.parent
        if x.dtype != dtype:
            raise NotPlainError("as_strided() of memory that has elements of another type")
        return x, size, stride, offset

    def _laid_out(self, func: Any, out: Any, eager: Any) -> Any:
        """A result as it lies in memory in eager code, which tells whether reshape() and others make a view or a copy."""
        for made, like in zip(_parts(out), _parts(eager), strict=True):
            if (made.shape, made.dtype) == (like.shape, like.dtype):  # unlike a buffer for gradients, which is left out
                self.remember(like, super().entry(made))
        return eager

    def _in_own_memory(self, func: Any, args: Sequence[Any], named: Mapping[str, Any], out: Any) -> Any:
        """The result of an operator that is no view, in memory that the node may write to."""
        parts = _parts(out)
        if len({storage_id(part.hidden) for part in parts}) < len(parts):
            raise NotPlainError(f"{func}, whose results share memory")
        if self._shares(out, args, named):  # such as _unsafe_view(), which torch calls on temporary tensors
            copies = [self._memory.copy(part) for part in parts]
            for copied, part in zip(copies, parts, strict=True):
                self.remember(copied, super().entry(part))
            out, parts = copies[0] if isinstance(out, Tensor) else copies, copies
        self._own.update(storage_id(part.hidden) for part in parts)
        return out

    def _shares(self, out: Any, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Whether a result lies over the memory of an argument."""
        given = {storage_id(value.hidden) for value in _hidden((*args, *named.values()))}
        return any(storage_id(part.hidden) in given for part in _parts(out))

    def _write(self, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Run an operator that writes to one of its arguments and returns it."""
        maker, name = _functional(func)
        if maker is None:
            composite = taken_apart(func)
            if composite is None:
                raise NotPlainError(str(func))
            with self:
                return composite(*args, **named)
        target = args[0] if name is None else named[name]
        if not isinstance(target, HiddenTensor) or storage_id(target.hidden) not in self._own:
            raise NotPlainError(f"{func} on a tensor that the node has not made")
        with self:
            value = maker(*args, **{key: given for key, given in named.items() if key != name})
            value = value if value.dtype == target.dtype else value.to(target.dtype)
        if value.shape != target.shape:
            raise NotPlainError(f"{func} with another shape")
        self._store(target, value)
        return target

    def _store(self, target: HiddenTensor, value: HiddenTensor) -> None:
        """Let ``value`` stand for ``target``, and for a part of each tensor that ``target`` was taken from."""
        self._memory.write(target, value)
        version = self._version(target) + 1
        tensor, changed = target, [(target, self.entry(value))]
        while (view := tensor.view_of) is not None:
            with self:
                value = _with_part(view, value)
            tensor, view.version = view.parent, version
            changed.append((tensor, self.entry(value)))
        for tensor, entry in changed:
            self.remember(tensor, entry)
        self._versions[storage_id(target.hidden)] = version


def _parts(result: Any) -> Sequence[HiddenTensor]:
    return [result] if isinstance(result, Tensor) else result  # type: ignore[list-item]


def _hidden(values: Any) -> Iterator[HiddenTensor]:
    """The hidden tensors among arguments."""
    for value in values:
        if isinstance(value, HiddenTensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _hidden(value)


@functools.cache
def _is_view(func: Any) -> bool:
    return any(result.alias_info is not None for result in func._schema.returns)


@functools.cache
def _functional(func: Any) -> tuple[Any, str | None]:
    """The operator that returns what ``func`` would write, and the keyword of ``func`` that gives the tensor to write to.

    No operator, if there is none. No keyword, if ``func`` writes to its first argument.
    """
    arguments = func._schema.arguments
    written = [argument for argument in arguments if argument.alias_info is not None and argument.alias_info.is_write]
    if len(written) != 1 or str(written[0].type) != "Tensor" or torch.Tag.inplace_view in func.tags:
        return None, None
    out, packet = written[0].name if written[0].kwarg_only else None, func.overloadpacket.__name__
    if out is None and not (written[0] is arguments[0] and packet.endswith("_")):
        return None, None
    wanted = [(argument.name, str(argument.type)) for argument in arguments if argument.name != out]
    makers = getattr(getattr(torch.ops, func.namespace), packet if out is not None else packet[:-1], None)
    for name in makers.overloads() if makers is not None else ():
        maker = getattr(makers, name)
        found = [(argument.name, str(argument.type)) for argument in maker._schema.arguments]
        if found == wanted and not maker._schema.is_mutable and not _is_view(maker):
            return maker, out
    return None, None


# What a tensor is once a part of it was written. Every function gets the tensor, the part, its place among the results of the
# operator that took it, and the arguments of that operator.


def _with_part(view: _View, part: Tensor) -> Any:
    """The tensor that a view was taken from, with another value for the view."""
    write = _WRITES.get(view.func)
    if write is None:
        raise NotPlainError(f"a write to the result of {view.func}")
    return write(view.parent, part, view.position, *view.args, **view.named)


def _reshaped(x: Tensor, part: Tensor, position: int, *args: Any, **named: Any) -> Any:
    if part.numel() != x.numel():
        raise NotPlainError("a write to a tensor that repeats elements")
    return part.reshape(x.shape)


def _sliced(
    x: Tensor, part: Tensor, position: int, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    return aten.slice_scatter.default(x, part, dim, start, end, step)


def _split(x: Tensor, part: Tensor, position: int, sizes: int | Sequence[int], dim: int = 0) -> Any:
    first = sizes * position if isinstance(sizes, int) else sum(sizes[:position])
    return aten.slice_scatter.default(x, part, dim, first, first + part.shape[dim])


def _unbound(x: Tensor, part: Tensor, position: int, dim: int = 0) -> Any:
    return aten.select_scatter.default(x, part, dim, position)


def _selected(x: Tensor, part: Tensor, position: int, dim: int, index: int) -> Any:
    return aten.select_scatter.default(x, part, dim, index)


def _diagonal(x: Tensor, part: Tensor, position: int, *args: Any, **named: Any) -> Any:
    return aten.diagonal_scatter.default(x, part, *args, **named)


def _permuted(x: Tensor, part: Tensor, position: int, dims: Sequence[int]) -> Any:
    order = [dim % x.dim() for dim in dims]
    return part.permute([order.index(dim) for dim in range(x.dim())])


def _strided(
    x: Tensor, part: Tensor, position: int, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    if not x.is_contiguous() or x.storage_offset():
        raise NotPlainError("a write to a part of memory in which the tensor is not in order")
    return aten.as_strided_scatter.default(x, part, size, stride, storage_offset)


def _unfolded(x: Tensor, part: Tensor, position: int, dim: int, size: int, step: int) -> Any:
    if step < size:
        raise NotImplementedError("a write to windows that overlap, as unfold() makes them. Write to their clone().")
    if not x.dim():
        return part.reshape(x.shape)
    dim %= x.dim()
    places = torch.arange(part.shape[dim]).unsqueeze(1) * step + torch.arange(size)
    windows = part.movedim((dim, -1), (0, 1)).flatten(0, 1)
    return aten.index_put.default(x.movedim(dim, 0), [places.reshape(-1)], windows).movedim(0, dim)


def _transposed(x: Tensor, part: Tensor, position: int, *dims: int) -> Any:
    return part.transpose(*dims) if dims else part.t()


_KEEP_ORDER = (
    aten.view.default, aten._reshape_alias.default, aten.expand.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.detach.default,
)  # fmt: skip

_WRITES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(_KEEP_ORDER, _reshaped),
    aten.slice.Tensor: _sliced,
    aten.select.int: _selected,
    aten.unbind.int: _unbound,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.diagonal.default: _diagonal,
    aten.as_strided.default: _strided,
    aten.unfold.default: _unfolded,
    aten.permute.default: _permuted,
    aten.transpose.int: _transposed,
    aten.t.default: _transposed,
}
"""For an operator that returns views, what writes through one of them."""
