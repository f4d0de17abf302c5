"""Read and load the models of a bundle: one unit for each model, or for neighbouring models that merge exactly.

A unit knows its engine and which ports it reads and writes, nothing about memory or steps. ONNX needs onnxruntime only;
TorchScript and ``.pt2`` units come from ``torch_engines``, imported when a bundle has such a node.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leapp.bundle.files import RECENT_FILES
from leapp.bundle.packages import check_package
from leapp.bundle.reading import Bundle, read_model_files
from leapp.bundle.recent import Recent
from leapp.errors import BundleError, MissingDependencyError
from leapp.extras import has
from leapp.graph.contract import Port
from leapp.graph.formats import is_program
from leapp.runtime.arrays import ONNX_TYPES, form
from leapp.runtime.merge import Part, merge
from leapp.runtime.plan import Plan

__all__ = [
    "EngineOptions", "External", "Model", "OnnxUnit", "TorchUnit", "Unit", "kept_open", "open_session", "open_units",
    "opened_models",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How engines are opened.

    Attributes:
        threads: Threads of one ONNX session. None takes one, and one for each core if the session has large values.
        providers: ONNX Runtime execution providers, in order of preference. None takes CUDA when present, then the CPU.
        device: Where TorchScript and ``.pt2`` nodes run. None takes CUDA when present, else the CPU.
        merge: Whether neighbouring models of one kind may share an engine.
    """

    threads: int | None = None
    providers: Sequence[str] | None = None
    device: str | None = None
    merge: bool = True


@dataclass(frozen=True, slots=True)
class OnnxUnit:
    """An ONNX session. ``inputs`` and ``outputs`` map port keys to the names inside the model."""

    label: str
    session: Any
    inputs: dict[str, str]
    outputs: dict[str, str]


@dataclass(frozen=True, slots=True)
class TorchUnit:
    """A function on tensors. It returns a tensor (``single``) or a tuple, and never aliases of its arguments.

    ``when_known`` takes a function that it calls with a faster ``call``, as soon as there is one.
    """

    label: str
    call: Callable[..., Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    single: bool
    device: Any
    when_known: Callable[[Callable[[Callable[..., Any]], None]], None] | None = None


Unit = OnnxUnit | TorchUnit


@dataclass(frozen=True, slots=True)
class External:
    """An ONNX model with weights in other files: its bytes, and the bytes of the files by the location in the model."""

    model: bytes
    data: dict[str, bytes]


Model = bytes | Path | External


_SMALL = 4 << 20
"""The most bytes of a model that is kept open."""

_opened: ContextVar[dict[Any, Any] | None] = ContextVar("_opened", default=None)


@contextlib.contextmanager
def kept_open() -> Iterator[None]:
    """Inside the block, a small model that is opened several times is read and compiled once."""
    token = _opened.set({})
    try:
        yield
    finally:
        _opened.reset(token)


def opened_models(model: Model) -> dict[Any, Any] | None:
    """The engines that ``kept_open`` keeps, by bytes and options; ``None`` outside of its block or for a large model."""
    return _opened.get() if isinstance(model, bytes) and len(model) <= _SMALL else None


def open_units(bundle: Bundle, plan: Plan, nodes: Sequence[str], options: EngineOptions) -> list[Unit]:
    """The units of some nodes.

    Args:
        bundle: Where the models are.
        plan: The wiring.
        nodes: Node names, in execution order.
        options: How engines run.
    """

    def model(node: str) -> Model:
        found = _model(bundle, node)
        return _unnamed_file(found, files) if isinstance(found, bytes) and len(found) > _LARGE_FILE else found

    units: list[Unit] = []
    device = None
    with contextlib.ExitStack() as files:
        for backend, run in itertools.groupby(nodes, key=lambda name: plan.contract.nodes[name].model.backend):
            names = list(run)
            if backend == "onnx":
                units += _load_onnx(plan, names, model, options)
                continue
            if not has("torch"):
                listed = ", ".join(map(repr, names))
                raise MissingDependencyError(f"The {backend} model of node {listed} needs torch: pip install torch.")
            from leapp.runtime import torch_engines

            device = device or torch_engines.torch_device(options)
            units += torch_engines.load(plan, names, model, options, device)
    return units


_LARGE_FILE = 64 << 20
"""A model with at least this many bytes is given to its engine as a file, because engines copy a model given as bytes."""


def _unnamed_file(data: bytes, files: contextlib.ExitStack) -> bytes | Path:
    """The path of a file with ``data`` that only this process can open, until ``files`` is closed.

    Returns the bytes on systems without such files. A named file could be exchanged after its hash was checked and before the
    engine reads it.
    """
    if not hasattr(os, "memfd_create"):
        return data
    file = files.enter_context(os.fdopen(os.memfd_create("leapp"), "wb", buffering=0))
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]
    return Path(f"/proc/self/fd/{file.fileno()}")


