"""Writes a node as TorchScript.

The recorded computation is traced into one function. Weights are constants that share the caller's memory. A file inside of
the archive names them: a module for each level of their names would make the model slower to open. Source locations and class
counters of this process do not reach the file, so the same node gives the same bytes.
"""

from __future__ import annotations

import json
import keyword
import re
import warnings
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from functools import cmp_to_key, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from leapp.capture.audit import hidden_reads
from leapp.capture.call_kinds import classify
from leapp.capture.replay import Replay
from leapp.compat.core import clean_script, rename_operators, script_from_graph, script_tracer, traced_value, with_state
from leapp.errors import ExportError
from leapp.export.job import ExportJob, ExportResult
from leapp.export.rewrites import RewrittenCalls
from leapp.export.shared_setup import run_apart
from leapp.export.torch_archives import save_archive

if TYPE_CHECKING:
    from leapp.export.aten import AtenGraph

PARAMETER_NAMES = "parameters.json"
"""The file of an archive with the names of the weights."""

_TAKEN = frozenset(
    {*keyword.kwlist, *keyword.softkwlist, "self", "print", "torch", "CONSTANTS", "uninitialized", "annotate"}
    | {"float", "int", "bool", "str", "list", "Tensor", "List", "Dict", "Tuple", "Optional", "inf", "nan", "ops"}
)

_UNSAFE = {f"aten::unsafe_{name}": f"aten::{name}" for name in ("chunk", "split", "split_with_sizes")}
"""Operators whose results share memory although their schemas do not say so.

TorchScript folds them into constants, which later writes of the model would change.
"""

_OPERATORS = "and or xor mul add sub truediv floordiv mod pow eq ne lt le gt ge".split()
_NAMED = "bitwise_and bitwise_or bitwise_xor mul multiply add sub subtract div divide pow eq ne lt le gt ge".split()
_BINARY = frozenset(
    getattr(place, name)
    for place in (torch, torch.Tensor)
    for name in (
        *(f"__{kind}{name}__" for kind in ("", "i", "r") for name in _OPERATORS),
        *(name + tail for name in _NAMED for tail in ("", "_")),
    )
    if hasattr(place, name)
)

_FILLING: dict[Any, Any] = {
    getattr(place, name): kind
    for kind, names in {
        torch.tensor: "where masked_fill masked_fill_ index_fill index_fill_ fill fill_",
        int: "full full_like new_full scatter scatter_",
    }.items()
    for name in names.split()
    for place in (torch, torch.Tensor)
    if hasattr(place, name)
}
"""Calls that write one value to many places, each with what it takes in place of a Python bool."""

_SCALAR_FORMS: dict[Any, Any] = {
    getattr(place, name): getattr(torch.ops.aten, op).Scalar
    for op, names in {
        "add": "add __add__ __radd__", "add_": "add_ __iadd__",
        "sub": "sub subtract __sub__", "sub_": "sub_ subtract_ __isub__",
        "mul": "mul multiply __mul__ __rmul__", "mul_": "mul_ multiply_ __imul__",
        "div": "div divide __truediv__", "div_": "div_ divide_ __itruediv__",
    }.items()
    for place in (torch, torch.Tensor)
    for name in names.split()
    if hasattr(place, name)
}  # fmt: skip
"""Calls with a tensor and a number, each with the operator that takes the number as it is.

The tracer makes a tensor of the number. TorchScript replaces it by the number again when it first runs a model, which takes
longer than anything else in opening it.
"""


def export_torchscript(job: ExportJob, directory: Path) -> ExportResult:
    """Write ``<node>.pt``: ``forward`` takes the ports by name and returns one tensor, or a tuple of two or more."""
    path = directory / f"{job.node}.pt"
    try:
        function = _trace_functional(job) if _hides_writes(job.module) else trace_function(job)
    except Exception as error:  # the functional graph may do what the tracer cannot
        try:
            function = _trace_functional(job)
        except Exception:  # the first error says more about the user's code
            raise error from None
    if job.params.get("check_trace"):
        _compare_with_eager(job, function)
    state = dict(_named_state(job.module))
    names = {PARAMETER_NAMES: json.dumps(_constant_names(function.graph, state))}
    save_archive(
        path, state.values(), lambda: function.save_to_buffer(_extra_files=names),
        lambda file: function.save(file, _extra_files=names),
    )  # fmt: skip
    return ExportResult(path=path, backend="jit")


