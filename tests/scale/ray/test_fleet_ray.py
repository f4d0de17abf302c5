"""A fleet replayed on several Ray nodes is the fleet replayed here, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet
import pytest
import ray
from ray.cluster_utils import Cluster

from leapp.errors import InputError
from leapp.fleet import replay_fleet
from leapp.fleet.journal import Journal
from tests.fleet.fleets import WEIGHT, write_policy, write_recordings

COUNT = 1000


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A head that only coordinates, and machines with one core each."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield made
    made.shutdown()


@pytest.fixture
def cluster(nodes: Cluster) -> Iterator[Cluster]:
    """Three machines, whatever happened to them in other tests."""
    while len(nodes.worker_nodes) < 3:
        nodes.add_node(num_cpus=1)
    nodes.wait_for_nodes()
    yield nodes
    ray.shutdown()


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, the same with a weight changed, and recordings of the first."""
    directory = tmp_path_factory.mktemp("fleet")
    write_recordings(write_policy(directory / "leg"), directory / "runs", COUNT, 20, ("npz", "npz", "npz", "mcap"))
    (directory / "runs" / "run0500.npz").write_bytes(b"nothing")
    weight = WEIGHT.copy()
    weight[1, 1] *= 1.1
    write_policy(directory / "changed" / "leg", weight)
    return directory


def workers_of(cluster: Cluster) -> list[int]:
    """The processes that replay recordings on the nodes of this cluster."""
    nodes = {str(node.all_processes["raylet"][0].process.pid) for node in cluster.list_all_nodes()}
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes()
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1] if b"_RayWorker" in words else ""
        except (OSError, ValueError):
            continue
        if parent in nodes:
            found.append(int(entry.name))
    return found


class When(threading.Thread):
    """Does something once, as soon as so many recordings are done."""

    def __init__(self, count: int, act: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._left, self._act, self._reached = count, act, threading.Event()
        self.done = False

    def advance(self) -> None:
        self._left -= 1
        if not self._left:
            self._reached.set()

    def run(self) -> None:
        self._reached.wait()
        self._act()
        self.done = True


def test_a_thousand_recordings_while_a_worker_and_a_machine_die(stored: Path, tmp_path: Path, cluster: Cluster) -> None:
    bundle, baseline, runs = stored / "changed" / "leg", stored / "leg", [stored / "runs" / "*"]
    local = replay_fleet(bundle, runs, baseline=baseline, output=tmp_path / "local.parquet", rtol=1e-3)
    assert (local.recordings, list(local.failed)) == (COUNT - 1, [str(stored / "runs" / "run0500.npz")])
    assert (local.differing, local.difference.step) == (COUNT - 1, 10)

    def kill() -> None:
        os.kill(workers_of(cluster)[0], signal.SIGKILL)

    def unplug() -> None:
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    ray.init(address=cluster.address, log_to_driver=False)
    accidents = [When(150, kill), When(450, unplug)]
    for accident in accidents:
        accident.start()
    found = replay_fleet(
        bundle, runs, baseline=baseline, engine="ray", output=tmp_path / "ray.parquet", rtol=1e-3,
        progress=lambda: [accident.advance() for accident in accidents],
    )  # fmt: skip
    assert all(accident.done for accident in accidents)
    assert found == local
    tables = [pyarrow.parquet.read_table(tmp_path / name) for name in ("local.parquet", "ray.parquet")]
    assert tables[0].equals(tables[1])
    rows = tables[1].to_pylist()
    assert len(rows) == 2 * (COUNT - 1) + 1
    assert [row["recording"] for row in rows] == sorted(row["recording"] for row in rows)
    assert {row["first_element"] for row in rows if row["role"] == "output"} == {"batch/knee"}
    assert sum(row["error"] is not None for row in rows) == 1


def test_a_killed_command_on_a_cluster_goes_on_here(stored: Path, tmp_path: Path, cluster: Cluster) -> None:
    journal = tmp_path / "journal"
    words = ["replay", str(stored / "changed" / "leg"), str(stored / "runs" / "run0*"), "--journal", str(journal), "--json"]
    command = [sys.executable, "-m", "leapp", *words]
    process = subprocess.Popen([*command, "--engine", "ray", "--address", cluster.address], stdout=subprocess.DEVNULL)
    while not journal.exists() or journal.stat().st_size < 20_000:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    with Journal(journal) as kept:
        done = len(kept.keys())
    answers = []
    for more in (["--journal", str(journal)], ["--journal", str(tmp_path / "other")]):
        answer = subprocess.run([*command, *more], capture_output=True, text=True)
        assert answer.returncode == 2
        answers.append(json.loads(answer.stdout))
    assert [answer.pop("resumed") for answer in answers] == [done, 0]
    assert answers[0] == answers[1]


def test_a_recording_that_takes_its_workers_along_is_reported(stored: Path, tmp_path: Path, cluster: Cluster) -> None:
    bundle = stored / "leg"
    paths = write_recordings(bundle, tmp_path / "runs", 8)
    write_recordings(bundle, tmp_path / "long", 1, 4000, ("mcap",))
    deadly = (tmp_path / "long" / "run0000.mcap").rename(tmp_path / "runs" / "run0003.mcap")
    paths[3].unlink()
    stop, killed = threading.Event(), []

    def guard() -> None:
        """Kill whoever reads the deadly file."""
        while not stop.wait(0.005):
            for pid in workers_of(cluster):
                try:
                    held = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
                except OSError:
                    continue
                if str(deadly) in held:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    thread = threading.Thread(target=guard)
    thread.start()
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        report = replay_fleet(bundle, [tmp_path / "runs" / "*"], engine="ray")
    finally:
        stop.set()
        thread.join()
    assert report.failed == {str(deadly): "Its worker died 3 times. Replay it alone with the local engine."}
    assert len(set(killed)) == 3
    assert (report.recordings, report.differing) == (7, 0)


def test_the_command_starts_a_cluster_of_its_own(stored: Path, tmp_path: Path) -> None:
    words = [str(stored / "leg"), str(stored / "runs" / "run00*"), "--json"]
    answers = []
    for engine in (["--engine", "ray", "--workers", "2"], []):
        answer = subprocess.run([sys.executable, "-m", "leapp", "replay", *words, *engine], capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        answers.append(answer.stdout)
    assert answers[0] == answers[1]


def test_engines_that_cannot_be_opened_are_an_error(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="None of 8 recordings"):
        replay_fleet(stored / "leg", [stored / "runs" / f"run001{n}.*" for n in range(8)], engine="ray", providers=["Nonsense"])
