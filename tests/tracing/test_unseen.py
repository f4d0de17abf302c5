"""What runs where the modes do not reach: bundles, packages imported late, threads that ran before the session."""

from __future__ import annotations

import copy
import os
import queue
import random
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import leapp
from leapp import InferenceManager, annotate
from leapp.errors import ExportError, TraceError, ValidationError
from leapp.runtime import Pipeline

A = annotate
Tensor = torch.Tensor
HERE = "test_unseen.py"


def values(number: int) -> Tensor:
    """What the pass of that number gets."""
    return torch.randn(3, generator=torch.Generator().manual_seed(number))


def trace(where: Path, function: Callable[[Any], Any], passes: int = 1, array: bool = False, name: str = "g") -> None:
    """Trace a function as the one node of a graph."""
    leapp.start(name, save_path=where)
    try:
        for number in range(passes):
            x = values(number)
            y = function(A.input_tensors("n", {"x": x.numpy() if array else x}))
            A.output_tensors("n", {"y": y}, export_with="onnx")
    finally:
        leapp.stop()
    leapp.compile_graph(visualize=False)


def exported(where: Path, x: Tensor, name: str = "g") -> Tensor:
    """What the written bundle gives."""
    return InferenceManager(str(where / name / f"{name}.yaml"))({"n/x": x})["n/y"]


# -- bundles -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle that triples its input."""
    trace(tmp_path, lambda x: x * 3.0, name="triple")
    return tmp_path / "triple"


