"""Models and recordings that would take all memory or never end, streams that cannot be written: each ends in a sentence."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from mcap.writer import CompressionType, Writer
from onnx import TensorProto, helper

from leapp import InferenceManager
from leapp.bundle.files import hash_file
from leapp.client import Client
from leapp.errors import BundleError, InputError, InputTypeError, ServerError
from leapp.runtime import Pipeline
from leapp.serve.options import Options
from leapp.serve.rows import RowEngine
from leapp.serve.service import Service
from tests.runtime.bundles import Scale, Stage, loop, write_bundle
from tests.serve.serving import serving

BOTH = (Pipeline, InferenceManager)


def bundle_of(folder: Path, graph: onnx.GraphProto) -> Path:
    """A bundle around a graph from x to y, each of three numbers."""
    folder.mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    (folder / "n.onnx").write_bytes(model.SerializeToString())
    md5, sha256 = hash_file(folder / "n.onnx")
    ports = "[{name: %s, dtype: float32, shape: [3], type: tensor}]"
    (folder / "g.yaml").write_text(
        f"models:\n  n:\n    inputs: {ports % 'x'}\n    outputs: {ports % 'y'}\n    parameters: {{model_path: n.onnx, "
        f"md5sum: {md5}, sha256sum: {sha256}, backend: onnx}}\npipeline: {{data_flow: {{}}, inputs: {{n: [x]}}, "
        "outputs: {n: [y]}}\nsystem information: {leapp config version: '1.3'}\nintegrity: unsealed\n"
    )
    return folder


def ends() -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy"]


def greedy() -> onnx.GraphProto:
    """A few hundred bytes whose constants fold to 80 GB."""
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [200_000, 100_000])
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["big"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])),
        helper.make_node("ReduceSum", ["big"], ["one"], keepdims=0),
        helper.make_node("Mul", ["x", "one"], ["y"]),
    ]
    return helper.make_graph(nodes, "g", ends()[:1], ends()[1:], [shape])


def endless() -> onnx.GraphProto:
    """A loop of 2 ** 62 rounds."""
    inner = [helper.make_tensor_value_info(n, t, s) for n, t, s in
             (("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("a", TensorProto.FLOAT, [3]))]  # fmt: skip
    outer = [helper.make_tensor_value_info("go2", TensorProto.BOOL, []), helper.make_tensor_value_info("b", 1, [3])]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go2"]), helper.make_node("Add", ["a", "x"], ["b"])], "body", inner, outer
    )
    trips = helper.make_tensor("trips", TensorProto.INT64, [], [1 << 62])
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    return helper.make_graph([helper.make_node("Loop", ["trips", "yes", "x"], ["y"], body=body)], "g", *map(list, (
        ends()[:1], ends()[1:], [trips, yes])))  # fmt: skip


def leapp_run(*argv: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leapp", *map(str, argv)]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, **{"stdout": subprocess.PIPE, **more})


@pytest.mark.parametrize(("graph", "words"), [(greedy, "cannot be run: "), (endless, "ended after 4 s without an answer")])
def test_models_that_take_all(graph, words: str, tmp_path: Path) -> None:
    """``leapp verify`` goes on living, and says what it allowed."""
    bundle = bundle_of(tmp_path / "g", graph())
    assert (bundle / "n.onnx").stat().st_size < 2000
    done = leapp_run("verify", bundle, "--timeout", "4")
    answer = " ".join(done.stdout.split())
    assert done.returncode == 1, done.stderr
    assert words in answer
    assert "in a separate process, limited to" in answer
    assert answer.endswith("Not verified.")
    found = json.loads(leapp_run("verify", bundle, "--timeout", "4", "--json").stdout)
    assert found["limits"]["seconds"] == 4
    assert not found["ok"]


def lying(path: Path, compression: CompressionType) -> Path:
    """Write a recording whose one chunk unpacks to a gigabyte and says so. Returns a copy of it that says a kilobyte."""
    with path.open("wb") as file:
        writer = Writer(file, compression=compression, chunk_size=1 << 40)
        writer.start()
        schema = writer.register_schema("s", "jsonschema", b"{}")
        channel = writer.register_channel("in/p/x", "json", schema)
        for step in range(64):
            writer.add_message(channel, 0, b" " * (1 << 24), 0, step)
        writer.finish()
    data = bytearray(path.read_bytes())
    at = 8
    while data[at] != 0x06:
        at += 9 + int.from_bytes(data[at + 1 : at + 9], "little")
    data[at + 25 : at + 33] = struct.pack("<Q", 1000)
    liar = path.with_name(f"liar{path.suffix}")
    liar.write_bytes(data)
    return liar


@pytest.mark.parametrize("compression", [CompressionType.ZSTD, CompressionType.LZ4], ids=lambda c: c.name)
def test_packed_recordings_that_unpack_without_end(compression: CompressionType, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", {"p": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], "onnx")})
    liar = lying(tmp_path / "honest.mcap", compression)
    code = f"""
