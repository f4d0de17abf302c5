"""TorchScript and ``.pt2`` models as units.

TorchScript is called through its C++ method. Neighbouring nodes are merged into one function if no fuser could optimise across
them. A function runs on copies until two calls have shown whether it writes to its inputs or shares memory.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from leapp.bundle.recent import Recent
from leapp.compat.core import (
    default_cpu,
    frozen_script,
    fuses_on_cpu,
    new_script_graph,
    open_script,
    script_from_graph,
    script_text,
    set_fusion_strategy,
    tensor_type,
    writes_inputs,
    writes_memory,
)  # fmt: skip
from leapp.errors import BundleError
from leapp.runtime.arrays import Array, numpy_dtype
from leapp.runtime.load import EngineOptions, TorchUnit, opened_models
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


# torch's reader of .pt2 files keeps its state in a global.
_READING = threading.Lock()


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
class _Form:
    """What the graph of a TorchScript method looks like.

    Attributes:
        inputs: How many tensors it takes.
        outputs: How many tensors it returns; 0 if its return type does not say.
        single: Whether it returns a bare tensor.
        straight: It is a plain list of operations on its inputs and constants: no branches, no loops and no
            attributes that could change. What such a graph does to memory depends only on the shapes of its inputs, so one
            trial run shows it.
    """

    inputs: int
    outputs: int
    single: bool
    straight: bool


@dataclass(frozen=True, slots=True)
class _Script:
    """An opened TorchScript module.

    Attributes:
        name: The node.
        method: The method to call.
        form: What its graph looks like.
    """

    name: str
    method: Any
    form: _Form

    @property
    def graph(self) -> Any:
        """The graph of the method."""
        return self.method.graph


@dataclass(frozen=True, slots=True)
class _Habits:
    """What a model does with memory that is not its own, on contiguous inputs.

    Attributes:
        writes: It may write into its inputs.
        shares: Its outputs may share memory with inputs, constants or each other, or are not contiguous.
    """

    writes: bool = True
    shares: bool = True


def load(
    plan: Plan, names: list[str], model: Callable[[str], Any], options: EngineOptions, device: torch.device
) -> list[TorchUnit]:
    """Open neighbouring nodes of one torch backend."""
    if plan.contract.nodes[names[0]].model.backend == "pt2":
        return [_load_pt2(plan, name, model(name), device) for name in names]
    scripts = [_load_script(plan, name, model(name), device) for name in names]
    if options.merge and len(names) > 1 and device.type == "cpu" and plan.batch is None and _mergeable(scripts):
        return [_merged(plan, scripts, device)]
    return [_script_unit(plan, script, device) for script in scripts]


_recent_forms: Recent[_Form] = Recent(1 << 16)
"""Forms of straight graphs that make no tensors on a device of their own, by the sha256 of the file."""


def _open_script(name: str, model: bytes | Path, device: torch.device, sha256: str | None) -> _Script:
    form = _recent_forms.get(sha256)
    try:
        module = open_script(model if isinstance(model, bytes) else str(model), device)
        method = module._get_method("forward")
        text = _on_device(method.graph, device) if form is None else ""
    except Exception as error:  # torch may raise any type for a damaged file
        raise BundleError(f"The TorchScript model of node {name!r} cannot be opened: {error}") from error
    if form is None:
        form = _form(method.graph, text)
        if form.straight and _DEVICE not in text:
            _recent_forms.put(sha256, form, 512)
    # A straight graph reads no attribute of its module, so there is nothing to freeze.
    if form.straight or not module.hasattr("training"):
        return _Script(name, method, form)
    with warnings.catch_warnings():
        # The warning that TorchScript is deprecated is of no use to a user who runs a bundle.
        warnings.simplefilter("ignore", DeprecationWarning)
        method = frozen_script(module)._get_method("forward")
    return _Script(name, method, _form(method.graph, script_text(method.graph)))


def _load_script(plan: Plan, name: str, model: bytes | Path, device: torch.device) -> _Script:
    opened: dict[Any, _Script] | None = opened_models(model)
    if opened is None:
        return _new_script(plan, name, model, device)
    ports = [plan.input_ports[key] for key in plan.input_keys(name)]
    key = (model, device, plan.batch, len(plan.output_keys(name)), *((port.dtype, port.shape) for port in ports))
    if key not in opened:
        script = _new_script(plan, name, model, device)
        if not script.form.straight:
            return script  # not shared: it may keep values between calls
        opened[key] = script
    return replace(opened[key], name=name)


def _on_device(graph: Any, device: torch.device) -> str:
    """Set the device of operations in a graph that make tensors, and return the text of the graph.

    Loading a model with ``map_location`` moves its constants, but not the devices in its operations.
    """
    text = script_text(graph)
    if _DEVICE in text:
        for node in graph.findAllNodes("prim::Constant"):
            if node.output().type().kind() == "DeviceObjType" and node.hasAttribute("value"):
                node.s_("value", str(device))
    return text


_DEVICE = ": Device = "
"""Text in a graph with a constant that is a device."""


def _form(graph: Any, text: str) -> _Form:
    """The form of a graph with this text."""
    given, result = graph.param_node(), graph.return_node().inputsAt(0)
    kind = result.type()
    single = kind.kind() == "TensorType"
    is_tuple = kind.kind() == "TupleType" and all(element.kind() == "TensorType" for element in kind.elements())
    shown = single or result.node().kind() == "prim::TupleConstruct"
    straight = shown and not given.outputsAt(0).uses() and not any(branch in text for branch in _BRANCHES)
    outputs = len(kind.elements()) if is_tuple else int(single)
    return _Form(given.outputsSize() - 1, outputs, single, straight)


def _new_script(plan: Plan, name: str, model: bytes | Path, device: torch.device) -> _Script:
    described = plan.contract.nodes[name]
    script = _open_script(name, model, device, described.model.sha256sum)
    form, inputs, outputs = script.form, described.inputs, described.outputs
    if form.inputs != len(inputs):
        raise BundleError(f"The TorchScript model of node {name!r} takes {form.inputs} inputs, the bundle says {len(inputs)}.")
    if form.outputs != len(outputs):
        raise BundleError(
            f"The TorchScript model of node {name!r} returns {form.outputs or 'no fixed number of'} tensors, "
            f"the bundle says {len(outputs)}."
        )
    return script


_BRANCHES = ("block0(", "prim::CallMethod", "prim::CallFunction")
"""Text in a graph with branches, loops or calls. A text constant may contain it too; then the model runs on copies."""


@contextmanager
def _unprofiled() -> Iterator[None]:
    """Inside the block TorchScript compiles a function at its first call, without a profiling run before.

    Profiles are used by fusers only. Without a fuser they cost a second compilation that gives the same code.
    """
    if torch.cuda.is_available() or fuses_on_cpu():
        yield
        return
    with _STRATEGY:
        before = set_fusion_strategy([])
        try:
            yield
        finally:
            set_fusion_strategy(before)


_STRATEGY = threading.Lock()
"""Held while torch's fusion strategy is changed, which is global: two threads could not both restore it."""


