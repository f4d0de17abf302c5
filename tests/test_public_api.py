"""The public surface: names, signatures, import paths, and what importing costs."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import leapp
from leapp import annotations
from leapp.deploy.targets import TARGETS
from leapp.export.backends import BACKENDS
from leapp.tracing import lifecycle

SURFACE = {
    "ExportManager", "FunctionPatch", "GraphConfigs", "InferenceManager", "InputKindEnum", "OutputKindEnum", "Pipeline",
    "TemporalAxis", "TensorSemantics", "__version__", "annotate", "compile_graph", "report", "session", "start", "stop",
}  # fmt: skip
ANNOTATIONS = {
    "input_tensors", "output_tensors", "method", "state_tensors", "update_state", "register_buffer", "module",
    "mirror_leapp_tags", "warp_op",
}  # fmt: skip
PACKAGES = {
    "leapp.bundle": {
        "Bundle", "RawTensor", "Sample", "check_files", "load_contract", "open_bundle", "read_initial_values", "read_samples",
    },
    "leapp.runtime": {
        "Bound", "Difference", "Latency", "Pipeline", "PortInfo", "Recorder", "Recording", "Replay", "RunStep",
    },
    "leapp.client": {"Client"},
    "leapp.serve": {"Options", "Service"},
    "leapp.fleet": {"Departure", "FleetReport", "PortReport", "find_recordings", "replay_fleet"},
    "leapp.deploy": {
        "CppHeader", "Deployment", "TritonOptions", "deploy_cpp", "deploy_triton", "fuse_onnx", "read_fused",
    },
}  # fmt: skip
OLDER_PATHS = {
    "leapp.utils.tensor_description": {"TensorSemantics", "TemporalAxis", "GraphConfigs", "TensorDescription"},
    "leapp.utils.enums": {"InputKindEnum", "OutputKindEnum"},
    "leapp.leapp": {"start", "stop", "compile_graph", "annotate"},
    "leapp.export_manager": {"ExportManager"},
    "leapp.inference_manager": {"InferenceManager"},
    "leapp.leapp_graph.datatypes": {"TracedTensor", "TracedNpArray", "TracedData"},
}


def loaded_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running ``code``."""
    out = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(' '.join(sys.modules))"], capture_output=True, text=True, check=True
    )
    return set(out.stdout.split())


def test_surface() -> None:
    assert set(leapp.__all__) == SURFACE
    assert all(getattr(leapp, name) is not None for name in SURFACE)
    assert leapp.__config_version__ == "1.3"
    with pytest.raises(AttributeError, match="nonsense"):
        leapp.nonsense  # noqa: B018


@pytest.mark.parametrize("package", PACKAGES)
def test_surface_of_packages(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) == PACKAGES[package]
    assert all(getattr(module, name) is not None for name in PACKAGES[package])


def test_annotations() -> None:
    public = {n for n in dir(leapp.annotate) if not n.startswith("_")}
    assert public == ANNOTATIONS
    with pytest.raises(AttributeError, match="block"):
        leapp.annotate.block  # noqa: B018


def test_annotations_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of programs that use leapp do so, Isaac Lab's among them."""
    with monkeypatch.context() as patch:
        patch.setattr(leapp.annotate, "input_tensors", lambda node, tensors: (node, *tensors))
        assert leapp.annotate.input_tensors("policy", {"obs": 1}) == ("policy", "obs")
    assert leapp.annotate.input_tensors("policy", {"obs": 1}) == 1


def test_the_manager_tells_whether_a_session_is_open(tmp_path: Path) -> None:
    open_now = leapp.ExportManager.is_interpret_graph_enabled
    assert open_now() is False
    leapp.start("graph", save_path=tmp_path)
    try:
        assert open_now() is True
    finally:
        leapp.stop()
    assert open_now() is False


@pytest.mark.parametrize("path", OLDER_PATHS)
def test_older_import_paths(path: str) -> None:
    module = importlib.import_module(path)
    assert OLDER_PATHS[path] <= set(vars(module))


def test_signatures_of_earlier_releases() -> None:
    start = list(inspect.signature(leapp.start).parameters)
    assert start[:8] == [
        "name", "save_path", "verbose", "dry_run", "non_traced", "max_cached_io", "global_patching", "patching",
    ]  # fmt: skip
    compile_graph = inspect.signature(leapp.compile_graph).parameters
    assert list(compile_graph)[:7] == ["visualize", "verbose", "validate", "rtol", "atol", "strict", "graph_configs"]
    assert {n: compile_graph[n].default for n in ("rtol", "atol", "strict", "dry_run")} == {
        "rtol": 1e-3, "atol": 1e-5, "strict": True, "dry_run": False,
    }  # fmt: skip


def test_declared_values_are_those_that_are_taken() -> None:
    """What editors offer for ``export_with``, ``backend_params``, ``target`` and ``compile=`` is what the code knows."""
    assert set(get_args(annotations.BackendName)) == {n for b in BACKENDS.values() for n in (b.name, *b.aliases)}
    taken = {name for b in BACKENDS.values() for name in b.params} | {"model_path", "copy_original_model", "device"}
    assert annotations.BackendParams.__annotations__.keys() == taken
    assert set(get_args(lifecycle.Target)) == set(TARGETS)
    assert lifecycle.CompileOptions.__annotations__.keys() == inspect.signature(leapp.compile_graph).parameters.keys()
    session, start = (list(inspect.signature(f).parameters) for f in (leapp.session, leapp.start))
    assert session == [*start, "compile"]


def test_session_stays_callable_after_a_session(tmp_path) -> None:
    import torch

    with leapp.session("g", save_path=tmp_path, compile={"visualize": False}):
        x = leapp.annotate.input_tensors("n", {"x": torch.ones(2)})
        leapp.annotate.output_tensors("n", {"y": x * 2}, export_with="jit")
    manager = leapp.InferenceManager(tmp_path / "g" / "g.yaml")
    assert manager({"n/x": torch.tensor([3.0, 4.0])})["n/y"].tolist() == [6.0, 8.0]
    assert callable(leapp.session)


HEAVY = {"torch", "onnx", "onnxscript", "onnxruntime", "numpy", "yaml", "PIL", "rich"}


def test_import_is_light() -> None:
    assert not loaded_after("import leapp") & HEAVY
    annotated = "from leapp import annotate\nannotate.input_tensors('n', {'x': 1}); annotate.output_tensors('n', {'y': 2})"
    assert not loaded_after(annotated) & HEAVY


def test_the_runtime_is_free_of_torch_and_onnx() -> None:
    assert not loaded_after("import leapp.runtime, leapp.deploy; leapp.Pipeline") & {"torch", "onnx", "onnxscript"}


def test_the_client_loads_no_engine() -> None:
    assert not loaded_after("import leapp.client") & {"torch", "onnx", "onnxscript", "onnxruntime", "ray"}
    assert not loaded_after("import leapp.serve.cluster") & {"torch", "onnx", "onnxscript", "ray"}
