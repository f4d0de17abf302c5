"""Runs rows of the tables through leapp and says, for each, what went wrong.

Uses the public API only, so that it can judge any build of the library. A row is right when tracing changed nothing the
program computes, and when the written bundle equals eager code on inputs it has never seen.

    python -m tests.conformance --coverage            write docs/coverage.md
    python -m tests.conformance torch_ops onnx        run one table on one backend and list what fails
    python -m tests.conformance torch_ops onnx a b    the same for some rows
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.tables import all_tables
from tests.tables.case import Case
from tests.tables.refused import refusal

COVERAGE = Path(__file__).parent.parent / "docs" / "coverage.md"
BATCH = 48
# Each exporter has a cost per node that a row is not about; several rows share a node where that cost is high.
ROWS_PER_NODE = {"jit": 12, "onnx": 12, "pt2": 24}
BACKENDS = tuple(ROWS_PER_NODE)
TRACED_SEEDS, NEW_SEEDS = (1, 4), (2, 3)
TRACED_SEED = TRACED_SEEDS[0]
# (rtol, atol) of an exported model: engines order their sums differently, nothing more.
TOLERANCE = {
    torch.float64: (1e-7, 1e-8),
    torch.float32: (2e-4, 2e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (2e-2, 2e-2),
    torch.complex64: (2e-4, 2e-5),
    torch.complex128: (1e-7, 1e-8),
}


class RowError(Exception):
    """A row failed while it was being traced; the cause is attached."""

    def __init__(self, case: Case, cause: BaseException) -> None:
        super().__init__(f"{case.name}: {describe(cause)}")
        self.case = case


def describe(error: BaseException) -> str:
    """One line about an error."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:1500]


# Values


def flatten(value: Any, name: str = "o") -> dict[str, Any]:
    """The tensors and arrays in the result of a row, by output name."""
    if isinstance(value, Mapping):
        items = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, (tuple, list)):
        items = [(str(i), v) for i, v in enumerate(value)]
    else:
        return {name: value}
    return {k: v for key, item in items for k, v in flatten(item, f"{name}_{key}").items()}


def plain(value: Any) -> torch.Tensor:
    """A copy of a tensor, array or NumPy number that shares nothing with it."""
    if isinstance(value, torch.Tensor):
        return value.detach().as_subclass(torch.Tensor).clone()
    return torch.from_numpy(np.array(value, subok=False))


def held(value: Any, name: str = "state", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Every tensor and array that an object made by ``setup`` holds."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (torch.Tensor, np.ndarray)):
        yield name, value
        return
    if isinstance(value, torch.jit.ScriptModule):
        items: list[tuple[Any, Any]] = list(value.state_dict().items())
    elif isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    elif dataclasses.is_dataclass(value) or isinstance(value, torch.nn.Module) or type(value).__module__.startswith("tests."):
        items = list(getattr(value, "__dict__", {}).items())
    else:
        return
    for key, item in items:
        yield from held(item, f"{name}.{key}", seen)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same to the last bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)))


def difference(case: Case, got: torch.Tensor, expected: torch.Tensor) -> str | None:
    """How an exported result differs from the eager one, or None."""
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"is {got.dtype} {list(got.shape)}, eager {expected.dtype} {list(expected.shape)}"
    rtol, atol = TOLERANCE.get(expected.dtype, (0.0, 0.0))
    rtol = rtol if case.rtol is None else case.rtol
    atol = atol if case.atol is None else case.atol
    if torch.allclose(got, expected, rtol=rtol, atol=atol, equal_nan=True):
        return None
    return f"got {got.flatten()[:6].tolist()}, eager {expected.flatten()[:6].tolist()}"


# Runs


@dataclasses.dataclass
class Run:
    """What one eager run of a row left behind."""

    outputs: dict[str, torch.Tensor]
    inputs: dict[str, torch.Tensor]
    state: dict[str, tuple[type, torch.Tensor]]


def leftovers(outputs: Mapping[str, Any], inputs: Mapping[str, Any], state: Any) -> Run:
    """Copies of everything a row computed or changed."""
    return Run(
        {k: plain(v) for k, v in outputs.items()},
        {k: plain(v) for k, v in inputs.items()},
        {k: (type(v), plain(v)) for k, v in held(state)},
    )


