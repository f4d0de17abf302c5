"""A bundle that a process opens again: its files are seen as they are now, and no manager shares what another can change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leapp
from leapp import annotate
from leapp.bundle import files, reading
from leapp.errors import BundleError
from leapp.runtime import Pipeline, codegen, load, torch_engines
from leapp.runtime.inference_manager import InferenceManager
from tests.runtime.bundles import Scale, Stage, array, chain, write_bundle

APIS = (Pipeline, InferenceManager)


class Leaky(torch.nn.Module):
    def forward(self, x: torch.Tensor, h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new = 0.5 * h + x
        return new * 2.0, new


def described(directory: Path, backend: str) -> Path:
    """Two nodes with state, and a description with every kind of value that can be changed."""
    names, units = ["hip", "knee", "ankle"], {"extra": {"units": "rad", "limits": [-1, 1], "more": {"frame": ["base"]}}}
    about = {"x": {"kind": "state/joint/position", "element_names": names, **units}, "y": {"element_names": names}}
    stages = {
        "a": Stage(Scale(3, 3), {"x": torch.ones(3)}, ["y"], backend, about),
        "b": Stage(Leaky(), {"x": torch.ones(3), "h_in": torch.zeros(3)}, ["y", "h_out"], backend, about),
    }
    flows = {"a/y": ("b/x",)}, {"b/h_out": ("b/h_in",)}
    start = {"b/h_in": torch.tensor([1.0, -2.0, 3.0])}
    return write_bundle(directory, stages, *flows, start, configs={"frequency": 50, "gains": {"kp": [1.0, 2.0]}})


def shown(value: Any, depth: int = 0) -> Any:
    """Everything that the public attributes of an object lead to, as plain values."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return array(value).tolist()
    if isinstance(value, dict):
        return {key: shown(item, depth) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(item, depth) for item in value]
    if type(value).__module__.startswith("leapp.") and depth < 3:
        return {name: shown(item, depth + 1) for name, item in attributes(value).items()}
    return value if isinstance(value, (str, int, float, bool, type(None))) else None


def attributes(value: Any) -> dict[str, Any]:
    found = {}
    for name in dir(value):
        if not name.startswith("_") and name != "path":
            item = getattr(value, name)
            if not callable(item) or isinstance(item, torch.nn.Module):
                found[name] = item
    if isinstance(value, APIS):
        found["state()"] = value.state()
    return found


def spoil(value: Any, depth: int = 0) -> None:
    """Change everything that the public attributes of an object lead to."""
    if isinstance(value, torch.Tensor):
        value.fill_(7)
    elif isinstance(value, np.ndarray):
        value[...] = 7
    elif isinstance(value, (dict, list, tuple)):
        for item in list(value.values() if isinstance(value, dict) else value):
            spoil(item, depth)
        if isinstance(value, dict):
            value["spoiled"] = "spoiled"
        elif isinstance(value, list):
            value.append("spoiled")
    elif type(value).__module__.startswith("leapp.") and depth < 3:
        for item in attributes(value).values():
            spoil(item, depth + 1)


@pytest.mark.parametrize("backend", ["onnx", "jit"])
@pytest.mark.parametrize("api", APIS)
def test_managers_of_one_bundle_share_nothing_that_one_of_them_can_change(tmp_path, api, backend):
    path = described(tmp_path, backend)
    given = {"a/x": np.float32([0.1, -0.2, 0.3])} if api is Pipeline else {"a/x": torch.tensor([0.1, -0.2, 0.3])}
    expected = shown(api(path)(dict(given)))
    first, second = api(path, copy=False), api(path)
    before = shown(second)
    assert before["configs"]["gains"] == {"kp": [1.0, 2.0]} and before["state()"]["b/h_in"] == [1.0, -2.0, 3.0]
    first(dict(given))
    spoil(first)
    spoil(first(dict(given)))  # views of the memory of the first
    first.load_state({"b/h_in": np.full(3, 7, np.float32)})
    assert shown(second) == before
    assert shown(second(dict(given))) == expected
    assert shown(api(path)) == before


