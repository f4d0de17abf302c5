"""What is in the files: names, weights, opsets, bytes."""

from __future__ import annotations

import gc
import hashlib
import json
import subprocess
import sys
import threading
import time
import traceback
import weakref
from _thread import start_new_thread
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

import leapp
from leapp.errors import BundleError, ExportError
from leapp.export import ExportJob, check_params, export_node, resolve_backend, shared_setup
from leapp.export.onnx_file import write_model
from leapp.export.torchlib import split_weights
from leapp.export.torchscript import PARAMETER_NAMES, trace_function
from leapp.runtime import Pipeline

from .cases import NETS, PORTS, Case, Shared, f
from .running import assert_equal, run, run_onnx, write

BY_NAME = {case.name: case for case in (*NETS, *PORTS)}


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor_0_weight = nn.Parameter(torch.randn(4, 4))
        self.register_buffer("t", torch.randn(4))

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.tanh(x * (k + 2) @ self.actor_0_weight + self.t) for k, x in enumerate(inputs))


ODD_INPUTS = ["observation.state", "class", "self", "a b", "größe", "mul", "t", "x/y", "actor_0_weight", "c0", "_1", "x"]
ODD_OUTPUTS = ["action.joint", "def", "mul_1", "tanh", "out put", "ñ", "add", "linear", "matmul", "val_0", "node_mul", "y"]


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
def test_port_names_of_any_kind(backend: str, tmp_path: Path) -> None:
    module = Odd().eval()
    example = tuple(torch.randn(2, 4) for _ in ODD_INPUTS)
    result = export_node(ExportJob("n", module, example, ODD_INPUTS, ODD_OUTPUTS, backend), tmp_path)
    fresh = tuple(torch.randn(2, 4) for _ in ODD_INPUTS)
    with torch.no_grad():
        for got, want in zip(run(result, fresh), module(*fresh), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    if backend == "onnx":
        graph = onnx.load(result.path).graph
        assert [port.name for port in graph.input] == ODD_INPUTS
        assert [port.name for port in graph.output] == ODD_OUTPUTS
    if backend == "jit":
        arguments = [argument.name for argument in torch.jit.load(str(result.path)).forward.schema.arguments]
        assert {"mul", "t", "x", "actor_0_weight"} <= set(arguments)


class Numbers(nn.Module):
    def forward(self, x: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = (0.5 + x * -0.999 + 1e-7 - 2) / 3
        y += 0.25
        y.mul_(1.5)
        return y, count / 1, count * 0.5, count + 2, torch.sub(count, 1), x * True + 1


def test_torchscript_keeps_the_numbers_of_the_code(tmp_path: Path) -> None:
    """As tensors they would make the model slower to open."""
    module, example = Numbers(), (torch.randn(3), torch.tensor([1, 2, 3]))
    names = ["y", "same", "half", "more", "less", "mixed"]
    result = export_node(ExportJob("n", module, example, ["x", "count"], names, "jit"), tmp_path)
    graph = torch.jit.load(str(result.path)).graph
    constants = [node.output().type().kind() for node in graph.findAllNodes("prim::Constant")]
    assert "TensorType" not in constants
    fresh = torch.randn(3), torch.tensor([-5, 0, 7])
    for got, want in zip(run(result, fresh), module(*fresh), strict=True):
        assert_equal(got, want, 0, 0)


@pytest.mark.parametrize("backend", ["jit", "pt2"])
def test_an_input_and_an_output_may_share_a_name(backend: str, tmp_path: Path) -> None:
    case = BY_NAME["normaliser"]
    module = case.module()
    result = export_node(ExportJob("n", module, case.inputs(0), ["h"], ["h"], backend), tmp_path)
    torch.testing.assert_close(run(result, case.inputs(5)), module(*case.inputs(5)))


def test_onnx_keeps_parameter_names_and_stores_a_shared_weight_once(tmp_path: Path) -> None:
    case = Case("shared", Shared, (f(2, 3, 16),))
    _, result = write(case, "onnx", tmp_path)
    weights = {tensor.name: tensor.dims for tensor in onnx.load(result.path).graph.initializer}
    assert [name for name, dims in weights.items() if list(dims) == [16, 16]] == ["run.layer.weight"]
    assert "run.layer.bias" in weights


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_torchscript_names_its_constants_as_the_module_did(name: str, tmp_path: Path) -> None:
    case = BY_NAME[name]
    job, result = write(case, "jit", tmp_path)
    extra = {PARAMETER_NAMES: ""}
    model = torch.jit.load(result.path, _extra_files=extra)
    names, constants = json.loads(extra[PARAMETER_NAMES]), model.code_with_constants[1]
    state = job.module.state_dict()
    for constant, weight in names.items():
        assert torch.equal(getattr(constants, constant), state[weight]), (constant, weight)
    for parameter in job.module.parameters():  # equal ones are stored once, under the name of the first
        assert any(torch.equal(parameter, state[weight]) for weight in names.values())


def test_onnx_file_says_nothing_about_this_machine(tmp_path: Path) -> None:
    for backend in ("onnx", "jit", "pt2"):
        _, result = write(BY_NAME["cells"], backend, tmp_path)
        content = result.path.read_bytes()
        for trace in (b"site-packages", str(Path(__file__).parent).encode(), b"pkg.torch"):
            assert trace not in content, (backend, trace)


@pytest.mark.parametrize("name", ["gru", "bilstm"])
def test_recurrent_layers_stay_single_operators(name: str, tmp_path: Path) -> None:
    _, result = write(BY_NAME[name], "onnx", tmp_path)
    kinds = {node.op_type for node in onnx.load(result.path).graph.node}
    assert kinds & {"GRU", "LSTM"}


@pytest.mark.parametrize("opset", [18, 19, 20, 21, 23])
def test_opset_is_the_one_asked_for(opset: int, tmp_path: Path) -> None:
    job, result = write(BY_NAME["mlp"], "onnx", tmp_path, opset_version=opset)
    assert result.extra["opset_version"] == opset
    assert [entry.version for entry in onnx.load(result.path).opset_import if entry.domain == ""] == [opset]
    inputs = BY_NAME["mlp"].inputs(4)
    if opset == 23 and onnxruntime.__version__.startswith("1.20."):
        with pytest.raises(Exception, match="Current official support for domain ai.onnx is till opset 21"):
            run(result, inputs)
        return
    torch.testing.assert_close(run(result, inputs), job.module(*inputs), rtol=1e-4, atol=1e-5)


def test_pt2_says_which_torch_wrote_it(tmp_path: Path) -> None:
    assert write(BY_NAME["mlp"], "pt2", tmp_path)[1].extra["torch_version"] == torch.__version__


def test_weights_beyond_the_limit_go_into_a_second_file(tmp_path: Path) -> None:
    case = BY_NAME["mlp"]
    job, result = write(case, "onnx", tmp_path)
    model = ir.load(result.path)
    write_model(split_weights(model), tmp_path / "big.onnx", check=True, limit=100)
    assert (tmp_path / "big.onnx.data").stat().st_size > 0
    assert (tmp_path / "big.onnx").stat().st_size < result.path.stat().st_size + 4096
    onnx.checker.check_model(str(tmp_path / "big.onnx"))
    inputs = case.inputs(6)
    with torch.no_grad():
        torch.testing.assert_close(run_onnx(tmp_path / "big.onnx", inputs), job.module(*inputs), rtol=1e-4, atol=1e-5)


def test_a_bundle_with_weights_in_second_files_is_proven_sealed_and_cleared_away(tmp_path: Path, monkeypatch) -> None:
    """The whole way of a model beyond the limit, with a limit that a small one exceeds."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3)).eval()

    def export() -> Path:
        leapp.start("g", save_path=str(tmp_path))
        with torch.no_grad():
            x = leapp.annotate.input_tensors("policy", {"x": torch.randn(2, 4)})
            leapp.annotate.output_tensors("policy", {"y": net(x)}, export_with="onnx")
        leapp.stop()
        assert leapp.compile_graph(validate="thorough", fuse=True) == {"policy": True}
        return tmp_path / "g"

    with monkeypatch.context() as patch:
        patch.setattr("leapp.export.onnx.write_model", partial(write_model, limit=100))
        bundle = export()
    data = bundle / "policy.onnx.data"
    assert data.stat().st_size > 4 * 32 * 4 and "policy.onnx.data" in (bundle / "g.yaml").read_text()
    x = torch.randn(2, 4)
    with torch.no_grad():
        want = net(x).numpy()
    np.testing.assert_allclose(Pipeline(bundle)({"policy/x": x.numpy()})["policy/y"], want, rtol=1e-4, atol=1e-5)
    session = onnxruntime.InferenceSession(bundle / "g.onnx")
    np.testing.assert_allclose(session.run(None, {"policy/x": x.numpy()})[0], want, rtol=1e-4, atol=1e-5)
    damaged = bytearray(data.read_bytes())
    damaged[-5] ^= 1
    data.write_bytes(damaged)
    with pytest.raises(BundleError, match=r"policy\.onnx\.data"):
        Pipeline(bundle)
    assert not (export() / "policy.onnx.data").exists()


_DIGEST = """
import sys, hashlib, pathlib
from tests.export.test_files import digests
print(digests(pathlib.Path(sys.argv[1])))
"""


def digests(directory: Path) -> str:
    found = []
    for backend in ("jit", "onnx", "pt2"):
        for name in ("cells", "gru", "constant_only"):
            _, result = write(BY_NAME[name], backend, directory)
            found.append(hashlib.sha256(result.path.read_bytes()).hexdigest())
    return " ".join(found)


@pytest.mark.pinned("torch 2.7 writes a .pt2 archive with other bytes in another process")
def test_the_same_node_gives_the_same_bytes_in_one_process_and_in_two(tmp_path: Path) -> None:
    first = digests(tmp_path)
    assert digests(tmp_path) == first
    command = [sys.executable, "-W", "ignore", "-c", _DIGEST, str(tmp_path)]
    root = Path(__file__).parents[2]
    other = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=root,
        check=True,
        env={"PYTHONPATH": f"{root}/src:{root}", "PYTHONHASHSEED": "5"},
    )
    assert other.stdout.strip() == first


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("jit", "jit"),
        ("jit-script", "jit"),
        ("jit-trace", "jit-trace"),
        ("onnx", "onnx"),
        ("onnx-dynamo", "onnx"),
        ("onnx-torchscript", "onnx-torchscript"),
        ("pt2", "pt2"),
        ("exported-program", "pt2"),
        (None, None),
    ],
)
def test_backend_names(name: str | None, canonical: str | None) -> None:
    assert resolve_backend(name) == canonical


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("JIT", "'jit'"),
        ("onnx_dynamo", "'onnx-dynamo'"),
        ("torchscript", "names no"),
        ("cpp", "not implemented"),
        ("py", "not implemented"),
        (3, "names no"),
    ],
)
def test_unknown_backends_are_refused(name: object, hint: str) -> None:
    with pytest.raises(ExportError, match=hint):
        resolve_backend(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("backend", "params", "hint"),
    [
        ("onnx", {"opset": 18}, "opset_version"),
        ("onnx", {"opset_version": "18"}, "must be int"),
        ("onnx", {"opset_version": True}, "must be int"),
        ("pt2", {"strct": True}, "strict"),
        ("jit", {"check_trce": True}, "check_trace"),
        (None, {"modelpath": "x"}, "model_path"),
    ],
)
def test_unknown_parameters_are_refused(backend: str | None, params: dict[str, object], hint: str) -> None:
    with pytest.raises(ExportError, match=hint):
        check_params(backend, params)


def test_names_and_parameters_are_checked_without_torch() -> None:
    code = (
        "import sys, leapp.export as e; e.check_params(e.resolve_backend('onnx'), {'optimize': False});"
        "assert not {'torch', 'onnx'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": str(Path(__file__).parents[2] / "src")})


def test_every_onnx_parameter_is_taken(tmp_path: Path) -> None:
    case = BY_NAME["gru"]
    params = {"optimize": False, "verify": True, "report": True, "skip_validation": True, "opset_version": 20}
    job, result = write(case, "onnx", tmp_path, **params)
    assert (tmp_path / "node_report.txt").read_text()
    inputs = case.inputs(9)
    with torch.no_grad():
        for got, want in zip(run(result, inputs), job.module(*inputs), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    write(case, "onnx-torchscript", tmp_path, prescript=True)
    write(case, "jit", tmp_path, check_trace=True, strict=True)
    write(case, "pt2", tmp_path, strict=False)


def test_a_refusal_names_the_node_the_operator_and_who_can(tmp_path: Path) -> None:
    case = Case("i0", torch.i0, (f(3),))
    with pytest.raises(ExportError, match=r"^node: onnx has no translation of .*i0.*'jit' or 'pt2'"):
        write(case, "onnx", tmp_path)


LITERALS = {
    "a complex number": (lambda x: (torch.exp(x * 1j) * (2 - 1j)).imag, "complex numbers"),
    "NaN": (lambda x: torch.where(x > 0, float("nan"), x), "NaN"),
    "infinity": (lambda x: torch.where(x > 0, -float("inf"), x), None),
}


@pytest.mark.parametrize("name", LITERALS)
def test_literals_are_written_into_pt2_files_or_refused_with_a_cure(name: str, tmp_path: Path) -> None:
    compute, refused_by_2_7 = LITERALS[name]
    case = Case(name, compute, (f(4),))
    if refused_by_2_7 and torch.__version__.startswith("2.7."):
        sentence = f"^node: .*cannot write {refused_by_2_7} .*Give the call a tensor.*'jit' or 'onnx'"
        with pytest.raises(ExportError, match=sentence):
            write(case, "pt2", tmp_path)
        return
    _, result = write(case, "pt2", tmp_path)
    x = case.inputs(3)
    torch.testing.assert_close(run(result, x)[0], compute(*x), equal_nan=True)


def test_a_failure_keeps_its_cause_and_class(tmp_path: Path) -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise LookupError("no such policy")

    job = ExportJob("pilot", nn.Module(), (torch.randn(2),), ["x"], ["y"], "jit")
    job.module.forward = broken  # type: ignore[method-assign]
    for backend in ("jit", "onnx", "pt2"):
        job.backend = backend
        with pytest.raises(ExportError, match="^pilot: .*no such policy") as caught:
            export_node(job, tmp_path)
        assert isinstance(caught.value.__cause__, LookupError)
        assert isinstance(caught.value, LookupError)


def test_parameters_from_inference_mode_are_written_or_explained(tmp_path: Path) -> None:
    with torch.inference_mode():
        layer = nn.Linear(3, 2)
        example = (torch.randn(1, 3),)
    case = Case("inference", layer, (f(1, 3),))
    for backend in ("jit", "onnx", "pt2"):
        job = ExportJob("n", case.module(), example, ["x"], ["y"], backend)
        try:
            result = export_node(job, tmp_path)
        except ExportError as error:
            assert "torch.no_grad()" in str(error)
            continue
        fresh = case.inputs(2)
        with torch.no_grad():
            torch.testing.assert_close(run(result, fresh)[0], layer(fresh[0]), rtol=1e-4, atol=1e-5)


class _Deep(nn.Module):
    """Notes how many Python frames its operators run below."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        self.frames = len(list(traceback.walk_stack(sys._getframe())))
        return (x * 2,)


def test_torchscript_is_traced_below_few_python_frames(tmp_path: Path) -> None:
    """torch's tracer copies all of them at each operator."""
    module = _Deep()
    export_node(ExportJob("n", module, (torch.randn(2),), ["x"], ["y"], "jit"), tmp_path)
    assert module.frames == 3  # this one, the caller in leapp, and the thread


def test_a_thread_that_cannot_be_started_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(shared_setup, "start_new_thread", refuse)
    with pytest.raises(ExportError, match="can't start new thread"):
        export_node(ExportJob("n", _Deep(), (torch.randn(2),), ["x"], ["y"], "jit"), tmp_path)


class _Logging(nn.Module):
    """Asks for the thread that it runs in, as each call of ``logging`` does."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        self.thread = threading.current_thread()
        return (x * 2,)


def test_the_thread_that_traces_is_not_left_among_the_threads(tmp_path: Path) -> None:
    """A program that joins all its threads could not end."""
    before, module = threading.enumerate(), _Logging()
    for _ in range(3):
        export_node(ExportJob("n", module, (torch.randn(2),), ["x"], ["y"], "jit"), tmp_path)
        assert module.thread is not threading.current_thread()
        assert threading.enumerate() == before


def test_an_interrupt_as_the_thread_starts_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def interrupted(*task: Any) -> None:
        started.append(start_new_thread(*task))
        while started[-1] not in sys._current_frames():
            time.sleep(0.001)
        raise KeyboardInterrupt

    monkeypatch.setattr(shared_setup, "start_new_thread", interrupted)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            shared_setup.run_apart(lambda: 1)
    monkeypatch.undo()
    deadline = time.monotonic() + 60
    while set(started) & set(sys._current_frames()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(started) == 3 and not set(started) & set(sys._current_frames())
    assert shared_setup.run_apart(lambda: 5) == 5


class _Wasteful(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        x.sin().unbind()
        torch.zeros(3).add_(x.sum())
        return (x * 2,)


def test_torchscript_files_hold_no_unused_operators(tmp_path: Path) -> None:
    """torch's tracer removes them. leapp does not look for them again."""
    result = export_node(ExportJob("n", _Wasteful(), (torch.randn(2),), ["x"], ["y"], "jit"), tmp_path)
    kinds = {node.kind() for node in torch.jit.load(str(result.path)).graph.nodes()}
    assert kinds == {"prim::Constant", "aten::mul"}


class _Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        made = x * 2
        self.made = weakref.ref(made)
        raise ValueError("no")


def test_a_failed_trace_keeps_no_tensor_alive(tmp_path: Path) -> None:
    """Not even until the garbage collector runs: a batch may take much memory."""
    module = _Failing()
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(ValueError, match="no"):
            trace_function(ExportJob("n", module, (torch.randn(2),), ["x"], ["y"], "jit"))
        assert module.made() is None
    finally:
        gc.enable()