def eager(case: Case, seed: int, **replaced: Any) -> Run:
    """Run a row without leapp."""
    state = case.make_state()
    inputs = case.draw(seed) | replaced
    return leftovers(flatten(case.run(list(inputs.values()), state)), inputs, state)


@lru_cache(maxsize=8 * BATCH)
def expected(case: Case, seed: int) -> Run:
    """What a row does without leapp, run once for all backends whose batches follow each other."""
    return eager(case, seed)


def unsound(case: Case) -> str | None:
    """Why a row proves nothing (it is random, or ignores an input), or None."""
    base, again = (eager(case, TRACED_SEED).outputs for _ in range(2))
    if not all(same_bits(a, b) for a, b in zip(base.values(), again.values(), strict=True)):
        return "two runs on the same inputs differ"
    for port in case.draw(TRACED_SEED):
        for seed in range(10, 30):
            changed = eager(case, TRACED_SEED, **{port: case.draw(seed)[port]}).outputs
            if changed.keys() != base.keys() or any(a.shape != base[k].shape for k, a in changed.items()):
                return f"the shape of the result depends on {port}"
            if any(not same_bits(a, base[k]) for k, a in changed.items()):
                break
        else:
            return f"no output depends on {port}"
    return None


@dataclasses.dataclass
class Traced:
    """A batch on its way through a session."""

    node: dict[str, str]
    runs: dict[str, dict[int, tuple[dict[str, Any], dict[str, Any], Any]]]
    """Outputs, inputs and objects of each pass, by row and seed."""


def trace(
    cases: Sequence[Case],
    backend: str,
    where: Path,
    rows_per_node: int,
    seeds: Sequence[int] = TRACED_SEEDS,
    *,
    one_state: bool = False,
    **start: Any,
) -> Traced:
    """Run rows in one session, a few rows a node, one pass per seed.

    Each pass gets what ``setup`` makes anew, as every run of a row does, unless all are asked to share ``one_state``.
    """
    import leapp

    done = Traced({}, {case.name: {} for case in cases})
    first = {case.name: case.make_state() for case in cases}
    states = {s: first if one_state or s == seeds[0] else {c.name: c.make_state() for c in cases} for s in seeds}
    own = [case for case in cases if backend in case.apart]
    shared = [case for case in cases if case not in own]
    groups = [shared[first : first + rows_per_node] for first in range(0, len(shared), rows_per_node)] + [[c] for c in own]
    leapp.start("batch", save_path=str(where), **start)
    try:
        for seed in seeds:
            for number, group in enumerate(groups):
                node = group[0].name if len(group) == 1 else f"rows_{number}"
                trace_node(group, node, backend, seed, states[seed], done)
    finally:
        leapp.stop()
    return done


def trace_node(
    group: Sequence[Case], node: str, backend: str, seed: int, states: Mapping[str, Any], done: Traced
) -> None:
    """One pass of one node."""
    import leapp

    published: dict[str, Any] = {}
    given: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    drawn = {case.name: case.draw(seed) for case in group}  # outside of the node, which records what it sees
    for case in group:
        inputs = drawn[case.name]
        try:
            values = leapp.annotate.input_tensors(node, {f"{case.name}__{k}": v for k, v in inputs.items()})
            result = flatten(case.run(list(values) if len(inputs) > 1 else [values], states[case.name]))
        except Exception as error:
            raise RowError(case, error) from error
        done.node[case.name] = node
        given[case.name] = (inputs, result)
        published |= {f"{case.name}__{k}": v for k, v in result.items()}
    try:
        leapp.annotate.output_tensors(node, published, export_with=backend)
    except Exception as error:
        if len(group) == 1:
            raise RowError(group[0], error) from error
        raise
    for case in group:
        inputs, result = given[case.name]
        done.runs[case.name][seed] = result, inputs, states[case.name]


def tracing_changed(case: Case, done: Traced) -> str | None:
    """What a traced run of a row did that the untraced run did not, or None."""
    return next((problem for seed in done.runs[case.name] if (problem := _changed(case, seed, done))), None)