@pytest.mark.parametrize("part", ["contract", "annotations", "seal", "files", "initial_values"])
def test_what_a_caller_changes_in_an_open_bundle_is_not_seen_by_the_next_one(tmp_path, part):
    path = described(tmp_path, "onnx")
    before = InferenceManager(path)
    opened = reading.open_bundle(path)
    for value in _containers(getattr(opened, part)):
        value.clear()
    again = InferenceManager(path)
    assert again.leapp_description == before.leapp_description and again.state().keys() == before.state().keys()


def _containers(value: Any) -> list[Any]:
    if hasattr(value, "__struct_fields__"):
        return [found for name in value.__struct_fields__ for found in _containers(getattr(value, name))]
    if hasattr(value, "__dataclass_fields__"):
        return [found for name in value.__dataclass_fields__ for found in _containers(getattr(value, name))]
    if isinstance(value, (dict, list, tuple)):
        inner = [found for item in (value.values() if isinstance(value, dict) else value) for found in _containers(item)]
        return inner if isinstance(value, tuple) else [*inner, value]
    return []


@pytest.mark.parametrize("backend", ["onnx", "jit"])
def test_a_byte_that_changes_in_a_model_of_an_open_bundle_is_seen(tmp_path, backend):
    """Also in models that were merged into one, and with the size and dates of the file that was checked."""
    path, _ = chain(tmp_path, [backend] * 3)
    for _ in range(2):
        InferenceManager(path)
    for model in sorted(tmp_path.glob("n*.*")):
        before, status = model.read_bytes(), model.stat()
        for place in (0, len(before) // 2, len(before) - 1):
            model.write_bytes(before[:place] + bytes([before[place] ^ 1]) + before[place + 1 :])
            os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
            for _ in range(2):
                with pytest.raises(BundleError, match="checksum mismatch"):
                    InferenceManager(path)
        model.write_bytes(before[:-1])
        with pytest.raises(BundleError, match="checksum mismatch"):
            InferenceManager(path)
        model.write_bytes(before + b"\0")
        with pytest.raises(BundleError, match="checksum mismatch"):
            InferenceManager(path)
        model.write_bytes(before)
        InferenceManager(path)


@pytest.mark.parametrize("size", [0, 1, files._PIECE - 1, files._PIECE, files._PIECE + 1, 3 * files._PIECE])
def test_a_file_is_compared_to_its_last_byte(tmp_path, size):
    data = bytes(range(256)) * (size // 256 + 1)
    data, path = data[:size], tmp_path / "file"
    for held, known in [(data, True), (data + b"\0", False), (data[:-1] + b"?", False), (data[1:], False), (b"", False)]:
        path.write_bytes(held)
        assert files._holds(str(path), data, "file") is (known or held == data)


def exported(directory: Path, backend: str) -> Path:
    leapp.start("g", save_path=str(directory))
    for _ in range(2):
        x = torch.randn(2, 8)
        for node in ("n0", "n1", "n2"):
            x = annotate.input_tensors(node, {"x": x})
            x = annotate.output_tensors(node, {"y": (x * 2).tanh()}, export_with=backend)
    leapp.stop()
    leapp.compile_graph(visualize=False)
    return directory / "g" / "g.yaml"


def test_the_second_opening_repeats_nothing_that_depends_on_the_files_alone(tmp_path, counted):
    paths = [exported(tmp_path / backend, backend) for backend in ("onnx", "jit")]
    before = [InferenceManager(path) for path in paths]
    done = [
        *(counted(reading, name) for name in ("contract_of", "external_files")),
        *(counted(load, name) for name in ("merge", "check_package")),
        counted(torch_engines, "script_text"),
        counted(codegen._recent_code, "put"),
    ]
    again = [InferenceManager(path) for path in paths]
    assert not any(done)
    assert [m.leapp_description for m in again] == [m.leapp_description for m in before]
    given = torch.ones(2, 8)
    for one, other in zip(before, again, strict=True):
        assert one._engine.units[0] is not other._engine.units[0]
        assert torch.equal(one({"n0/x": given})["n2/y"], other({"n0/x": given})["n2/y"])


def test_all_that_is_remembered_of_bundles_is_bounded():
    kept = [files.RECENT_FILES, reading._recent_descriptions, reading._recent_names, load._recent_packages]
    kept += [torch_engines._recent_forms, codegen._recent_code]
    assert sum(recent._most for recent in kept) <= 6.5 * (1 << 20)
