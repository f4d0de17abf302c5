"""Programs that put functions of their own in the place of others', before and between sessions."""

from __future__ import annotations

import contextlib
import copyreg
import importlib.util
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import PIL._imaging
import pytest
import torch

import leapp
import leapp.tracing.lifecycle
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


def test_a_new_module_gives_back_what_it_took_of_compiled_packages(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "takes_compiled.py").write_text("from PIL._imaging import blend\nfrom numpy import sin\n")

    def body(x: Any) -> Any:
        import takes_compiled  # type: ignore[import-not-found]

        assert callable(takes_compiled.blend)
        return x * 2.0

    session(tmp_path, body)
    taken = vars(sys.modules.pop("takes_compiled"))
    assert taken["blend"] is PIL._imaging.blend
    assert taken["sin"] is np.sin


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


@contextlib.contextmanager
def interrupted_at(line: int) -> Any:
    """Ctrl-C at the n-th line of what replaces and puts back."""
    part, left = os.path.join("capture", "replacing", ""), line

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal left
        if part not in frame.f_code.co_filename:
            return None
        left -= event == "line"
        if left == 0:
            left = -1
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def standing() -> list[Any]:
    """Something of each kind that a session replaces."""
    return [
        *(vars(m)[n] for m, n in ((time, "time"), (time, "sleep"), (random, "random"), (np, "array"), (torch, "from_numpy"))),
        *(vars(np.ndarray)[n] for n in ("__getitem__", "__add__")), type(np), np.random.rand, json.dumps.__code__,
        vars(PIL._imaging)["blend"], vars(torch.Tensor)["__array_wrap__"], vars(importlib._bootstrap)["_find_and_load"],
        *(vars(memoryview)[n] for n in ("tolist", "__iter__")), dict(copyreg.dispatch_table),
    ]  # fmt: skip


@pytest.mark.parametrize("line", [1, 5, 20, 80, 200, 400, 800])
@pytest.mark.parametrize("when", ["start", "stop"])
def test_an_interrupt_while_a_session_opens_or_closes(when: str, line: int, tmp_path: Path) -> None:
    session(tmp_path, lambda x: x * 2.0)
    before = standing()
    for moment in ("start", "stop"):
        with interrupted_at(line) if moment == when else contextlib.nullcontext():
            try:
                if moment == "stop":
                    leapp.stop()
                else:
                    leapp.start("g", save_path=tmp_path)
                    A.input_tensors("n", {"x": np.ones(3)})
            except KeyboardInterrupt:
                break
    if leapp.tracing.lifecycle.ExportManager.interpreting:
        leapp.stop()
    for old, new in zip(before, standing(), strict=True):
        assert old is new or (isinstance(old, dict) and old == new)
    assert "random.random" in "".join(session(tmp_path, lambda x: x + random.random()))
