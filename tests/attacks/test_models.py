"""Models as weapons: packages that unpack without end, bring native code along, or are not what the bundle says."""

from __future__ import annotations

import io
import os
import resource
import struct
import subprocess
import sys
import zipfile

import numpy as np
import onnx
import pytest
import torch

from leapp.bundle import RawTensor
from leapp.bundle.files import hash_file
from leapp.bundle.safetensors import encode
from leapp.errors import BundleError, LeappError
from leapp.runtime import Pipeline
from leapp.runtime.inference_manager import InferenceManager
from tests.runtime.bundles import Scale, Stage, chain, memory, write_bundle

FILES = {"jit": "p.pt", "pt2": "p.pt2", "onnx": "p.onnx"}


def one(directory, backend):
    return write_bundle(directory, {"p": Stage(Scale(4, 4), {"x": torch.randn(1, 4)}, ["y"], backend)})


def exchange(path, name, data):
    """Put other bytes in a model's place and make the checksum fit, as whoever can write the bundle can."""
    old = hash_file(path.parent / name)[1]
    (path.parent / name).write_bytes(data)
    path.write_text(path.read_text().replace(old, hash_file(path.parent / name)[1]))


def out_of_bounds(data, name):
    """The model with an operator of this name before all others that fails when it runs."""
    model = onnx.load_from_string(data)
    graph, make = model.graph, onnx.helper.make_node
    entry = graph.input[0].name
    for node in graph.node:
        for place, given in enumerate(node.input):
            node.input[place] = "moved" if given == entry else given
    graph.initializer.append(onnx.helper.make_tensor("factor", 1, [], [0.0]))
    graph.initializer.append(onnx.helper.make_tensor("offset", 1, [], [99.0]))
    first = [make("ReduceSum", [entry], ["sum"], keepdims=0), make("Mul", ["sum", "factor"], ["zero"]),
             make("Add", ["zero", "offset"], ["real"]), make("Cast", ["real"], ["index"], to=7),
             make("Gather", [entry, "index"], ["row"], name=name), make("ReduceSum", ["row"], ["one"], keepdims=0),
             make("Add", [entry, "one"], ["moved"])]  # fmt: skip
    nodes = [*first, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    return model.SerializeToString()


def repacked(data, change):
    """A zip file with the same entries after ``change`` (name, content) -> content, and what it adds for ''."""
    source, out = zipfile.ZipFile(io.BytesIO(data)), io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for name in source.namelist():
            target.writestr(name, change(name, source.read(name)))
        root = source.namelist()[0].partition("/")[0]
        for name, content in change("", b"").items():
            target.writestr(f"{root}/{name}", content)
    return out.getvalue()


@pytest.mark.parametrize("backend", ["jit", "pt2"])
@pytest.mark.parametrize("place", ["inflated weights", "unused file", "many files"])
def test_zip_bombs_are_refused_before_they_are_unpacked(tmp_path, backend, place):
    path = one(tmp_path, backend)
    zeros = b"\0" * (1 << 20)

    def change(name, content):
        if not name and place == "many files":
            return {f"extra/{i}": zeros for i in range(100)}
        if not name:
            return {"extra/bomb": zeros * 128} if place == "unused file" else {}
        inflate = place == "inflated weights" and name.endswith(("/data/0", "weight_0"))
        return zeros * 128 if inflate else content

    exchange(path, FILES[backend], repacked((tmp_path / FILES[backend]).read_bytes(), change))
    assert (tmp_path / FILES[backend]).stat().st_size < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for face in (Pipeline, InferenceManager):
        with pytest.raises(BundleError, match="'p'.*unpacks to 1[03]"):
            face(path, allow_code=True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 1024


def two_tables(data):
    """The zip file with a second table of contents: torch reads the one at the offset, Python the one before the end record.

    The first says that a compressed file unpacks to more than a gigabyte.
    """
    end = data.rindex(b"PK\6\6")
    size, start = struct.unpack_from("<QQ", data, end + 40)
    table = bytearray(data[start:end])
    at = 0
    for entry in zipfile.ZipFile(io.BytesIO(data)).infolist():
        if entry.compress_type == zipfile.ZIP_DEFLATED:
            break
        at += 46 + len(entry.filename) + len(entry.extra) + len(entry.comment)
    struct.pack_into("<I", table, at + 24, 0x70000000)
    last = bytearray(data[end:])
    struct.pack_into("<Q", last, last.index(b"PK\6\7") + 8, end + size)
    return data[:start] + table + data[start:end] + last


def test_a_package_with_two_tables_is_refused(tmp_path):
    path = one(tmp_path, "jit")
    made = two_tables((tmp_path / "p.pt").read_bytes())
    assert sum(entry.file_size for entry in zipfile.ZipFile(io.BytesIO(made)).infolist()) < 1 << 20
    with pytest.raises(RuntimeError, match="unexpected decompressed size"):
        torch.jit.load(io.BytesIO(made))
    exchange(path, "p.pt", made)
    for face in (Pipeline, InferenceManager):
        with pytest.raises(BundleError, match="'p' cannot be opened: it is not a jit file"):
            face(path, allow_code=True)


def test_a_library_inside_a_package_is_never_loaded_without_trust(tmp_path):
    """The engine would load it on opening: shown by the attempt it makes when it is allowed to."""
    path = one(tmp_path, "pt2")

    def change(entry, content):
        return content if entry else {"data/aotinductor/model/m.wrapper.so": b"\x7fELF not really"}

    exchange(path, "p.pt2", repacked((tmp_path / "p.pt2").read_bytes(), change))
    for face in (Pipeline, InferenceManager):
        with pytest.raises(BundleError, match=r"'p': the .pt2 model is a program.*allow_code=True"):
            face(path)
        with pytest.raises(BundleError, match="allow_code=False refuses"):
            face(path, allow_code=False)
    with pytest.raises(BundleError, match="cannot be opened"):
        Pipeline(path, allow_code=True)


def test_packages_that_leapp_and_torch_write_are_accepted(tmp_path):
    path = one(tmp_path, "pt2")
    buffer = io.BytesIO()
    torch.export.save(torch.export.export(Scale(4, 4), (torch.randn(1, 4),)), buffer, extra_files={"notes.txt": "hello"})
    exchange(path, "p.pt2", buffer.getvalue())
    x = torch.randn(1, 4)
    torch.testing.assert_close(InferenceManager(path, allow_code=True)({"p/x": x})["p/y"], Scale(4, 4)(x))


@pytest.mark.parametrize("backends", [["onnx", "onnx"], ["jit", "jit"], ["pt2", "pt2"], ["onnx", "jit"]], ids="-".join)
def test_swapped_models_are_refused(tmp_path, backends):
    path, _ = chain(tmp_path, backends)
    first, second = (tmp_path / f"n{i}.{ {'onnx': 'onnx', 'jit': 'pt', 'pt2': 'pt2'}[b] }" for i, b in enumerate(backends))
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)
    for face in (Pipeline, InferenceManager):
        with pytest.raises(BundleError, match="checksum mismatch"):
            face(path)


@pytest.mark.parametrize("given", ["onnx", "jit", "pt2"])
@pytest.mark.parametrize("said", ["onnx", "jit", "pt2"])
def test_a_model_of_another_backend_is_refused(tmp_path, given, said):
    path = one(tmp_path, given)
    path.write_text(path.read_text().replace(f"backend: {given}", f"backend: {said}"))
    for face in (Pipeline, InferenceManager):
        if given == said:
            face(path)
        else:
            with pytest.raises(BundleError, match="'p'"):
                face(path)


@pytest.mark.parametrize("backend", ["onnx", "jit"])
def test_initial_values_edited_in_place_are_refused_when_they_do_not_fit(tmp_path, backend):
    path = memory(tmp_path, backend)
    (state,) = Pipeline(path).feedback_inputs
    file = tmp_path / "g_initial_values.safetensors"
    for value in (np.zeros(3, np.float32), np.zeros(2, np.float64), np.zeros((2, 1), np.float32)):
        file.write_bytes(encode({state: RawTensor.of(value)}))
        with pytest.raises(BundleError, match="p/h"):
            Pipeline(path)
    file.write_bytes(encode({state: RawTensor.of(np.zeros(2, np.float32)), "p/x": RawTensor.of(np.zeros(3, np.float32))}))
    with pytest.raises(BundleError, match="p/x"):
        Pipeline(path)


@pytest.mark.parametrize("backend", ["onnx", "jit", "pt2"])
def test_shapes_that_no_machine_holds_are_refused(tmp_path, backend):
    path = one(tmp_path, backend)
    path.write_text(path.read_text().replace("shape: [1, 4]", "shape: [1099511627776]", 1))
    with pytest.raises(LeappError):
        Pipeline(path)
    manager = None
    try:
        manager = InferenceManager(path)
    except LeappError:
        pass
    if manager is not None:
        with pytest.raises(LeappError):
            manager({"p/x": torch.randn(1, 4)})


def test_damaged_onnx_models_end_in_library_errors(tmp_path):
    """Flipped bytes in a model whose checksum fits: the engine's business, but never a raw error of it."""
    path = one(tmp_path, "onnx")
    code = f"""
import random, sys
sys.path.insert(0, {os.getcwd()!r})
from pathlib import Path
import numpy as np
from leapp.errors import LeappError
from leapp.runtime import Pipeline
from tests.attacks.test_models import exchange
path, choose = Path({str(path)!r}), random.Random(0)
whole = (path.parent / "p.onnx").read_bytes()
refused = 0
for _ in range(150):
    data = bytearray(whole)
    data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
    exchange(path, "p.onnx", bytes(data))
    try:
        Pipeline(path)({{"p/x": np.ones((1, 4), np.float32)}})
    except LeappError:
        refused += 1
print(refused)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 20, done.stdout
