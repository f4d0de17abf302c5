"""Exports that overwrite exports: whole or not at all, and never at the cost of somebody else's file."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from leapp.bundle import check_files, directories, open_bundle, staging
from leapp.bundle.files import hash_file
from leapp.bundle.integrity import seal
from leapp.bundle.sidecars import describe_model
from leapp.bundle.staging import Staging
from leapp.errors import BundleError, SessionError
from leapp.graph.contract import Contract, ModelFile, Node, Wiring

from .conftest import write

HERE = Path(__file__).parent


def listing(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*")}


WRITTEN = {"g.yaml", "g.png", "g_initial_values.safetensors", "g_samples.safetensors", "pre.pt", "pol.pt"}


@pytest.fixture(params=["exchange", "one by one"])
def way(request, monkeypatch):
    """Both ways to put a bundle in place."""
    if request.param == "one by one":
        monkeypatch.setattr(staging, "swap", lambda one, other: False)


def made(directory: Path) -> str:
    bundle = open_bundle(directory)
    check_files(bundle)
    assert bundle.contract.pipeline.configs is not None
    return str(bundle.contract.pipeline.configs["made"])


def test_first_export_into_no_directory_at_all(tmp_path):
    write(tmp_path / "deep" / "g")
    assert listing(tmp_path / "deep" / "g") == WRITTEN
    assert listing(tmp_path / "deep") == {"g", *(f"g/{name}" for name in WRITTEN)}


def test_stale_files_go_and_all_others_stay(bundle, way):
    (bundle / "notes.txt").write_text("mine")
    (bundle / "ckpt").mkdir()
    (bundle / "ckpt" / "model.pt").write_text("mine too")
    (bundle / "empty").mkdir()
    (bundle / "dangling").symlink_to("nowhere")
    (bundle / "mine.pt").write_text("a model of my own")
    write(bundle, "second", nodes=("pol",))
    assert made(bundle) == "second"
    others = {"log.txt", "notes.txt", "ckpt", "ckpt/model.pt", "empty", "dangling", "mine.pt"}
    assert listing(bundle) == (WRITTEN - {"pre.pt"}) | others
    assert (bundle / "ckpt" / "model.pt").read_text() == "mine too"
    assert os.readlink(bundle / "dangling") == "nowhere"
    assert os.listdir(bundle.parent) == ["g"]


def test_a_log_that_is_open_goes_on(bundle, way):
    with (bundle / "log.txt").open("a") as log:
        write(bundle, "second")
        log.write("validated\n")
    assert (bundle / "log.txt").read_text() == "started\nvalidated\n"


def test_a_file_in_the_way_that_is_not_ours_is_kept(bundle, way):
    (bundle / "new.pt").write_text("precious")
    write(bundle, "second", nodes=("pre", "new"))
    assert made(bundle) == "second"
    assert (bundle / "new.pt.kept1").read_text() == "precious"


def test_a_model_the_user_put_here_outlives_the_export_that_names_it(bundle, way):
    """A referenced model belongs to its user even if it lies in the bundle directory."""
    (bundle / "mine.pt").write_text("precious")
    node = Node(inputs=(), outputs=(), model=ModelFile(model_path="mine.pt", sha256sum="0" * 64, backend="jit"))
    with Staging(bundle) as stage:
        stage.commit("g", Contract(nodes={"mine": node}, pipeline=Wiring(), system={}))
    assert listing(bundle) == {"g.yaml", "log.txt", "mine.pt"}
    write(bundle, "third")
    assert (bundle / "mine.pt").read_text() == "precious"


def test_files_of_an_unsealed_export_are_known_by_name(bundle, way):
    text = (bundle / "g.yaml").read_text().partition("integrity:")[0]
    (bundle / "g.yaml").write_text(text.replace("1.0.0.dev0", "0.7.2"))
    write(bundle, "second", nodes=("pol",))
    assert not (bundle / "pre.pt").exists()
    assert made(bundle) == "second"


def hostile_folder(bundle: Path) -> Path:
    """A bundle whose seal names a file behind a link that leads out of it. Returns that file."""
    victim = bundle.parent / "documents" / "thesis.txt"
    victim.parent.mkdir()
    victim.write_text("years of work")
    (bundle / "sub").symlink_to(victim.parent)
    text, _, rest = (bundle / "g.yaml").read_text().partition("integrity:")
    files = yaml.safe_load("integrity:" + rest)["integrity"]["files"]
    (bundle / "g.yaml").write_text(seal(text, {**files, "sub/thesis.txt": hash_file(victim)[1]})[0])
    return victim


def test_a_file_behind_a_link_is_never_removed(bundle, way):
    victim = hostile_folder(bundle)
    write(bundle, "second")
    assert made(bundle) == "second"
    assert victim.read_text() == "years of work"


def test_a_link_where_a_folder_is_needed_is_kept(bundle, way):
    victim = bundle.parent / "documents" / "model.onnx"
    victim.parent.mkdir()
    victim.write_text("mine")
    (bundle / "pre").symlink_to(victim.parent)
    with Staging(bundle) as staged:
        (staged.path / "pre").mkdir()
        (staged.path / "pre" / "model.onnx").write_text("new")
        model = describe_model(staged.path / "pre" / "model.onnx", staged.path, "onnx")
        staged.commit("g", Contract(nodes={"pre": Node(inputs=(), outputs=(), model=model)}, pipeline=Wiring()))
    assert victim.read_text() == "mine"
    assert (bundle / "pre" / "model.onnx").read_text() == "new"
    assert staged.kept == {"pre": "pre.kept1"}
    assert os.readlink(bundle / "pre.kept1") == str(victim.parent)


def test_a_lock_that_is_never_given_back_stops_no_export(bundle, monkeypatch):
    """Whoever may read the directory above can take it."""
    monkeypatch.setattr(directories, "PATIENCE", 0.2)
    holder = os.open(bundle.parent, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        with pytest.warns(UserWarning, match="is locked by another process"):
            write(bundle, "second")
    finally:
        os.close(holder)
    assert made(bundle) == "second"


def test_a_staging_directory_is_locked_before_others_can_see_it(bundle, monkeypatch):
    """Between the two, another exporter would take it for one that a crash left, and sweep it away."""
    seen = []
    make = Staging._make

    def watched(self):
        path = make(self)
        other = os.open(bundle.parent, os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            seen.append("free")
        except BlockingIOError:
            seen.append("taken")
        finally:
            os.close(other)
        return path

    monkeypatch.setattr(Staging, "_make", watched)
    write(bundle, "second")
    assert seen == ["taken"]


def test_leaving_without_a_commit_changes_nothing(bundle):
    before = {name: (bundle / name).read_bytes() for name in WRITTEN}
    with pytest.raises(RuntimeError), Staging(bundle) as stage:
        (stage.path / "pre.pt").write_text("half")
        raise RuntimeError
    assert {name: (bundle / name).read_bytes() for name in WRITTEN} == before
    assert os.listdir(bundle.parent) == ["g"]


def test_commit_refuses_what_was_not_written_and_a_second_time(bundle):
    contract = open_bundle(bundle).contract
    with Staging(bundle.parent / "other") as stage, pytest.raises(BundleError, match=r"pre.*was not written"):
        stage.commit("other", contract)
    assert not (bundle.parent / "other").exists()
    with Staging(bundle) as stage:
        stage.commit("h", Contract(nodes={}, pipeline=Wiring()))
        with pytest.raises(SessionError):
            stage.commit("h", Contract(nodes={}, pipeline=Wiring()))


def test_a_link_to_the_directory_stays_a_link(bundle):
    link = bundle.parent / "current"
    link.symlink_to("g")
    write(bundle, "second")
    with Staging(link) as stage:
        assert stage.final == bundle.resolve()
    assert link.is_symlink() and made(link / "g.yaml") == "second"


def test_modes_are_those_of_the_old_directory(bundle):
    os.chmod(bundle, 0o750)
    write(bundle, "second")
    assert os.stat(bundle).st_mode & 0o777 == 0o750


def test_a_process_that_stands_in_the_directory_keeps_standing_there(bundle, monkeypatch):
    monkeypatch.chdir(bundle)
    write(bundle, "second")
    assert "second" in Path("g.yaml").read_text()


def test_files_that_arrive_while_exporting_are_saved(bundle, monkeypatch):
    swap = staging.swap

    def late(one: Path, other: Path) -> bool:
        (other / "late.txt").write_text("just in time")
        return swap(one, other)

    monkeypatch.setattr(staging, "swap", late)
    write(bundle, "second")
    assert (bundle / "late.txt").read_text() == "just in time"


def test_a_file_or_a_link_with_the_name_of_a_staging_directory_is_left_alone(bundle, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    (tmp_path / ".g.leapp-notes").write_text("mine")
    (tmp_path / ".g.leapp-link").symlink_to(other)
    write(bundle, "two")
    assert made(bundle) == "two"
    assert (tmp_path / ".g.leapp-notes").read_text() == (other / "mine.txt").read_text() == "mine"
    assert (tmp_path / ".g.leapp-link").is_symlink()


def test_what_a_crash_left_is_swept_and_user_files_in_it_are_saved(bundle):
    retired = bundle.parent / ".g.leapp-0123"
    retired.mkdir()
    (retired / "user.txt").write_text("mine")
    (retired / "log.txt").hardlink_to(bundle / "log.txt")
    unfinished = bundle.parent / ".g.leapp-4567"
    unfinished.mkdir()
    (unfinished / ".leapp-staging").touch()
    (unfinished / "pre.pt").write_text("half")
    write(bundle, "second")
    assert os.listdir(bundle.parent) == ["g"]
    assert (bundle / "user.txt").read_text() == "mine"
    assert made(bundle) == "second"


@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_file_that_cannot_be_synced_is_an_error(tmp_path, place):
    paths = [f"{tmp_path}/{number}" for number in range(12)]
    for number, path in enumerate(paths):
        if number != place:
            Path(path).write_bytes(b"x")
    with pytest.raises(FileNotFoundError, match=f"/{place}'"):
        directories.sync_all(paths)


def test_disk_full_at_any_file_leaves_the_old_bundle(bundle):
    code = """
