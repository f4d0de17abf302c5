"""``dynamic_batch=True``: models that take any number of rows, and code that cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import yaml

import leapp
from leapp import annotate
from leapp.errors import AnnotationError, LeappError, TraceError
from leapp.runtime import Pipeline
from tests.tracing.batches import FEATURES, POLICIES, Feedback, GruState, LstmStates, Policy

A = annotate
Tensor = torch.Tensor
TRACED = 5


def export(where: Path, policy: Policy, **settings: Any) -> Path:
    """Trace three passes of a policy and write its bundle."""
    leapp.start("g", save_path=where, dynamic_batch=True)
    try:
        with torch.no_grad():
            for _ in range(3):
                policy(torch.randn(policy.rows, FEATURES))
    finally:
        leapp.stop()
    results = leapp.compile_graph(visualize=False, **settings)
    assert all(v is True for v in results.values())  # type: ignore[union-attr]
    return where / "g"


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
@pytest.mark.parametrize("kind", POLICIES, ids=lambda k: k.__name__)
def test_any_batch_gives_what_the_code_gives_for_it(kind: type[Policy], backend: str, tmp_path: Path) -> None:
    """The bundle, on new inputs and in closed loop, against the same code run as it is for that number of rows."""
    pipeline = Pipeline(export(tmp_path, kind(TRACED, backend)))
    (key,) = pipeline.inputs
    for rows in (1, 2, 7, TRACED):
        plain = kind(rows, backend)
        pipeline.reset()
        for _ in range(4):
            x = torch.randn(rows, FEATURES)
            with torch.no_grad():
                want = np.asarray(plain(x))
            (got,) = pipeline({key: x.numpy()}).values()
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_files_say_that_the_batch_is_free(tmp_path: Path) -> None:
    """Shapes stay readable as before; the axis stands beside them, and ONNX has a name for it."""
    folder = export(tmp_path, LstmStates(TRACED, "onnx"))
    ports = yaml.safe_load((folder / "g.yaml").read_text())["models"]["n"]["inputs"]
    assert [(p["name"], p["shape"], p["batch_axis"]) for p in ports] == [
        ("x", [TRACED, FEATURES], 0), ("h_in", [2, TRACED, 5], 1), ("c_in", [2, TRACED, 5], 1),
    ]  # fmt: skip
    model = onnx.load(folder / "n.onnx")
    dims = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input]
    assert dims == [["batch", FEATURES], [2, "batch", 5], [2, "batch", 5]]


def test_one_file_for_any_batch(tmp_path: Path) -> None:
    """The fused model in plain ONNX Runtime, its state carried by hand."""
    folder = export(tmp_path, Feedback(TRACED, "onnx"), fuse=True)
    session = onnxruntime.InferenceSession(str(folder / "g.onnx"), providers=["CPUExecutionProvider"])
    for rows in (1, 2, 7):
        plain, last = Feedback(rows, "onnx"), np.zeros((rows, 2), np.float32)
        for _ in range(3):
            x = torch.randn(rows, FEATURES)
            with torch.no_grad():
                want = plain(x).numpy()
            (last,) = session.run(["two/action"], {"one/x": x.numpy(), "one/last": last})
            np.testing.assert_allclose(last, want, rtol=1e-4, atol=1e-5)


def test_without_the_option_nothing_changes(tmp_path: Path) -> None:
    """A fixed bundle has no batch key, and its sizes are plain integers."""
    seen = []
    leapp.start("g", save_path=tmp_path)
    x = A.input_tensors("n", {"x": torch.randn(TRACED, 3)})
    seen.append(x.shape[0])
    A.output_tensors("n", {"y": x * 2}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    assert type(seen[0]) is int
    assert "batch_axis" not in (tmp_path / "g" / "g.yaml").read_text()
    assert Pipeline(tmp_path / "g").batch is None


TABLE = torch.randn(TRACED, FEATURES)


def rows_one_by_one(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):  # here
        out[i] = x[i] * 2.0
    return out


def counted(x: Tensor) -> Tensor:
    for _ in range(x.shape[0]):  # here
        x = x * 0.5
    return x


def written_number(x: Tensor) -> Tensor:
    return x.reshape(5, -1)  # here


def divided_by_the_number(x: Tensor) -> Tensor:
    return x - x.sum(0) / 5  # here


def length(x: Tensor) -> Tensor:
    return torch.zeros(len(x), 1) + x  # here


def plain_integer(x: Tensor) -> Tensor:
    return torch.zeros(int(x.shape[0]), 1) + x  # here


def different_rows(x: Tensor) -> Tensor:
    return x + TABLE  # here


def a_case_for_one_row(x: Tensor) -> Tensor:
    return x * 2.0 if x.shape[0] == 1 else x * 3.0  # here


def a_case_for_many_rows(x: Tensor) -> Tensor:
    return x * 2.0 if x.shape[0] > 64 else x * 3.0  # here


def squeezed(x: Tensor) -> Tensor:
    return x.squeeze() * 2.0  # here


def a_list_of_rows(x: Tensor) -> Tensor:
    return torch.stack([row * 2.0 for row in x])  # here


def twice_as_many(x: Tensor) -> Tensor:
    return torch.cat([x, x])  # here


def half(x: Tensor) -> Tensor:
    return x[: x.shape[0] // 2]  # here


def strides(x: Tensor) -> Tensor:
    return x.as_strided((5, 3), (6, 1)) * 2.0  # here


@torch.jit.script
def _mean(x: Tensor) -> Tensor:
    return x.sum(0) / x.size(0)


def scripted_mean(x: Tensor) -> Tensor:
    return x - _mean(x)  # here


def a_numpy_buffer(x: Tensor) -> Tensor:
    a = x.numpy()
    buffer = np.zeros((a.shape[0], 2), np.float32)  # here
    buffer[:, 0] = a[:, 0]
    return torch.from_numpy(buffer) * 2.0


def the_number_beside_one_of_an_array(x: Tensor) -> Tensor:
    return x * torch.tensor([x.shape[0], x.numpy()[0, 0]]).sum()  # here


def a_dead_branch(x: Tensor) -> Tensor:
    _ = x + TABLE  # here
    return x * (x.shape[0] + 1)


def as_many_as_are_positive(x: Tensor) -> Tensor:
    return x[x > 0].sum() + x  # here


def a_view_or_a_copy(x: Tensor) -> Tensor:
    x = x * 1.0
    y = x.t().contiguous()  # here
    y.mul_(2.0)
    return x + 1.0


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return x - x.sum(0) / (x.shape[0] + 1)  # here


REFUSED = (
    rows_one_by_one, counted, written_number, divided_by_the_number, length, plain_integer, different_rows,
    a_case_for_one_row, a_case_for_many_rows, squeezed, a_list_of_rows, twice_as_many, half, strides, scripted_mean,
    a_numpy_buffer, the_number_beside_one_of_an_array, a_dead_branch, as_many_as_are_positive, a_view_or_a_copy,
    under_autocast,
)  # fmt: skip


def line_of(function: Callable[..., Any]) -> int:
    """The line marked in a function of this file."""
    lines = Path(__file__).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return next(n for n in range(first, len(lines) + 1) if lines[n - 1].endswith("# here"))


@pytest.mark.parametrize("function", REFUSED, ids=lambda f: f.__name__)
def test_a_baked_batch_is_refused_with_its_line(function: Any, tmp_path: Path) -> None:
    """Nothing is written, and the message names the line."""
    leapp.start("g", save_path=tmp_path, dynamic_batch=True)
    x = A.input_tensors("n", {"x": torch.randn(TRACED, FEATURES)})
    A.output_tensors("n", {"y": function(x)}, export_with="jit")
    leapp.stop()
    with pytest.raises(LeappError) as raised:
        leapp.compile_graph(visualize=False)
    assert f"{Path(__file__).name}:{line_of(function)}" in str(raised.value)
    assert ("depends on values" in str(raised.value)) == (function is as_many_as_are_positive)
    assert not (tmp_path / "g" / "g.yaml").exists()


def test_one_row_tells_nothing(tmp_path: Path) -> None:
    """With a single row, a size of one may be the batch or may be broadcast."""
    leapp.start("g", save_path=tmp_path, dynamic_batch=True)
    x = A.input_tensors("n", {"x": torch.randn(1, 3)})
    A.output_tensors("n", {"y": x * 2}, export_with="jit")
    leapp.stop()
    with pytest.raises(TraceError, match="two or more rows"):
        leapp.compile_graph(visualize=False)


def test_an_axis_of_ones_own(tmp_path: Path) -> None:
    """Where another axis has the size of the batch, ``batch_axis`` tells which is meant."""
    net = torch.nn.GRU(3, 5, num_layers=TRACED)
    hidden = torch.zeros(TRACED, TRACED, 5)
    leapp.start("g", save_path=tmp_path, dynamic_batch=True)
    with torch.no_grad():
        x = A.input_tensors("n", {"x": torch.randn(TRACED, 3)})
        gain = A.input_tensors("n", {"gain": torch.ones(TRACED)}, batch_axis=None)
        h = A.state_tensors("n", {"h": hidden}, batch_axis=1)
        y, h = net(x.unsqueeze(0), h)
        A.update_state("n", {"h": h})
        A.output_tensors("n", {"y": y[0] * gain}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    pipeline = Pipeline(tmp_path / "g")
    x = torch.randn(2, 3)
    with torch.no_grad():
        want = net(x.unsqueeze(0), torch.zeros(TRACED, 2, 5))[0][0] * 3.0
    got = pipeline({"n/x": x.numpy(), "n/gain": np.full(TRACED, 3.0, np.float32)})["n/y"]
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("axis", [2, -3, "rows", 0.5, True])
def test_an_axis_that_is_none(axis: Any, tmp_path: Path) -> None:
    """``batch_axis`` is an axis of the tensor."""
    leapp.start("g", save_path=tmp_path, dynamic_batch=True)
    with pytest.raises(AnnotationError, match="batch_axis"):
        A.input_tensors("n", {"x": torch.randn(TRACED, 3)}, batch_axis=axis)


def test_sizes_look_like_integers(tmp_path: Path) -> None:
    """The user's code sees a number: printed, added, compared with another size, used as a key."""
    seen: dict[Any, Any] = {}
    leapp.start("g", save_path=tmp_path, dynamic_batch=True)
    x = A.input_tensors("n", {"x": torch.randn(TRACED, 3)})
    rows = x.shape[0]
    seen[rows] = f"{rows} {x.shape} {rows + 1} {isinstance(rows, int)} {rows == x.size(0)} {rows > 0} {x.numel()}"
    A.output_tensors("n", {"y": x * 2}, export_with="jit")
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True}
    assert list(seen.values()) == [f"5 torch.Size([5, 3]) 6 True True True {TRACED * 3}"]


