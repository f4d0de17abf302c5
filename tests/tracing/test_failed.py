"""A failed export leaves what failed beside the bundle, with the page and the log; the bundle stays."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import leapp
from leapp import InferenceManager, annotate
from leapp.errors import BundleFileError, LeappError


def export(tmp_path: Path, code: Callable[[Tensor], Tensor], backend: str = "onnx", passes: int = 3, **kwargs: Any) -> Any:
    """Trace two nodes and compile them."""
    leapp.start("g", save_path=tmp_path)
    for _ in range(passes):
        x = annotate.input_tensors("first", {"x": torch.randn(3)})
        y = x * 2.0
        annotate.output_tensors("first", {"y": y}, export_with="jit")
        y = annotate.input_tensors("second", {"y": y})
        annotate.output_tensors("second", {"z": code(y)}, export_with=backend)
    leapp.stop()
    return leapp.compile_graph(**kwargs)


def delayed() -> Callable[[Tensor], Tensor]:
    """Two passes agree; the third does not, which the written file shows. What a program keeps in a file cannot be seen."""
    calls = tempfile.TemporaryFile()  # noqa: SIM115  closed with the function that has it

    def code(y: Tensor) -> Tensor:
        calls.write(b"call")
        return y + torch.tensor(float(calls.tell() > 2 * len(b"call")))

    return code


def branch(y: Tensor) -> Tensor:
    return y + float(y.sum())


FAILURES: dict[str, tuple[Callable[[], Callable[[Tensor], Tensor]], str, set[str]]] = {
    "a wrong value": (delayed, "onnx", {"first.pt", "second.onnx"}),
    "an escape": (lambda: branch, "onnx", set()),
    "an export": (lambda: torch.special.airy_ai, "onnx", {"first.pt"}),
    "nan": (lambda: lambda y: torch.log(-y.abs()), "onnx", {"first.pt", "second.onnx"}),
}


@pytest.mark.parametrize("name", FAILURES)
def test_what_failed_is_kept_with_page_and_log(name: str, tmp_path: Path, capsys: Any) -> None:
    """Beside the bundle, which still runs. No loader takes it for one, and the next attempt removes it."""
    make, backend, models = FAILURES[name]
    assert export(tmp_path, torch.tanh) == {"first": True, "second": True}
    before = {p.name: p.read_bytes() for p in (tmp_path / "g").iterdir() if p.name != "log.txt"}
    with pytest.raises(LeappError) as caught:
        export(tmp_path, make(), backend)
    failed = tmp_path / "g.failed"
    kept = {p.name for p in failed.iterdir()}
    assert kept >= {"g.html", "g.svg", "g.png", "log.txt"} | models and not any(n.endswith(".yaml") for n in kept)
    assert "second" in (failed / "g.html").read_text()
    assert str(caught.value).splitlines()[0] in (failed / "log.txt").read_text()
    assert f"What failed is kept in {failed}" in capsys.readouterr().err

    assert {p.name: p.read_bytes() for p in (tmp_path / "g").iterdir() if p.name != "log.txt"} == before
    x = torch.randn(3)
    torch.testing.assert_close(InferenceManager(tmp_path / "g")({"first/x": x})["second/z"], torch.tanh(2.0 * x))
    with pytest.raises(BundleFileError, match="was left by a failed export"):
        InferenceManager(failed)

    assert export(tmp_path, torch.sin) == {"first": True, "second": True}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g"]


def test_files_of_the_user_in_it_stay(tmp_path: Path) -> None:
    with pytest.raises(LeappError):
        export(tmp_path, delayed())
    (tmp_path / "g.failed" / "notes.txt").write_text("mine")
    (tmp_path / "g.failed" / "g.html").unlink()
    export(tmp_path, torch.tanh)
    assert [p.name for p in (tmp_path / "g.failed").iterdir()] == ["notes.txt"]


def test_a_directory_of_the_user_with_that_name_stays(tmp_path: Path) -> None:
    """It gets new files beside its own, and loses none."""
    (tmp_path / "g.failed").mkdir()
    (tmp_path / "g.failed" / "g.html").write_text("mine")
    with pytest.raises(LeappError):
        export(tmp_path, delayed())
    assert (tmp_path / "g.failed" / "g.html").read_text() == "mine"
    export(tmp_path, torch.tanh)
    assert [p.name for p in (tmp_path / "g.failed").iterdir()] == ["g.html"]


def test_an_empty_session_touches_nothing(tmp_path: Path) -> None:
    export(tmp_path, torch.tanh)
    before = {p.name: p.read_bytes() for p in (tmp_path / "g").iterdir() if p.name != "log.txt"}
    leapp.start("g", save_path=tmp_path)
    leapp.stop()
    with pytest.raises(RuntimeError, match="nothing was traced"):
        leapp.compile_graph()
    assert {p.name: p.read_bytes() for p in (tmp_path / "g").iterdir() if p.name != "log.txt"} == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g"]
