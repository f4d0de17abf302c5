"""Runs the models of bundles in OpenVINO, on the recorded samples and on new inputs, and compares with ONNX Runtime.

    python scripts/try_openvino.py BUNDLE ...

Needs ``openvino`` beside leapp, and no PyTorch. Ends with an error if a value differs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from leapp.bundle import Bundle, open_bundle, read_samples
from leapp.bundle.reading import model_file
from leapp.check.compare import compare
from leapp.check.engines import engines
from leapp.runtime.arrays import random_array
from leapp.runtime.values import from_raw

RTOL, ATOL, DRAWS = 1e-3, 1e-5, 3


def openvino_engine(bundle: Bundle, name: str) -> Any:
    """The node compiled for the CPU in the precision it was written in."""
    core = openvino.Core()
    model = core.compile_model(str(model_file(bundle, name)), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    request = model.create_infer_request()
    names = [port.name for port in bundle.contract.nodes[name].outputs]

    def run(given: dict[str, Any]) -> dict[str, Any]:
        found = request.infer({port: np.ascontiguousarray(value) for port, value in given.items()})
        # Where OpenVINO drops a cast, an output has lost its name and keeps its place.
        return {name: np.array(found[place]) for place, name in enumerate(names)}

    return run


def try_node(bundle: Bundle, name: str) -> tuple[int, list[str]]:
    """How many sets of inputs were run, and what differed."""
    node = bundle.contract.nodes[name]
    given = [{p: from_raw(v) for p, v in s.inputs.items()} for s in read_samples(bundle).get(name, ())]
    given += [{p.name: random_array(p) for p in node.inputs} for _ in range(DRAWS)]
    ours, theirs = next(engines(bundle, name, False))[1], openvino_engine(bundle, name)
    wrong, recorded, tried = [], len(given) - DRAWS, 0
    for number, inputs in enumerate(given):
        try:
            want = ours(inputs)
        except Exception:  # any engine may raise anything
            if number < recorded:
                raise
            continue  # random numbers are no indices
        got = theirs(inputs)
        tried += 1
        for port in want:
            difference = compare(got[port], np.asarray(want[port]), RTOL, ATOL)
            if difference is not None:
                wrong.append(f"{name}/{port}, inputs {number}: {difference.reason}")
    return tried, wrong


def main(paths: list[str]) -> int:
    """Try every ONNX node of every bundle."""
    failed = 0
    for path in paths:
        bundle = open_bundle(Path(path))
        for name, node in bundle.contract.nodes.items():
            if node.model.backend != "onnx":
                continue
            try:
                count, wrong = try_node(bundle, name)
            except Exception as error:  # any engine may raise anything
                count, wrong = 0, [f"{name}: {' '.join(str(error).split())[:300]}"]
            print(f"{'NO' if wrong else 'ok'}  {bundle.graph}/{name}: {count} sets of inputs")
            for text in wrong[:3]:
                print(f"    {text}")
            failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