_recent_packages: Recent[str] = Recent(1 << 16)
"""The backends of files that ``check_package`` accepted, by the sha256 of the file."""


def _model(bundle: Bundle, node: str) -> bytes | External:
    described = bundle.contract.nodes[node].model
    place = bundle.path, described.model_path, described.sha256sum
    opened = _opened.get()
    if opened is not None and place in opened:
        kept: bytes = opened[place]
        return kept
    data, beside = read_model_files(bundle, node)
    if beside:
        return External(data, beside)
    backend = described.backend
    if backend is not None and is_program(backend) and _recent_packages.get(described.sha256sum) != backend:
        check_package(data, backend, f"The {backend} model of node {node!r}")
        _recent_packages.put(described.sha256sum, backend, 256)
    if opened is not None and len(data) <= _SMALL:
        opened[place] = data
    return data


def _load_onnx(plan: Plan, names: list[str], model: Callable[[str], Model], options: EngineOptions) -> list[OnnxUnit]:
    models = {name: model(name) for name in names}
    if options.merge and len(names) > 1:
        merged = _merged(plan, models)
        if merged is not None:
            models.clear()  # so that the engine can use their memory
            return [_onnx_unit(plan, " + ".join(map(repr, names)), *merged, options)]
    units = []
    for name in names:
        inputs = {key: plan.input_ports[key].name for key in plan.input_keys(name)}
        outputs = {key: plan.output_ports[key].name for key in plan.output_keys(name)}
        units.append(_onnx_unit(plan, repr(name), models[name], inputs, outputs, options))
    return units


def _merged(plan: Plan, models: dict[str, Model]) -> tuple[bytes, dict[str, str], dict[str, str]] | None:
    """One model of several, with its inputs and outputs (see ``OnnxUnit``); ``None`` if they cannot be merged."""
    prefix = {name: f"{index}/" for index, name in enumerate(models)}
    outputs = {key: prefix[name] + plan.output_ports[key].name for name in models for key in plan.output_keys(name)}
    inputs: dict[str, str] = {}
    parts = []
    for name, model in models.items():
        if not isinstance(model, bytes):
            return None
        fed = {}
        for key in plan.input_keys(name):
            port = plan.input_ports[key].name
            if plan.edges.get(key) in outputs:
                fed[port] = outputs[plan.edges[key]]
            else:
                inputs[key] = prefix[name] + port
        parts.append(Part(model, prefix[name], fed))
    # Files with these sha256, joined in this way, always give the same bytes.
    named = zip(models, parts, strict=True)
    same = tuple([(plan.contract.nodes[name].model.sha256sum, *part.fed.items()) for name, part in named])
    merged = RECENT_FILES.get(same)
    if merged is None:
        merged = merge(parts)
        if merged is not None:
            RECENT_FILES.put(same, merged, len(merged))
    return None if merged is None else (merged, inputs, outputs)


def _onnx_unit(
    plan: Plan,
    label: str,
    model: Model,
    inputs: dict[str, str],
    outputs: dict[str, str],
    options: EngineOptions,
) -> OnnxUnit:
    try:
        ports = [*(plan.input_ports[key] for key in inputs), *(plan.output_ports[key] for key in outputs)]
        session = _open_session(model, options, ports)
    except Exception as error:  # ONNX Runtime's errors have no common base class
        raise BundleError(f"The ONNX model of node {label} cannot be opened: {error}") from error
    found = {value.name: value for value in session.get_inputs()}
    for value in session.get_overridable_initializers():
        found.pop(value.name, None)
    _check_side(label, "input", {name: plan.input_ports[key] for key, name in inputs.items()}, found)
    found = {value.name: value for value in session.get_outputs()}
    _check_side(label, "output", {name: plan.output_ports[key] for key, name in outputs.items()}, found)
    return OnnxUnit(label, session, inputs, outputs)


_LARGE = 1 << 14
"""From this many elements of a value on, such as 350 rows of 48 numbers, several threads are faster than one.

With fewer, a step takes less than about a millisecond, and waking up threads makes it longer.
"""

_MOST_THREADS = 8
"""More threads seldom make a policy faster, and a container may have fewer cores than it reports."""


_SPIN = "20"  # as ONNX Runtime takes it
"""For how many microseconds an idle thread of a session spins before it sleeps.

Operators of one step follow each other faster than that. If the threads slept between them, a step would take up to 8 % longer.
"""

