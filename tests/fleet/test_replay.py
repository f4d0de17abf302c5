"""Fleets of recordings: one answer for all of them, whatever happens to some."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from leapp.cli import main
from leapp.errors import InputError
from leapp.fleet import replay_fleet
from leapp.fleet.journal import Journal
from leapp.fleet.statistics import Result, Statistics
from leapp.runtime import Pipeline
from tests.fleet.fleets import WEIGHT, write_policy, write_recordings

COUNT, STEPS = 30, 20


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    return write_policy(tmp_path_factory.mktemp("fleet") / "leg")


@pytest.fixture(scope="module")
def stored(bundle) -> Path:
    directory = bundle.parent / "runs"
    write_recordings(bundle, directory, COUNT, STEPS, ("npz", "mcap"))
    return directory


@pytest.fixture
def runs(stored, tmp_path) -> Path:
    """Recordings that a test may spoil."""
    return Path(shutil.copytree(stored, tmp_path / "runs"))


def ask(capsys, *words):
    code = main(["replay", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def stripped(data):
    return {name: value for name, value in data.items() if name not in ("resumed", "output")}


def test_a_fleet_is_as_recorded(bundle, stored, capsys):
    code, data = ask(capsys, bundle, stored / "*", "--rtol", 0, "--atol", 0)
    assert (code, data["same"], data["recordings"], data["steps"]) == (0, True, COUNT, COUNT * STEPS)
    target, state = data["ports"]
    assert (target["key"], target["role"], target["count"], target["equal"]) == ("policy/target", "output", 1800, 1800)
    # No recording tells what its last step left behind.
    assert (state["key"], state["role"], state["count"]) == ("policy/h_in", "state", COUNT * (STEPS - 1) * 3)
    assert main(["replay", str(bundle), str(stored / "*")]) == 0
    assert "30 recordings, 600 steps, every output as recorded." in capsys.readouterr().out


def test_figures_are_those_of_all_values_at_once(bundle, stored, tmp_path, capsys):
    weight = WEIGHT + np.random.default_rng(1).normal(0, 1e-3, (3, 3)).astype(np.float32)
    changed = write_policy(tmp_path / "leg", weight)
    code, data = ask(capsys, changed, stored / "*.npz", stored / "*.mcap", "--worst", 100)
    new, old, gaps, worst = Pipeline(changed), Pipeline(bundle), [], {}
    for path in sorted(stored.iterdir()):
        recording = new.read_recording(path)
        new.reset(), old.reset()
        steps = [np.abs(new(i)["policy/target"].astype(float) - old(i)["policy/target"]) for i in recording.inputs]
        gaps.append(np.stack(steps))
        worst[str(path)] = gaps[-1].max()
    every = np.stack(gaps)
    target = data["ports"][0]
    assert (code, target["count"], target["largest"]) == (1, every.size, every.max())
    assert target["mean"] == pytest.approx(every.mean(), rel=1e-12)
    for percent, value in target["percentiles"].items():
        exact = np.sort(every, axis=None)[math.ceil(every.size * Fraction(percent) / 100) - 1]
        assert exact <= value <= exact * 1.008
    assert [(d["recording"], d["largest"]) for d in target["worst"]] == sorted(worst.items(), key=lambda item: -item[1])
    for place in target["worst"]:
        found = gaps[sorted(worst).index(place["recording"])]
        assert found[place["step"], 0, ["hip", "knee", "ankle"].index(place["element"].split("/")[1])] == place["largest"]


def test_the_order_of_recordings_makes_no_difference(bundle, stored, tmp_path):
    changed = write_policy(tmp_path / "leg", WEIGHT * np.float32(1.01))
    paths = sorted(stored.iterdir())
    first = replay_fleet(changed, paths, rtol=1e-3)
    assert first.differing
    assert replay_fleet(changed, paths[::-1] + paths[:5], rtol=1e-3) == first
    assert replay_fleet(changed, [stored / "*"], rtol=1e-3) == first


@pytest.mark.parametrize(("factor", "same"), [(1.0001, True), (1.01, False)])
def test_the_command_and_the_function_tolerate_the_same_differences(bundle, stored, tmp_path, capsys, factor, same):
    changed = write_policy(tmp_path / "leg", WEIGHT * np.float32(factor))
    report = replay_fleet(changed, [stored / "*"])
    code, data = ask(capsys, changed, stored / "*")
    assert (report.same, code) == (same, 0 if same else 1)
    assert report.ports[0].largest > 0
    assert [port.beyond for port in report.ports] == [port["beyond"] for port in data["ports"]]


def test_a_baseline_shows_the_changed_weight_at_its_step_and_element(bundle, stored, tmp_path, capsys):
    weight = WEIGHT.copy()
    weight[1, 1] *= 1.5
    changed = write_policy(tmp_path / "leg", weight)
    code, data = ask(capsys, changed, stored / "*", "--baseline", bundle)
    assert (code, data["differing"]) == (1, COUNT)
    first = data["difference"]
    # The knee stands still until then, so the weight shows nowhere earlier.
    assert (first["step"], first["key"]) == (STEPS // 2, "policy/target")
    assert first["element"].endswith("knee")
    assert first["recording"].endswith("run0000.npz")
    target, state = data["ports"]
    assert target["worst"] and all(place["element"].endswith("knee") for place in target["worst"])
    assert (state["equal"], state["count"]) == (COUNT * (STEPS - 1) * 3,) * 2
    assert main(["replay", str(changed), str(stored / "*"), "--baseline", str(bundle)]) == 1
    text = capsys.readouterr().out
    assert f"Step {STEPS // 2}: 'policy/target' differs from that of {bundle}" in text
    assert "batch/knee" in text


def test_a_baseline_goes_on_with_its_own_state_and_not_with_the_recorded_outputs(bundle, tmp_path):
    """Recorded with other weights: both bundles are equal on these inputs, whatever was recorded."""
    other = write_policy(tmp_path / "other", WEIGHT * np.float32(-1))
    paths = write_recordings(other, tmp_path / "runs", 3)
    assert replay_fleet(bundle, paths).differing == 3
    assert replay_fleet(bundle, paths, baseline=bundle).same


def test_a_baseline_with_other_inputs_is_refused(bundle, stored, tmp_path, capsys):
    other = write_policy(tmp_path / "leg", inputs="angle")
    assert main(["replay", str(other), str(stored / "*"), "--baseline", str(bundle)]) == 2
    assert "has no input 'policy/angle'" in capsys.readouterr().err


def test_outputs_that_cannot_be_compared_are_named(bundle, stored, tmp_path, capsys):
    more = write_policy(tmp_path / "leg", outputs=("target", "h_out"))
    for words in ([more, stored / "*"], [more, stored / "*", "--baseline", bundle], [bundle, stored / "*", "--baseline", more]):
        code, data = ask(capsys, *words)
        assert (code, data["missing"]) == (0, ["policy/h_out"])
    assert main(["replay", str(more), str(stored / "*")]) == 0
    assert "Not compared, because no recording holds it: policy/h_out." in capsys.readouterr().out


def test_bad_files_are_reported_and_skipped(bundle, runs, tmp_path, capsys):
    clean = ask(capsys, bundle, *(runs / f"run{n:04}.*" for n in range(COUNT) if n not in (3, 4, 7)))[1]
    (runs / "run0003.mcap").write_bytes((runs / "run0003.mcap").read_bytes()[:-200])
    (runs / "run0004.npz").write_bytes(b"")
    other = write_policy(tmp_path / "other", inputs="angle")
    with Pipeline(other).record(runs / "run0007.npz") as step:
        step({"policy/angle": np.zeros((1, 3), np.float32)})
    (runs / "run0007.mcap").unlink()
    journal = tmp_path / "journal"
    for resumed in (0, COUNT - 3):
        code, data = ask(capsys, bundle, runs / "*", "--journal", journal)
        assert (code, data["same"], data["resumed"], data["recordings"]) == (2, False, resumed, COUNT - 3)
        assert [Path(name).name for name in data["failed"]] == ["run0003.mcap", "run0004.npz", "run0007.npz"]
        assert "'policy/angle', which the bundle does not have" in data["failed"][str(runs / "run0007.npz")]
        assert {**stripped(data), "same": True, "failed": {}} == stripped(clean)
    assert main(["replay", str(bundle), str(runs / "*")]) == 2
    assert "3 of 30 recordings could not be replayed." in capsys.readouterr().out


def test_nothing_but_bad_files_is_an_error(bundle, tmp_path, capsys):
    for name in ("a.npz", "b.npz"):
        (tmp_path / name).write_bytes(b"nothing")
    assert main(["replay", str(bundle), str(tmp_path / "*.npz")]) == 2
    assert "None of 2 recordings could be replayed." in capsys.readouterr().err
    assert main(["replay", str(bundle), str(tmp_path / "*.mcap")]) == 2
    assert "No file matches" in capsys.readouterr().err


def test_a_recording_without_a_start_does_not_go_on_from_the_one_before(bundle, runs):
    path = runs / "run0002.npz"
    with np.load(path) as file:
        arrays = dict(file)
    arrays["placed"][0] = 0
    np.savez(path, **arrays)
    both = replay_fleet(bundle, [runs / "run0001.mcap", path])
    assert both.same
    assert both.ports[1].equal == (2 * STEPS - 1) * 3


def test_recordings_of_any_batch_are_replayed_in_theirs(tmp_path):
    bundle, generator = write_policy(tmp_path / "leg", any_batch=True), np.random.default_rng(2)
    weight = WEIGHT.copy()
    weight[2, 2] += 1.0
    changed = write_policy(tmp_path / "changed" / "leg", weight, any_batch=True)
    rows = [4, 1, 2, 4, 3]
    for number, batch in enumerate(rows):
        pipeline = Pipeline(bundle)
        pipeline.reset(batch=batch)
        with pipeline.record(tmp_path / f"run{number}.{'npz' if number % 2 else 'mcap'}") as step:
            for _ in range(5):
                step({"policy/q": generator.standard_normal((batch, 3)).astype(np.float32)})
    report = replay_fleet(bundle, [tmp_path / "run*"])
    assert report.same
    assert [port.count for port in report.ports] == [sum(rows) * 3 * 5, sum(rows) * 3 * 4]
    for reference in ({}, {"baseline": bundle}):
        found = replay_fleet(changed, [tmp_path / "run*"], **reference)
        assert (found.differing, found.failed) == (5, {})
        assert {place.element.split()[-1] for place in found.ports[0].worst} == {"ankle"}
        assert max(int(place.element.split()[1]) for place in found.ports[0].worst) > 0


@pytest.fixture(scope="module")
def long_runs(bundle) -> Path:
    directory = bundle.parent / "long"
    write_recordings(bundle, directory, 24, 300)
    return directory


def test_memory_is_that_of_one_recording_whatever_their_number(bundle, tmp_path):
    write_recordings(bundle, tmp_path / "runs", 8, 300, ("npz", "mcap"))
    changed = write_policy(tmp_path / "leg", WEIGHT * np.float32(1.001))
    peaks = []
    for pattern in ("run0000*", "run000[01]*", "run*"):  # the first loads what is loaded once
        tracemalloc.start()
        replay_fleet(changed, [tmp_path / "runs" / pattern], baseline=bundle)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.2 * peaks[1], peaks


def test_a_run_that_was_killed_goes_on(bundle, long_runs, tmp_path, capsys):
    weight = WEIGHT * np.float32(1.001)
    changed, journal = write_policy(tmp_path / "leg", weight), tmp_path / "journal"
    command = ["replay", str(changed), str(long_runs / "*"), "--journal", str(journal), "--json"]
    whole = ask(capsys, changed, long_runs / "*")
    process = subprocess.Popen([sys.executable, "-m", "leapp", *command], stdout=subprocess.DEVNULL)
    while not journal.exists() or journal.stat().st_size < 8_000:
        assert process.poll() is None
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    # What a crash of the machine may leave: half an entry.
    with Journal(journal) as kept:
        done = len(kept.keys())
    with journal.open("r+b") as file:
        file.truncate(journal.stat().st_size - 5)
    assert 1 < done < 24
    code, data = ask(capsys, *command[1:-1])
    assert data["resumed"] == done - 1
    assert (code, stripped(data)) == (whole[0], stripped(whole[1]))
    assert ask(capsys, *command[1:-1])[1]["resumed"] == 24


def test_what_changed_is_replayed_again(bundle, runs, tmp_path):
    journal = tmp_path / "journal"

    def resumed(one=bundle, **more):
        return replay_fleet(one, [runs / "*"], journal=journal, **more).resumed

    assert [resumed(), resumed(), resumed(rtol=1e-2), resumed(rtol=1e-2)] == [0, COUNT, 0, COUNT]
    assert [resumed(baseline=bundle), resumed(baseline=bundle), resumed()] == [0, COUNT, COUNT]
    changed = write_policy(tmp_path / "leg", WEIGHT * np.float32(1.1))
    assert [resumed(changed), resumed(changed), resumed()] == [0, COUNT, COUNT]
    shutil.copy(runs / "run0000.npz", runs / "run0002.npz")
    (runs / "run0001.mcap").rename(runs / "moved.mcap")
    assert resumed() == COUNT
    write_recordings(changed, runs, 1)
    assert resumed() == COUNT - 1


def test_a_journal_is_no_other_file_and_has_one_writer(bundle, runs, tmp_path, capsys):
    other = runs / "run0000.npz"
    before = other.read_bytes()
    assert main(["replay", str(bundle), str(runs / "*"), "--journal", str(other)]) == 2
    assert "not a journal of leapp replay" in capsys.readouterr().err
    assert other.read_bytes() == before
    with Journal(tmp_path / "journal"), pytest.raises(InputError, match="Another run"):
        replay_fleet(bundle, [other], journal=tmp_path / "journal")


@pytest.mark.parametrize(
    ("spoil", "whole"),
    [(lambda d: d[:-1], 4), (lambda d: d + b"\x07\x00\x00", 5), (lambda d: d[:-3] + b"xyz", 4), (lambda d: d[:9], 0)],
)
def test_a_damaged_journal_keeps_what_is_whole(tmp_path, spoil, whole):
    path, results = tmp_path / "journal", {}
    with Journal(path) as journal:
        for number in range(5):
            statistics = Statistics(count=number, largest=float("inf"), bins={number: 3}, index=(number, 1))
            results[bytes([number]) * 32] = Result(number, {"p/y": statistics}, {})
            journal.add(bytes([number]) * 32, results[bytes([number]) * 32])
    path.write_bytes(spoil(path.read_bytes()))
    for more in (b"a", b"b"):
        with Journal(path) as journal:
            assert {key: journal.read(key) for key in journal.keys() & results.keys()} == dict(list(results.items())[:whole])
            journal.add(more, Result(9, {}, {}))
            assert journal.read(more).steps == 9
    with Journal(path) as journal:
        assert {b"a", b"b"} <= journal.keys()


def test_without_the_packages_the_message_says_what_to_install(bundle, stored, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["replay", str(bundle), str(stored / "*"), "--output", str(tmp_path / "o.parquet")]) == 2
    assert "pip install 'leapp[parquet]'" in capsys.readouterr().err
    assert main(["replay", str(bundle), str(stored / "*"), "--engine", "ray"]) == 2
    assert "pip install 'leapp[ray]'" in capsys.readouterr().err
    assert main(["replay", str(bundle), str(stored / "*"), "--output", str(tmp_path / "o.csv")]) == 2
    assert ".parquet" in capsys.readouterr().err
    assert main(["replay", str(bundle), str(stored / "*"), "--workers", "2"]) == 2
    assert "need the engine ray" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