import resource, sys, pathlib
sys.path.insert(0, sys.argv[1])
from conftest import write
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
write(pathlib.Path(sys.argv[2]), "second" * 10)
"""
    for limit in (0, 100, 700, 2000, 3000):
        run = subprocess.run([sys.executable, "-c", code, str(HERE), str(bundle), str(limit)], capture_output=True, text=True)
        assert "OSError" in run.stderr
        assert made(bundle) == "one"
        assert os.listdir(bundle.parent) == ["g"]


EXPORTER = """
import itertools, pathlib, sys
sys.path.insert(0, sys.argv[1])
from conftest import write
for count in itertools.count():
    name = f"{sys.argv[3]}{count}"
    write(pathlib.Path(sys.argv[2]), name, nodes=("pre", "pol", *(f"n{i}" for i in range(count % 3))))
    if count == 0:
        print("ready", flush=True)
    if len(sys.argv) > 4 and count >= int(sys.argv[4]):
        break
"""


def exporter(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", EXPORTER, str(HERE), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_killed_at_any_moment_a_whole_bundle_is_there(bundle):
    (bundle / "user.txt").write_text("mine")
    seen = set()
    for number in range(15):
        process = exporter(bundle, f"run{number}-")
        time.sleep(0.0071 * number)
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        seen.add(made(bundle))
        assert (bundle / "user.txt").read_text() == "mine"
    assert len(seen) == 15
    write(bundle, "last")
    assert made(bundle) == "last"
    assert os.listdir(bundle.parent) == ["g"]
    assert listing(bundle) == WRITTEN | {"log.txt", "user.txt"}


def test_several_exporters_to_one_name(bundle):
    (bundle / "user.txt").write_text("mine")
    processes = [exporter(bundle, f"p{number}-", 8) for number in range(4)]
    for process in processes:
        process.wait()
        assert process.returncode == 0
        assert process.stdout is not None
        process.stdout.close()
    assert made(bundle)[0] == "p"
    assert os.listdir(bundle.parent) == ["g"]
    nodes = {f"{node}.pt" for node in open_bundle(bundle).contract.nodes}
    assert listing(bundle) == (WRITTEN - {"pre.pt", "pol.pt"}) | nodes | {"log.txt", "user.txt"}
