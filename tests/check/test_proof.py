"""The proof of an export: what it compares, what it says when a file is wrong, and where."""

from __future__ import annotations

import functools
import re

import numpy as np
import onnx
import pytest
import torch

import leapp
from leapp import TensorSemantics, annotate
from leapp.check.compare import compare
from leapp.errors import ExportError, TraceError, ValidationError
from leapp.export import ExportJob, export_node
from leapp.tracing.blame import first_departure


def trace(where, function, backend, draw=lambda: torch.randn(2, 3), passes=2):
    leapp.start("g", save_path=str(where))
    try:
        for _ in range(passes):
            x = annotate.input_tensors("n", {"x": draw()})
            names = [None, ["roll", "pitch", "yaw"]]
            annotate.output_tensors("n", TensorSemantics("y", function(x), element_names=names), export_with=backend)
    finally:
        leapp.stop()


def log(where):
    return (where / "g" / "log.txt").read_text()


COMPARED = {
    "equal": ([1.0, 2.0], [1.0, 2.0], None),
    "nan on both sides": ([np.nan, np.inf], [np.nan, np.inf], None),
    "nan on one side": ([np.nan, 2.0], [1.0, 2.0], r"1 of 2 values \(50.0 %\) are NaN or infinite on one side"),
    "infinities of other sign": ([np.inf], [-np.inf], "one side only"),
    "out of tolerance": ([1.0, 2.5, 3.0], [1.0, 2.0, 3.0], r"1 of 3 values \(33.3 %\).*by up to 0.5 \(at \[1\]"),
    "integers": (np.array([1, 5]), np.array([1, 2]), r"1 of 2 values \(50.0 %\) differ.*exported 5, traced 2"),
    "large integers one apart": (np.array([2**60 + 1]), np.array([2**60]), "must be equal"),
    "truth values": (np.array([True, False]), np.array([True, True]), "must be equal"),
    "another shape": (np.zeros((1, 3)), np.zeros(3), r"is float64 \[1, 3\], traced was float64 \[3\]"),
    "another dtype": (np.zeros(3, np.int32), np.zeros(3, np.int64), "int32.*int64"),
    "empty": (np.zeros((0, 3)), np.zeros((0, 3)), None),
}


@pytest.mark.parametrize("name", COMPARED)
def test_comparison(name):
    got, want, reason = COMPARED[name]
    found = compare(np.asarray(got), np.asarray(want), 1e-3, 1e-5)
    if reason is None:
        assert found is None
    else:
        assert re.search(reason, found.reason), found.reason


def test_a_worst_element_within_a_wide_tolerance_is_not_named():
    """A large value may differ by more than a small one and still be within the relative tolerance."""
    found = compare(np.array([1000.5, 1.1]), np.array([1000.0, 1.0]), 1e-3, 1e-5)
    assert found.index == (1,)


def test_a_frozen_value_is_told_apart_from_a_wrong_export(tmp_path):
    """Here it changes in the third pass, which nothing recorded: the file fails on its sample."""
    calls = tmp_path / "calls"  # what a program keeps in a file cannot be seen

    def counts(x):
        with calls.open("a") as file:
            file.write("call ")
        late = float(len(calls.read_text().split()) > 2)
        return torch.tanh(x * 2 + torch.tensor(late))  # the culprit

    trace(tmp_path, counts, "onnx", passes=3)
    with pytest.raises(ValidationError) as caught:
        leapp.compile_graph(visualize=False)
    message, text = str(caught.value), log(tmp_path)
    assert re.search(r"validation failed for n: .*\n  n/y, sample 2: \d of 6 values .*worst element is", message)
    assert re.search(r"test_proof\.py:\d+: .*# the culprit", message) and "log.txt" in message
    assert "n/y, sample 2: " in text and "rtol 0.001" in text
    for word in ("max ", "mean ", "p50 ", "p75 ", "p90 ", "p99 ", "p995 ", "range ", "the worst element is "):
        assert word in text
    assert any(f"the worst element is {name}" in text for name in ("roll", "pitch", "yaw"))
    assert "the first two passes were recorded and agree" in text and "(pass 3)" in text


def test_the_line_where_a_value_left_the_graph_is_in_the_error(tmp_path):
    """The passes part at the line that uses a number; the line that read it out is listed too."""
    state = {"gain": 1.0}

    def gains(x):
        state["gain"] += 1
        left = float(x.detach().sum() * 0 + state["gain"])  # it leaves here
        return x * left  # and is used here

    trace(tmp_path, gains, "jit")
    with pytest.raises(TraceError, match=r"test_proof\.py:\d+: .*# and is used here +\[frozen: 2.0\].*3.0 in the second"):
        leapp.compile_graph(visualize=False)
    assert any("# it leaves here" in e.source for e in leapp.report().escapes)