def _changed(case: Case, seed: int, done: Traced) -> str | None:
    before, after = expected(case, seed), leftovers(*done.runs[case.name][seed])
    for kind, a, b in (("output", before.outputs, after.outputs), ("input", before.inputs, after.inputs)):
        if a.keys() != b.keys():
            return f"traced run: {kind}s {list(b)} instead of {list(a)}"
        for key in a:
            if not same_bits(a[key], b[key]):
                return f"traced run: {kind} {key} {difference(case, b[key], a[key]) or 'differs in the last bits'}"
    if before.state.keys() != after.state.keys():
        return f"traced run: objects {list(after.state)} instead of {list(before.state)}"
    for key, (kind_before, value) in before.state.items():
        kind_after, other = after.state[key]
        if kind_before is not kind_after or not same_bits(value, other):
            return f"traced run: {key} was left different ({kind_after.__name__})"
    return None


def open_batch(home: Path) -> Any:
    """The bundle that a session of ``trace`` wrote."""
    import leapp

    return leapp.InferenceManager(home / "batch" / "batch.yaml")


def check_bundle(
    cases: Sequence[Case], done: Traced, manager: Any, seeds: Sequence[int] = NEW_SEEDS
) -> dict[str, str | None]:
    """Run an opened bundle on other inputs and compare each row with eager code."""
    verdict: dict[str, str | None] = {case.name: None for case in cases}
    known = set(manager.inputs)
    for seed in seeds:
        feed: dict[str, torch.Tensor] = {}
        for case in cases:
            for port, value in case.draw(seed).items():
                key = f"{done.node[case.name]}/{case.name}__{port}"
                if key in known:
                    feed[key] = plain(value)
                else:
                    verdict[case.name] = f"input {port} is missing from the bundle"
        kept = {key: value.clone() for key, value in feed.items()}
        results = manager(feed)
        for case in cases:
            prefix = f"{done.node[case.name]}/{case.name}__"
            verdict[case.name] = verdict[case.name] or compare(case, seed, results, prefix)
            for key in feed:
                if key.startswith(prefix) and not same_bits(feed[key], kept[key]):
                    verdict[case.name] = f"running the bundle changed its input {key}"
    return verdict


def compare(case: Case, seed: int, results: Mapping[str, Any], prefix: str) -> str | None:
    """How the outputs of one row differ from eager code, or None."""
    for name, value in expected(case, seed).outputs.items():
        if prefix + name not in results:
            return f"output {name} is missing from the bundle"
        problem = difference(case, plain(results[prefix + name]), value)
        if problem:
            return f"input {seed}: output {name} {problem}"
    return None


