"""A bundle that is opened again is read again, but neither hashed nor parsed again. A changed file is refused all the same."""

from __future__ import annotations

import hashlib
import os
import tracemalloc

import pytest

from leapp.bundle import check_files, files, open_bundle, reading, yaml_text
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
    monkeypatch.setattr(reading, "_descriptions", Recent(1 << 20))
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


def test_no_more_than_the_bound_is_kept():
    kept: Recent[bytes] = Recent(1 << 20)
    quarter = 1 << 18
    for number in range(50):
        kept.put(str(number), bytes(quarter), quarter)
        kept.put("large", bytes(quarter + 1), quarter + 1)
    assert [name for name in map(str, range(50)) if kept.get(name)] == ["47", "48", "49"]  # an entry takes memory too
    assert kept.get("large") is None
    kept.put("49", b"other", 5)
    assert kept.get("49") == b"other" and kept.get("47") is not None
    assert reading._descriptions._most <= 1 << 20 and files.RECENT_FILES._most <= 4 << 20


def test_many_small_values_stay_within_the_bound():
    kept: Recent[bytes] = Recent(1 << 20)
    tracemalloc.start()
    try:
        for number in range(8192):
            kept.put(hashlib.sha256(str(number).encode()).hexdigest(), bytes(1), 1)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert kept.get(hashlib.sha256(b"8191").hexdigest()) is not None


def test_keeping_waits_for_no_other_thread():
    """A process may be forked while a thread holds the lock. In the child it is never released."""
    kept: Recent[bytes] = Recent(1 << 20)
    with kept._lock:
        kept.put("a", b"one", 3)
        assert kept.get("a") is None
    kept.put("a", b"one", 3)
    assert kept.get("a") == b"one"