import resource
from leapp.errors import InputError
from leapp.runtime import Pipeline
pipeline = Pipeline({str(bundle)!r})
pipeline.warm_up()
import mcap.reader, zstandard, lz4.frame
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in {[str(tmp_path / "honest.mcap"), str(liar)]!r}:
    try:
        pipeline.read_recording(path)
    except InputError as error:
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    honest, lie = (line.partition(" ") for line in done.stdout.splitlines())
    for grown, _, words in (honest, lie):
        assert "unpacks to more than" in words
        assert int(grown) < 150 * 1024


def test_chunks_that_lie_inside_another_record(tmp_path: Path) -> None:
    """An index may lead anywhere in the file; what is read is what was checked."""
    bundle = write_bundle(tmp_path / "b", {"p": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], "onnx")})
    pipeline, path = Pipeline(bundle), tmp_path / "r.mcap"
    with pipeline.record(path) as step:
        step({"p/x": np.zeros((1, 4), np.float32)})
    data = bytearray(path.read_bytes())
    at = 8
    while data[at] != 0x06:
        at += 9 + int.from_bytes(data[at + 1 : at + 9], "little")
    # The record before becomes one of an unknown kind that holds the chunk as well.
    length = int.from_bytes(data[at + 1 : at + 9], "little")
    first = 9 + int.from_bytes(data[9:17], "little")
    assert at == 8 + first
    data[8] = 0x90
    data[9:17] = struct.pack("<Q", first - 9 + 9 + length)
    assert len(pipeline.read_recording(path).inputs) == 1
    path.write_bytes(data)
    assert not pipeline.read_recording(path).inputs


def test_long_recordings_are_read(tmp_path: Path) -> None:
    """What a robot at rest writes packs well."""
    bundle = write_bundle(tmp_path / "b", {"p": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], "onnx")})
    pipeline = Pipeline(bundle)
    with pipeline.record(tmp_path / "r.mcap") as step:
        for _ in range(300):
            step({"p/x": np.zeros((1, 4), np.float32)})
    assert pipeline.replay(tmp_path / "r.mcap").difference is None
    assert len(pipeline.read_recording(tmp_path / "r.mcap").inputs) == 300


VERBS = [["inspect", "B"], ["verify", "B"], ["run", "B"], ["schema"], ["inspect", "B", "--json"], ["--version"]]


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("stream", ["full", "closed"])
def test_streams_that_take_nothing(verb: list[str], stream: str, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path, {"p": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], "onnx")})
    argv = [str(bundle) if word == "B" else word for word in verb]
    if stream == "full":
        with open("/dev/full", "w") as full:
            done = leapp_run(*argv, stdout=full)
    else:
        done = leapp_run(*argv, stdout=None, preexec_fn=lambda: os.close(1))
    assert done.returncode == 2
    assert done.stderr.startswith("leapp: the answer cannot be written to standard output: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["out", "-o.npz", "..npz", "a b.npz"])
def test_outputs_go_where_they_were_asked_to(name: str, tmp_path: Path) -> None:
    bundle = write_bundle(tmp_path / "b", {"p": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], "onnx")})
    done = leapp_run("run", bundle, f"--output={name}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path)) == sorted(["b", name])
    assert f"wrote {name}" in done.stdout


@pytest.mark.parametrize("face", BOTH)
@pytest.mark.parametrize("way", [pickle.dumps, copy.deepcopy, copy.copy], ids=lambda way: way.__name__)
def test_runners_are_not_copied(face: type, way, tmp_path: Path) -> None:
    with pytest.raises(InputTypeError, match=rf"{face.__name__} cannot be copied or pickled.*Open the bundle once more"):
        way(face(loop(tmp_path, "onnx", "onnx")))


TENSORS = {
    "sparse": lambda: torch.eye(4)[:1].to_sparse(),
    "sparse rows": lambda: torch.randn(1, 4).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.randn(4)]),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(1, 4), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("face", BOTH)