def _constant_names(graph: Any, state: dict[str, torch.Tensor]) -> dict[str, str]:
    """The names of the weights by their names in the file, in which torch numbers constants in the order of their use."""
    known = {_place(tensor): name for name, tensor in reversed(state.items())}
    constants = [node for node in graph.findAllNodes("prim::Constant") if node.output().type().kind() == "TensorType"]
    first = {node: reduce(lambda a, b: b if a.isAfter(b) else a, node.output().uses()) for node in constants}
    used = sorted(constants, key=cmp_to_key(lambda a, b: 1 if first[a].isAfter(first[b]) else -1))
    tensors = [node.t("value") for node in used]
    return {f"c{i}": known[place] for i, tensor in enumerate(tensors) if (place := _place(tensor)) in known}


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def argument_names(ports: Iterable[str]) -> list[str]:
    """Names of ``forward``'s arguments: the name of the port, changed where TorchScript does not take it."""
    names: list[str] = []
    for port in ports:
        name = port if port.isascii() and port.isidentifier() else re.sub(r"\W", "_", port, flags=re.ASCII)
        if not name.isidentifier() or name in _TAKEN or re.fullmatch(r"_\d*|c\d+", name):
            name = f"in_{name}"
        while name in names:
            name += "_"
        names.append(name)
    return names


class _ScriptCalls(RewrittenCalls):
    """Also replaces Python bools by numbers or tensors, because no arithmetic or filling of TorchScript takes bools.

    Other numbers stay numbers in arithmetic.
    Calls with several ``out=`` tensors become copies: before torch 2.13 TorchScript damages the memory of the process there.

    Args:
        unused: Gets the name of each call that the graph does not show to use one of its tensors.
    """

    def __init__(self, unused: set[str]) -> None:
        super().__init__()
        self._unused = unused

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Run the call or its replacement."""
        run, given, named = self.rewritten(func, args, kwargs or {})
        # A tensor without axes can be given in place of a number. Where torch wants a float, the tracer freezes its value.
        found = [t for t in (*given, *named.values()) if type(t) is torch.Tensor and not t.dim()]
        if not found:
            return run(*given, **named)
        values = [(value := traced_value(t), len(value.uses())) for t in found]
        result = run(*given, **named)
        if any(len(value.uses()) == uses and value.node().kind() != "prim::Constant" for value, uses in values):
            self._unused.add(getattr(func, "__name__", ""))
        return result

    def rewritten(self, func: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The call to run in place of a call."""
        targets = named.get("out")
        if isinstance(targets, (tuple, list)) and len(targets) > 1:
            return _copied_into, (func, targets, args), {name: value for name, value in named.items() if name != "out"}
        if func in _BINARY and len(args) == 2:
            # With a boolean tensor, a number would make the result a tensor of numbers.
            kept = any(isinstance(arg, torch.Tensor) and arg.dtype == torch.bool for arg in args)
            args = tuple((torch.tensor(arg) if kept else int(arg)) if isinstance(arg, bool) else arg for arg in args)
            scalar = _SCALAR_FORMS.get(func)
            if scalar is not None and not named and type(args[1]) in (int, float) and isinstance(args[0], torch.Tensor):
                return scalar, args, named
        elif func in _FILLING:
            kind = _FILLING[func]
            filled = {n: kind(v) for n, v in named.items() if n in ("value", "fill_value", "other") and isinstance(v, bool)}
            if func is torch.full and (filled or any(isinstance(arg, bool) for arg in args)):
                named = {"dtype": torch.bool, **named}
            args, named = tuple(kind(arg) if isinstance(arg, bool) else arg for arg in args), {**named, **filled}
        return super().rewritten(func, args, named)


def _copied_into(func: Any, targets: Any, args: tuple[Any, ...], /, **named: Any) -> Any:
    for target, value in zip(targets, func(*args, **named), strict=True):
        (target if target.shape == value.shape else target.resize_(value.shape)).copy_(value)
    return targets