_SPIN_SINCE = (1, 31)
"""The oldest ONNX Runtime that was seen to obey ``_SPIN``. With an older one, threads do not spin at all."""


def _threads(options: EngineOptions, ports: Sequence[Port]) -> int:
    if options.threads is not None:
        return options.threads
    if all(math.prod(port.shape) < _LARGE for port in ports):
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_THREADS)


def _open_session(model: Model, options: EngineOptions, ports: Sequence[Port]) -> Any:
    import onnxruntime as ort

    threads, wide = _threads(options, ports), "float64" in [port.dtype for port in ports]
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    if threads != 1:
        # By default, idle threads of ONNX Runtime spin for many milliseconds, on cores that others need.
        spins = tuple(map(int, re.findall(r"\d+", ort.__version__)[:2])) >= _SPIN_SINCE
        settings.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
        settings.add_session_config_entry("session.intra_op.spin_duration_us", _SPIN)
        settings.add_session_config_entry("session.inter_op.allow_spinning", "0")
    wanted = options.providers
    if wanted is None:
        present = ort.get_available_providers()
        wanted = [name for name in ("CUDAExecutionProvider", "CPUExecutionProvider") if name in present]
    # The first fusion moves factors into matrix products, which store them in float32. The second makes products that ONNX
    # Runtime 1.23 has for float32 only.
    unwanted = ["MatMulScaleFusion", "MatmulTransposeFusion"] if wide else None
    opened, key = opened_models(model), (model, threads, tuple(wanted), wide)
    if opened is not None and key in opened:
        return opened[key]
    # Without this, ONNX Runtime would print a banner after a failure and try again, with the same single provider.
    session = open_session(
        model, settings, providers=list(wanted), enable_fallback=int(len(wanted) > 1), disabled_optimizers=unwanted
    )
    if opened is not None:
        opened[key] = session
    return session


def open_session(model: Model, settings: Any, **options: Any) -> Any:
    """A session made from the verified bytes, not from a path: another file could be there when the engine opens it.

    Raises:
        BundleError: The file is in ONNX Runtime's own format, which leapp cannot check.
    """
    import onnxruntime as ort

    data = model.model if isinstance(model, External) else model
    head = data[:8] if isinstance(data, bytes) else data.open("rb").read(8)
    if head[4:8] == b"ORTM":
        raise BundleError("it is in ONNX Runtime's own format and not an ONNX model")
    # The log is off: it prints names from the model unescaped, which may hold terminal codes. Errors are raised as well.
    settings.log_severity_level = 4
    settings.add_session_config_entry("session.load_model_format", "ONNX")
    if not isinstance(model, External):
        return ort.InferenceSession(model, settings, **options)
    if hasattr(settings, "add_external_initializers_from_files_in_memory"):
        sizes = [len(content) for content in model.data.values()]
        settings.add_external_initializers_from_files_in_memory(list(model.data), list(model.data.values()), sizes)
        # This fails for constants inside nodes. Its errors have no common class; the way below raises any other error again.
        with contextlib.suppress(Exception):
            return ort.InferenceSession(model.model, settings, **options)
    import tempfile  # slow to load, and rarely needed

    # Other users cannot write into this directory. The engine keeps the files open that it needs later.
    with tempfile.TemporaryDirectory(prefix="leapp-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model.model)
        for location, content in model.data.items():
            target = Path(folder) / location
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return ort.InferenceSession(path, settings, **options)


def _check_side(label: str, side: str, ports: dict[str, Port], found: dict[str, Any]) -> None:
    if ports.keys() != found.keys():
        raise BundleError(f"The ONNX model of node {label} has the {side}s {sorted(found)}, the bundle says {sorted(ports)}.")
    for name, port in ports.items():
        value, axis = found[name], port.batch_axis
        shape = value.shape
        fits = tuple(shape) == port.shape or (
            len(shape) == len(port.shape)
            and all(not isinstance(size, int) or size == want for size, want in zip(shape, port.shape, strict=True))
        )
        if fits and axis is not None and isinstance(shape[axis], int):
            raise BundleError(
                f"The {side} {port.name!r} of node {label} takes any batch according to the bundle, but its ONNX model has the "
                f"fixed shape {shape}."
            )
        if value.type != ONNX_TYPES[port.dtype] or not fits:
            raise BundleError(
                f"The {side} {port.name!r} of node {label} is {form(port.dtype, port.shape)} in the bundle, "
                f"but {value.type} {shape} in its ONNX model."
            )
