"""Private names of other packages stand in ``leapp.compat``, are there on this version, and the declared versions agree."""

from __future__ import annotations

import ast
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

import leapp.compat
from leapp.cli.doctor import PACKAGES
from leapp.compat import core, graphs

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "leapp"
WATCHED = {"torch", "np", "numpy", "sys", "onnx", "onnxscript", "ir", "onnx_ir", "onnxruntime"}
HIDDEN = re.compile(r"_[A-Za-z]")  # one underscore: names with two are Python's own protocols


def dotted(node: ast.expr) -> str | None:
    """``torch._C.Graph`` as text."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def private_uses(path: Path) -> Iterator[str]:
    """The private names of other packages that a module uses."""
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute) and (name := dotted(node)) is not None:
            names = [name]
        for name in names:
            first, *rest = name.split(".")
            if name.startswith("ctypes.pythonapi") or (first in WATCHED and any(HIDDEN.match(part) for part in rest)):
                yield f"{path.relative_to(SOURCE)}:{node.lineno}: {name}"


def test_only_compat_uses_private_names() -> None:
    paths = [path for path in SOURCE.rglob("*.py") if "compat" not in path.relative_to(SOURCE).parts]
    assert [use for path in sorted(paths) for use in private_uses(path)] == []


def compat_modules() -> list[ModuleType]:
    return [importlib.import_module(f"leapp.compat.{found.name}") for found in pkgutil.iter_modules(leapp.compat.__path__)]


@pytest.mark.parametrize("module", compat_modules(), ids=lambda module: module.__name__)
def test_every_name_is_there(module: ModuleType) -> None:
    """An import that fails names what this version lacks."""
    assert module.__doc__
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_an_operator_that_torch_lacks_is_none() -> None:
    assert core.find_operator("linalg_cholesky.default") is torch.ops.aten.linalg_cholesky.default
    assert core.find_operator("no_such_operator.default") is None
    assert core.find_operator("add.no_such_overload") is None


def test_composites_are_told_apart() -> None:
    parts = core.taken_apart(torch.ops.aten.matmul.default)
    assert parts is not None
    x = torch.randn(2, 3)
    assert torch.equal(parts(x, x.t()), x @ x.t())
    assert core.taken_apart(torch.ops.aten.native_batch_norm.default) is not None, "torch has a function of Python for it"
    assert core.taken_apart(torch.ops.aten.mm.default) is None
    assert graphs.is_whole_composite(torch.ops.aten.matmul.default)


def test_a_mode_below_autograd_sees_composite_operators_whole() -> None:
    """The tracer of ONNX nodes rests on it."""

    class Seen(core.DispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    seen: list[str] = []
    with torch.no_grad(), core.below_autograd(), Seen():
        torch.nn.functional.linear(torch.randn(2, 3), torch.randn(4, 3), torch.randn(4))
    assert "aten.linear.default" in seen


def test_guards_of_tensors_answer() -> None:
    """Steps are slow without them; a version that lacks them must be noticed."""
    from leapp.runtime.guards import Guard

    guard = Guard([(2, 3)], [True])
    assert not guard.check(torch.ones(2, 3)), "nothing was seen yet"
    guard.saw([torch.zeros(2, 3)])
    assert guard.check(torch.ones(2, 3))
    others = [torch.ones(3, 2), torch.ones(3, 2).t(), torch.ones(2, 3).double(), torch.ones(2, 3, device="meta")]
    assert not any(guard.check(other) for other in others)


def declared() -> dict[str, str]:
    """The oldest versions that pyproject.toml asks for."""
    text = (REPOSITORY / "pyproject.toml").read_text()
    text = text[text.index("dependencies = [") : text.index("# Older versions of Ray")]
    return dict(re.findall(r'"([a-z-]+)>=([\d.]+)"', text))


def test_torch_is_refused_by_name_where_it_is_too_old(tmp_path: Path) -> None:
    """A version that lacks what leapp needs says so in a sentence, not in an ``AttributeError``."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.6.0+cu124'")
    program = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(REPOSITORY / 'src')!r}]; import leapp.compat.core"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "leapp needs torch 2.7 or newer" in done.stderr
    assert declared()["torch"] == ".".join(map(str, leapp.compat.OLDEST))


def test_doctor_asks_for_what_is_declared() -> None:
    floors = declared()
    assert {name: floors[name] for name in PACKAGES} == PACKAGES


@pytest.mark.parametrize("page", ["README.md", "docs/install.md"])
def test_documents_name_the_versions_that_were_run(page: str) -> None:
    """The cells of the matrix: the oldest and newest of Python and torch, and each of them on the page about installing."""
    cells = [path.read_text() for path in sorted((REPOSITORY / "tests" / "matrix").glob("*.txt"))]
    found = [(re.search(r"^# Python (\S+)", c, re.M), re.search(r"^torch==(\d+\.\d+)", c, re.M)) for c in cells]
    pairs = [(python[1], release[1]) for python, release in found if python and release]
    assert len(pairs) == len(cells)
    text = (REPOSITORY / page).read_text()

    def number(version: str) -> list[int]:
        return [int(part) for part in version.split(".")]

    pythons, torches = (sorted(set(column), key=number) for column in zip(*pairs))
    assert f"Python {pythons[0]} to {pythons[-1]}" in text
    assert f"PyTorch {torches[0]} to {torches[-1]}" in text
    if page.startswith("docs"):
        rows = re.findall(r"^\| (\d+\.\d+) \| (\d+\.\d+)", text, re.M)
        assert sorted(rows) == sorted(pairs)


@pytest.mark.parametrize("name", ["dist-packages", "built"])
def test_lines_are_the_users_wherever_torch_is(name: str, tmp_path: Path) -> None:
    """Debian's Python, which NVIDIA's containers have, says dist-packages; a torch built from source is anywhere."""
    (tmp_path / name).symlink_to(Path(torch.__file__).parents[1])
    (tmp_path / "policy.py").write_text(
        "import torch, leapp\n"
        "from leapp import annotate\n"
        "leapp.start('p')\n"
        "x = annotate.input_tensors('n', {'x': torch.randn(5, 3).log_softmax(-1)})\n"
        "y = torch.nn.functional.ctc_loss(x, torch.tensor([1, 2]), (5,), (2,))\n"
        "annotate.output_tensors('n', {'y': y}, export_with='onnx')\n"
        "leapp.stop()\n"
        "leapp.compile_graph()\n"
    )
    path = f"{REPOSITORY / 'src'}:{tmp_path / name}"
    command = [sys.executable, "policy.py"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert f"first at ctc_loss at {tmp_path / 'policy.py'}:5" in done.stderr
