"""The generated step can be read: tracebacks and debuggers show its lines, and nothing of it outlives its pipeline."""

from __future__ import annotations

import gc
import inspect
import linecache
import traceback
import weakref

import pytest
import torch

from leapp.errors import BundleError
from leapp.runtime import Pipeline
from leapp.runtime.inference_manager import InferenceManager
from tests.runtime.bundles import Stage, array, memory, write_bundle

APIS = (Pipeline, InferenceManager)


class Picky(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() < 0):
            raise ValueError("negative")
        return x * 2.0


def sources() -> set[str]:
    return {name for name in linecache.cache if name.startswith("<leapp step")}


@pytest.mark.parametrize("api", APIS)
def test_a_traceback_shows_the_line_of_the_generated_step_that_failed(tmp_path, api):
    runner = api(write_bundle(tmp_path, {"p": Stage(Picky(), {"x": torch.ones(3)}, ["y"], "jit")}))
    linecache.checkcache()
    runner(runner.zeros_input())
    given = runner.zeros_input()
    given["p/x"] -= 1.0
    with pytest.raises(BundleError, match="Node 'p' failed") as caught:
        runner(given)
    cause = caught.value.__cause__
    frame = next(f for f in traceback.extract_tb(cause.__traceback__) if f.filename.startswith("<leapp step"))
    assert frame.name == "step"
    assert frame.line.startswith("v1, = ") or frame.line.startswith("v1 = ")
    assert frame.line in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("api", APIS)
def test_each_step_shows_its_own_source(tmp_path, api):
    runners = [api(memory(tmp_path / backend, backend)) for backend in ("onnx", "jit")]
    steps = [frame.step for runner in runners for frame in runner._engine.program.frames]
    texts = [inspect.getsource(step) for step in steps]
    assert len({step.__code__.co_filename for step in steps}) == len(steps) == 4
    assert all(text.startswith("def step(inputs, values=None):") for text in texts)
    assert texts[0] != texts[2]


@pytest.fixture
def uncollected():
    """Without the garbage collector, as in a control loop: only what nothing refers to is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("api", APIS)
def test_the_source_is_dropped_with_the_pipeline(tmp_path, api, uncollected):
    path = memory(tmp_path, "onnx")
    before = sources()
    first, second = api(path), api(path)
    shown = sources() - before
    assert len(shown) == 4
    del first
    assert len(sources() & shown) == 2
    second(second.zeros_input())
    del second
    assert not sources() & shown


@pytest.mark.parametrize("backend", ["onnx", "jit"])
@pytest.mark.parametrize("api", APIS)
def test_the_models_are_freed_with_the_pipeline(tmp_path, api, backend, uncollected):
    runner = api(memory(tmp_path, backend), copy=False)
    made = runner(runner.zeros_input())
    before = {key: array(value).tobytes() for key, value in made.items()}
    engine, program = weakref.ref(runner._engine), weakref.ref(runner._engine.program)
    del runner
    assert engine() is None and program() is None
    assert {key: array(value).tobytes() for key, value in made.items()} == before  # results outlive it
