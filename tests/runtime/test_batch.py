"""Bundles that take any number of rows, as a running program uses them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import leapp
from leapp import InferenceManager, annotate
from leapp.bundle.sidecars import describe_model
from leapp.errors import BundleError, InputError
from leapp.runtime import Pipeline

A = annotate
TRACED = 3
WEIGHT = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)) / 2


def trace(where: Path, backend: str, *, state: bool = True) -> Path:
    """A node with two inputs and, if asked, a state with the rows at axis 1."""
    hidden = torch.zeros(2, TRACED, 4)
    leapp.start("g", save_path=where, dynamic_batch=True)
    for _ in range(2):
        x, y = A.input_tensors("n", {"x": torch.randn(TRACED, 4), "y": torch.randn(TRACED, 4)})
        z = x @ WEIGHT + y
        if state:
            h = A.state_tensors("n", {"h": hidden})
            hidden = A.update_state("n", {"h": 0.5 * h + z.unsqueeze(0)})
            z = hidden.sum(0)
        A.output_tensors("n", {"z": z}, export_with=backend)
    leapp.stop()
    leapp.compile_graph(visualize=False)
    return where / "g"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Path]:
    """Every bundle these tests use."""
    return {
        (backend, state): trace(tmp_path_factory.mktemp("batch"), backend, state=state)
        for backend in ("onnx", "jit")
        for state in (True, False)
    }


def given(rows: int, api: Any = Pipeline) -> dict[str, Any]:
    values = {"n/x": torch.randn(rows, 4), "n/y": torch.randn(rows, 4)}
    return values if api is InferenceManager else {k: v.numpy() for k, v in values.items()}


def expected(inputs: dict[str, Any], hidden: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
    z = torch.as_tensor(inputs["n/x"]) @ WEIGHT + torch.as_tensor(inputs["n/y"])
    if hidden is None:
        return z, None
    hidden = 0.5 * hidden + z.unsqueeze(0)
    return hidden.sum(0), hidden


APIS = pytest.mark.parametrize("api", [Pipeline, InferenceManager])
BACKENDS = pytest.mark.parametrize("backend", ["onnx", "jit"])


@APIS
@BACKENDS
def test_the_batch_follows_the_inputs(api: Any, backend: str, folders: Any) -> None:
    """Without state, every step may have another number of rows."""
    running = api(folders[backend, False])
    assert running.batch == TRACED
    for rows in (7, 1, 1, 2, TRACED, 40):
        inputs = given(rows, api)
        got = running(inputs)["n/z"]
        assert running.batch == rows
        torch.testing.assert_close(torch.as_tensor(got), expected(inputs)[0])
        assert running.input_ports["n/x"].shape == (rows, 4)


@APIS
@BACKENDS
def test_state_belongs_to_its_rows(api: Any, backend: str, folders: Any) -> None:
    """A batch cannot change while state remembers rows; after a reset it can, and rows are reset one by one."""
    running = api(folders[backend, True])
    for rows in (7, 1, 2):
        running.reset()
        hidden: Any = torch.zeros(2, rows, 4)
        for step in range(4):
            inputs = given(rows, api)
            want, hidden = expected(inputs, hidden)
            torch.testing.assert_close(torch.as_tensor(running(inputs)["n/z"]), want)
            if step == 1:
                mask = np.arange(rows) % 2 == 0
                running.reset(mask=mask)
                hidden[:, torch.from_numpy(mask)] = 0.0
        with pytest.raises(InputError, match=rf"holds what {rows} rows left. Call reset\(\)"):
            running(given(rows + 1, api))
        inputs = given(rows, api)
        want, hidden = expected(inputs, hidden)
        torch.testing.assert_close(torch.as_tensor(running(inputs)["n/z"]), want)


@APIS
def test_the_batch_may_be_told_before(api: Any, folders: Any) -> None:
    """``reset(batch=...)`` makes memory and state; zeros, random inputs and warm-up have that size."""
    running = api(folders["onnx", True])
    running.reset(batch=6)
    assert running.batch == 6
    (hidden,) = running.state().values()
    assert tuple(hidden.shape) == (2, 6, 4)
    assert tuple(running.zeros_input()["n/x"].shape) == (6, 4)
    assert tuple(running(running.get_mock_input())["n/z"].shape) == (6, 4)
    running.warm_up()
    for wrong in (0, -1):
        with pytest.raises(InputError, match="one row or more"):
            running.reset(batch=wrong)
    with pytest.raises(InputError, match="leave out node and mask"):
        running.reset(node="n", batch=2)


@APIS
def test_state_of_another_batch_can_be_loaded(api: Any, folders: Any) -> None:
    """Saved state brings its number of rows along."""
    one, other = api(folders["onnx", True]), api(folders["onnx", True])
    one(given(5, api))
    other.load_state(one.state())
    inputs = given(5, api)
    torch.testing.assert_close(torch.as_tensor(other(inputs)["n/z"]), torch.as_tensor(one(inputs)["n/z"]))


@APIS
def test_inputs_share_one_batch(api: Any, folders: Any) -> None:
    """Different numbers of rows are refused by name, and nothing changes."""
    running = api(folders["onnx", True])
    running(given(4, api))
    before = running.state()
    mixed = {"n/x": given(4)["n/x"], "n/y": given(5)["n/y"]}
    with pytest.raises(InputError, match="'n/x' has 4 rows and 'n/y' has 5: all inputs share one batch"):
        running(mixed)
    assert running.batch == 4
    for k, value in running.state().items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(before[k]))
    with pytest.raises(InputError, match="expected float32"):
        running({"n/x": np.zeros((4, 9), np.float32), "n/y": np.zeros((4, 4), np.float32)})


def test_a_mask_needs_rows(folders: Any) -> None:
    """A mask of the wrong length names the state."""
    running = Pipeline(folders["onnx", True])
    running(given(4))
    with pytest.raises(InputError, match=r"mask has the shape \[3\], but state 'n/h_in'"):
        running.reset(mask=np.ones(3, bool))


def test_one_node_alone(folders: Any) -> None:
    """A single node of a manager takes any number of rows too."""
    for backend in ("onnx", "jit"):
        node = InferenceManager(folders[backend, False]).nodes["n"]
        for rows in (1, 6):
            inputs = given(rows, InferenceManager)
            torch.testing.assert_close(node(*inputs.values())[0], expected(inputs)[0])


def test_a_recording_has_one_batch(folders: Any, tmp_path: Path) -> None:
    """It is refused before the step, and what was recorded is kept."""
    running = Pipeline(folders["onnx", True])
    running.reset(batch=2)
    with running.record(tmp_path / "run.npz") as step:
        step(given(2))
        running.reset()
        with pytest.raises(InputError, match="A recording has one batch"):
            step(given(3))
        step(given(2))
    replay = Pipeline(folders["onnx", True]).replay(tmp_path / "run.npz")
    assert (replay.steps, replay.difference) == (2, None)


def test_threads_with_batches_of_their_own(folders: Any) -> None:
    """A shared pipeline is rebuilt under the lock: every answer belongs to its question."""
    running = Pipeline(folders["onnx", False])
    wrong: list[Any] = []

    def work(rows: int) -> None:
        for _ in range(60):
            inputs = given(rows)
            got = running(inputs)["n/z"]
            want = expected(inputs)[0].numpy()
            if got.shape != want.shape or not np.allclose(got, want, atol=1e-5):
                wrong.append((rows, got.shape))

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (1, 2, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def edited(source: Path, target: Path, change: Any) -> Path:
    """A bundle without its seal whose YAML was changed."""
    target.mkdir()
    for file in source.iterdir():
        if file.suffix in (".onnx", ".safetensors"):
            (target / file.name).write_bytes(file.read_bytes())
    document = yaml.safe_load((source / "g.yaml").read_text())
    document["integrity"] = "unsealed"
    change(document)
    (target / "g.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return target / "g.yaml"


@pytest.mark.parametrize("axis", [2, -1, 99, "0", 1.5])
def test_an_impossible_axis_is_refused(axis: Any, folders: Any, tmp_path: Path) -> None:
    """The axis must be one of the shape."""

    def change(document: Any) -> None:
        document["models"]["n"]["inputs"][0]["batch_axis"] = axis

    with pytest.raises(BundleError, match="batch_axis"):
        Pipeline(edited(folders["onnx", False], tmp_path / "b", change))


def test_a_fixed_model_cannot_claim_any_batch(folders: Any, tmp_path: Path) -> None:
    """What the YAML says about the batch is held against the model."""
    leapp.start("g", save_path=tmp_path)
    x, y = A.input_tensors("n", {"x": torch.randn(TRACED, 4), "y": torch.randn(TRACED, 4)})
    A.output_tensors("n", {"z": x + y}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    fixed = tmp_path / "g" / "n.onnx"

    def change(document: Any) -> None:
        model = describe_model(fixed, fixed.parent, "onnx")
        document["models"]["n"]["parameters"]["sha256sum"] = model.sha256sum
        document["models"]["n"]["parameters"]["md5sum"] = model.md5sum

    path = edited(folders["onnx", False], tmp_path / "b", change)
    (path.parent / "n.onnx").write_bytes(fixed.read_bytes())
    with pytest.raises(BundleError, match="takes any batch according to the bundle"):
        Pipeline(path)


def test_fixed_bundles_have_no_batch(tmp_path: Path) -> None:
    """Bundles of fixed sizes refuse other sizes as ever."""
    leapp.start("g", save_path=tmp_path)
    x = A.input_tensors("n", {"x": torch.randn(TRACED, 4)})
    A.output_tensors("n", {"z": x * 2}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    running = Pipeline(tmp_path / "g")
    with pytest.raises(InputError, match="expected float32"):
        running({"n/x": np.zeros((2, 4), np.float32)})
    with pytest.raises(InputError, match="fixed sizes"):
        running.reset(batch=2)
