"""Descriptions with one wrong field, sealed again, and descriptions made of noise: a library error, or the answer they ask for.

``LEAPP_SOAK=1`` runs all 100,000 fuzzed documents; a plain run takes a few hundred.
"""

from __future__ import annotations

import copy
import math
import os
import random
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from leapp.bundle import load_contract, open_bundle, read_initial_values
from leapp.bundle.files import hash_file
from leapp.bundle.integrity import INTEGRITY, seal
from leapp.bundle.yaml_text import parse
from leapp.errors import BundleError, LeappError
from leapp.runtime import Pipeline
from tests.runtime.bundles import Fuse, Sense, loop

SOAK = bool(os.environ.get("LEAPP_SOAK"))
DOCUMENTS = 100_000 if SOAK else 400
SECONDS, MEGABYTES = 1.0, 100

Path_ = tuple[str | int, ...]
DELETED: Any = object()
MODULES = {"p": Sense(), "f": Fuse()}
PORTS = {"f": ["c", "prev"]}
"""ONNX inputs go by name, TorchScript inputs by place."""

WRONG: list[Any] = [
    None, "", "x", "p/c", "f/c", "../g.yaml", "/dev/zero", "a\nb", "x" * 10_000, "nan", -1, 0, 1, 2**63, 1.5, math.nan,
    math.inf, True, [], {}, [[]], ["x"], ["x", "x"], {"x": 1}, {"p/c": ["f/c"]}, DELETED,
]  # fmt: skip


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Every place of a document but the root."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def replaced(document: Any, path: Path_, value: Any) -> Any:
    changed = copy.deepcopy(document)
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    if value is DELETED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return changed


def mutants(document: Any) -> list[tuple[str, Any]]:
    found = []
    for path in places(document):
        for value in WRONG:
            name = f"{'.'.join(map(str, path))} = {'deleted' if value is DELETED else repr(value)[:40]}"
            found.append((name, replaced(document, path, value)))
    return found


