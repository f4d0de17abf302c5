"""The same bundle in both runtimes, on new inputs, in closed loop: equal bits on ONNX Runtime, close on OpenVINO."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from leapp.bundle import open_bundle
from leapp.runtime import Pipeline
from tests.cpp.conftest import call, program
from tests.cpp.makers import MAKERS

STEPS = 1000
NAMES = {name: "quadruped" if name == "demo" else name for name in MAKERS}


def new_inputs(pipeline: Pipeline, seed: int) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)

    def value(port):
        if "float" in port.dtype:
            return generator.standard_normal(port.shape).astype(port.dtype)
        return generator.integers(0, {"bool": 2}.get(port.dtype, 100), port.shape).astype(port.dtype)

    return [{key: value(port) for key, port in pipeline.input_ports.items()} for _ in range(STEPS)]


def run_cpp(driver: Path, bundle: Path, pipeline: Pipeline, given: list[dict[str, np.ndarray]], folder: Path, *words: str):
    """The outputs of every step in C++."""
    inputs, outputs = folder / "inputs.raw", folder / "outputs.raw"
    inputs.write_bytes(b"".join(step[key].tobytes() for step in given for key in pipeline.inputs))
    call(driver, "run", bundle, inputs, outputs, len(given), *words)
    data, at, made = outputs.read_bytes(), 0, []
    for _ in given:
        step = {}
        for key, port in pipeline.output_ports.items():
            count = int(np.prod(port.shape, dtype=int))
            step[key] = np.frombuffer(data, port.dtype, count, at).reshape(port.shape)
            at += step[key].nbytes
        made.append(step)
    assert at == len(data)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_equal_bits_on_onnx_runtime(name, bundles, tmp_path):
    pipeline = Pipeline(bundles / NAMES[name])
    rows = []
    if pipeline.batch is not None:
        pipeline.reset(batch=1)
        rows = ["rows=1"]
    given = new_inputs(pipeline, 11)
    made = run_cpp(program("driver"), bundles / NAMES[name], pipeline, given, tmp_path, *rows)
    seen = set()
    for number, (inputs, got) in enumerate(zip(given, made, strict=True)):
        want = pipeline(inputs)
        for key, value in want.items():
            assert got[key].tobytes() == value.tobytes(), (number, key)
        seen.add(b"".join(value.tobytes() for value in want.values()))
    assert len(seen) > STEPS / 2  # the steps differ, so a frozen value would have shown


def test_the_fused_file_gives_the_same(bundles, tmp_path):
    pipeline = Pipeline(bundles / "fused")
    given = new_inputs(pipeline, 12)
    made = run_cpp(program("driver"), bundles / "fused", pipeline, given, tmp_path, "fused")
    for inputs, got in zip(given, made, strict=True):
        for key, value in pipeline(inputs).items():
            np.testing.assert_allclose(got[key], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_close_on_openvino(name, bundles, tmp_path):
    pipeline = Pipeline(bundles / NAMES[name])
    rows = []
    if pipeline.batch is not None:
        pipeline.reset(batch=1)
        rows = ["rows=1"]
    given = new_inputs(pipeline, 13)
    made = run_cpp(program("driver_openvino"), bundles / NAMES[name], pipeline, given, tmp_path, *rows)
    for number, (inputs, got) in enumerate(zip(given, made, strict=True)):
        for key, value in pipeline(inputs).items():
            np.testing.assert_allclose(got[key], value, rtol=1e-5, atol=1e-5, err_msg=f"step {number}, {key}")


def test_behaviour(bundles):
    shown = call(program("behaviour"), bundles)
    assert shown.count("passed ") == 11, shown


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_proven_on_both_engines(name, bundles):
    for driver in ("driver", "driver_openvino"):
        assert " 0 problems" in call(program(driver), "verify", bundles / NAMES[name])


@pytest.mark.parametrize("name", NAMES)
def test_the_catalogue_is_the_same(name, bundles):
    pipeline = Pipeline(bundles / NAMES[name])
    wanted = [
        "\t".join([p.role, p.key, p.dtype, str(list(p.shape)), str(p.kind), str(p.units), str(list(p.element_names))])
        for p in pipeline.ports
    ]
    assert call(program("driver"), "ports", bundles / NAMES[name]).splitlines() == wanted


@pytest.mark.parametrize("name", NAMES)
def test_both_read_the_same_seal(name, bundles, judge):
    bundle = open_bundle(bundles / NAMES[name])
    accepted, said = judge("files", bundles / NAMES[name])
    assert (accepted, said) == (True, bundle.digest)
