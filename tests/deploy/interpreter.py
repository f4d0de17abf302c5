"""Runs a native repository from its own files, the way a server does: engines, ensemble, sequences, the model above.

Configurations are read with Triton's own message type (``model_config.desc`` is its descriptor, as tritonclient ships it), so
a field that a server would not know is an error here.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

DESCRIPTOR = Path(__file__).with_name("model_config.desc")
START, END = 1, 2
DTYPES = {
    "TYPE_BOOL": "bool", "TYPE_UINT8": "uint8", "TYPE_INT32": "int32", "TYPE_INT64": "int64", "TYPE_FP16": "float16",
    "TYPE_FP32": "float32", "TYPE_FP64": "float64",
}  # fmt: skip


def _message_type() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor_pb2.FileDescriptorProto.FromString(DESCRIPTOR.read_bytes()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))


ModelConfig = _message_type()


def parse(path: Path) -> Any:
    """A configuration, read strictly."""
    return text_format.Parse(path.read_text(encoding="utf-8"), ModelConfig())


def configs(repository: Path) -> dict[str, Any]:
    """All configurations of a repository, by the name of the directory."""
    return {path.parent.name: parse(path) for path in sorted(repository.glob("*/config.pbtxt"))}


class Server:
    """The models of a repository, ready to be asked."""

    def __init__(self, repository: Path) -> None:
        self.repository, self.configs = repository, configs(repository)
        self._engines: dict[str, Any] = {}
        self._states: dict[tuple[str, int], dict[str, Any]] = {}
        self._loops: dict[str, Any] = {}
        for name, config in self.configs.items():
            assert config.name == name
            check(config)

    def infer(self, name: str, inputs: Mapping[str, Any], sequence: int = 0, flags: int = 0, wanted: Any = None) -> Any:
        """What a model answers to one request."""
        config = self.configs[name]
        assert set(inputs) == {entry.name for entry in config.input}, name
        for entry in config.input:
            value, dims = inputs[entry.name], list(entry.dims)
            assert list(value.shape) == ([1, *dims] if config.max_batch_size else dims), (name, entry.name, value.shape)
            assert value.dtype == DTYPES[self._type(entry)], (name, entry.name, value.dtype)
        if config.platform == "ensemble":
            made = self._ensemble(config, inputs, sequence, flags, wanted)
        elif config.backend == "python":
            made = self._loop(name, inputs, sequence, flags)
        else:
            made = self._engine(name, config, inputs, sequence, flags)
        listed = {entry.name for entry in config.output}
        return {k: v for k, v in made.items() if k in listed and (wanted is None or k in wanted)}

    @staticmethod
    def _type(entry: Any) -> str:
        kind: str = entry.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[entry.data_type].name
        return kind

    def _version(self, name: str) -> Path:
        found = [path for path in (self.repository / name).iterdir() if path.name.isdigit()]
        assert len(found) == 1
        return found[0]

    def _ensemble(self, config: Any, inputs: Mapping[str, Any], sequence: int, flags: int, wanted: Any) -> dict[str, Any]:
        tensors = dict(inputs)
        needed = set(wanted if wanted is not None else (entry.name for entry in config.output))
        steps = []
        # As the server does: steps that the wanted outputs do not need are left out.
        for step in reversed(config.ensemble_scheduling.step):
            if needed & set(step.output_map.values()):
                needed |= set(step.input_map.values())
                steps.insert(0, step)
        for step in steps:
            assert str(step.model_version) == self._version(step.model_name).name
            given = {k: tensors[v] for k, v in step.input_map.items()}
            made = self.infer(step.model_name, given, sequence, flags, set(step.output_map))
            tensors |= {v: made[k] for k, v in step.output_map.items()}
        return tensors

    def _engine(self, name: str, config: Any, inputs: Mapping[str, Any], sequence: int, flags: int) -> dict[str, Any]:
        states = config.sequence_batching.state
        if states:
            if flags & START:
                self._states[name, sequence] = {s.input_name: self._initial(name, s, config) for s in states}
            inputs = {**inputs, **self._states[name, sequence]}
        made = self._run(name, config, inputs)
        for state in states:
            self._states[name, sequence][state.input_name] = made[state.output_name]
        return made

    def _initial(self, name: str, state: Any, config: Any) -> Any:
        (entry,) = state.initial_state
        assert list(entry.dims) == list(state.dims)
        dims = [1, *entry.dims] if config.max_batch_size else list(entry.dims)
        values: Any = np.fromfile(self.repository / name / "initial_state" / entry.data_file, DTYPES[self._type(entry)])
        return values.reshape(dims)

    def _run(self, name: str, config: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        if config.backend == "pytorch":
            return self._run_torch(name, config, inputs)
        if name not in self._engines:
            settings = ort.SessionOptions()
            settings.intra_op_num_threads = 1
            self._engines[name] = ort.InferenceSession(self._version(name) / "model.onnx", settings)
        session = self._engines[name]
        assert {value.name for value in session.get_inputs()} == set(inputs)
        ranks = {value.name: len(value.shape) for value in session.get_inputs()}
        given = {k: v if ranks[k] else v.reshape(()) for k, v in inputs.items()}
        names = [value.name for value in session.get_outputs()]
        return {k: v.reshape(v.shape or (1,)) for k, v in zip(names, session.run(names, given), strict=True)}

    def _run_torch(self, name: str, config: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        if name not in self._engines:
            self._engines[name] = torch.jit.load(str(self._version(name) / "model.pt"))
        given = [torch.from_numpy(inputs[f"INPUT__{i}"].copy()) for i in range(len(inputs))]
        with torch.inference_mode():
            made = self._engines[name](*given)
        results = made if isinstance(made, tuple) else (made,)
        return {f"OUTPUT__{i}": value.numpy().copy() for i, value in enumerate(results)}

    def _loop(self, name: str, inputs: Mapping[str, Any], sequence: int, flags: int) -> dict[str, Any]:
        request = Request([Tensor(k, v) for k, v in inputs.items()], sequence, flags)
        (response,) = self.loop(name).execute([request])
        if response.has_error():
            raise RuntimeError(response.error().message())
        return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}

    def loop(self, name: str) -> Any:
        """The model above an ensemble, loaded once."""
        if name not in self._loops:
            self._loops[name] = self._load(name, self.configs[name])
        return self._loops[name]

    def _load(self, name: str, config: Any) -> Any:
        """The model above the ensemble, with this server behind the backend's module."""
        backend: Any = types.ModuleType("triton_python_backend_utils")
        server = self

        class InferenceRequest:
            def __init__(self, model_name: str, model_version: int, requested_output_names: list[str], inputs: list[Any],
                         correlation_id: int, flags: int, preferred_memory: Any) -> None:  # fmt: skip
                assert str(model_version) == server._version(model_name).name
                given = {tensor.name(): tensor.as_numpy() for tensor in inputs}
                self._ask = (model_name, given, correlation_id, flags, requested_output_names)

            def exec(self) -> Any:
                try:
                    made = server.infer(*self._ask)
                except Exception as error:
                    return Response([], TritonError(str(error)))
                return Response([Tensor(k, v) for k, v in made.items()])

        backend.InferenceRequest, backend.InferenceResponse, backend.Tensor = InferenceRequest, Response, Tensor
        backend.TritonError, backend.PreferredMemory = TritonError, lambda *_: None
        backend.TRITONSERVER_MEMORY_CPU = 0
        spec = importlib.util.spec_from_file_location("served_model", self._version(name) / "model.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        before = sys.modules.get(backend.__name__)
        sys.modules[backend.__name__] = backend
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules[backend.__name__]
            if before is not None:
                sys.modules[backend.__name__] = before
        model = module.TritonPythonModel()
        said = {k: {"string_value": v.string_value} for k, v in config.parameters.items()}
        model.initialize({"model_config": json.dumps({"parameters": said}), "model_repository": str(self.repository / name)})
        return model


class Tensor:
    """A tensor as the Python backend hands it out."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._value = name, value

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Any:
        return self._value


class TritonError:
    """An error as the Python backend hands it out."""

    def __init__(self, text: str) -> None:
        self._text = text

    def message(self) -> str:
        return self._text


class Request:
    """A request as the Python backend hands it out."""

    def __init__(self, inputs: list[Tensor], sequence: int, flags: int) -> None:
        self._inputs, self._sequence, self._flags = inputs, sequence, flags

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def correlation_id(self) -> int:
        return self._sequence

    def flags(self) -> int:
        return self._flags


class Response:
    """A response as the Python backend takes it."""

    def __init__(self, output_tensors: list[Tensor], error: TritonError | None = None) -> None:
        self._tensors, self._error = output_tensors, error

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


def check(config: Any) -> None:
    """What a server checks when it loads a configuration, as far as it says more than the message type."""
    for entry in (*config.input, *config.output):
        assert entry.name and entry.dims and all(size >= 1 for size in entry.dims)
    assert config.input and config.output
    if config.platform != "ensemble":
        assert config.instance_group
        return
    assert not config.instance_group
    inputs = {entry.name for entry in config.input}
    outputs = {entry.name for entry in config.output}
    written = [name for step in config.ensemble_scheduling.step for name in step.output_map.values()]
    read = {name for step in config.ensemble_scheduling.step for name in step.input_map.values()}
    assert len(written) == len(set(written)) and not inputs & set(written), "a tensor is written twice"
    assert inputs <= read, "an input is not used"
    assert outputs <= set(written), "an output is not written"
    assert set(written) <= read | outputs, "a tensor is unused"
    assert all(step.input_map and step.output_map for step in config.ensemble_scheduling.step)