def test_the_first_call_that_departs_is_named_with_its_line(tmp_path, monkeypatch):
    from leapp.export import operators

    monkeypatch.setitem(operators.DECOMPOSITIONS, torch.ops.aten.heaviside.default, lambda x, values: (x > 0).to(x.dtype) + 1)
    from leapp.export import torchlib

    torchlib._tables.cache_clear()
    try:

        def steps(x):
            y = x * 2
            z = torch.heaviside(y, torch.zeros(1))  # this line
            return z.cumsum(1)

        trace(tmp_path, steps, "onnx")
        with pytest.raises(ValidationError) as caught:
            leapp.compile_graph(visualize=False)
    finally:
        torchlib._tables.cache_clear()
    line = next(line for line in str(caught.value).splitlines() if "first operation that differs from PyTorch" in line)
    assert "heaviside" in line and "test_proof.py" in line and "# this line" in line
    assert "6 of 6 values" in line


SPECIAL = {
    "conjugate": (lambda x: x.conj(), lambda: torch.randn(2, 3, dtype=torch.complex64)),
    "negative of a view": (lambda x: x.conj().imag, lambda: torch.randn(2, 3, dtype=torch.complex64)),
    "float8 out": (lambda x: x.to(torch.float8_e4m3fn), lambda: torch.randn(2, 3)),
    "float8 in": (lambda x: x.float() * 2, lambda: torch.randn(2, 3).to(torch.float8_e5m2)),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_values_that_numpy_cannot_take_as_they_are_pass_the_proof(tmp_path, name):
    function, draw = SPECIAL[name]
    trace(tmp_path, function, "jit", draw)
    leapp.compile_graph(visualize=False)
    new = draw()
    got = leapp.InferenceManager(str(tmp_path / "g")).run_policy({"n/x": new})["n/y"]
    want = function(new).resolve_conj().resolve_neg()
    assert got.dtype is want.dtype and torch.equal(got.view(torch.uint8), want.contiguous().view(torch.uint8))


def test_results_are_false_unless_passed(tmp_path):
    count = [0.0]

    def counts(x):
        count[0] += 1
        return x + torch.tensor(count[0])

    trace(tmp_path, counts, "jit")
    results = leapp.compile_graph(visualize=False, strict=False)
    assert results == {"n": False} and not all(results.values())
    trace(tmp_path, lambda x: (x.bfloat16() @ x.bfloat16().T @ x.bfloat16()), "onnx")
    results = leapp.compile_graph(visualize=False, strict=False)
    assert isinstance(results["n"], Exception) and not results["n"]


def test_a_type_the_engine_lacks_is_named_with_the_backends_that_have_it(tmp_path):
    trace(tmp_path, lambda x: (x.bfloat16() @ x.bfloat16().T @ x.bfloat16()).float(), "onnx")
    with pytest.raises(ValidationError, match="node 'n'.*no MatMul for bfloat16.*'jit' or 'pt2'"):
        leapp.compile_graph(visualize=False)


@pytest.mark.parametrize("backend", ["onnx", "jit", "pt2"])
def test_random_outputs_are_compared_by_form_and_the_others_by_value(backend, tmp_path):
    leapp.start("g", save_path=str(tmp_path))
    for _ in range(2):
        x = annotate.input_tensors("n", {"x": torch.randn(2, 3)})
        noisy = torch.nn.functional.dropout(x + 1, 0.5, True)
        annotate.output_tensors("n", {"noisy": noisy, "plain": x * 2}, export_with=backend)
    leapp.stop()
    assert leapp.compile_graph(visualize=False, allow_random=True) == {"n": True}
    assert "changes noisy: compared by shape and dtype only" in log(tmp_path)


def test_layers_that_could_draw_but_do_not_are_not_random(tmp_path):
    """Attention, recurrent layers and dropout in eval mode are proven like everything else."""
    gru = torch.nn.GRU(3, 3, 2, dropout=0.5).eval()

    def node(x):
        attended = torch.nn.functional.scaled_dot_product_attention(*[x.reshape(1, 1, 2, 3)] * 3)[0, 0]
        return gru(torch.nn.functional.dropout(attended, 0.5, False))[0]

    trace(tmp_path, node, "jit")
    assert leapp.compile_graph(visualize=False) == {"n": True}
    assert leapp.report().random == {}


def test_a_fixed_output_of_a_random_node_is_still_proven(tmp_path):
    count = [0.0]
    leapp.start("g", save_path=str(tmp_path))
    for _ in range(2):
        count[0] += 1
        x = annotate.input_tensors("n", {"x": torch.randn(2, 3)})
        out = {"noisy": x + torch.rand_like(x), "wrong": x + torch.tensor(count[0])}
        annotate.output_tensors("n", out, export_with="jit")
    leapp.stop()
    assert leapp.compile_graph(visualize=False, strict=False) == {"n": False}
    assert "n/wrong, sample 1" in log(tmp_path) and "n/noisy, sample" not in log(tmp_path)


def test_thorough_runs_every_level(tmp_path, monkeypatch):
    from leapp.check import engines

    levels = []
    plain = engines.open_level
    monkeypatch.setattr(engines, "open_level", lambda b, n, level: levels.append(level) or plain(b, n, level))
    trace(tmp_path, lambda x: x.softmax(-1) @ torch.ones(3, 3), "onnx")
    assert leapp.compile_graph(visualize=False, validate="thorough") == {"n": True}
    assert levels == list(engines.LEVELS)
    with pytest.raises(ValueError, match="thorough"):
        leapp.compile_graph(validate="deep")


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf"), "0.1", None])
@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_tolerances_that_say_nothing_are_refused(tmp_path, name, value):
    trace(tmp_path, lambda x: x.softmax(-1), "jit")
    with pytest.raises(ValueError, match=f"^{name}=.*a finite number of at least 0"):
        leapp.compile_graph(visualize=False, **{name: value})
    assert leapp.compile_graph(visualize=False, **{name: 0}) == {"n": True}


@pytest.mark.parametrize(("backend", "engine"), [("jit", "open_script"), ("onnx", "open_session"), ("pt2", "open_program")])
def test_every_file_is_read_and_opened_once_and_one_pipeline_is_built(backend, engine, tmp_path, counted):
    from leapp.bundle import reading, sidecars
    from leapp.runtime import load, torch_engines
    from leapp.runtime.engine import LocalEngine

    read = counted(sidecars, "read_hashed")
    again = counted(reading, "read_verified")
    opened = counted(load if backend == "onnx" else torch_engines, engine)
    built = counted(LocalEngine, "__init__")
    leapp.start("g", save_path=str(tmp_path))
    for _ in range(2):
        x = torch.randn(2, 3)
        for node in range(4):
            x = annotate.input_tensors(f"n{node}", {"x": x})
            x = annotate.output_tensors(f"n{node}", {"y": (x * (node + 2)).tanh()}, export_with=backend)
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == dict.fromkeys(("n0", "n1", "n2", "n3"), True)
    assert (len(read), len(again), len(built)) == (4, 0, 1)
    assert len(opened) == 4 + (backend == "onnx")  # the closed loop runs the four ONNX models as one


@pytest.mark.parametrize(("backend", "function"), [("onnx", torch.special.i1), ("onnx", torch.special.i0e)])
def test_a_refusal_names_the_users_line(backend, function, tmp_path):
    def policy(x):
        y = x + 1
        z = function(y)  # here
        return z.expand(2, 3) if z.shape == (2, 3) else z.sum() + x

    trace(tmp_path, policy, backend)
    with pytest.raises(ExportError, match=r"n: .*first at .*test_proof\.py:\d+: .*# here") as caught:
        leapp.compile_graph(visualize=False)
    assert "'jit' or 'pt2'" in str(caught.value)


def _nested(x):
    return torch.nested.as_nested_tensor([x[0], x[1, :2]]).to_padded_tensor(0.0)


def _quantised(x):
    return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()


def _rolled(x):
    return x[x[:, 0] > -9].roll(1, 0)


@pytest.mark.parametrize("function", [_nested, _quantised, _rolled])
def test_what_a_pt2_file_cannot_hold_names_the_users_line(function, tmp_path):
    trace(tmp_path, lambda x: function(x + 1) * x, "pt2")
    line = function.__code__.co_firstlineno + 1
    with pytest.raises(ExportError, match=rf"n: .*first at \w+ at .*test_proof\.py:{line}: .*export_with='jit'") as caught:
        leapp.compile_graph(visualize=False)
    assert "draft_export" not in str(caught.value)


def test_a_size_that_a_file_does_not_know_names_the_users_line(tmp_path):
    def policy(x):
        y = x[x[:, 0] >= x[:, 0].max()]  # here
        return y.view(3).expand(1, 3) * 2

    trace(tmp_path, policy, "pt2")
    if torch.__version__.startswith("2.7."):
        assert leapp.compile_graph(visualize=False) == {"n": True}
        return
    with pytest.raises(ValidationError, match=r"size of a tensor depends on values.* at .*test_proof\.py:\d+: .*# here"):
        leapp.compile_graph(visualize=False)


def test_a_type_that_the_engine_cannot_compute_names_the_users_line(tmp_path):
    def policy(x):
        y = (x + 1).bfloat16()  # here
        return (y * y).float()

    trace(tmp_path, policy, "onnx")
    with pytest.raises(ValidationError, match=r"no Mul for bfloat16.* at .*test_proof\.py:\d+: .*# here.*'jit' or 'pt2'"):
        leapp.compile_graph(visualize=False)


@pytest.mark.parametrize("number", [1j, float("nan")])
def test_a_number_that_a_pt2_file_cannot_hold_names_the_users_line(number, tmp_path):
    def policy(x):
        y = x.clamp(max=float("inf")) + 1
        z = torch.where(y > 0, y, number)  # here
        return torch.view_as_real(z)[..., 1] + x if z.is_complex() else z.nan_to_num(0.0)

    trace(tmp_path, policy, "pt2")
    if not torch.__version__.startswith("2.7."):
        assert leapp.compile_graph(visualize=False) == {"n": True}
        return
    with pytest.raises(ExportError, match=r"n: .*first at where at .*test_proof\.py:\d+: .*# here.*Give the call a tensor"):
        leapp.compile_graph(visualize=False)


@pytest.mark.parametrize("function", [torch.special.i1, functools.partial(torch.polygamma, 2), torch.special.i0e])
def test_the_line_of_a_refusal_takes_one_more_export(function, tmp_path, monkeypatch):
    """The operator that fails is known by the call that made it, however long the node."""
    import leapp.export as exporting

    written = []
    plain = exporting._write
    monkeypatch.setattr(exporting, "_write", lambda *job: written.append(job) or plain(*job))

    def policy(x):
        for _ in range(20):
            x = x.sin() + 1
        x = x + function(x).sum()  # here
        for _ in range(20):
            x = x.sin() + 1
        return x

    trace(tmp_path, policy, "onnx")
    with pytest.raises(ExportError, match=r"n: .*first at .*test_proof\.py:\d+: .*# here"):
        leapp.compile_graph(visualize=False)
    assert len(written) == 2


@pytest.mark.parametrize("backend", ["jit", "pt2"])
def test_a_closed_loop_under_autocast_is_compared_at_its_precision(backend, tmp_path):
    torch.manual_seed(0)
    layers = [(6, 64), (64, 64), (64, 4)]
    net = torch.nn.Sequential(*(layer for n, m in layers for layer in (torch.nn.Linear(n, m), torch.nn.ELU())))

    def step(x, h):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = net(torch.cat([x, h], -1))
        return y.float(), torch.tanh(3 * y.float())

    leapp.start("g", save_path=str(tmp_path))
    h = torch.zeros(1, 4)
    for _ in range(4):
        x = annotate.input_tensors("n", {"x": torch.randn(1, 2)})
        y, new = step(x, annotate.state_tensors("n", {"h": h}))
        annotate.update_state("n", {"h": new})
        h = new.detach()
        annotate.output_tensors("n", {"y": y}, export_with=backend)
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True}
    manager, h = leapp.InferenceManager(str(tmp_path / "g" / "g.yaml")), torch.zeros(1, 4)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(1, 2)
            y, h = step(x, h)
            torch.testing.assert_close(torch.as_tensor(manager({"n/x": x})["n/y"]), y, rtol=0.05, atol=0.02)


def test_nothing_of_the_exporters_reaches_the_console(tmp_path, capfd, recwarn):
    for backend in ("onnx", "jit", "pt2"):
        trace(tmp_path / backend, lambda x: torch.nn.functional.layer_norm(x, (3,)), backend)
        leapp.compile_graph(visualize=False)
    shown = capfd.readouterr()
    lines = [line for line in (shown.out + shown.err).splitlines() if line and not line.startswith("[SYSTEM]")]
    assert lines == []
    assert [str(w.message) for w in recwarn] == []


def test_departure_is_found_in_a_job_of_its_own(tmp_path):
    """``first_departure`` says so when the file does what PyTorch does."""
    trace(tmp_path, lambda x: x.exp() + 1, "onnx")
    node = leapp.ExportManager().session.nodes["n"]
    x = torch.randn(2, 3)
    job = ExportJob("n", node.replay, (x,), ["x"], ["y"], "onnx")
    export_node(job, tmp_path)
    assert onnx.load(tmp_path / "n.onnx").graph.output[0].name == "y"
    assert "every single operation agrees" in first_departure(job, (x,), 1e-3, 1e-5)
