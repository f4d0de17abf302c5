"""Stands in for the onnxruntime backend, which this server lacks: the same file, the same states, in the Python backend.

It keeps the states that the configuration lists the way the server's own mechanism does, which the Python backend has not.
"""

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"])
        config = json.loads(args["model_config"])
        settings = ort.SessionOptions()
        settings.intra_op_num_threads = 1
        self.session = ort.InferenceSession(folder / args["model_version"] / "model.onnx", settings)
        self.ranks = {value.name: len(value.shape) for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.states = json.loads(config["parameters"]["states"]["string_value"])
        self.folder, self.kept = folder, {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        given = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        name = request.correlation_id()
        if self.states:
            if request.flags() & 1:
                self.kept[name] = {s["input"]: self.initial(s) for s in self.states}
            given |= self.kept[name]
        given = {k: v if self.ranks[k] else v.reshape(()) for k, v in given.items()}
        made = dict(zip(self.outputs, self.session.run(self.outputs, given)))
        if self.states:
            self.kept[name] = {s["input"]: made[s["output"]] for s in self.states}
            if request.flags() & 2:
                del self.kept[name]
        return pb_utils.InferenceResponse([pb_utils.Tensor(k, v.reshape(v.shape or (1,))) for k, v in made.items()])

    def initial(self, state):
        values = np.fromfile(self.folder / "initial_state" / state["file"], np.dtype(state["dtype"]))
        return values.reshape(state["dims"])
