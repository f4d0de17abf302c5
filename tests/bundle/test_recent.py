"""A bundle that is opened again is read again, but neither hashed nor parsed again. A changed file is refused all the same."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from msgspec.structs import replace

from leapp.bundle import check_files, files, open_bundle, read_initial_values, read_samples, reading, yaml_text
from leapp.bundle.reading import read_model
from leapp.bundle.recent import Recent
from leapp.errors import BundleError
from tests.bundle.conftest import write


def test_the_second_opening_reads_but_neither_hashes_nor_parses(bundle, counted):
    opened = open_bundle(bundle)
    check_files(opened)
    read = counted(files, "_open_regular")
    hashed = counted(files, "_compare")
    parsed = counted(yaml_text, "parse")
    again = open_bundle(bundle)
    check_files(again)
    assert (again.contract, again.seal, again.annotations) == (opened.contract, opened.seal, opened.annotations)
    assert len(read) >= len(again.files) and not hashed and not parsed


def test_bundles_of_one_description_share_no_values(bundle, monkeypatch):
    """Neither the first one with later ones, nor later ones with each other."""
    monkeypatch.setattr(reading, "_recent_descriptions", Recent(1 << 20))
    for _ in range(3):
        opened = open_bundle(bundle)
        assert opened.contract.system["leapp version"] != "changed"
        assert opened.contract.pipeline.configs["frequency"] == 50
        assert opened.annotations["pipeline.configs"]["made"] == "one"
        assert len(opened.files) == 5 and opened.files == opened.seal.files
        assert list(opened.initial_values) == ["pol/h"]
        opened.contract.system["leapp version"] = "changed"
        opened.contract.pipeline.configs["frequency"] = 0
        opened.annotations["pipeline.configs"]["made"] = "changed"
        opened.seal.files.clear()
        opened.initial_values.clear()


@pytest.mark.parametrize("suffix", [".pt", "_samples.safetensors", "_initial_values.safetensors", ".yaml"])
def test_a_file_that_changes_between_two_openings_is_refused(bundle, suffix):
    """Also with the size and the dates of the file that was checked."""
    check_files(open_bundle(bundle))
    path = next(p for p in bundle.iterdir() if p.name.endswith(suffix))
    before, status = path.read_bytes(), path.stat()
    changed = before.replace(b"float32", b"float16") if suffix == ".yaml" else before[:-1] + bytes([before[-1] ^ 1])
    assert len(changed) == len(before) and changed != before
    path.write_bytes(changed)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(BundleError):
            check_files(open_bundle(bundle))
    path.write_bytes(before)
    check_files(open_bundle(bundle))


def test_a_model_of_another_export_with_the_same_name_is_another_file(bundle):
    first = read_model(open_bundle(bundle), "pre")
    write(bundle, "two")
    assert b"two" in read_model(open_bundle(bundle), "pre") and b"one" in first


@pytest.mark.parametrize("read", [lambda b: read_initial_values(b)["pol/h"], lambda b: read_samples(b)["pol"][0].inputs["h"]])
def test_what_is_written_through_a_value_reaches_no_other_opening(bundle, read):
    """A tensor over the bytes of a value may be written to, and the view of them released."""
    first = [read(open_bundle(bundle)) for _ in range(3)]
    expected = first[0].numpy()
    torch.frombuffer(first[1].data, dtype=torch.float32).fill_(7.0)
    first[2].data.release()
    assert first[1].numpy().tolist() == [7.0, 7.0]
    for value in (first[0], read(open_bundle(bundle)), read(open_bundle(bundle))):
        assert np.array_equal(value.numpy(), expected)


@pytest.mark.parametrize("path", ["", ".", Path(), os.curdir])
def test_the_working_directory_can_be_opened(bundle, monkeypatch, path):
    monkeypatch.chdir(bundle)
    assert open_bundle(path).graph == "g"


def test_no_more_than_the_bound_is_kept():
    kept: Recent[bytes] = Recent(1 << 20)
    quarter = 1 << 18
    for number in range(50):
        kept.put(str(number), bytes(quarter), quarter)
        kept.put("large", bytes(quarter + 1), quarter + 1)
        there = [name for name in map(str, range(50)) if kept.get(name)]
        assert there == [str(n) for n in range(50) if number - len(there) < n <= number]  # the newest
        assert len(there) in ((1, 2, 3) if number < 2 else (2, 3))  # an entry takes memory too
    assert kept.get("large") is None
    kept.put("49", b"other", 5)
    assert kept.get("49") == b"other" and kept.get("48") is not None
    assert reading._recent_descriptions._most <= 1 << 20 and files.RECENT_FILES._most <= 4 << 20


def test_many_small_values_stay_within_the_bound():
    kept: Recent[bytes] = Recent(1 << 20)
    tracemalloc.start()
    try:
        for number in range(8192):
            kept.put(hashlib.sha256(str(number).encode()).hexdigest(), bytes(1), 1)
            assert number % 512 or tracemalloc.get_traced_memory()[0] < 1 << 20
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert kept.get(hashlib.sha256(b"8191").hexdigest()) is not None


def test_the_names_of_many_external_files_stay_within_the_bound(bundle, monkeypatch):
    """A hostile model may name thousands of files, with short names."""
    recent: Recent[tuple[str, ...]] = Recent(1 << 16)
    monkeypatch.setattr(reading, "_recent_names", recent)
    opened = open_bundle(bundle)
    for seed in range(8):
        weights = [external(f"{seed}/{number:x}é") for number in range(150)]
        graph = onnx.helper.make_graph([], f"g{seed}", [], [], weights)
        model = onnx.helper.make_model(graph).SerializeToString()
        described = replace(opened.contract.nodes["pre"].model, backend="onnx", sha256sum=hashlib.sha256(model).hexdigest())
        node = replace(opened.contract.nodes["pre"], model=described)
        of_one = dataclasses.replace(opened, contract=replace(opened.contract, nodes={"pre": node}))
        assert len(reading._named_files(of_one, "pre", model)) == 150
    names = [names for names, _ in recent._held.values()]
    assert names and sum(sys.getsizeof(n) + sum(map(sys.getsizeof, n)) for n in names) <= recent._most


def external(location: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=location, data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def test_an_interrupt_leaves_it_as_able_as_before():
    """Ctrl-C may end a call between any two of its steps."""
    for steps in range(1, 200):
        kept: Recent[bytes] = Recent(4096)
        for name in "abcd":
            kept.put(name, bytes(1000), 1000)
        left = [steps]

        def interrupt(frame: Any, event: str, _: Any, left: list[int] = left) -> Any:
            left[0] -= event == "line" and frame.f_globals["__name__"] == Recent.__module__
            if not left[0]:
                left[0] = -1
                raise KeyboardInterrupt
            return interrupt

        sys.settrace(interrupt)
        try:
            with contextlib.suppress(KeyboardInterrupt):
                for name in "efgh":
                    kept.put(name, bytes(1000), 1000)
        finally:
            sys.settrace(None)
        for name in "ijklmnop":
            kept.put(name, name.encode(), 1000)
            assert kept.get(name) == name.encode()
            assert sum(size for _, size in kept._held.values()) <= 4096 + 1512  # the entry that was interrupted
    assert left[0] > 0  # the last rounds ran to their end


def test_threads_may_put_at_the_same_moment():
    kept: Recent[int] = Recent(1 << 16)

    def put(first: int) -> None:
        for number in range(first, first + 20_000):
            kept.put(number, number, 100)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, range(0, 80_000, 20_000)))
    for number in range(100_000, 100_200):
        kept.put(number, number, 100)
    assert kept.get(100_199) == 100_199 and all(name == value for name, (value, _) in kept._held.items())
    assert sum(size for _, size in kept._held.values()) <= 1 << 16


@pytest.mark.parametrize("value", ["123456789012345678901234567890", "-9223372036854775809", "18446744073709551615", "1.0"])
def test_an_annotation_of_any_size_is_the_same_when_opened_again(bundle, value, monkeypatch):
    monkeypatch.setattr(reading, "_recent_descriptions", Recent(1 << 20))
    (path,) = bundle.glob("*.yaml")
    path.write_text(path.read_text() + f"notes: {{1: [{value}, null, true], 2.5: 2026-01-01, null: {{}}}}\n")
    first, again = open_bundle(bundle), open_bundle(bundle)
    assert repr(first.annotations["notes"]) == repr(again.annotations["notes"])
    assert (first.contract, first.seal) == (again.contract, again.seal)
    assert first.annotations["notes"][1][0] == (float if "." in value else int)(value)
