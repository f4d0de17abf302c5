"""Every node of the tables, written by every backend, gives eager's values on inputs it was not traced with."""

from __future__ import annotations

import pytest
import torch

from leapp.errors import ExportError

from .cases import NETS, PORTS, WRITES, Case
from .running import assert_equal, run, write

CASES = {case.name: case for case in (*NETS, *WRITES, *PORTS)}


def test_case_names_are_unique() -> None:
    assert len(CASES) == len(NETS) + len(WRITES) + len(PORTS)


@pytest.mark.parametrize("backend", ["jit", "onnx", "pt2"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_same_values_as_eager_on_new_inputs(case: Case, backend: str, tmp_path) -> None:
    if backend in case.without:
        with pytest.raises(ExportError, match="^node: "):
            write(case, backend, tmp_path)
        return
    job, result = write(case, backend, tmp_path)
    assert result.dropped_inputs == []
    for seed in (1, 2):
        inputs = case.inputs(seed)
        with torch.no_grad():
            wanted = job.module(*(tensor.clone() for tensor in inputs))
        for got, want in zip(run(result, inputs), wanted, strict=True):
            assert_equal(got, want, case.rtol, case.atol)


@pytest.mark.parametrize("backend", ["onnx-torchscript", "onnx-dynamo", "jit-script", "jit-trace", "exported-program"])
@pytest.mark.parametrize("case", NETS[:10], ids=[case.name for case in NETS[:10]])
def test_other_names_of_the_backends(case: Case, backend: str, tmp_path) -> None:
    job, result = write(case, backend, tmp_path)
    inputs = case.inputs(3)
    with torch.no_grad():
        wanted = job.module(*inputs)
    for got, want in zip(run(result, inputs), wanted, strict=True):
        assert_equal(got, want, case.rtol, case.atol)
