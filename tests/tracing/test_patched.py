"""Programs that put functions of their own in the place of others', before and between sessions."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leapp
from leapp import annotate as A


def session(where: Path, body: Callable[[Any], Any]) -> list[str]:
    """Trace a node with ``body`` in it; what left its graph."""
    leapp.start("g", save_path=where)
    try:
        x = A.input_tensors("n", {"x": torch.arange(3.0)})
        A.output_tensors("n", {"y": body(x)}, export_with="jit")
    finally:
        leapp.stop()
    leapp.compile_graph(visualize=False)
    log = (where / "g" / "log.txt").read_text()
    return [line for line in log.splitlines() if "frozen" in line]


def wrapper(original: Any) -> Callable[..., Any]:
    """A function written in Python that does the same."""
    return lambda *args, **kwargs: original(*args, **kwargs)


@pytest.mark.parametrize(
    ("owner", "name", "use"),
    [
        (np, "array", lambda x: torch.from_numpy(np.array([x.numpy()[0], x.numpy()[1] * 2.0]))),
        (np, "asarray", lambda x: torch.from_numpy(np.asarray([x.numpy()[0], x.numpy()[1] * 2.0]))),
        (np, "full", lambda x: x + torch.from_numpy(np.full(3, x.numpy()[1]))),
        (torch, "from_numpy", lambda x: torch.from_numpy(x.numpy() * 2.0)),
        (torch.overrides, "has_torch_function", lambda x: torch.nn.functional.softmax(x, 0)),
    ],
)
def test_a_function_that_the_program_replaced(owner: Any, name: str, use: Any, tmp_path: Path, monkeypatch: Any) -> None:
    before = session(tmp_path / "before", use)
    mine = wrapper(getattr(owner, name))
    monkeypatch.setattr(owner, name, mine)
    code = mine.__code__
    meanwhile = session(tmp_path / "meanwhile", use)
    assert getattr(owner, name) is mine
    assert mine.__code__ is code
    monkeypatch.undo()
    assert bool(before) == bool(meanwhile) == bool(session(tmp_path / "after", use))


def test_a_lazy_module_is_loaded_by_nobody_but_the_program(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "lazily.py").write_text("raise ImportError('what it needs is not there')")
    spec = importlib.util.spec_from_file_location("lazily", tmp_path / "lazily.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "lazily", module)
    spec.loader.exec_module(module)
    session(tmp_path, lambda x: x * 2.0)
    with pytest.raises(ImportError, match="not there"):
        getattr(module, "anything")  # noqa: B009
