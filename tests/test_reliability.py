"""Kills, crowds and damage: whatever happens to an export, what is on disk is a whole bundle or is refused.

    python -m tests.test_reliability --write [SECTION ...]     measure at full length and write into docs/reliability.md

Set LEAPP_SOAK=1 to run the tests at full length.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leapp.bundle import Bundle, check_files, open_bundle, read_samples
from leapp.errors import LeappError
from tests.warm import run_python

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "reliability.md"
SOAK = bool(os.environ.get("LEAPP_SOAK"))
Experiment = Callable[[Path, int], dict[str, object]]


# The exporter: a process that has torch loaded and forks children that export.


def export(where: Path, made: str) -> None:
    """Trace and write a pipeline of two nodes with feedback. ``made`` decides the weights and is in the description."""
    import torch

    import leapp

    torch.manual_seed(sum(made.encode()))
    weight, state = torch.randn(4, 4), torch.zeros(1, 4)
    leapp.start("g", save_path=str(where))
    with torch.no_grad():
        for _ in range(2):
            x, h = leapp.annotate.input_tensors("pre", {"x": torch.randn(1, 4), "h": state})
            y = leapp.annotate.output_tensors("pre", {"y": (x + h) @ weight}, export_with="jit")
            y = leapp.annotate.input_tensors("pol", {"y": y})
            state = leapp.annotate.output_tensors("pol", {"a": torch.tanh(y * weight[0])}, export_with="jit")
    leapp.stop()
    leapp.compile_graph(graph_configs=leapp.GraphConfigs(frequency=50, extra={"made": made}))


def whole(where: Path) -> str:
    """Which export the bundle on disk is of. Raises unless every file of it is of that export."""
    bundle = open_bundle(where / "g")
    check_files(bundle)
    read_samples(bundle)
    configs = bundle.contract.pipeline.configs or {}
    return str(configs["made"])


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        work()
    except BaseException:
        os._exit(1)
    os._exit(0)


def kills(where: Path, count: int) -> dict[str, object]:
    """Kill an exporter at ``count`` instants spread over an export, and look at what is left each time."""
    began = time.perf_counter()
    os.waitpid(forked(lambda: export(where, "warm")), 0)
    os.waitpid(forked(lambda: export(where, "first")), 0)
    length = (time.perf_counter() - began) / 2
    (where / "g" / "user.txt").write_text("mine")
    old, new, current = 0, 0, whole(where)
    for number in range(count):
        tag = f"run{number}"
        child = forked(lambda: export(where, tag))  # noqa: B023  (the child runs at once)
        time.sleep(1.3 * length * (number + 0.5) / count)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = whole(where)
        assert found in (current, tag), f"after kill {number} the bundle is of {found}"
        old, new, current = old + (found == current), new + (found == tag), found
        assert (where / "g" / "user.txt").read_text() == "mine"
    assert os.waitpid(forked(lambda: export(where, "last")), 0)[1] == 0
    assert whole(where) == "last"
    return {"kills": count, "old": old, "new": new, "left over": len(os.listdir(where)) - 1}


def crowd(where: Path, count: int) -> dict[str, object]:
    """Several exporters to one name at once, twice each."""

    def twice(tag: str) -> None:
        export(where, f"{tag}a")
        export(where, f"{tag}b")

    children = [forked(lambda tag=tag: twice(tag)) for tag in (f"p{n}" for n in range(count))]  # type: ignore[misc]
    failed = sum(os.waitpid(child, 0)[1] != 0 for child in children)
    assert whole(where).startswith("p")
    return {"exporters": count, "failed": failed, "left over": len(os.listdir(where)) - 1}


def read_only(where: Path, count: int) -> dict[str, object]:
    """An export into a directory that may not be written, by a user whom permissions bind."""
    os.waitpid(forked(lambda: export(where, "old")), 0)
    for path in (where, where / "g"):
        os.chmod(path, 0o555)

    def attempt() -> None:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        try:
            export(where, "new")
        except OSError as error:
            os._exit(0 if str(where) in str(error) else 2)
        os._exit(3)

    status = os.waitstatus_to_exitcode(os.waitpid(forked(attempt), 0)[1])
    for path in (where, where / "g"):
        os.chmod(path, 0o755)
    assert status == 0, {2: "the error does not name the directory", 3: "the export was not refused"}.get(status, status)
    assert whole(where) == "old"
    return {"refused": True}


# Long runs and hostile descriptions: experiments of other tests, at full length and each in a fresh process.


def steps(case: int) -> Experiment:
    def measured(where: Path, count: int) -> dict[str, object]:
        from tests.runtime.test_soak import LOOPS, many_steps

        return {"growth": many_steps(where, *LOOPS[case], count)}

    return measured


def threads(case: int) -> Experiment:
    def measured(where: Path, count: int) -> dict[str, object]:
        from tests.runtime.test_soak import SHARED, many_threads

        return {"wrong": many_threads(where, *SHARED[case], count)}

    return measured


def mutants(where: Path, count: int) -> dict[str, object]:
    from tests.attacks.test_mutants import loop, run_mutants

    return run_mutants(loop(where, "jit", "onnx"), count or None)


def documents(where: Path, count: int) -> dict[str, object]:
    from tests.attacks.test_mutants import loop, run_documents

    return run_documents(loop(where, "jit", "onnx"), count)


def full_disk(where: Path, count: int) -> dict[str, object]:
    """Export again and again on a disk that has a little more room each time, from none to enough."""
    own_mounts()

    def limit(size: int, *how: str) -> None:
        command = ["mount", "-t", "tmpfs", "-o", ",".join([*how, f"size={size}"]), "none", str(where)]
        subprocess.run(command, check=True, capture_output=True)

    limit(64 << 20)
    assert os.waitpid(forked(lambda: export(where, "old")), 0)[1] == 0
    used = shutil.disk_usage(where).used
    (where / "g" / "user.txt").write_text("mine")
    assert os.waitpid(forked(lambda: export(where, "old")), 0)[1] == 0
    read, write = os.pipe()

    def attempt(tag: str) -> None:
        try:
            export(where, tag)
        except LeappError as error:
            os.write(write, f"{type(error).__name__}: {error}\n".encode())
            os._exit(3)

    old = new = 0
    current, messages = "old", set()
    for number in range(count):
        now = shutil.disk_usage(where).used
        limit(now + int(1.5 * used * number / (count - 1)), "remount")
        tag = f"run{number}"
        status = os.waitstatus_to_exitcode(os.waitpid(forked(lambda: attempt(tag)), 0)[1])  # noqa: B023
        limit(64 << 20, "remount")
        found = whole(where)
        assert status in (0, 3) and found == (tag if status == 0 else current), f"step {number}: {status}, {found}"
        if status == 3:
            message = os.read(read, 4096).decode()
            assert message.startswith("StorageError: the disk is full: ") and str(where) in message, message
            messages.add(message)
        old, new, current = old + (status == 3), new + (status == 0), found
        assert (where / "g" / "user.txt").read_text() == "mine" and len(os.listdir(where)) == 1
    return {"steps": count, "old": old, "new": new, "message": max(messages).replace(str(where), "exports")}


def own_mounts() -> None:
    """Move this process where it may mount and nobody else sees it."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.geteuid(), os.getegid()
    new_user, new_mounts = 0x10000000, 0x20000
    if libc.unshare(new_mounts if user == 0 else new_user | new_mounts) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


