"""Sessions as rows of a batch: equal to a local run of the whole batch, and apart from each other."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import leapp
from leapp import annotate
from leapp.client import Client
from leapp.errors import BundleError, InputError, ServerError
from leapp.runtime import Pipeline
from leapp.serve import Options, Service

ROWS = 4


def export(directory: Path, mix: bool = False, start: torch.Tensor | None = None, dynamic: bool = False) -> Path:
    """A recurrent policy for four robots at once, or for any number. With ``mix``, each sees the mean of all."""
    generator = torch.Generator().manual_seed(5)
    weight, table = torch.randn(3, 3, generator=generator), torch.randn(9, generator=generator)
    h = torch.full((ROWS, 3), 0.5) if start is None else start
    leapp.start("herd", save_path=str(directory), dynamic_batch=dynamic)
    for _ in range(2):
        given = {"q": torch.randn(ROWS, 3, generator=generator), "mode": torch.randint(0, 9, (ROWS,), generator=generator)}
        q, mode = annotate.input_tensors("policy", given)
        before = annotate.state_tensors("policy", {"h": h})
        seen = q + q.mean(0, keepdim=True) if mix else q
        new = 0.5 * before + seen @ weight + torch.index_select(table, 0, mode)[:, None]
        annotate.update_state("policy", {"h": new})
        annotate.output_tensors("policy", {"action": torch.tanh(new)}, export_with="onnx")
        h = new.detach()
    leapp.stop()
    assert leapp.compile_graph(visualize=False)
    return directory / "herd"


@pytest.fixture(scope="module", params=["four rows", "any rows"])
def herd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tmp_path_factory.mktemp("herd"), dynamic=request.param == "any rows")


def inputs(count: int, seed: int) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [
        {"policy/q": generator.standard_normal((1, 3)).astype(np.float32), "policy/mode": generator.integers(0, 9, 1)}
        for _ in range(count)
    ]


def alone(bundle: Path, given: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """The actions of one robot, from a local run in which all rows are that robot."""
    local = Pipeline(bundle)
    return [local({k: np.repeat(v, ROWS, 0) for k, v in step.items()})["policy/action"][:1] for step in given]


def test_clients_share_runs_and_see_only_themselves(herd, serve):
    served = serve(Options(str(herd), batch=ROWS))
    failures = []

    def run(seed: int) -> None:
        try:
            given = inputs(40, seed)
            if seed == 0:
                for step in given:
                    step["policy/q"][:] = np.nan
            with Client(served.url, resume=bool(seed % 2), timeout=60) as remote:
                assert remote.input_ports["policy/q"].shape == (1, 3)
                for step, want in zip(given, alone(herd, given), strict=True):
                    np.testing.assert_allclose(remote(step)["policy/action"], want, rtol=1e-5, atol=1e-6)
                remote.reset()
                for step, want in zip(given[:5], alone(herd, given[:5]), strict=True):
                    np.testing.assert_allclose(remote(step)["policy/action"], want, rtol=1e-5, atol=1e-6)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    figures = served.service.metrics.snapshot()
    assert figures["values"]["leapp_batched_steps_total"][""] == 7 * 45
    assert sum(figures["times"]["leapp_step_seconds"][:-1]) < 7 * 45  # some ran together


def test_a_bad_row_is_its_own_affair(herd, serve):
    served = serve(Options(str(herd), batch=ROWS, nonfinite="raise"))
    engine = served.service.engine
    given = inputs(2, 3)
    bad = {**given[0], "policy/mode": np.array([99])}

    async def together():
        steps = (engine.step(engine.initial, step) for step in (given[0], bad, given[1]))
        return await asyncio.gather(*steps, return_exceptions=True)

    first, second, third = asyncio.run(together())
    assert isinstance(second, BundleError)
    for made, step in ((first, given[0]), (third, given[1])):
        np.testing.assert_allclose(made[0]["policy/action"], alone(herd, [step])[0], rtol=1e-5, atol=1e-6)
    with Client(served.url) as remote:
        remote(given[0])
        before = remote.state()
        with pytest.raises(ServerError, match="out of data bounds"):
            remote(bad)
        with pytest.raises(InputError, match="policy/q"):
            remote({**given[0], "policy/q": np.full((1, 3), np.nan, np.float32)})
        with pytest.raises(InputError, match="policy/q"):
            remote({**given[0], "policy/q": np.zeros((ROWS, 3), np.float32)})
        assert remote.state()["policy/h_in"].tobytes() == before["policy/h_in"].tobytes()


def test_a_bundle_for_any_batch_is_served_with_the_rows_asked_for(tmp_path, serve):
    bundle = export(tmp_path, dynamic=True)
    for batch in (1, 6):
        with Client(serve(Options(str(bundle), batch=batch)).url) as remote:
            given = inputs(6, batch)
            for step, want in zip(given, alone(bundle, given), strict=True):
                np.testing.assert_allclose(remote(step)["policy/action"], want, rtol=1e-5, atol=1e-6)
    served, local = serve(Options(str(bundle))), Pipeline(bundle)
    whole = {k: np.repeat(v, ROWS, 0) for k, v in inputs(1, 0)[0].items()}
    with Client(served.url) as remote:
        assert remote(whole)["policy/action"].tobytes() == local(whole)["policy/action"].tobytes()
        with pytest.raises(InputError, match="rows"):
            remote(inputs(1, 0)[0])
        assert remote(whole)["policy/action"].tobytes() == local(whole)["policy/action"].tobytes()
    few = inputs(1, 0)[0]
    for state in (served.service.engine.initial, {"policy/h_in": np.zeros((1, 3), np.float32)}):
        with pytest.raises(InputError, match="rows"):  # whatever a stranger sends
            asyncio.run(served.service.engine.step(state, few))
    assert served.service.engine.pipeline.batch == ROWS


def test_rows_that_are_not_apart_are_refused(tmp_path):
    herd = export(tmp_path)
    with pytest.raises(BundleError, match="changes with the other rows"):
        Service(Options(str(export(tmp_path / "mixed", mix=True)), batch=ROWS))
    with pytest.raises(BundleError, match=r"not a batch of 3 rows"):
        Service(Options(str(herd), batch=3))
    with pytest.raises(BundleError, match="differ from row to row"):
        Service(Options(str(export(tmp_path / "start", start=torch.arange(12.0).reshape(ROWS, 3))), batch=ROWS))


def test_numbers_of_rows_are_refused_however_large_the_output_is(tmp_path):
    """Each session would get the number of the row that it happens to be given."""
    leapp.start("herd", save_path=str(tmp_path))
    for _ in range(2):
        x = annotate.input_tensors("policy", {"x": torch.randint(0, 9, (ROWS, 1))})
        annotate.output_tensors("policy", {"y": x + 100_000 + torch.arange(ROWS)[:, None]}, export_with="onnx")
    leapp.stop()
    assert leapp.compile_graph(visualize=False)
    with pytest.raises(BundleError, match="depend on their place in the batch"):
        Service(Options(str(tmp_path / "herd"), batch=ROWS))