def test_a_state_with_rows_of_its_own(tmp_path: Path) -> None:
    """A state whose rows begin differently cannot begin in another batch."""
    policy = GruState(TRACED, "onnx")
    policy.h = torch.randn(TRACED, 5)
    pipeline = Pipeline(export(tmp_path, policy))
    with pytest.raises(LeappError, match="'n/h_in' begins with a different value in each of 5 rows"):
        pipeline({"n/x": np.zeros((2, FEATURES), np.float32)})
    assert pipeline({"n/x": np.zeros((TRACED, FEATURES), np.float32)})["n/y"].shape == (TRACED, 3)


def test_the_batch_is_found_among_other_inputs(tmp_path: Path) -> None:
    """A vector without rows comes first; a node that leapp does not export takes the batch from what feeds it."""
    leapp.start("g", save_path=tmp_path, dynamic_batch=True)
    gravity, x, scale = A.input_tensors(
        "n", {"gravity": torch.randn(3), "x": torch.randn(TRACED, 3), "scale": torch.tensor(2.0)}
    )
    y = A.output_tensors("n", {"y": (x + gravity) * scale, "mean": x.mean(0)}, export_with="onnx")[0]
    gravity, y = A.input_tensors("m", {"gravity": torch.randn(3), "y": y})
    z = A.output_tensors("m", {"z": y * gravity}, export_with="jit")
    z = A.input_tensors("other", {"z": z})
    A.output_tensors("other", {"w": z + 1.0}, export_with=None)
    leapp.stop()
    leapp.compile_graph(visualize=False)
    models = yaml.safe_load((tmp_path / "g" / "g.yaml").read_text())["models"]
    axes = {f"{n}/{p['name']}": p.get("batch_axis") for n, m in models.items() for p in (*m["inputs"], *m["outputs"])}
    assert axes == {
        "n/gravity": None, "n/x": 0, "n/scale": None, "n/y": 0, "n/mean": None, "m/gravity": None, "m/y": 0, "m/z": 0,
        "other/z": 0, "other/w": 0,
    }  # fmt: skip