def trace_function(job: ExportJob) -> Any:
    """The node as a ``torch.jit`` function without parameters, source locations or type counters."""
    # The tracer refuses constants that require grad; detached aliases share the memory.
    state = {name: tensor.detach() for name, tensor in _named_state(job.module) if tensor.requires_grad}
    single = len(job.output_names) == 1

    # The tracer copies the Python stack at each operator and constant, so no frame is here without need.
    def forward(*inputs: torch.Tensor) -> Any:
        with torch.inference_mode(inference), torch.no_grad(), _ScriptCalls(unused):
            outputs = job.module.forward(*inputs)  # a call would add three frames
        return outputs[0] if single else tuple(outputs)

    example = tuple(tensor.detach().clone() for tensor in job.example)
    strict = bool(job.params.get("strict", True))
    inference = torch.is_inference_mode_enabled()
    unused: set[str] = set()

    with warnings.catch_warnings(), with_state(job.module, state) if state else nullcontext():
        # The tracer warns about every Python number, because it cannot see branches. A recorded node has none.
        warnings.simplefilter("ignore")
        traced = run_apart(script_tracer(forward, example, strict, argument_names(job.input_names)))
    if unused:
        _refuse_frozen(job, unused)
    clean_script(traced.graph)
    rename_operators(traced.graph, _UNSAFE)
    return script_from_graph(traced.graph)


def _refuse_frozen(job: ExportJob, names: set[str]) -> None:
    """Refuse the first call with one of these names that reads a number out of a tensor."""
    found = hidden_reads(job.module, job.example, set()) if isinstance(job.module, Replay) else {}
    for call, values in found.values():
        name = getattr(call.func, "__name__", "")
        if name in names:
            raise ExportError(
                f"TorchScript would freeze a number ({values[0]:g}) that {name} takes from a tensor, at {call.where.quoted}. "
                "Write what it does with operations on tensors, such as torch.where()."
            )


def _hides_writes(module: torch.nn.Module) -> bool:
    """Whether a call writes running statistics. Its schema does not say so, and TorchScript may drop it."""
    calls = module.program.calls if isinstance(module, Replay) else ()
    return any(call.writes and classify(call.func).statistics for call in calls)


def _trace_functional(job: ExportJob) -> Any:
    """The node traced from its functional ATen graph, for calls that TorchScript or its tracer does not take."""
    from leapp.compat.graphs import core_decompositions
    from leapp.export.aten import trace_aten
    from leapp.export.operators import DECOMPOSITIONS

    lists = {op: function for op, function in DECOMPOSITIONS.items() if "_foreach_" in str(op)}
    known = {**core_decompositions(), **DECOMPOSITIONS}
    backward = {op: function for op, function in known.items() if "backward" in str(op)}
    # The tracer records these as calls that TorchScript does not have.
    aten = torch.ops.aten
    other: dict[Any, Any] = {aten.view.dtype: aten.view_copy.dtype, aten.zero.default: torch.zeros_like}
    other |= {aten.fill.Tensor: DECOMPOSITIONS[aten.fill.Tensor], aten.fill.Scalar: torch.full_like}
    graph = trace_aten(job.module, job.example, {**backward, **lists, **other}, frozenset(), job.batch_axes)
    return trace_function(replace(job, module=_Functional(graph)))


class _Functional(torch.nn.Module):
    """A functional graph with its constants filled in."""

    def __init__(self, graph: AtenGraph) -> None:
        super().__init__()
        self._graph = graph.module
        self._graph.recompile()  # constants became arguments
        self._values = [tensor.detach() for _, tensor in graph.constants.values()]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self._graph(*inputs, *self._values))


def _named_state(module: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _compare_with_eager(job: ExportJob, function: Any) -> None:
    tolerance = float(job.params.get("check_tolerance") or 1e-5)
    with torch.no_grad():
        expected = job.module(*job.example)
        got = function(*job.example)
    for name, left, right in zip(job.output_names, (got,) if len(expected) == 1 else got, expected, strict=True):
        if not torch.allclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise ExportError(f"check_trace: output {name!r} of the traced function differs from eager.")