EXPERIMENTS: dict[str, Experiment] = {"kills": kills, "crowd": crowd, "read_only": read_only, "full_disk": full_disk}
EXPERIMENTS |= {"mutants": mutants, "documents": documents}
EXPERIMENTS |= {f"steps {case}": steps(case) for case in range(3)} | {f"threads {case}": threads(case) for case in range(6)}


def run(experiment: str, count: int = 0) -> dict[str, object]:
    """Run an experiment in a process of its own, which forks only before it has threads."""
    place = tempfile.mkdtemp(prefix="leapp-")
    os.chmod(place, 0o755)
    try:
        done = run_python("-m", "tests.test_reliability", "--run", experiment, place, count, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-3000:]
        result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return result
    finally:
        shutil.rmtree(place, ignore_errors=True)


# Damage: one bundle, changed in every way.


def onnx_bundle(where: Path) -> Path:
    """A bundle with every kind of file, two models of one form among them."""
    import torch

    import leapp

    leapp.start("g", save_path=str(where))
    state = torch.zeros(1, 4)
    for _ in range(2):
        x, h = leapp.annotate.input_tensors("one", {"x": torch.randn(1, 4), "y": state})
        y = leapp.annotate.output_tensors("one", {"z": x * 2 + h}, export_with="onnx")
        x, h = leapp.annotate.input_tensors("two", {"x": y, "y": torch.randn(1, 4)})
        state = leapp.annotate.output_tensors("two", {"z": x - h.sin()}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(fuse=True, graph_configs=leapp.GraphConfigs(frequency=50))
    return where / "g"


def refuses(directory: Path, digest: str | None = None) -> bool:
    try:
        check_files(open_bundle(directory, expect_digest=digest))
    except LeappError:
        return True
    return False


def meaning(directory: Path) -> tuple[object, ...]:
    bundle: Bundle = open_bundle(directory)
    return bundle.contract, bundle.digest, bundle.files


def damage(directory: Path, count: int) -> dict[str, dict[str, int]]:
    """Flip a bit, then cut off the end, at ``count`` places of each file. Counts what was refused."""
    figures = {}
    expected, digest = meaning(directory), open_bundle(directory).digest
    for path in sorted(directory.iterdir()):
        if path.name == "log.txt":
            continue
        data, choose = path.read_bytes(), random.Random(path.name)
        flips = cuts = blanks = 0
        for _ in range(count):
            changed = bytearray(data)
            changed[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
            path.write_bytes(changed)
            # Annotations are not sealed: only a pinned digest covers them.
            if refuses(directory, digest):
                flips += 1
            else:
                # Only the layout of the description may change, such as a blank in it.
                assert path.suffix == ".yaml" and meaning(directory) == expected, path.name
                blanks += 1
            path.write_bytes(data[: choose.randrange(len(data) - 2)])
            cuts += refuses(directory)
        path.write_bytes(data)
        figures[path.name] = {"flips": flips, "blanks": blanks, "cuts": cuts, "of": count}
    assert not refuses(directory)
    return figures


EDITS = {
    "another frequency, digest pinned": ("frequency: 50", "frequency: 500"),
    "another shape": ("shape: [1, 4]", "shape: [4, 1]"),
    "another dtype": ("dtype: float32", "dtype: float64"),
    "another wire": ("one/z: [two/x]", "one/z: [two/y]"),
    "no feedback": ("two/z: [one/y]", "two/z: []"),
    "another model": ("model_path: two.onnx", "model_path: one.onnx"),
    "no initial values": ("  initial_values: g_initial_values.safetensors\n", ""),
}


def edits(directory: Path) -> dict[str, bool]:
    path = directory / "g.yaml"
    text, found, digest = path.read_text(), {}, open_bundle(directory).digest
    for name, (old, new) in EDITS.items():
        assert old in text, name
        path.write_text(text.replace(old, new, 1))
        found[name] = refuses(directory, digest if "pinned" in name else None)
    path.write_text(text)
    one, two = directory / "one.onnx", directory / "two.onnx"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    found["two models swapped"] = refuses(directory)
    one.write_bytes(first)
    two.write_bytes(second)
    return found


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_bundle(tmp_path_factory.mktemp("damage"))


def test_a_killed_export_leaves_a_whole_bundle() -> None:
    figures = run("kills", 200 if SOAK else 10)
    assert figures["left over"] == 0
    assert figures["old"] + figures["new"] == figures["kills"]


def test_exporters_to_one_name_do_not_mix() -> None:
    figures = run("crowd", 8 if SOAK else 3)
    assert figures["failed"] == 0 and figures["left over"] == 0


def test_a_directory_that_may_not_be_written_is_named_and_left_alone() -> None:
    assert run("read_only") == {"refused": True}


def test_a_full_disk_is_named_and_leaves_the_old_bundle_or_the_whole_new_one() -> None:
    figures = run("full_disk", 60 if SOAK else 8)
    assert figures["old"] and figures["new"] and figures["old"] + figures["new"] == figures["steps"]


def test_damaged_files_are_refused(damaged: Path) -> None:
    figures = damage(damaged, 200 if SOAK else 40)
    assert {"g.yaml", "one.onnx", "g.onnx", "g_samples.safetensors", "g_initial_values.safetensors", "g.png"} <= set(figures)
    for name, counted in figures.items():
        assert counted["cuts"] == counted["of"], name
        assert counted["flips"] + counted["blanks"] == counted["of"], name
        assert counted["blanks"] <= counted["of"] // 10, name


def test_edited_descriptions_and_swapped_models_are_refused(damaged: Path) -> None:
    assert all(edits(damaged).values())


# docs/reliability.md

INTRODUCTION = """\
# Reliability

What happens to a bundle when its export is killed, when several programs export to one name, when files are damaged or
forged, and when it runs for long. The figures are measured by `python -m tests.test_reliability --write`; the same
experiments run as tests, shorter unless `LEAPP_SOAK=1`.

A bundle is written to a directory beside the final one, synced, and exchanged with the old one in a single step of the
file system. Its description carries the sha256 of every file and a digest over everything. Opening a bundle checks them
before an engine sees a byte.
"""


def exports_section() -> list[str]:
    killed, met, full = run("kills", 200), run("crowd", 8), run("full_disk", 60)
    run("read_only")
    return [
        "| what | result |",
        "|---|---|",
        f"| `kill -9` at {killed['kills']} instants of a re-export | {killed['old']} times the old bundle, {killed['new']} "
        f"times the new one, 0 times anything else; {killed['left over']} directories left over after the next export |",
        f"| {met['exporters']} exporters to one name at once, twice each | the bundle of one of them, whole; {met['failed']} "
        f"failed, {met['left over']} directories left over |",
        "| a directory that may not be written | refused with its name, the old bundle untouched |",
        f"| a disk with ever more room, {full['steps']} steps from none to enough | {full['old']} times refused, the old "
        f"bundle whole, {full['new']} times the new one, 0 times anything else |",
    ]


def damage_section() -> list[str]:
    with tempfile.TemporaryDirectory() as where:
        directory = onnx_bundle(Path(where))
        harmed, edited = damage(directory, 200), edits(directory)
    lines = ["| file | bit flips refused | flips without meaning | truncations refused |", "|---|---|---|---|"]
    for name, counted in harmed.items():
        of = counted["of"]
        lines.append(f"| `{name}` | {counted['flips']} of {of} | {counted['blanks']} | {counted['cuts']} of {of} |")
    lines += ["", "The digest was pinned, which covers annotations too. A flip without meaning hit the layout of the YAML: the"]
    lines += ["opened bundle was compared and is the same.", ""]
    lines += ["| change | result |", "|---|---|"]
    return lines + [f"| {name} | {'refused' if done else 'NOT REFUSED'} |" for name, done in edited.items()]


def hostile_section() -> list[str]:
    changed, fuzzed = run("mutants"), run("documents", 100_000)

    def cost(found: dict[str, object]) -> str:
        return f"{found['slowest']:.2f} s | {found['megabytes']:.0f} MB |"

    return [
        "Every one ends in an error of the library or in the answer that its text asks for, computed independently.",
        "",
        "| what | refused | the rest | slowest, in CPU time | growth of the process over all |",
        "|---|---|---|---|---|",
        f"| {changed['of']} descriptions with one field changed and sealed again, opened and run | {changed['refused']} | "
        f"{changed['right']} run and are right | {cost(changed)}",
        f"| 100,000 fuzzed descriptions, read | {fuzzed['refused']} | {fuzzed['read']} read as the YAML library reads them; of "
        f"every fourth of these {fuzzed['run: refused']} are refused at load, {fuzzed['run: right']} run and are right | "
        f"{cost(fuzzed)}",
    ]


def long_runs_section() -> list[str]:
    from tests.runtime.test_soak import LOOPS, SHARED

    lines = ["| 10,000,000 steps with state | growth of memory over the last nine tenths | last 1,000 steps |", "|---|---|---|"]
    for case, (face, backends) in enumerate(LOOPS):
        grown = run(f"steps {case}", 10_000_000)["growth"]
        lines.append(f"| `{face}`, {' and '.join(backends)} | {grown:.1f} MB | bit for bit those of a fresh runner |")
    lines += ["", "| 1,000,000 calls of one runner from four threads | wrong |", "|---|---|"]
    for case, (face, backends) in enumerate(SHARED):
        lines.append(f"| `{face}`, {' and '.join(backends)} | {run(f'threads {case}', 1_000_000)['wrong']} |")
    return lines


def attacks_section() -> list[str]:
    from tests.attacks.test_fuzz import TARGETS, fuzz
    from tests.attacks.test_interrupts import CALLS, FACES, PAIRS, interrupt_everywhere
    from tests.attacks.test_signatures import FORGED
    from tests.cpp import test_signatures as both

    lines = ["| attack | tries | result |", "|---|---|---|"]
    for name in CALLS:
        seen = {"old": 0, "new": 0}
        for pair in PAIRS:
            for face in FACES:
                with tempfile.TemporaryDirectory() as folder:
                    for kind, count in interrupt_everywhere(Path(folder), pair, face, name).items():
                        seen[kind] += count
        tries = f"{sum(seen.values()):,}, each before another instruction, {len(PAIRS)} pairs of backends, both runners"
        result = f"{seen['old']:,} times the old state, {seen['new']:,} times the new one, 0 times a mixture"
        lines.append(f"| Ctrl-C in {name} | {tries} | {result} |")
    for target in TARGETS:
        tries = f"{fuzz(target, '-max_total_time=30'):,} inputs in 30 s"
        lines.append(f"| fuzzing with coverage: {target} | {tries} | 0 raised anything but an error of leapp |")
    signatures = ["tests/attacks/test_signatures.py", "tests/cpp/test_signatures.py"]  # the second needs make build-cpp
    subprocess.run([sys.executable, "-m", "pytest", "-q", *signatures], cwd=ROOT, check=True)
    lines.append(f"| forged and damaged signatures | {len(FORGED)} kinds | each refused by both runners, `verify` and `run` |")
    kinds = len(both.FORGED) + len(both.DAMAGED) + len(both.STATEMENTS)
    tries = f"{kinds} kinds, 300 fuzzed files"
    lines.append(f"| the same in Python and C++ | {tries} | both give the same answer in the same words |")
    return lines


SECTIONS = {
    "Exports": exports_section,
    "Damage": damage_section,
    "Hostile descriptions": hostile_section,
    "Attacks": attacks_section,
    "Long runs": long_runs_section,
}


def document(names: list[str]) -> str:
    """The text of docs/reliability.md with these sections measured, all of them if none is named."""
    _, *parts = DOCUMENT.read_text(encoding="utf-8").split("\n## ")
    kept = {part.partition("\n")[0]: part.partition("\n")[2].strip() for part in parts}
    text = INTRODUCTION
    for name, measured in SECTIONS.items():
        body = "\n".join(measured()) if name in names or not names else kept.get(name, "Not measured yet.")
        text += f"\n## {name}\n\n{body}\n"
    return text


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        import torch  # noqa: F401  (loaded once, before the forks)

        import leapp.tracing.lifecycle  # noqa: F401

        print(json.dumps(EXPERIMENTS[sys.argv[2]](Path(sys.argv[3]), int(sys.argv[4]))))
    elif sys.argv[1:2] == ["--write"] and set(sys.argv[2:]) <= set(SECTIONS):
        DOCUMENT.write_text(document(sys.argv[2:]), encoding="utf-8")
    else:
        sys.exit(__doc__)
