"""Large models are proven in a process of their own: the same findings, and no copy of the weights in this one."""

from __future__ import annotations

import operator
import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch

import leapp
from leapp import annotate
from leapp.check import engine_process
from leapp.check.engine_process import EngineProcess, EngineProcessError
from leapp.errors import ValidationError

BACKENDS = ("jit", "onnx", "pt2")


@pytest.fixture
def all_apart(monkeypatch):
    """Every model counts as large. Tells what was opened in the other process."""
    opened = []
    open_there = EngineProcess.open

    def noted(self, function, *args):
        opened.append(function.__name__)
        return open_there(self, function, *args)

    monkeypatch.setattr(engine_process, "LARGE", 0)
    monkeypatch.setattr(EngineProcess, "open", noted)
    return opened


def trace(where, function, backend, passes=2):
    leapp.start("g", save_path=str(where))
    try:
        h = torch.zeros(2, 3)
        for _ in range(passes):
            x = annotate.input_tensors("n", {"x": torch.randn(2, 3)})
            state = annotate.state_tensors("n", {"h": h})
            h = function(x, state)
            annotate.update_state("n", {"h": h})
            annotate.output_tensors("n", {"y": h * 2}, export_with=backend)
    finally:
        leapp.stop()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_right_model_passes_there(backend, tmp_path, all_apart):
    trace(tmp_path, lambda x, h: torch.tanh(x + h), backend)
    assert leapp.compile_graph(visualize=False) == {"n": True}
    assert all_apart == ["open_engine", "open_pipeline"]


def test_a_fused_model_and_every_level_are_run_there(tmp_path, all_apart):
    trace(tmp_path, lambda x, h: torch.tanh(x + h), "onnx")
    assert leapp.compile_graph(visualize=False, validate="thorough", fuse=True) == {"n": True}
    assert all_apart == ["open_engine", *4 * ["open_level"], "open_pipeline", "FusedModel"]


def test_a_wrong_value_is_reported_as_if_it_were_run_here(tmp_path, all_apart):
    def report():
        calls = tmp_path / "calls"  # what a program keeps in a file cannot be seen
        calls.write_text("")

        def counts(x, h):
            with calls.open("a") as file:
                file.write("call ")
            late = float(len(calls.read_text().split()) > 2)
            return torch.tanh(x + h + torch.tensor(late))  # the culprit

        torch.manual_seed(0)
        trace(tmp_path, counts, "onnx", passes=3)
        with pytest.raises(ValidationError) as caught:
            leapp.compile_graph(visualize=False)
        return str(caught.value)

    there = report()
    assert all_apart == ["open_engine"]
    engine_process.LARGE = 1 << 30
    assert report() == there
    assert re.search(r"(?s)n/\w+, sample 2: .*frozen.*\n.*# the culprit", there), there


def test_an_operator_that_only_this_process_knows_is_run_here(tmp_path, all_apart):
    with torch.library._scoped_library("leapp_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        trace(tmp_path, lambda x, h: torch.ops.leapp_test.twice(x) + h, "jit")
        assert leapp.compile_graph(visualize=False) == {"n": True}
    assert "is run in this process" in (tmp_path / "g" / "log.txt").read_text()


def test_a_process_that_dies_is_an_answer():
    with EngineProcess() as other:
        with pytest.raises(ValidationError, match="was ended by SIGABRT"):
            other.open(os.abort)
        assert other.open(operator.itemgetter, "x")({"x": 3}) == 3


def test_a_model_that_ends_its_process_fails_its_node(tmp_path, all_apart, monkeypatch):
    """As when the system is short of memory and takes the process away."""
    opens = EngineProcess.open

    def opened_and_killed(self, *args):
        remote = opens(self, *args)
        os.kill(self._process.pid, signal.SIGKILL)
        return remote

    monkeypatch.setattr(EngineProcess, "open", opened_and_killed)
    trace(tmp_path, lambda x, h: torch.tanh(x + h), "onnx")
    results = leapp.compile_graph(visualize=False, strict=False)
    assert not results["n"]
    assert "cannot be run: the process that ran it was ended by SIGKILL, most likely for want of memory" in str(results["n"])


def test_errors_come_back_as_text():
    with EngineProcess() as other, pytest.raises(EngineProcessError, match="ZeroDivisionError: "):
        other.open(operator.truediv, 1, 0)


def test_what_cannot_be_told_is_refused():
    with EngineProcess() as other, pytest.raises(EngineProcessError, match="cannot be sent"):
        other.open(lambda: None)


def test_files_in_the_working_directory_are_not_run(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    with EngineProcess() as other:
        assert other.open(operator.itemgetter, "x")({"x": 3}) == 3


def test_no_interpreter_is_started_by_an_application(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/opt/simulator/kit")
    with EngineProcess() as other, pytest.raises(EngineProcessError, match="is not a Python interpreter"):
        other.open(operator.itemgetter, "x")


def test_the_process_ends_with_the_block_and_with_its_parent(tmp_path):
    with EngineProcess() as other:
        pid = other.open(os.getpid) and other._process.pid
    assert not alive(pid)
    code = "import os, operator\nfrom leapp.check.engine_process import EngineProcess\n"
    code += "a = EngineProcess()\na.open(operator.itemgetter, 'x')\n"
    code += "print(a._process.pid, flush=True)\nos._exit(0)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True)
    deadline = time.monotonic() + 30
    while alive(int(done.stdout)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(done.stdout))


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


WEIGHTS = """
import sys, torch, leapp
from leapp import annotate

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024

def export(width, layers, name):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    size = sum(p.numel() * p.element_size() for p in net.parameters())
    open("/proc/self/clear_refs", "w").write("5")
    before = peak()
    leapp.start(name, save_path=sys.argv[2])
    x = annotate.input_tensors("n", {"x": torch.randn(1, width)})
    annotate.output_tensors("n", {"y": net(x)}, export_with=sys.argv[1])
    leapp.stop()
    assert leapp.compile_graph(visualize=False) == {"n": True}
    return (peak() - before) / size

with torch.no_grad():
    export(64, 2, "small")
    print(export(1024, 24, "large"))
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_exporting_needs_no_second_copy_of_the_weights(backend, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", textwrap.dedent(WEIGHTS), backend, str(tmp_path)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    assert float(done.stdout.splitlines()[-1]) < 0.4
