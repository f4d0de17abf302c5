"""Classifies torch functions.

Each function is classified once, from its name, its schema and its tags: whether a call only reads metadata, which arguments it
writes to, whether it draws random numbers, and whether the shape of its result depends on values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch

from leapp.capture.indexed_views import getitem, setitem
from leapp.capture.substitutes import COVERED, HANDLERS, KERNELS
from leapp.capture.trees import tensors
from leapp.compat.core import OpOverload

Tensor = torch.Tensor

# Calls that return facts about memory and layout, which do not depend on values.
_STRUCTURE = frozenset({"_has_same_storage_numel", "is_same_size", "untyped_storage", "storage", "_typed_storage"})
# Calls whose plain result depends on the values of some arguments only: the positions of these arguments.
_LOOKS_AT = {"_nested_tensor_from_mask_left_aligned": (1,)}

_SHAPE = frozenset({"shape", "size", "numel", "nelement", "__len__", "nbytes", "sym_size", "sym_numel"})
# Calls of the user's that tell something of the shape, beside those that return it. torch itself asks in gradients.
_TELLS_SHAPE = frozenset({"is_same_size", "stride", "dim_order"})
_METADATA = _SHAPE | _TELLS_SHAPE | frozenset(
    "ndim dim ndimension dtype device layout storage_offset element_size itemsize type get_device names "
    "requires_grad grad grad_fn output_nr retains_grad _version _base _backward_hooks _grad _grad_fn volatile name "
    "has_names result_type can_cast promote_types __hash__ __dir__ __class__ broadcast_shapes qscheme "
    "requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook dense_dim sparse_dim "
    "_is_view _has_symbolic_sizes_strides _conj_physical_ "
    "__subclasscheck__ __instancecheck__ __setstate__ _indices_nnz".split()
)
# Parameters of a normalisation with running statistics. It writes to them without increasing their version counters, and its
# schema does not declare the write.
_RUNNING = ("running_mean", "running_var", "momentum")
_TRAINING = ("training", "train", "use_input_stats")
_FACTORIES = frozenset("zeros ones empty eye arange rand randn tril_indices triu_indices".split())
_IN_PLACE_DUNDERS = frozenset(
    f"__i{op}__"
    for op in "add sub mul matmul truediv div floordiv mod pow and or xor lshift rshift".split()
)
_RUNS_AUTOGRAD = frozenset({"backward"})
# The ATen operator of a Python function that has another name.
_ATEN = {"unique": "_unique2"}

# Calls whose result is the same value in another place: a published output keeps its name through these.
_IDENTITIES = frozenset(
    "clone detach detach_ contiguous cpu cuda to float double half bfloat16 int long short char byte bool type type_as "
    "data alias __deepcopy__ tensor as_tensor asarray from_numpy requires_grad_ copy_ __setitem__ view_as reshape view "
    "positive __pos__ pin_memory xpu npu hpu mps ipu resolve_conj resolve_neg alias_copy detach_copy lift lift_fresh".split()
)


# By name of the call: another function with the same values, which is recorded instead.
_REPLAYED: dict[str, Callable[..., Any]] = {**KERNELS, "__getitem__": getitem, "__setitem__": setitem}


class Kind:
    """How to treat calls of one function. Immutable once made."""

    def __init__(self, func: Any) -> None:
        self.name, self.call, self.setter = _identify(func)
        #: Positions of the arguments that a call writes to, known before it runs.
        self.writes: tuple[int, ...] = ()
        self.write_keywords: tuple[str, ...] = ("out",)
        schema = getattr(func, "_schema", None)
        if schema is not None:
            written = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info and a.alias_info.is_write]
            self.writes = tuple(i for i, _ in written)
            self.write_keywords = tuple(n for _, n in written)
        elif _in_place(self.name):
            self.writes = (0,)
        #: Python functions may write to arguments without a name that says so (batch norm statistics, ``inplace=True``).
        self.hidden_writes = schema is None and (isinstance(func, FunctionType) or "_norm" in self.name)
        #: Positions and names of the running statistics that a normalisation writes, and of the flag that makes it do so.
        self.statistics = _running_statistics(func, self.name) if "_norm" in self.name and not self.writes else ()
        packet = self.name.split(".")[0] if schema is not None else self.name.strip("_")
        self.call = _REPLAYED.get(self.name.split(".")[0], self.call)
        tags = set(func.tags) if schema is not None else _tags(packet)
        self.random = torch.Tag.nondeterministic_seeded in tags or (isinstance(func, FunctionType) and _may_draw(func))
        self.dynamic = torch.Tag.dynamic_output_shape in tags
        #: Makes a tensor whose size is given by numbers. A traced tensor among them has left the graph.
        self.factory = schema is None and self.name in _FACTORIES
        self.may_mask = self.dynamic or self.name in ("__getitem__", "where")
        self.tracks_grad = self.name == "requires_grad_" or (self.setter and self.name == "requires_grad")
        self.handled = schema is None and (self.name in HANDLERS or func in HANDLERS)
        self.shape = self.name in _SHAPE
        self.tells_shape = self.shape or self.name in _TELLS_SHAPE
        bare = self.name.split(".")[0]
        #: Positions of the arguments on whose values a plain result depends; ``None`` means all.
        self.looks_at: tuple[int, ...] | None = () if bare in _STRUCTURE else _LOOKS_AT.get(bare)
        #: A result that is not an escape: the recorded functions are right for every other result too, see ``COVERED``.
        self.covered: Any = COVERED.get(bare)
        self.metadata = schema is None and (
            self.name in _METADATA or (self.name.startswith("is_") and self.name != "is_nonzero")
        )
        self.identity = packet in _IDENTITIES or self.name in _IDENTITIES
        self.autograd = self.name in _RUNS_AUTOGRAD or func is torch.autograd.grad
        #: Whether none of the special cases above applies: the call computes new tensors from its arguments.
        self.plain = schema is None and not (
            self.writes or self.statistics or self.random or self.factory or self.handled or self.metadata or self.autograd
            or self.setter or (self.may_mask and self.name != "__getitem__")
        )  # fmt: skip

    def targets(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors that a call is known to write to."""
        if not (self.writes or kwargs or self.statistics):
            return []
        found = [t for i in self.writes if i < len(args) for t in tensors(args[i])]
        if self.statistics:
            found += self._running_statistics(args, kwargs)
        return found + [t for k in self.write_keywords if k in kwargs for t in tensors(kwargs[k])]

    def _running_statistics(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors that a normalisation in training mode writes to."""
        *given, training = [args[i] if i < len(args) else kwargs.get(name) for i, name in self.statistics]
        return [t for t in given if isinstance(t, Tensor)] if training else []


def _identify(func: Any) -> tuple[str, Callable[..., Any], bool]:
    """The name of a function, the function to call on replay, and whether it sets an attribute."""
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__", "__delete__"):
        attribute = func.__self__.__name__
        return attribute, _Attribute(attribute), name != "__get__"
    if isinstance(func, OpOverload):
        return f"{func._opname}.{func._overloadname}", func, False
    return name, func, False


def classes_given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of ``one_hot`` says how many classes there are. If not, the largest value tells."""
    classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
    return isinstance(classes, (int, np.integer)) and bool(classes >= 0)


def _in_place(name: str) -> bool:
    return (
        name == "__setitem__"
        or name in _IN_PLACE_DUNDERS
        or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_")
    )


def _tags(name: str) -> set[torch.Tag]:
    packet: Any = getattr(torch.ops.aten, _ATEN.get(name, name), None)
    if not hasattr(packet, "overloads"):
        return set()
    return {tag for overload in packet.overloads() for tag in getattr(packet, overload).tags}


def _may_draw(func: FunctionType, seen: frozenset[FunctionType] = frozenset()) -> bool:
    """Whether a Python function of torch, or one that it calls, names an operator that draws random numbers.

    ``dropout2d`` calls ``feature_dropout``, and ``gumbel_softmax`` calls ``exponential_``.
    """
    for name in func.__code__.co_names:
        if torch.Tag.nondeterministic_seeded in _tags(name):
            return True
        called = func.__globals__.get(name)
        if isinstance(called, FunctionType) and called not in seen and _may_draw(called, seen | {func}):
            return True
    return False


def _running_statistics(func: Any, name: str) -> tuple[tuple[int, str], ...]:
    """Position and name of ``running_mean``, ``running_var`` and the training flag; empty if a function lacks one of them."""
    if isinstance(func, FunctionType):
        names = list(inspect.signature(func).parameters)
    else:
        packet = getattr(torch.ops.aten, name.split(".")[0], None)
        schema = getattr(func, "_schema", None) or getattr(getattr(packet, "default", None), "_schema", None)
        names = [a.name for a in schema.arguments] if schema is not None else []
    flag = next((n for n in names if n in _TRAINING), None)
    if flag is None or not set(names).issuperset(_RUNNING):
        return ()
    return tuple((names.index(n), n) for n in (*_RUNNING[:2], flag))


class _Attribute:
    """A function that reads a property such as ``x.T``."""

    __slots__ = ("__name__",)

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, value: Any) -> Any:
        return getattr(value, self.__name__)


KINDS: dict[Any, Kind] = {}


def classify(func: Any) -> Kind:
    """The kind of ``func``, made at its first call."""
    kind = KINDS.get(func)
    if kind is None:
        kind = KINDS[func] = Kind(func)
    return kind