def evaluate(document: Any, given: list[dict[str, Any]], start: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """The plain meaning of a description: repeat until every node ran, then hand the feedback on."""
    nodes, wiring = document["models"], document["pipeline"]
    feeds = {t: s for s, targets in wiring["data_flow"].items() for t in targets}
    feedback = wiring.get("feedback_flow", wiring.get("feedback_connections")) or {}
    state = {}
    for targets in feedback.values():
        for target in targets:
            node, name = target.rsplit("/", 1)
            (port,) = (p for p in nodes[node]["inputs"] if p["name"] == name)
            state[target] = torch.from_numpy(start.get(target, np.zeros(port["shape"], port["dtype"])).copy())
    results = []
    for inputs in given:
        known: dict[str, torch.Tensor] = {k: torch.from_numpy(v) for k, v in inputs.items()} | state
        waiting = set(nodes)
        while waiting:
            for name in sorted(waiting):
                keys = [f"{name}/{port['name']}" for port in nodes[name]["inputs"]]
                if name in PORTS:
                    keys = [f"{name}/{port}" for port in PORTS[name]]
                values = [known.get(feeds.get(key, key)) for key in keys]
                if all(value is not None for value in values):
                    made = MODULES[name](*values)
                    made = made if isinstance(made, tuple) else (made,)
                    ports = [port["name"] for port in nodes[name]["outputs"]]
                    known |= {f"{name}/{port}": value for port, value in zip(ports, made, strict=True)}
                    waiting.discard(name)
        state = {target: known[source] for source, targets in feedback.items() for target in targets}
        listed = [f"{node}/{port}" for node, ports in wiring["outputs"].items() for port in ports]
        results.append({key: known[key].numpy() for key in listed})
    return results


def attempt(path: Path, document: Any) -> str:
    """Open and run a description. Anything but a library error or the right answer fails."""
    try:
        pipeline = Pipeline(path)
        given = [pipeline.get_mock_input() for _ in range(3)]
        made = [pipeline(inputs) for inputs in given]
    except LeappError:
        return "refused"
    raw = read_initial_values(open_bundle(path))
    want = evaluate(document, given, {key: value.numpy() for key, value in raw.items()})
    for got, expected in zip(made, want, strict=True):
        assert got.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(got[key], value, rtol=1e-5, atol=1e-6)
    return "right"


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return loop(tmp_path_factory.mktemp("bundle"), "jit", "onnx")


def sealed_again(document: Any, folder: Path) -> str:
    """The text of a document with a seal that fits, as an attacker would make it. Else its checksum is all that is tested."""
    rest = {key: value for key, value in document.items() if key != INTEGRITY}
    text = yaml.safe_dump(rest, sort_keys=False)
    try:
        return seal(text, {file.name: hash_file(file)[1] for file in folder.iterdir() if file.suffix != ".yaml"})[0]
    except BundleError:
        return text


def run_mutants(original: Path, count: int | None) -> dict[str, Any]:
    """Open and run ``count`` mutants, all of them if None. Returns the outcomes."""
    document = yaml.safe_load(original.read_text())
    assert attempt(original, document) == "right"
    cases = mutants(document)
    assert len(cases) >= 700
    chosen = cases if count is None else random.Random(6).sample(cases, count)
    path = original.with_name("mutant.yaml")
    outcomes: Counter[str] = Counter()
    before, slowest = peak(), 0.0
    for name, changed in chosen:
        path.write_text(sealed_again(changed, original.parent))
        started = time.process_time()
        try:
            outcomes[attempt(path, changed)] += 1
        except Exception as error:
            raise AssertionError(f"mutant {name}: {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.process_time() - started)
    return {**outcomes, "of": len(chosen), "slowest": slowest, "megabytes": (peak() - before) / 1024}


def test_single_field_mutants(original):
    found = run_mutants(original, None if SOAK else 400)
    assert found["slowest"] < SECONDS and found["megabytes"] < MEGABYTES, found
    assert found["refused"] > 0.8 * found["of"] and found["right"] > 0, found


TOKENS = [
    "{", "[", "}", "]", ":", " - ", "&a ", "*a ", "!!python/name:os.system ", "<<: ", "? ", "|\n", "'", '"', "\t", "# ", "~",
    "%YAML 1.1\n---\n", "---\n", "...\n", "\x00", "\ufeff", "\u2028", "0x", "1e999", "!!binary ", "2020-01-01", "1:30",
]  # fmt: skip


class Plain(yaml.CSafeLoader):
    """What the YAML library itself makes of a text, dates left as text."""


Plain.add_constructor("tag:yaml.org,2002:timestamp", Plain.construct_yaml_str)


def noise(text: str, document: Any, choose: random.Random) -> str:
    """A damaged description: bytes, lines, or several fields at once."""
    kind = choose.randrange(5)
    if kind == 0:
        for _ in range(choose.randrange(3)):
            document = replaced(document, *(choose.choice(list(places(document))), choose.choice(WRONG[:-1])))
        return str(yaml.safe_dump(document, sort_keys=choose.random() < 0.5))
    if kind == 1:
        lines = text.splitlines()
        for _ in range(choose.randrange(1, 4)):
            lines.insert(choose.randrange(len(lines)), lines.pop(choose.randrange(len(lines))))
        return "\n".join(lines)
    if kind == 2:
        for _ in range(choose.randrange(1, 6)):
            at = choose.randrange(len(text))
            text = text[:at] + choose.choice(TOKENS) + text[at:]
        return text
    data = bytearray(text.encode())
    if kind == 3:
        for _ in range(choose.randrange(1, 9)):
            data[choose.randrange(len(data))] = choose.randrange(256)
    else:
        start, size = choose.randrange(len(data)), choose.randrange(1, 200)
        data[start : start + size] = data[start : start + size] * choose.randrange(4)
    return data.decode("latin-1")


def run_documents(original: Path, count: int) -> dict[str, Any]:
    """Every one is refused or read; what is read is what the YAML library reads; some of the readable ones are run."""
    text = original.read_text()
    document = yaml.safe_load(text)
    path = original.with_name("fuzzed.yaml")
    before, slowest = peak(), 0.0
    outcomes: Counter[str] = Counter()
    for seed in range(count):
        fuzzed = noise(text, document, random.Random(seed))
        path.write_text(fuzzed, encoding="utf-8", errors="replace", newline="")
        started = time.process_time()
        try:
            contract = load_contract(path)
        except BundleError:
            outcomes["refused"] += 1
            slowest = max(slowest, time.process_time() - started)
            continue
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.process_time() - started)
        source = path.read_bytes().decode("utf-8-sig")
        plain = yaml.load(source, Loader=Plain)
        assert repr(parse(source, "again")) == repr(plain), seed
        assert list(contract.nodes) == list(plain["models"]), seed
        outcomes["read"] += 1
        if outcomes["read"] % 4 == 0:
            try:
                outcomes[f"run: {attempt(path, plain)}"] += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    return {**outcomes, "slowest": slowest, "megabytes": (peak() - before) / 1024}


def test_fuzzed_documents(original):
    found = run_documents(original, DOCUMENTS)
    assert found["slowest"] < SECONDS and found["megabytes"] < MEGABYTES, found
    assert found["refused"] > DOCUMENTS // 4 and found["run: right"] > 0, found