@pytest.mark.parametrize("backend", ["onnx", "jit"])
@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_that_are_not_dense(face: type, backend: str, kind: str, tmp_path: Path) -> None:
    runner = face(write_bundle(tmp_path, {"p": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], backend)}))
    with pytest.raises(InputError, match=rf"'p/x'.*got a {kind.split()[0]} tensor\. Call"):
        runner({"p/x": TENSORS[kind]()})
    with pytest.raises(InputError, match=rf"got a {kind.split()[0]} tensor\. Call"):
        runner.set_input_value("p", "x", TENSORS[kind]())


# -- serving -----------------------------------------------------------------------------------------------------------


class Later(torch.nn.Module):
    """Rows that touch each other only where one of them is large."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(x.amax() - 1e6)


def test_rows_that_touch_only_for_large_values(tmp_path: Path) -> None:
    from leapp.serve.metrics import Metrics

    path = write_bundle(tmp_path, {"p": Stage(Later(), {"x": torch.randn(3, 4)}, ["y"], "onnx")})
    with pytest.raises(BundleError, match="changes with the other rows"):
        RowEngine(Options(str(path), batch=3), Metrics())


def ask(service: Service, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    sent: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "client": ("127.0.0.1", 1),
             "headers": [(k.encode(), v.encode()) for k, v in headers.items()]}  # fmt: skip
    asyncio.run(service(scope, receive, send))
    return sent[0]["status"], sent[1]["body"]


HOSTS = {"127.0.0.1:80": 200, "localhost": 200, "[::1]:80": 200, "evil.example": 403, "evil.example:80": 403, "10.1.2.3": 403,
         "[": 403}  # fmt: skip


@pytest.mark.parametrize(("host", "status"), HOSTS.items())
def test_a_name_that_was_made_to_mean_this_machine(host: str, status: int, tmp_path: Path) -> None:
    service = Service(Options(str(loop(tmp_path, "onnx", "onnx"))))
    assert ask(service, "/v1/bundle", {"Host": host})[0] == status
    token = "a" * 20
    guarded = Service(Options(str(tmp_path / "g.yaml"), token=token))
    assert ask(guarded, "/v1/bundle", {"Host": host, "Authorization": f"Bearer {token}"})[0] == 200


def test_a_state_does_not_go_from_one_unsealed_bundle_to_another(tmp_path: Path) -> None:
    """They have the same description; the initial values differ."""
    first, second = (loop(tmp_path / name, "onnx", "onnx") for name in "ab")
    values = second.parent / "g_initial_values.safetensors"
    data = values.read_bytes()
    values.write_bytes(data[:-8] + np.float32([9.0, 9.0]).tobytes())
    assert first.read_text() == second.read_text()
    digests = {Service(Options(str(path))).engine.digest for path in (first, second, loop(tmp_path / "c", "onnx", "onnx"))}
    assert len(digests) == 2
    assert None not in digests


def test_one_address_holds_half_of_the_sessions(tmp_path: Path) -> None:
    with serving(Options(str(loop(tmp_path, "onnx", "onnx")), sessions=4)) as served:
        clients = [Client(served.url, timeout=60) for _ in range(2)]
        with pytest.raises(ServerError, match=r"127\.0\.0\.1 has 2 sessions in replica local, the limit for one address"):
            Client(served.url, timeout=3)
        given = {"p/obs": np.ones(2, np.float32)}
        clients[0](given)
        clients[1].close()
        Client(served.url, timeout=60)(given)
