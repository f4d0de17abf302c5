"""Small bundles that would take much: text, memory, disk. Each is refused quickly, in little memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import yaml
from onnx import TensorProto, helper, numpy_helper

from leapp.bundle import check_files, open_bundle
from leapp.bundle.files import hash_file
from leapp.bundle.integrity import seal
from leapp.cli import main
from leapp.errors import BundleError, LeappError
from leapp.runtime import Pipeline
from tests.bundle.conftest import write
from tests.runtime.bundles import Scale, Stage, memory, write_bundle

HEAD = "models: {}\npipeline: {data_flow: {}, inputs: {}, outputs: {}}\n"
TAIL = "system information: {leapp config version: '1.3', leapp version: 0.7.2}\n"


def limited(code: str, *arguments: object, megabytes: int = 1500, seconds: int = 20) -> subprocess.CompletedProcess[str]:
    """Run code in a process that may not take more."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("form", ["values", "keys", "nested"])
def test_a_long_text_that_is_aliased_many_times(form: str, tmp_path: Path) -> None:
    text = "x" * 20_000
    many = ", ".join(["*t"] * 50_000)
    blocks = {
        "values": f"a: &t {text}\nb: [{many}]\n",
        "keys": f"a: &t {{? {text} : 1}}\nb: [{many}]\n",
        "nested": f"a: &u {text}\nc: &t [{', '.join(['*u'] * 50)}]\nb: [{', '.join(['*t'] * 1000)}]\n",
    }
    path = tmp_path / "g.yaml"
    path.write_text(HEAD + TAIL + blocks[form])
    done = limited("import sys; from leapp.cli import main; sys.exit(main(['inspect', sys.argv[1]]))", path)
    assert done.returncode == 2, done.stderr[-300:]
    assert "aliases included" in done.stderr


def test_states_of_a_gigabyte_each(tmp_path: Path) -> None:
    path = memory(tmp_path, "onnx")
    document = yaml.safe_load(path.read_text())
    (name, node), *_ = document["models"].items()
    for side in ("inputs", "outputs"):
        node[side] += [dict(name=f"s{i}", dtype="float32", shape=[1 << 28], type="tensor") for i in range(20)]
    flow = document["pipeline"]["feedback_flow"]
    flow |= {f"{name}/s{i}": [f"{name}/s{i}"] for i in range(20)}
    document["pipeline"].pop("initial_values", None)
    path.write_text(yaml.safe_dump(document))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BundleError, match="bytes in all"):
        Pipeline(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


@pytest.mark.parametrize("name", ["pre.pt", "g.png", "g_samples.safetensors", "g_initial_values.safetensors"])
def test_a_file_of_holes_is_not_read(name: str, tmp_path: Path) -> None:
    write(tmp_path / "g")
    os.truncate(tmp_path / "g" / name, 100 << 30)
    before = resource.getrusage(resource.RUSAGE_SELF)
    with pytest.raises(BundleError, match="never written"):
        check_files(open_bundle(tmp_path / "g"))
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert after.ru_maxrss - before.ru_maxrss < 100 * 1024
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5


@pytest.mark.parametrize("kind", ["bomb", "objects"])
def test_recordings_that_unpack_without_end_or_hold_objects(kind: str, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", {"p": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], "onnx")})
    path = tmp_path / "r.npz"
    if kind == "objects":
        np.savez(path, x=np.array([{"a": 1}], dtype=object))
    else:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("start_ns.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": (1 << 27,)})
            for _ in range(1 << 10):
                file.write(b"\0" * (1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(LeappError):
        Pipeline(bundle).replay(path)
    assert main(["run", str(bundle), "--input", str(path)]) == 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024


def weighted(path: Path, factor: float) -> bytes:
    """``y = factor * x`` with the factor in ``w.data``. Returns those bytes."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]
    weight = numpy_helper.from_array(np.full(3, factor, np.float32), "k")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "k"], ["y"])], "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.save_model(model, str(path), save_as_external_data=True, location="w.data", size_threshold=0)
    return (path.parent / "w.data").read_bytes()


def test_the_bytes_that_were_verified_are_the_bytes_that_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process exchanges the file with the weights after the check, before the engine opens."""
    import onnxruntime

    bundle = tmp_path / "g"
    bundle.mkdir()
    weighted(bundle / "n.onnx", 2.0)
    ports = "[{name: %s, dtype: float32, shape: [3], type: tensor}]"
    md5, sha256 = hash_file(bundle / "n.onnx")
    text = (
        f"models:\n  n:\n    inputs: {ports % 'x'}\n    outputs: {ports % 'y'}\n    parameters: {{model_path: n.onnx, "
        f"md5sum: {md5}, sha256sum: {sha256}, backend: onnx}}\npipeline: {{data_flow: {{}}, inputs: {{n: [x]}}, "
        "outputs: {n: [y]}}\nsystem information: {leapp config version: '1.3'}\n"
    )
    text, digest = seal(text, {"n.onnx": sha256, "w.data": hash_file(bundle / "w.data")[1]})
    (bundle / "g.yaml").write_text(text)
    opened = onnxruntime.InferenceSession

    def late(*args: object, **kwargs: object) -> object:
        (bundle / "w.data").write_bytes(np.full(3, 66.0, np.float32).tobytes())
        return opened(*args, **kwargs)

    monkeypatch.setattr(onnxruntime, "InferenceSession", late)
    x = np.array([1.0, 2.0, 3.0], np.float32)
    found = Pipeline(bundle, expect_digest=digest)({"n/x": x})["n/y"]
    np.testing.assert_array_equal(found, 2.0 * x)


def test_a_model_in_the_own_format_of_the_engine_is_refused(tmp_path: Path) -> None:
    import onnxruntime

    path = write_bundle(tmp_path, {"p": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], "onnx")})
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(str(tmp_path / "p.onnx"), options, providers=["CPUExecutionProvider"])
    old = hash_file(tmp_path / "p.onnx")[1]
    os.replace(tmp_path / "m.ort", tmp_path / "p.onnx")
    path.write_text(path.read_text().replace(old, hash_file(tmp_path / "p.onnx")[1]))
    with pytest.raises(BundleError, match="own format"):
        Pipeline(path)
