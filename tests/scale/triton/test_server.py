"""The server itself: what the other tests here rely on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tritonclient.grpc as grpc

from tests.scale.triton.server import serving

MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        values = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy() for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", v + v)]) for v in values]
"""
CONFIG = """
backend: "python"
input [{name: "x" data_type: TYPE_FP32 dims: [3]}]
output [{name: "y" data_type: TYPE_FP32 dims: [3]}]
instance_group [{kind: KIND_CPU}]
"""


def test_a_server_answers_and_stops(tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "twice"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(MODEL)
    (folder / "config.pbtxt").write_text(CONFIG)
    with serving(tmp_path / "repository", tmp_path / "work") as server:
        with grpc.InferenceServerClient(server.url) as client:
            x = grpc.InferInput("x", [3], "FP32")
            x.set_data_from_numpy(np.array([1, 2, np.nan], np.float32))
            y = client.infer("twice", [x]).as_numpy("y")
        assert y.tolist()[:2] == [2, 4] and np.isnan(y[2])
        assert server.stop() == 0
