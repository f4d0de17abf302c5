"""TorchScript and ``.pt2`` models as units.

TorchScript is frozen, asked once whether it writes its inputs or returns aliases, and then called through its C++
method. Neighbouring TorchScript nodes are written into one function when nothing could fuse across them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from leapp.errors import BundleError
from leapp.runtime.arrays import Array, numpy_dtype
from leapp.runtime.engines import EngineOptions, TorchUnit
from leapp.runtime.plan import Plan

__all__ = ["TORCH_DTYPES", "array_over", "load", "tensor_over", "torch_device"]

TORCH_DTYPES: dict[str, torch.dtype] = {
    str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, torch.dtype)
}


_BITS = {
    dtype: torch.uint8 if dtype.itemsize == 1 else torch.uint16
    for name, dtype in TORCH_DTYPES.items()
    if name == "bfloat16" or name.startswith("float8")
}
"""Dtypes that NumPy lacks, each with an integer of its size."""


def tensor_over(array: Array, dtype: str) -> torch.Tensor:
    """A tensor on the memory of a NumPy array of that port dtype."""
    wanted = TORCH_DTYPES[dtype]
    if wanted not in _BITS:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view("u1" if wanted.itemsize == 1 else "u2")).view(wanted)


def array_over(tensor: torch.Tensor) -> Array:
    """A NumPy array with the value of a tensor, on the same memory if that is host memory."""
    tensor = tensor.cpu()
    if tensor.dtype in _BITS:
        bits: Array = tensor.contiguous().view(_BITS[tensor.dtype]).numpy()
        return bits.view(numpy_dtype(str(tensor.dtype).removeprefix("torch.")))
    return tensor.resolve_conj().resolve_neg().numpy() if tensor.dtype.is_complex else tensor.numpy()


def torch_device(options: EngineOptions) -> torch.device:
    """Where torch units run."""
    return torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))


@dataclass(frozen=True, slots=True)
class _Script:
    """A frozen TorchScript module and what its graph tells."""

    name: str
    module: Any
    graph: Any
    single: bool
    writes: bool
    aliases: bool
    standalone: bool


def load(plan: Plan, names: list[str], model: Callable[[str], bytes | Path], options: EngineOptions) -> list[TorchUnit]:
    """Open neighbouring nodes of one torch backend."""
    device = torch_device(options)
    if plan.contract.nodes[names[0]].model.backend == "pt2":
        return [_load_pt2(plan, name, model(name), device) for name in names]
    scripts = [_load_script(plan, name, model(name), device) for name in names]
    if options.merge and len(names) > 1 and device.type == "cpu" and _mergeable(scripts):
        return [_merged(plan, scripts, device)]
    return [_script_unit(plan, script, device) for script in scripts]


def _readable(model: bytes | Path) -> Any:
    return io.BytesIO(model) if isinstance(model, bytes) else str(model)


def _load_script(plan: Plan, name: str, model: bytes | Path, device: torch.device) -> _Script:
    try:
        module: Any = torch.jit.load(_readable(model), map_location=device)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise BundleError(f"The TorchScript model of node {name!r} cannot be opened: {error}") from error
    if hasattr(module, "training"):
        try:
            # Numerics stay as saved: no folding of batch norms into convolutions.
            module = torch.jit.freeze(module.eval(), optimize_numerics=False)
        except RuntimeError:
            module.eval()
    graph = module._c._get_method("forward").graph
    taken, wanted = len(list(graph.inputs())) - 1, len(plan.input_keys(name))
    if taken != wanted:
        raise BundleError(f"The TorchScript model of node {name!r} takes {taken} inputs, the bundle says {wanted}.")
    single, count = _returns(graph)
    if count != len(plan.output_keys(name)):
        raise BundleError(
            f"The TorchScript model of node {name!r} returns {count or 'no fixed number of'} tensors, "
            f"the bundle says {len(plan.output_keys(name))}."
        )
    return _analyse(name, module, graph, single)


def _returns(graph: Any) -> tuple[bool, int]:
    """Whether the graph returns a bare tensor, and how many tensors; 0 when its type does not tell."""
    (result,) = graph.outputs()
    kind = result.type()
    if kind.kind() == "TensorType":
        return True, 1
    if kind.kind() == "TupleType" and all(e.kind() == "TensorType" for e in kind.elements()):
        return False, len(kind.elements())
    return False, 0


def _results(graph: Any) -> list[Any] | None:
    """The returned values one by one, if the graph shows them."""
    (result,) = graph.outputs()
    if result.type().kind() == "TensorType":
        return [result]
    return list(result.node().inputs()) if result.node().kind() == "prim::TupleConstruct" else None


def _analyse(name: str, module: Any, graph: Any, single: bool) -> _Script:
    own, *inputs = graph.inputs()
    standalone = not list(own.uses())
    results = _results(graph)
    known = graph.alias_db()
    aliases = not standalone or results is None or _may_alias(known, inputs, results, graph)
    writes = not standalone or any(known.has_writers(value) for value in inputs)
    return _Script(name, module, graph, single, writes, aliases, standalone and results is not None)


def _may_alias(known: Any, inputs: list[Any], results: list[Any], graph: Any) -> bool:
    held = inputs + [node.output() for node in graph.findAllNodes("prim::Constant")]
    if any(known.may_contain_alias(result, value) for result in results for value in held):
        return True
    return any(known.may_contain_alias(a, b) for i, a in enumerate(results) for b in results[:i])


def _script_unit(plan: Plan, script: _Script, device: torch.device) -> TorchUnit:
    method = script.module._c._get_method("forward")
    call = _isolated(method, script.single, script.writes, script.aliases, device)
    return TorchUnit(
        repr(script.name), call, plan.input_keys(script.name), plan.output_keys(script.name), script.single, device
    )


def _mergeable(scripts: list[_Script]) -> bool:
    # A fuser may evaluate an expression that spans two nodes differently from each node alone.
    return not torch._C._jit_can_fuse_on_cpu() and all(s.standalone and not s.writes for s in scripts)


def _merged(plan: Plan, scripts: list[_Script], device: torch.device) -> TorchUnit:
    names = [script.name for script in scripts]
    inner = {key for name in names for key in plan.input_keys(name)}
    needed = {*plan.outputs, *plan.feedback.values()} | {s for t, s in plan.edges.items() if t not in inner}
    graph = torch._C.Graph()
    values: dict[str, Any] = {}
    inputs: list[str] = []
    for script in scripts:
        arguments = []
        for key in plan.input_keys(script.name):
            source = plan.edges.get(key)
            if source not in values:
                source = key
                inputs.append(key)
                values[key] = graph.addInput()
                values[key].setType(torch._C.TensorType.get())
            arguments.append(values[source])
        body = script.graph.copy()
        body.eraseInput(0)
        made = graph.insertGraph(body, arguments)
        results = made if script.single else list(made[0].node().inputs())
        values.update(zip(plan.output_keys(script.name), results, strict=True))
    outputs = tuple(key for name in names for key in plan.output_keys(name) if key in needed)
    for key in outputs:
        graph.registerOutput(values[key])
    known = graph.alias_db()
    aliases = _may_alias(known, [values[key] for key in inputs], [values[key] for key in outputs], graph)
    if len(outputs) > 1:
        graph.makeMultiOutputIntoTuple()
    function = torch._C._create_function_from_graph("forward", graph)
    call = _isolated(function, len(outputs) == 1, False, aliases, device)
    return TorchUnit(" + ".join(map(repr, names)), call, tuple(inputs), outputs, len(outputs) == 1, device)


def _load_pt2(plan: Plan, name: str, model: bytes | Path, device: torch.device) -> TorchUnit:
    try:
        program = torch.export.load(_readable(model))
        module: Any = program.module()
    except Exception as error:
        raise BundleError(f"The pt2 model of node {name!r} cannot be opened: {error}") from error
    inputs, outputs = plan.input_keys(name), plan.output_keys(name)
    signature = program.graph_signature
    if (len(signature.user_inputs), len(signature.user_outputs)) != (len(inputs), len(outputs)):
        raise BundleError(
            f"The pt2 model of node {name!r} takes {len(signature.user_inputs)} inputs and returns "
            f"{len(signature.user_outputs)} outputs, the bundle says {len(inputs)} and {len(outputs)}."
        )
    module = module.to(device)

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = module(*inputs)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)

    # An exported program may hand out its inputs or constants as they are.
    return TorchUnit(repr(name), _isolated(call, False, False, True, device), inputs, outputs, False, device)


def _isolated(call: Callable[..., Any], single: bool, writes: bool, aliases: bool, device: torch.device) -> Callable[..., Any]:
    """The call with copies where the model would otherwise reach into memory that is not its own."""
    if device.type == "cpu" and not writes and not aliases:
        return call

    def isolated(*inputs: torch.Tensor) -> Any:
        inputs = tuple(value.to(device) for value in inputs)
        result = call(*(value.clone() for value in inputs)) if writes else call(*inputs)
        if not aliases:
            return result
        return result.clone() if single else tuple(value.clone() for value in result)

    return isolated
