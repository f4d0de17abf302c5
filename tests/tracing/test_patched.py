"""Programs that put functions of their own in the place of others', before and between sessions."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
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
        (time, "time", lambda x: x + time.time()),
        (np.random, "rand", lambda x: x + float(np.random.rand())),
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


def test_a_name_is_watched_again_when_it_means_the_original_again(tmp_path: Path, monkeypatch: Any) -> None:
    def drawn(where: str) -> list[str]:
        return session(tmp_path / where, lambda x: x + random.random())

    assert "random.random" in "".join(drawn("before"))
    monkeypatch.setattr(random, "random", lambda: 0.5)
    drawn("meanwhile")
    monkeypatch.undo()
    assert "random.random" in "".join(drawn("after"))


def test_a_function_that_got_other_code_between_sessions(tmp_path: Path, monkeypatch: Any) -> None:
    def other(obj: Any, *, skipkeys: Any = 0, ensure_ascii: Any = 0, check_circular: Any = 0, allow_nan: Any = 0, cls: Any = 0,
              indent: Any = 0, separators: Any = 0, default: Any = 0, sort_keys: Any = 0, **kw: Any) -> str:  # fmt: skip
        return "other"

    said: list[str] = []

    def body(x: Any) -> Any:
        said.append(json.dumps([1]))
        return x * 2.0

    session(tmp_path, body)
    monkeypatch.setattr(json.dumps, "__code__", other.__code__)
    session(tmp_path, body)
    monkeypatch.undo()
    session(tmp_path, body)
    assert said == ["[1]", "other", "[1]"]


def test_a_new_module_that_lets_nobody_set_its_names(tmp_path: Path, monkeypatch: Any) -> None:
    class Fixed(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(name)

    def body(x: Any) -> Any:
        module = Fixed("fixed")
        vars(module)["now"] = time.time
        monkeypatch.setitem(sys.modules, "fixed", module)
        return x * 2.0

    session(tmp_path, body)
    assert vars(sys.modules["fixed"])["now"] is time.time