RUNS: dict[str, Callable[[Path], Callable[[Any], Any]]] = {
    "Pipeline.__call__": lambda b: (lambda p: lambda x: x + p({"n/x": x})["n/y"])(Pipeline(b)),
    "InferenceManager.__call__": lambda b: (lambda m: lambda x: x + m({"n/x": x})["n/y"])(InferenceManager(b)),
    "InferenceManager.run_policy": lambda b: (lambda m: lambda x: x + m.run_policy({"n/x": x})["n/y"])(InferenceManager(b)),
    "NodeRunner.__call__": lambda b: (lambda m: lambda x: x + m.nodes["n"](x)[0])(InferenceManager(b)),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_bundle_run_inside_a_node(name: str, bundle: Path, tmp_path: Path) -> None:
    """Its engines read the values: two passes refuse it, and the program computes what it does without leapp."""
    function = RUNS[name](bundle)
    array = name.startswith("Pipeline")
    x = values(5)
    torch.testing.assert_close(torch.as_tensor(function(x.numpy() if array else x)), x * 4.0)
    with pytest.raises(TraceError, match=rf"differs between the passes at .*{HERE}"):
        trace(tmp_path, function, 2, array=array)


def test_a_bundle_run_on_constants_inside_a_node(bundle: Path, tmp_path: Path) -> None:
    """What it gives is a constant, and nothing left the graph."""
    manager, given = InferenceManager(bundle), torch.ones(3)
    trace(tmp_path, lambda x: x + manager({"n/x": given})["n/y"], 2)
    assert leapp.report().escapes == []
    torch.testing.assert_close(exported(tmp_path, values(9)), values(9) + 3.0)


# -- imports -----------------------------------------------------------------------------------------------------------

LATE = """
import sys
import numpy as np
import torch
import leapp
from leapp import annotate

def node(x):
    {imports}
    return {result}

leapp.start("g", save_path=sys.argv[1])
x = annotate.input_tensors("n", {{"x": {given}}})
annotate.output_tensors("n", {{"y": node(x)}}, export_with="onnx")
leapp.stop()
leapp.compile_graph(visualize=False)
print([(e.kind, e.line) for e in leapp.report().escapes])
"""


def late(where: Path, imports: str, result: str, given: str = "np.ones(4, np.float32)", after: str = "") -> str:
    """Run a program whose node imports something, and return what it reports."""
    (where / "late_clock.py").write_text("from time import time\nfrom numpy import asarray as made\n")
    (where / "program.py").write_text(textwrap.dedent(LATE).format(imports=imports, result=result, given=given) + after)
    done = subprocess.run(
        [sys.executable, "program.py", str(where)], cwd=where, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("compiled", ["lambda v: v.sin() * 2", "torch.nn.Sequential(Wave(), Wave())"])
def test_a_function_compiled_inside_a_node(compiled: str, tmp_path: Path) -> None:
    """``torch.compile`` loads its machinery then; its function runs eagerly all the same, and is recorded."""
    made = "class Wave(torch.nn.Module):\n        def forward(self, v): return v.sin() * 2\n    "
    after = "\nfrom leapp import InferenceManager\nv = torch.randn(4)\n"
    after += "got = InferenceManager(sys.argv[1] + '/g/g.yaml')({'n/x': v})['n/y']\n"
    after += f"torch.testing.assert_close(got, {'(v.sin() * 2).sin() * 2' if 'Wave' in compiled else 'v.sin() * 2'})\n"
    found = late(tmp_path, f"{made}f = torch.compile({compiled})", "f(x)", "torch.ones(4)", after)
    assert found.strip() == "[]"


# -- threads -----------------------------------------------------------------------------------------------------------


class Worker:
    """A thread that applies a function to what it is handed, for as long as it lives."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._in: queue.Queue[Any] = queue.Queue()
        self._out: queue.Queue[Any] = queue.Queue()
        self._function = function
        self.depths: list[int] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while (value := self._in.get()) is not None:
            self._out.put(self._function(value))
            self.depths.append(torch._C._len_torch_function_stack())

    def __call__(self, value: Any) -> Any:
        self._in.put(value)
        return self._out.get(timeout=60)


HANDED: dict[str, Callable[[Any], Any]] = {
    "op": lambda v: v * 3.0,
    "in place": lambda v: v.clone().add_(1.0).mul_(v),
    "numpy": lambda v: torch.from_numpy(np.sin(v.numpy())),
}


@pytest.mark.parametrize("name", HANDED)
def test_threads_that_ran_before(name: str, tmp_path: Path) -> None:
    """What they do with traced values is not seen, and two passes refuse what comes back from them."""
    worker = Worker(HANDED[name])
    worker(torch.ones(3))
    with pytest.raises(TraceError, match=rf"not the same in every call(.|\n)*{HERE}"):
        trace(tmp_path, lambda x: worker(x) + x, 2)
    assert set(worker.depths) == {0}


@pytest.mark.parametrize("name", HANDED)
def test_threads_that_a_node_starts(name: str, tmp_path: Path) -> None:
    """What they do is recorded, whether they are new or belong to an older pool."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(torch.ones, 3).result()

        def both(x: Tensor) -> Tensor:
            return Worker(HANDED[name])(x) + pool.submit(HANDED[name], x).result() + x

        trace(tmp_path, both, 2)
        depth = pool.submit(torch._C._len_torch_function_stack).result()
    assert leapp.report().escapes == []
    x = values(9)
    torch.testing.assert_close(exported(tmp_path, x), HANDED[name](x) * 2 + x)
    assert depth == 0


def test_threads_that_ran_before_have_work_of_their_own(tmp_path: Path) -> None:
    """Clocks and chance of theirs are no part of the node."""

    def work(_: Any) -> Any:
        return time.time(), random.Random(1).random(), torch.rand(3).sum().item(), torch.ones(2) + 1

    worker = Worker(work)
    worker(0)

    def node(x: Tensor) -> Tensor:
        worker(0)
        return x * 2.0

    trace(tmp_path, node)
    assert leapp.report().escapes == []


def test_a_session_that_another_thread_ends(tmp_path: Path) -> None:
    """The thread that began it records nothing more, and has no modes left at its next call of leapp."""
    leapp.start("g", save_path=tmp_path)
    A.output_tensors("n", {"y": A.input_tensors("n", {"x": values(0)}) * 2.0}, export_with="onnx")
    ender = threading.Thread(target=leapp.stop)
    ender.start()
    ender.join()
    leapp.compile_graph(visualize=False)
    assert torch._C._len_torch_function_stack() == 0
    torch.testing.assert_close(exported(tmp_path, values(3)), values(3) * 2.0)


# -- what follows calls by itself --------------------------------------------------------------------------------------


def _forward_mode(x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(forward_ad.make_dual(x, torch.ones_like(x)).sin()).tangent


FOLLOWERS: dict[str, Callable[[Tensor], Tensor]] = {
    "forward-mode derivative": _forward_mode,
    "torch.func.linearize": lambda x: torch.func.linearize(torch.sin, x)[1](torch.ones_like(x)),
}


@pytest.mark.parametrize("name", FOLLOWERS)
def test_derivatives_that_cannot_be_recorded(name: str, tmp_path: Path) -> None:
    """They are refused where they stand."""
    with pytest.raises(TraceError, match=rf"node 'n'.*{name}.* at .*{HERE}:\d+"):
        trace(tmp_path, FOLLOWERS[name])


def test_what_a_node_makes_of_its_weights_is_no_state(tmp_path: Path) -> None:
    """Parametrised weights are computed anew in every call and gone after it."""
    layer = torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(3, 3)).eval()
    net = torch.nn.Sequential(layer, torch.nn.Tanh())
    trace(tmp_path, lambda x: copy.deepcopy(net)(x).detach())
    assert leapp.report().escapes == []
    torch.testing.assert_close(exported(tmp_path, values(3)), net(values(3)).detach())


def test_a_sparse_constant(tmp_path: Path) -> None:
    """No backend stores one; the message names the call."""
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(ExportError, match=rf"n: the tensor that is read at .*{HERE}:\d+ is sparse.*\.to_dense\(\)"):
        trace(tmp_path, lambda x: torch.sparse.mm(sparse, x[:, None])[:, 0] + x)


# -- small changes of traced memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("factor", [np.float64(1.00001), np.float32(1.0001)], ids=lambda f: f.dtype.name)
def test_a_change_within_the_tolerance_is_refused(passes: int, factor: Any, tmp_path: Path) -> None:
    """Memory that is written to unseen, by less than the tolerance of an engine: the recorded calls are held to rounding."""

    def scale(x: np.ndarray) -> np.ndarray:
        y = x.astype(factor.dtype) * 2
        memory = np.ndarray(y.shape, y.dtype, y)  # a plain array over the memory of a traced one
        memory *= factor
        return y

    with pytest.raises(ValidationError, match="the recorded calls, run again, give other values") as error:
        trace(tmp_path, scale, passes, array=True)
    assert f"n/y (at {Path(__file__)}" in str(error.value)


def _solve(x: np.ndarray) -> np.ndarray:
    matrix = 1.0 / (np.arange(6)[:, None] + np.arange(6) + 1.0)  # nearly singular
    return np.linalg.solve(matrix, np.tile(x.astype(np.float64), 2))


def _chaos(x: np.ndarray) -> np.ndarray:
    z = np.abs(x.astype(np.float64))
    y = np.tanh(z) * np.arctan(z) * np.arcsinh(z) % 1.0
    for _ in range(32):
        y = 3.99 * y * (1 - y)  # each step doubles what rounding left
    return y


@pytest.mark.parametrize("compute", [_solve, _chaos])
def test_rounding_that_the_computation_amplifies_is_not_refused(
    compute: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    """NumPy and torch round differently, and the computation makes much of it: the export is right all the same."""
    trace(tmp_path, compute, 2, array=True)
    np.testing.assert_allclose(exported(tmp_path, values(7)), compute(values(7).numpy()), rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint16, np.int8])
def test_outputs_that_do_not_round_beside_one_that_does(dtype: Any, tmp_path: Path) -> None:
    """A flag or a count beside amplified rounding: no difference is allowed in it, and none is found."""

    def step(x: np.ndarray) -> dict[str, np.ndarray]:
        return {"y": _chaos(x), "count": (np.abs(x) * 4 > 1).astype(dtype)}

    leapp.start("g", save_path=tmp_path)
    for number in range(2):
        A.output_tensors("n", step(A.input_tensors("n", {"x": values(number).numpy()})), export_with="jit")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    for number in range(2, 12):
        x = values(number).numpy()
        made, want = Pipeline(tmp_path / "g", allow_code=True)({"n/x": x}), step(x)
        assert made["n/count"].dtype == dtype
        assert made["n/count"].tolist() == want["count"].tolist()
        np.testing.assert_allclose(made["n/y"], want["y"], rtol=1e-6, atol=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_rounding_before_a_wider_type_is_not_refused(seed: int, tmp_path: Path) -> None:
    """One float32 number, computed by few calls and then widened: the rounding steps of so few values may cancel out."""

    def length(x: np.ndarray) -> np.ndarray:
        return np.sqrt(np.sum(x**2)).astype(np.float64) * 2 + 1

    draw = np.random.default_rng(seed).standard_normal
    leapp.start("g", save_path=tmp_path)
    for _ in range(4):
        x = A.input_tensors("n", {"x": draw((3, 4)).astype(np.float32)})
        A.output_tensors("n", {"y": length(x)}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    x = draw((3, 4)).astype(np.float32)
    np.testing.assert_allclose(Pipeline(tmp_path / "g")({"n/x": x})["n/y"], length(x), rtol=1e-6)


def test_a_small_change_beside_amplified_rounding_is_refused(tmp_path: Path) -> None:
    """What one part of a node makes of rounding excuses nothing in another."""

    def step(x: np.ndarray) -> np.ndarray:
        y = x.astype(np.float64) * 2
        np.ndarray(y.shape, y.dtype, y)[...] *= 1 + 1e-9  # unseen
        return y

    leapp.start("g", save_path=tmp_path)
    for number in range(2):
        x = A.input_tensors("n", {"x": values(number).numpy()})
        A.output_tensors("n", {"chaos": _chaos(x), "y": step(x)}, export_with="onnx")
    leapp.stop()
    with pytest.raises(ValidationError, match="n/y .*the recorded calls, run again, give other values"):
        leapp.compile_graph(visualize=False)