def run_cases(cases: Sequence[Case], backend: str, where: Path, rows_per_node: int | None = None) -> dict[str, str | None]:
    """Judge rows; None for a right one, otherwise what is wrong.

    A batch that is refused is halved to find the row. Rows that are right in each half and refused together are wrong, too:
    a user's node is many functions beside each other.
    """
    import leapp
    from leapp.errors import LeappError

    if not cases:
        return {}
    home = Path(tempfile.mkdtemp(dir=where))
    try:
        done = trace(cases, backend, home, rows_per_node or ROWS_PER_NODE[backend])
        verdict = {case.name: tracing_changed(case, done) for case in cases}
        leapp.compile_graph(visualize=False, validate=True, allow_nonfinite=True, allow_random=True)
        bundle = check_bundle(cases, done, open_batch(home))
        reported = escapes_reported()
        verdict = {name: problem or bundle[name] or reported.get(name) for name, problem in verdict.items()}
        # A report about a node of several rows does not say which row it is about: each gets a node of its own.
        unclear = [case for case in cases if done.node[case.name] in reported and done.node[case.name] != case.name]
        return verdict | run_cases(unclear, backend, where, rows_per_node=1)
    except RowError as error:
        rest = run_cases([c for c in cases if c is not error.case], backend, where, rows_per_node)
        return {error.case.name: str(error)} | rest
    except Exception as error:
        if len(cases) == 1 or not isinstance(error, LeappError):  # the rows alone may not raise what they raise together
            if os.environ.get("CONFORMANCE_TRACEBACK"):
                traceback.print_exc()
            return {case.name: describe(error) for case in cases}
        # A message that names a row saves the search; the rest is tried again without it.
        alone = (rows_per_node or ROWS_PER_NODE[backend]) == 1
        named = [c for c in cases if f"'{c.name}'" in str(error)] if alone else []
        first = named if 0 < len(named) < len(cases) else list(cases[: len(cases) // 2])
        rest = [c for c in cases if c not in first]
        found = run_cases(first, backend, where, rows_per_node) | run_cases(rest, backend, where, rows_per_node)
        if any(found.values()):
            return found
        return found | {cases[0].name: f"right alone, but not with {', '.join(c.name for c in cases[1:])}: {describe(error)}"}


def escapes_reported() -> dict[str, str]:
    """What the last session reported, by node. Each pass has objects of its own, so what a row keeps in them is no escape."""
    import leapp

    ours = ("a value that outlives its pass", "undeclared state: a tensor that the node reads and changes")
    escapes = [e for e in leapp.report().escapes if e.varies or not e.kind.startswith(ours)]
    return {e.node: f"right, but reported as an escape: {e}" for e in escapes}


def run_case(case: Case, backend: str, where: Path) -> str | None:
    """Judge one row in a session of its own."""
    return run_cases([case], backend, where, rows_per_node=1)[case.name]


def refused_wrongly(case: Case, backend: str, where: Path) -> str | None:
    """Why a row listed as refused is not refused as it should be (an error of leapp that names it), or None."""
    import leapp
    from leapp.errors import LeappError

    try:
        trace([case], backend, where, 1, seeds=(TRACED_SEED, TRACED_SEED + 1))
        leapp.compile_graph(visualize=False, validate=True, allow_nonfinite=True, allow_random=True)
    except RowError as error:
        return None if isinstance(error.__cause__, LeappError) else f"raised while tracing: {error}"
    except LeappError as error:
        return None if case.name in str(error) else f"the message does not name the node: {describe(error)}"
    except Exception as error:
        return f"raised an error that is not leapp's: {describe(error)}"
    return "is listed as refused, but was exported"


# Escapes


def lines_of(code: Any) -> set[int]:
    """The source lines of a function and of the functions inside it."""
    found = {line for _, _, line in code.co_lines() if line}
    for constant in code.co_consts:
        if hasattr(constant, "co_lines"):
            found |= lines_of(constant)
    return found


def points_at(case: Case, text: str) -> bool:
    """Whether a message names a source line of the row."""
    return any(re.search(rf"escapes\.py:{line}\b", text) for line in lines_of(case.fn.__code__))


@dataclasses.dataclass
class Outcome:
    """What became of a row through which a value leaves the graph.

    ``what`` is "refused" or "reported" if the message has the row's line, "right" if the bundle equals eager code on new
    inputs, "silent" if it does not and nothing was said, "wrong" for all that must not be.
    """

    what: str
    detail: str = ""


def outcome(case: Case, where: Path, seeds: Sequence[int], escapes: str = "warn") -> Outcome:
    """Trace a row that lets a value out of the graph, one pass per seed, and say what became of it."""
    import leapp
    from leapp.errors import LeappError

    try:
        done = trace([case], "jit", where, 1, seeds=seeds, escapes=escapes)
        changed = None if case.reports[0] in CHANCE else tracing_changed(case, done)
        leapp.compile_graph(visualize=False, validate=True, allow_nonfinite=True, allow_random=True)
    except (RowError, LeappError) as error:
        cause = error.__cause__ if isinstance(error, RowError) else error
        if not isinstance(cause, LeappError):
            return Outcome("wrong", describe(error))
        return Outcome("refused" if points_at(case, str(cause)) else "wrong", describe(cause))
    if changed:
        return Outcome("wrong", changed)
    for found in leapp.report().escapes:
        if points_at(case, f"{found.file}:{found.line}"):
            return Outcome("reported", str(found))
    try:
        problem = check_bundle([case], done, open_batch(where))[case.name]
    except LeappError as error:
        problem = describe(error)
    return Outcome("silent", problem) if problem else Outcome("right")


def not_refused(case: Case, where: Path) -> str | None:
    """Why two passes do not refuse a row with its line, or None. A row that is right after all need not be refused.

    Two passes may take a branch alike, and report it; then an input on which the bundle is wrong must part them.
    """
    import leapp

    others = range(TRACED_SEED + 1, TRACED_SEED + 60)
    first = Path(tempfile.mkdtemp(dir=where))
    found = outcome(case, first, (TRACED_SEED, others[0]))
    if found.what == "reported":
        assert not leapp.ExportManager.interpreting
        node, manager = Traced({case.name: case.name}, {}), open_batch(first)
        wrong = (s for s in others if check_bundle([case], node, manager, [s])[case.name])
        parting = next(wrong, None)
        if parting is None:
            return None
        found = outcome(case, Path(tempfile.mkdtemp(dir=where)), (TRACED_SEED, parting))
    return None if found.what in ("refused", "right") else f"{found.what}: {found.detail}"


def wrong_on_a_pass(case: Case, where: Path) -> str | None:
    """What is wrong with a bundle that five passes did not refuse, on the inputs of those passes, or None."""
    import leapp
    from leapp.errors import LeappError

    passes = range(TRACED_SEED, TRACED_SEED + 5)
    try:
        done = trace([case], "jit", where, 1, seeds=passes, one_state=True)
        leapp.compile_graph(visualize=False, validate=True, allow_nonfinite=True, allow_random=True)
    except (RowError, LeappError) as error:
        cause = error.__cause__ if isinstance(error, RowError) else error
        return None if isinstance(cause, LeappError) else describe(error)
    return check_bundle([case], done, open_batch(where), passes)[case.name]


CHANCE = ("random", "time")
"""Reports about values that no two runs agree on."""


@cache
def batches(table: str, backend: str) -> list[list[Case]]:
    """The rows of a table that a backend can do, in portions of a session."""
    cases = [case for case in all_tables()[table] if refusal(case, backend) is None]
    return [cases[i : i + BATCH] for i in range(0, len(cases), BATCH)]


# docs/coverage.md

INTRODUCTION = """\
# Coverage

How many pieces of user code are traced, exported and compared with eager PyTorch on inputs they were not traced with.
A row is one function, from a single operator to a policy's observation code. Each is run on every backend. A row counts
as right only if tracing changed no bit of what the program computed and the bundle gives the same values, shapes and
dtypes. A row that a backend's own exporter or engine cannot do is refused with an error that names the node.

This file is written by `python -m tests.conformance --coverage` from the tables in `tests/tables`; a test keeps it
up to date.
"""


def coverage() -> str:
    """The text of docs/coverage.md."""
    lines = [INTRODUCTION, "| table | rows | " + " | ".join(BACKENDS) + " |", "|---|---|" + "---|" * len(BACKENDS)]
    refused: dict[tuple[str, str], list[str]] = {}
    for table, cases in all_tables().items():
        if table == "escapes":
            continue
        cells = []
        for backend in BACKENDS:
            reasons = [(case, refusal(case, backend)) for case in cases]
            for case, reason in reasons:
                if reason:
                    refused.setdefault((backend, reason), []).append(f"{table}: {case.name}")
            cells.append(str(sum(reason is None for _, reason in reasons)))
        lines.append(f"| {table} | {len(cases)} | " + " | ".join(cells) + " |")
    for backend in BACKENDS:
        mine = {reason: rows for (b, reason), rows in refused.items() if b == backend}
        if mine:
            lines += ["", f"## Refused by {backend}", "", "| why | rows |", "|---|---|"]
            lines += [f"| {reason} | {', '.join(f'`{r}`' for r in rows)} |" for reason, rows in sorted(mine.items())]
    lines += ["", "## Reported", "", "Patterns by which a value leaves the graph, each reported with its line or refused.", ""]
    lines += [f"- `{case.name}`" for case in all_tables()["escapes"]]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--coverage", action="store_true", help="write docs/coverage.md")
    parser.add_argument("--all", action="store_true", help="run the rows listed as refused too")
    parser.add_argument("--single", action="store_true", help="one row a node")
    parser.add_argument("table", nargs="?")
    parser.add_argument("backend", nargs="?")
    parser.add_argument("rows", nargs="*")
    options = parser.parse_args(arguments)
    if options.coverage:
        COVERAGE.parent.mkdir(exist_ok=True)
        COVERAGE.write_text(coverage(), encoding="utf-8")
        return 0
    cases = [c for c in all_tables()[options.table] if options.all or refusal(c, options.backend) is None]
    cases = [c for c in cases if not options.rows or c.name in options.rows]
    wrong = 0
    with tempfile.TemporaryDirectory() as where:
        for first in range(0, len(cases), BATCH):
            verdict = run_cases(cases[first : first + BATCH], options.backend, Path(where), 1 if options.single else None)
            for name, problem in verdict.items():
                if problem:
                    wrong += 1
                    print(f"{options.table} {options.backend} {name}: {problem}", flush=True)
    print(f"{len(cases) - wrong} of {len(cases)} right")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
