"""The documents are true: links lead somewhere, programs run, docstrings hold, the reference is that of the code."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib.util
import inspect
import os
import re
import types
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import leapp
from leapp import annotate, bundle, deploy, fleet
from leapp.client import Client
from leapp.runtime import Pipeline
from leapp.serve import Options, Service
from tests.serve.serving import serving
from tests.warm import run_program

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RUN_ELSEWHERE = {"getting_started.md"}  # tests/test_examples.py runs it and compares what it prints


def named(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def prose(path: Path) -> str:
    """A page without its code, in which brackets are no links and hashes no headings."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: code[0].replace("]", "").replace("[", ""), text)


def anchors(path: Path) -> set[str]:
    """The anchors that the site gives to the headings of a page."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        slug = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        number = 0
        while (candidate := slug if not number else f"{slug}_{number}") in found:
            number += 1
        found.add(candidate)
    return found


@pytest.mark.parametrize("page", [*PAGES, *sorted(REPOSITORY.glob("*.md"))], ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target or target.startswith("mailto:"):
            continue
        place, _, anchor = target.partition("#")
        there = (page.parent / place).resolve() if place else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
        shown = there.is_relative_to(DOCS) or (there.is_relative_to(REPOSITORY / "examples") and there.suffix == ".py")
        if page.is_relative_to(DOCS) and place and not shown:
            broken.append(f"{target} (not on the site)")
    assert broken == []


def test_every_page_is_on_the_site_and_on_the_first_page() -> None:
    def flat(entries: Any) -> Iterator[str]:
        for entry in entries:
            for value in entry.values():
                if isinstance(value, str):
                    yield value
                else:
                    yield from flat(value)

    listed = list(flat(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text())["nav"]))
    pages = {str(page.relative_to(DOCS)) for page in PAGES}
    assert sorted(listed) == sorted(pages)
    linked = set(re.findall(r"\]\(([^)#]+)", (DOCS / "index.md").read_text()))
    assert pages - linked == {"index.md"}


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def names(block: str) -> tuple[set[str], set[str]]:
    """What a block uses without making it, and what it makes."""
    used, made = set(), set()
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            made.add(node.name)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
    return used - made - set(dir(builtins)), made


ONE_PROGRAM = "The Python blocks of this page are one program"
PART = re.compile(r"# (?:part of|needs a server;) (\S+\.py)")


def program(page: Path) -> tuple[str, list[str]]:
    """The blocks of a page as one program, and what they say that they print. Parts of other files are left out."""
    parts, printed = [], []
    for block in blocks(page):
        if PART.match(block) is None:
            parts.append(block)
            closing = re.search(r"(?:^# .*\n)+\Z", block, re.MULTILINE)
            printed += [line.removeprefix("# ") for line in closing[0].splitlines()] if closing else []
    return "\n".join(parts), printed


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "api.md"], ids=named)
def test_blocks_run_alone_or_say_of_what_they_are_a_part(page: Path) -> None:
    """A block needs nothing from outside, or its page says that its blocks are one program, or it names the file it is from."""
    joined = ONE_PROGRAM in " ".join(page.read_text().split())
    known: set[str] = set()
    for block in blocks(page):
        if part := PART.match(block):
            whole = (REPOSITORY / part[1]).read_text()
            made = {line.strip() for line in whole.splitlines()}
            if block.startswith("# part of"):
                assert [line for line in block.splitlines()[1:] if line.strip() not in made] == []
            assert [name for name in calls(block) if name not in whole] == []
            continue
        needed, made_here = names(block)
        assert not needed - (known if joined else set()), block
        known |= made_here


def calls(block: str) -> set[str]:
    """The functions and methods that a block calls, and their keywords."""
    found = set()
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Call):
            found.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
            found |= {keyword.arg for keyword in node.keywords if keyword.arg}
    return found - set(dir(builtins)) - {"zeros"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "api.md"], ids=named)
def test_code_is_python(page: Path) -> None:
    for block in blocks(page):
        ast.parse(block)


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in {"api.md"} | RUN_ELSEWHERE and program(p)[0]], ids=named)
def test_programs_run(page: Path, tmp_path: Path) -> None:
    text, printed = program(page)
    (tmp_path / "program.py").write_text(text)
    assert run_program(tmp_path / "program.py", tmp_path).splitlines() == printed


@pytest.mark.parametrize("page", [REPOSITORY / "CONTRIBUTING.md", DOCS / "design.md"], ids=named)
def test_files_that_a_page_names_exist(page: Path) -> None:
    """A path is given from the root of the repository, from ``src/leapp``, or (a module alone) by its name."""
    modules = {path.name for path in (REPOSITORY / "src").rglob("*.py")}
    paths = re.findall(r"`((?:\w+/)+[\w.]*|\w+\.py)`", page.read_text())
    assert len(paths) > 10
    roots = (REPOSITORY, REPOSITORY / "src" / "leapp", *(REPOSITORY / "src" / "leapp").iterdir())
    assert [path for path in paths if path not in modules and not any((root / path).exists() for root in roots)] == []


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_reference", REPOSITORY / "scripts" / "api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_up_to_date(reference: ModuleType) -> None:
    assert (DOCS / "api.md").read_text() == reference.page(), "run python scripts/api_reference.py"


@pytest.mark.parametrize("package", ["", ".bundle", ".client", ".deploy", ".errors", ".fleet", ".runtime", ".serve"])
def test_the_reference_covers_the_public_names(package: str) -> None:
    """A name that ``leapp`` itself offers stands on the page without the package that it comes from."""
    shown = set(re.findall(r"^### (\S+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    names = set(importlib.import_module(f"leapp{package}").__all__) - {"__version__", "annotate"}
    assert {name for name in names if not {f"leapp{package}.{name}", f"leapp.{name}"} & shown} == set()


def step(obs: torch.Tensor) -> torch.Tensor:
    """The program that the docstrings speak of."""
    meaning = leapp.TensorSemantics("obs", obs, "state/joint/position", ["hip", "knee"], units="rad")
    obs = annotate.input_tensors("policy", meaning)
    h = annotate.state_tensors("policy", {"h": torch.zeros(2)})
    annotate.update_state("policy", {"h": 0.5 * h + obs})
    action = leapp.TensorSemantics("action", torch.tanh(obs + h), "target/joint/position", ["hip", "knee"], units="rad")
    return annotate.output_tensors("policy", action, export_with="onnx")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the docstrings take for granted: a bundle, its runners, and the names of a small program."""
    directory, before = tmp_path_factory.mktemp("docstrings"), Path.cwd()
    os.chdir(directory)
    for place in ("exports/my_policy", "policy"):
        leapp.start(place)
        step(torch.randn(2))
        leapp.stop()
        leapp.compile_graph(visualize=False)
    pipeline = Pipeline("exports/my_policy")
    with pipeline.record("run.npz") as recorded:
        recorded(pipeline.zeros_input())
    cv2 = types.ModuleType("cv2")
    cv2.cvtColor = lambda image, code: image  # type: ignore[attr-defined]
    with serving(Options("exports/my_policy")) as served, Client(served.url) as remote:
        yield {
            **{name: getattr(leapp, name) for name in leapp.__all__},
            "deploy_triton": deploy.deploy_triton, "deploy_cpp": deploy.deploy_cpp, "TritonOptions": deploy.TritonOptions,
            "url": served.url, "remote": remote, "Client": Client, "Options": Options, "Service": Service,
            "leapp": leapp, "torch": torch, "np": np, "step": step, "cv2": cv2, "torch_cvt_color": cv2.cvtColor,
            "Pipeline": Pipeline, "pipeline": pipeline, "open_bundle": bundle.open_bundle, "replay_fleet": fleet.replay_fleet,
            "find_recordings": fleet.find_recordings, "report": fleet.replay_fleet("exports/my_policy", ["run.npz"]),
            "manager": leapp.InferenceManager("exports/my_policy"), "model": torch.nn.Linear(2, 2), "obs": torch.zeros(2),
            "action": torch.zeros(2), "h": torch.zeros(2), "next_h": torch.zeros(2),
        }  # fmt: skip
    os.chdir(before)


def documented() -> dict[str, Any]:
    """Every public function, class and method with its docstring."""
    spec = importlib.util.spec_from_file_location("api_reference", REPOSITORY / "scripts" / "api_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {}
    for section, entries in module.public().items():
        if section == "Errors":
            continue
        for name, value in entries.items():
            found[name] = value
            if inspect.isclass(value) and value is not leapp.ExportManager:
                found |= {f"{name}.{method}": getattr(value, method) for method in module._methods(value)}
    return found


DOCUMENTED = documented()
IN_NEED_OF_NO_EXAMPLE = re.compile(
    r"^What both share(\.__call__|\.get_mock_input)?$|Info$|__call__$|to_dict$|check_files$|Cluster"
)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstrings_have_examples_that_hold(name: str, world: dict[str, Any]) -> None:
    text = inspect.getdoc(DOCUMENTED[name]) or ""
    assert text, f"{name} has no docstring"
    if IN_NEED_OF_NO_EXAMPLE.search(name):
        return
    assert ">>>" in text, f"{name} has no example"
    example = doctest.DocTestParser().get_doctest(text, dict(world), name, None, None)
    report: list[str] = []
    if name in ("leapp.compile_graph", "leapp.report", "Report"):
        leapp.start("traced")
        step(torch.randn(2))
        leapp.stop()
    try:
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        runner.run(example, out=report.append)
    finally:
        if leapp.ExportManager().interpreting:
            leapp.stop()
    assert not report, "".join(report)