class _Watched:
    """A TorchScript function. It runs on copies until two calls have shown what it does with memory.

    Args:
        call: The function.
        learns: Whether two calls show what all calls do. Otherwise it always runs on copies.
        device: Where it runs.
    """

    def __init__(self, call: Callable[..., Any], learns: bool, device: torch.device) -> None:
        self._call, self._learns, self._device = call, learns, device
        self._first: tuple[torch.Tensor, ...] | None = None
        self._known: Callable[..., Any] | None = None
        self._users: list[Callable[[Callable[..., Any]], None]] = []

    def when_known(self, use: Callable[[Callable[..., Any]], None]) -> None:
        """Pass the function without needless copies to ``use``, as soon as it is known which copies are needed."""
        if self._known is None:
            self._users.append(use)
        else:
            use(self._known)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if self._known is not None:
            return self._known(*inputs)
        # Inference tensors have no version counters. Leaving inference mode would turn gradients on.
        with torch.inference_mode(False), torch.no_grad():
            given = [value.to(self._device, copy=True) for value in inputs]
            versions = [value._version for value in given]
            with _unprofiled() if self._first is None else nullcontext():  # torch compiles in the first call
                result = self._call(*given)
            made, first = _as_tuple(result), self._first
            if not self._learns:
                self._use(_Habits())
            elif first is None:
                self._first = made
            else:
                # Memory that both calls returned belongs to a constant, since the first results are still alive.
                taken = {_memory(value) for value in (*given, *first) if value.numel()}
                places = [_memory(value) for value in made if value.numel()]
                shares = len(set(places)) < len(places) or not taken.isdisjoint(places)
                writes = versions != [value._version for value in given]
                self._use(_Habits(writes, shares or not all(value.is_contiguous() for value in made)))
            return _copied(result)

    def _use(self, habits: _Habits) -> None:
        self._known = _isolated(self._call, habits, self._device)
        self._first = None
        while self._users:
            self._users.pop()(self._known)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _copied(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return result.clone(memory_format=torch.contiguous_format)
    return tuple(value.clone(memory_format=torch.contiguous_format) for value in result)


def _script_unit(plan: Plan, script: _Script, device: torch.device) -> TorchUnit:
    inputs, outputs = plan.input_keys(script.name), plan.output_keys(script.name)
    # With any batch, two calls do not show everything: for one row, expand() returns an alias.
    call = _Watched(script.method, script.form.straight and plan.batch is None, device)
    return TorchUnit(repr(script.name), call, inputs, outputs, script.form.single, device, call.when_known)


def _mergeable(scripts: list[_Script]) -> bool:
    # A fuser may evaluate an expression that spans two nodes differently from each node alone.
    return not fuses_on_cpu() and all(script.form.straight and not writes_inputs(script.graph) for script in scripts)


def _merged(plan: Plan, scripts: list[_Script], device: torch.device) -> TorchUnit:
    names = [script.name for script in scripts]
    inner = {key for name in names for key in plan.input_keys(name)}
    needed = {*plan.outputs, *plan.feedback.values()} | {s for t, s in plan.edges.items() if t not in inner}
    graph = new_script_graph()
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
                values[key].setType(tensor_type())
            arguments.append(values[source])
        body = script.graph.copy()
        body.eraseInput(0)
        made = graph.insertGraph(body, arguments)
        results = made if script.form.single else list(made[0].node().inputs())
        values.update(zip(plan.output_keys(script.name), results, strict=True))
    outputs = tuple(key for name in names for key in plan.output_keys(name) if key in needed)
    for key in outputs:
        graph.registerOutput(values[key])
    if len(outputs) > 1:
        graph.makeMultiOutputIntoTuple()
    call = _Watched(script_from_graph(graph), True, device)
    return TorchUnit(" + ".join(map(repr, names)), call, tuple(inputs), outputs, len(outputs) == 1, device, call.when_known)


def _load_pt2(plan: Plan, name: str, model: bytes | Path, device: torch.device) -> TorchUnit:
    opened: dict[Any, _Program] | None = opened_models(model)
    key = model, device, name  # two nodes of one file do not share what it may keep between calls
    program = None if opened is None else opened.get(key)
    if program is None or program.versions is None or program.versions != _versions(program.module):
        try:
            program = open_program(model, device)
        except Exception as error:  # torch may raise any type for a damaged file
            raise BundleError(f"The pt2 model of node {name!r} cannot be opened: {error}") from error
        if opened is not None:
            opened[key] = program
    inputs, outputs = plan.input_keys(name), plan.output_keys(name)
    if (program.inputs, program.outputs) != (len(inputs), len(outputs)):
        raise BundleError(
            f"The pt2 model of node {name!r} takes {program.inputs} inputs and returns {program.outputs} outputs, "
            f"the bundle says {len(inputs)} and {len(outputs)}."
        )
    module = program.module

    def call(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _as_tuple(module(*inputs))

    # An exported program may return its inputs or constants themselves.
    isolated = _isolated(call, _Habits(writes=program.writes), device)
    return TorchUnit(repr(name), isolated, inputs, outputs, False, device)


@dataclass(frozen=True, slots=True)
class _Program:
    """An opened ``.pt2`` file.

    Attributes:
        module: The module to call.
        inputs: How many tensors it takes.
        outputs: How many tensors it returns.
        writes: Whether it may write into its inputs.
        versions: How often each of its weights and constants was written to; ``None`` if that is not known.
    """

    module: Any
    inputs: int
    outputs: int
    writes: bool
    versions: list[int] | None


def _versions(module: torch.nn.Module) -> list[int] | None:
    """How often each tensor that a module holds was written to; ``None`` for inference tensors, which do not count it."""
    parts = [(*part.parameters(recurse=False), *part.buffers(recurse=False), *vars(part).values()) for part in module.modules()]
    held = [value for part in parts for value in part if isinstance(value, torch.Tensor)]
    return None if any(t.is_inference() for t in held) else [t._version for t in held]


def open_program(model: bytes | Path, device: torch.device) -> _Program:
    """Read a ``.pt2`` file."""
    with _READING, default_cpu():
        program = torch.export.load(io.BytesIO(model) if isinstance(model, bytes) else str(model))
    if device.type != "cpu":
        from torch.export.passes import move_to_device_pass

        program = move_to_device_pass(program, device)
    signature = program.graph_signature
    module = program.module().to(device)
    taken, returned = len(signature.user_inputs), len(signature.user_outputs)
    return _Program(module, taken, returned, writes_memory(program.graph_module), _versions(module))


def _isolated(call: Callable[..., Any], habits: _Habits, device: torch.device) -> Callable[..., Any]:
    """The call with copies of inputs that the model may write to, and of outputs that may share memory."""
    if device.type == "cpu" and not habits.writes and not habits.shares:
        return call

    def isolated(*inputs: torch.Tensor) -> Any:
        inputs = tuple(value.to(device) for value in inputs)
        result = call(*(value.clone() for value in inputs)) if habits.writes else call(*inputs)
        return _copied(result) if habits.shares else result

    return isolated
