"""Every code block of the documents leapp grew from, run as written and replayed on new inputs against eager code.

The blocks are the public face that existing users learned. Only typing errors are mended and lost indentation restored.
Signatures, tables and file listings of the documents are held by tests of their own.
"""

from __future__ import annotations

import inspect
import runpy
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import leapp
from leapp import InferenceManager, InputKindEnum, OutputKindEnum, TensorSemantics, annotate

Play = Callable[..., dict[str, Any]]
STEPS = 10


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs blocks as one script in an empty directory; returns the script's globals."""
    monkeypatch.chdir(tmp_path)

    def run(*blocks: str, run_name: str = "block") -> dict[str, Any]:
        script = tmp_path / "block.py"
        script.write_text("\n".join(textwrap.dedent(block) for block in blocks))
        return runpy.run_path(str(script), run_name=run_name)

    return run


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


# README

README_EXAMPLE = """
import torch
import leapp
import env # mock environment setup
from leapp import annotate
def get_obs1_from_env():
    obs1 = env.get_from_env('obs')
    obs1 = annotate.input_tensors("preprocess", {"obs1_name": obs1}) #inserted annotation
    # **some processing**
    return obs1
def get_obs2_from_env():
    obs2 = env.get_from_env('obs2')
    obs2 = annotate.input_tensors("preprocess", {"obs2_name": obs2}) #inserted annotation
    # **some processing**
    return obs2
leapp.start(name="my_pipeline")
obs1 = get_obs1_from_env()
obs2 = get_obs2_from_env()
# Simple feature construction from the two observation tensors.
obs1_centered = obs1 - obs1.mean()
obs2_scaled = obs2 / (obs2.abs().max() + 1e-6)
features = torch.cat([obs1_centered, obs2_scaled], dim=-1)
annotate.output_tensors("preprocess", {"processed_features": features}, export_with="jit") #inserted annotation
features = annotate.input_tensors("predict", {"features": features}) #inserted annotation
output = torch.relu(features @ torch.randn(16, 4))
annotate.output_tensors("predict", {"output": output}, export_with="onnx") #inserted annotation
leapp.stop()
leapp.compile_graph()
"""


def test_readme_example(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distributed inputs, two nodes, two backends; the matrix drawn inside the node is part of the model."""
    source = torch.Generator().manual_seed(1)
    env = ModuleType("env")
    env.get_from_env = lambda name: torch.randn(1, 8, generator=source)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "env", env)
    torch.manual_seed(0)
    play(README_EXAMPLE)
    torch.manual_seed(0)
    matrix = torch.randn(16, 4)

    names = {path.name for path in Path("my_pipeline").iterdir()}
    assert {"my_pipeline.yaml", "my_pipeline.png", "preprocess.pt", "predict.onnx", "log.txt"} <= names
    manager = InferenceManager("my_pipeline/my_pipeline.yaml")
    assert manager.inputs == ["preprocess/obs1_name", "preprocess/obs2_name"]
    assert manager.outputs == ["predict/output"]
    for _ in range(STEPS):
        obs1, obs2 = torch.randn(1, 8), torch.randn(1, 8)
        features = torch.cat([obs1 - obs1.mean(), obs2 / (obs2.abs().max() + 1e-6)], dim=-1)
        outputs = manager.run_policy({"preprocess/obs1_name": obs1, "preprocess/obs2_name": obs2})
        close(outputs["predict/output"], torch.relu(features @ matrix))


README_LIFECYCLE = """
import leapp, torch
from leapp import annotate
name = "whole_signature"
leapp.start(name, save_path=".", verbose=False, dry_run=False, non_traced=None, max_cached_io=5, global_patching=True)
x = annotate.input_tensors("double", {"x": torch.randn(3)})
annotate.output_tensors("double", {"y": x * 2}, export_with="jit")
leapp.stop()
result = leapp.compile_graph(
    visualize=True, verbose=None, validate=True, dry_run=False, rtol=1e-3, atol=1e-5, strict=True
)
"""


def test_readme_lifecycle_with_every_argument(play: Play) -> None:
    assert play(README_LIFECYCLE)["result"] == {"double": True}
    manager, x = InferenceManager("whole_signature/whole_signature.yaml"), torch.randn(3)
    close(manager.run_policy({"double/x": x})["double/y"], 2 * x)


def test_readme_annotations_do_nothing_without_a_session() -> None:
    x, module = torch.randn(3), nn.Linear(3, 3)
    assert annotate.input_tensors("n", {"x": x}) is x
    assert annotate.state_tensors("n", {"x": x}) is x
    assert annotate.update_state("n", {"x": x}) is x
    assert annotate.register_buffer("n", {"x": x}) is x
    assert annotate.output_tensors("n", {"x": x}, export_with="jit") is x
    assert annotate.mirror_leapp_tags(x, x) is x
    assert annotate.module("n", module) is None
    assert annotate.method(export_with="jit")(lambda value: value)(x) is x


# API reference

API_LIFECYCLE = """
import leapp
from leapp import annotate
leapp.start(name="my_graph", save_path=".", verbose=False)
# ... trace your code using annotate.method()
# or annotate.input_tensors() / annotate.output_tensors()
leapp.stop()
leapp.compile_graph(visualize=True)
"""


def test_api_lifecycle_of_an_empty_graph(play: Play) -> None:
    """The block of the reference has no node in it: as it stands there is nothing to write."""
    with pytest.raises(leapp.errors.SessionError, match="nothing was traced"):
        play(API_LIFECYCLE)
    assert not Path("my_graph/my_graph.yaml").exists()


def test_api_lifecycle_around_a_decorated_function(play: Play) -> None:
    body = """
    import torch
    @annotate.method(export_with="onnx")
    def halve(x):
        half = x / 2
        return half
    """
    before, after = API_LIFECYCLE.split("leapp.stop()")
    play(before, body, "halve(torch.randn(4))", "leapp.stop()" + after)
    manager, x = InferenceManager("my_graph/my_graph.yaml"), torch.randn(4)
    close(manager.run_policy({"halve/x": x})["halve/half"], x / 2)


@pytest.mark.parametrize(
    ("function", "documented"),
    [
        (
            leapp.start,
            {
                "name": inspect.Parameter.empty,
                "save_path": ".",
                "verbose": False,
                "dry_run": False,
                "non_traced": None,
                "max_cached_io": 5,
                "global_patching": True,
            },
        ),
        (leapp.stop, {}),
        (
            leapp.compile_graph,
            {
                "visualize": True,
                "verbose": None,
                "validate": True,
                "dry_run": False,
                "rtol": 1e-3,
                "atol": 1e-5,
                "strict": True,
            },
        ),
        (TensorSemantics, {"name": None, "ref": None, "kind": None, "element_names": None, "extra": None}),
        (annotate.input_tensors, {"node_name": inspect.Parameter.empty, "tensors": inspect.Parameter.empty}),
        (
            annotate.output_tensors,
            {"node_name": inspect.Parameter.empty, "tensors": inspect.Parameter.empty, "static_outputs": None},
        ),
        (annotate.state_tensors, {"node_name": inspect.Parameter.empty, "tensors": inspect.Parameter.empty}),
        (annotate.update_state, {"node_name": inspect.Parameter.empty, "tensors": inspect.Parameter.empty}),
        (
            annotate.module,
            {"node_name": inspect.Parameter.empty, "model": inspect.Parameter.empty, "buffer_names": None},
        ),
        (InferenceManager, {"model_path": inspect.Parameter.empty}),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_api_signatures(function: Callable[..., Any], documented: dict[str, Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert {name: parameters[name].default for name in documented} == documented


API_YAML = """
models:
  node_name:
    inputs:
    - name: input_name
      shape: [10, 3]
      dtype: float32
    outputs:
    - name: output_name
      shape: [10, 3]
      dtype: float32
    parameters:
      backend: jit
      model_path: ./node_name.pt
      md5sum: ...
      sha256sum: ...
pipeline:
  data_flow:
    source_node/output_name: [target_node/input_name]
  feedback_flow:
    later_node/output_name: [earlier_node/input_name]
  inputs:
    node_name: [input1, input2]
  outputs:
    node_name: [output1, output2]
system information:
  python version: "3.12.9"
  torch version: "2.7.0+cu126"
  leapp version: "0.5.2"
  leapp config version: "1.1"
  cuda version: "12.6"
  os: Linux
"""


def test_api_yaml_structure(play: Play) -> None:
    """Every key of the documented layout is in the file, at its place."""
    body = """
    import torch
    x = annotate.input_tensors("node_name", {"input_name": torch.randn(10, 3)})
    annotate.output_tensors("node_name", {"output_name": x.tanh()}, export_with="jit")
    """
    before, after = API_LIFECYCLE.split("leapp.stop()")
    play(before, body, "leapp.stop()" + after)
    written, documented = yaml.safe_load(Path("my_graph/my_graph.yaml").read_text()), yaml.safe_load(API_YAML)
    node, model = written["models"]["node_name"], documented["models"]["node_name"]
    for side in ("inputs", "outputs"):
        for port, expected in zip(node[side], model[side], strict=True):
            assert expected.items() <= port.items()
    assert model["parameters"].keys() <= node["parameters"].keys()
    assert node["parameters"]["model_path"] == "node_name.pt"
    assert documented["pipeline"].keys() <= written["pipeline"].keys()
    assert documented["system information"].keys() <= written["system information"].keys()


API_INPUT_KINDS = """
JOINT_POSITION = state/joint/position
JOINT_VELOCITY = state/joint/velocity
JOINT_EFFORT = state/joint/effort
BODY_POSE = state/body/pose
BODY_VEL = state/body/velocity
BODY_ACC = state/body/acceleration
BODY_LINEAR_ACCELERATION = state/body/linear_acceleration
BODY_LINEAR_VELOCITY = state/body/linear_velocity
BODY_ANGULAR_ACCELERATION = state/body/angular_acceleration
BODY_ANGULAR_VELOCITY = state/body/angular_velocity
BODY_ROTATION = state/body/rotation
BODY_POSITION = state/body/position
WRENCH = state/wrench
VECTOR3D = state/vector3d
COMMAND_JOINT_POSITION = command/joint/position
COMMAND_JOINT_VELOCITY = command/joint/velocity
COMMAND_JOINT_TORQUES = command/joint/torques
COMMAND_BODY_ROTATION = command/body/rotation
COMMAND_BODY_VELOCITY = command/body/velocity
COMMAND_POSE = command/body/pose
"""
API_OUTPUT_KINDS = """
KP = kp
KD = kd
JOINT_POSITION = target/joint/position
JOINT_VELOCITY = target/joint/velocity
JOINT_TORQUES = target/joint/torques
JOINT_EFFORT = target/joint/effort
BODY_POSITION = target/body/position
BODY_LINEAR_ACCELERATION = target/body/linear_acceleration
BODY_ORIENTATION = target/body/orientation
BODY_LINEAR_VELOCITY = target/body/linear_velocity
BODY_ANGULAR_ACCELERATION = target/body/angular_acceleration
"""


@pytest.mark.parametrize(("enum", "documented"), [(InputKindEnum, API_INPUT_KINDS), (OutputKindEnum, API_OUTPUT_KINDS)])
def test_api_kinds(enum: Any, documented: str) -> None:
    expected = dict(line.split(" = ") for line in documented.strip().splitlines())
    assert {name: enum[name].value for name in expected} == expected


API_RUNTIME = """
from leapp import InferenceManager
manager = InferenceManager("my_graph/my_graph.yaml")
print(manager.inputs)
print(manager.outputs)
sample_inputs = manager.get_mock_input()
outputs = manager.run_policy(sample_inputs)
# Equivalent shorthand:
outputs = manager(sample_inputs)
"""


def test_api_runtime_usage(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
    import torch
    a, b = annotate.input_tensors("add", {"a": torch.randn(3), "b": torch.randn(3)})
    annotate.output_tensors("add", {"sum": a + b}, export_with="onnx")
    """
    before, after = API_LIFECYCLE.split("leapp.stop()")
    result = play(before, body, "leapp.stop()" + after, API_RUNTIME)
    assert capsys.readouterr().out.splitlines()[-2:] == ["['add/a', 'add/b']", "['add/sum']"]
    sample = result["sample_inputs"]
    close(result["outputs"]["add/sum"], sample["add/a"] + sample["add/b"])


API_WORKED_EXAMPLE = '''
import torch
import torch.nn as nn
import leapp
from leapp import annotate
class SimpleNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 5)
    def forward(self, x):
        return self.linear(x)
model = SimpleNet()
model.eval()
@annotate.method(export_with="jit", node_name="preprocess")
def preprocess(raw_data):
    """Normalize input data."""
    normalized = ((raw_data - raw_data.mean())
                  / (raw_data.std() + 1e-6))
    return normalized
def main():
    leapp.start(
        name="complete_pipeline",
        save_path="./exports",
        verbose=True,
    )
    raw_input = torch.randn(1, 10)
    preprocessed = preprocess(raw_input)
    pred_traced = annotate.input_tensors("inference",
                                         {"features": preprocessed})
    predictions = model(pred_traced)
    annotate.output_tensors("inference",
                            {"predictions": predictions},
                            export_with="jit")
    pred_traced = annotate.input_tensors("postprocess",
                                         {"predictions": predictions})
    probabilities = torch.softmax(pred_traced, dim=1)
    final_output = torch.argmax(probabilities, dim=1)
    annotate.output_tensors("postprocess",
                            {"final_output": final_output},
                            export_with="jit")
    leapp.stop()
    leapp.compile_graph(visualize=True)
if __name__ == "__main__":
    main()
'''
API_WORKED_FILES = [
    "complete_pipeline.yaml",
    "complete_pipeline.png",
    "preprocess.pt",
    "inference.pt",
    "postprocess.pt",
    "log.txt",
]


def test_api_worked_example(play: Play) -> None:
    script = play(API_WORKED_EXAMPLE, run_name="__main__")
    directory = Path("exports/complete_pipeline")
    assert set(API_WORKED_FILES) <= {path.name for path in directory.iterdir()}
    manager, chosen = InferenceManager(str(directory / "complete_pipeline.yaml")), set()
    for _ in range(3 * STEPS):
        raw = torch.randn(1, 10)
        expected = script["model"](script["preprocess"](raw)).argmax(dim=1)
        assert torch.equal(manager.run_policy({"preprocess/raw_data": raw})["postprocess/final_output"], expected)
        chosen.add(int(expected))
    assert len(chosen) > 1


# Buffers and constant tensors

STATIC_OUTPUTS = """
import torch
import leapp
from leapp import annotate

leapp.start(name="static_example")

input_tensor = torch.tensor([1.0, 2.0, 3.0])
traced_input = annotate.input_tensors('my_node',
                                      {'input': input_tensor})

# Computed output -- derived from the traced input.
computed_output = traced_input + 1.0

# Static output -- a constant, NOT derived from any input.
static_tensor = torch.tensor([4.0, 5.0, 6.0])

annotate.output_tensors(
    'my_node',
    {'computed': computed_output},
    static_outputs={'static': static_tensor},
    export_with="jit",
)

leapp.stop()
leapp.compile_graph()
"""


def test_static_outputs(play: Play) -> None:
    play(STATIC_OUTPUTS)
    manager = InferenceManager("static_example/static_example.yaml")
    for _ in range(STEPS):
        x = torch.randn(3)
        outputs = manager.run_policy({"my_node/input": x})
        close(outputs["my_node/computed"], x + 1.0)
        close(outputs["my_node/static"], torch.tensor([4.0, 5.0, 6.0]))


def test_static_outputs_with_meaning_feed_a_later_node(play: Play) -> None:
    """What the text around the block promises: semantics on static outputs, and consumers of them."""
    before, after = STATIC_OUTPUTS.split("leapp.stop()")
    semantics = "TensorSemantics('static', static_tensor, kind=OutputKindEnum.KP)"
    block = before.replace("{'static': static_tensor}", semantics)
    consumer = """
    gain, signal = annotate.input_tensors("scale", {"gain": static_tensor, "signal": computed_output})
    annotate.output_tensors("scale", {"scaled": gain * signal}, export_with="jit")
    """
    play("from leapp import TensorSemantics, OutputKindEnum", block, consumer, "leapp.stop()" + after)
    description = yaml.safe_load(Path("static_example/static_example.yaml").read_text())
    assert description["models"]["my_node"]["outputs"][1]["kind"] == "kp"
    manager, x = InferenceManager("static_example/static_example.yaml"), torch.randn(3)
    assert manager.inputs == ["my_node/input"]
    close(manager.run_policy({"my_node/input": x})["scale/scaled"], torch.tensor([4.0, 5.0, 6.0]) * (x + 1.0))


MIRROR = """
import torch
from leapp import annotate

class DataProcessor:
    def __init__(self):
        self._buffer = torch.zeros(10)

    @annotate.method(export_with="jit")
    def process(self, input_data: torch.Tensor):
        self._buffer[:] = input_data
        annotate.mirror_leapp_tags(input_data, self._buffer)
        return self._buffer * 2.0
"""


def test_mirror_leapp_tags(play: Play) -> None:
    processor = play(MIRROR)["DataProcessor"]()
    leapp.start("mirror")
    processor.process(torch.randn(10))
    leapp.stop()
    leapp.compile_graph()
    manager = InferenceManager("mirror/mirror.yaml")
    for _ in range(STEPS):
        x = torch.randn(10)
        close(manager.run_policy({"process/input_data": x})["process/output1"], x * 2.0)


# State capture and feedback

EXPLICIT_STATE = """
import torch
import leapp
from leapp import annotate

leapp.start("stateful_policy")

obs = annotate.input_tensors("policy", {"obs": torch.randn(1, 16)})
hidden = annotate.state_tensors("policy", {"hidden": torch.zeros(1, 32)})

next_hidden = torch.tanh(torch.cat([obs, hidden], dim=-1))[..., :32]
action = torch.tanh(next_hidden)

annotate.update_state("policy", {"hidden": next_hidden})
annotate.output_tensors("policy", {"action": action}, export_with="jit")

leapp.stop()
leapp.compile_graph(validate=True)
"""


def test_explicit_state(play: Play) -> None:
    play(EXPLICIT_STATE)
    manager, hidden = InferenceManager("stateful_policy/stateful_policy.yaml"), torch.zeros(1, 32)
    assert manager.inputs == ["policy/obs"]
    assert manager.feedback_inputs == ["policy/hidden"]
    for _ in range(STEPS):
        obs = torch.randn(1, 16)
        hidden = torch.tanh(torch.cat([obs, hidden], dim=-1))[..., :32]
        close(manager.run_policy({"policy/obs": obs})["policy/action"], torch.tanh(hidden))


MODULE_STATE = """
import torch
import torch.nn as nn
import leapp
from leapp import annotate

class GRUPolicy(nn.Module):
    def __init__(self, obs_dim=16, hidden_dim=32, action_dim=8):
        super().__init__()
        self.gru = nn.GRU(obs_dim, hidden_dim, num_layers=1,
                          batch_first=False)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_dim, 32),
            nn.ELU(),
            nn.Linear(32, action_dim),
        )
        self.register_buffer("h_state", torch.zeros(1, 1, hidden_dim))

    def forward(self, obs):
        gru_out, h_out = self.gru(obs.unsqueeze(0), self.h_state)
        self.h_state = h_out  # reassignment detected by LEAPP
        return self.mlp(gru_out.squeeze(0))

model = GRUPolicy().eval()
obs = torch.randn(1, 16)

leapp.start("stateful_gru")

obs_traced = annotate.input_tensors("policy", {"obs": obs})
annotate.module("policy", model)
action = model(obs_traced)

annotate.output_tensors(
    "policy",
    {"action": action},
    export_with="onnx-torchscript",
)

leapp.stop()
leapp.compile_graph(visualize=False)
"""


@pytest.mark.parametrize("backend", ["onnx-torchscript", "onnx", "jit"])
def test_module_state(play: Play, backend: str) -> None:
    model = play(MODULE_STATE.replace("onnx-torchscript", backend))["model"]
    assert not Path("stateful_gru/stateful_gru.png").exists()
    manager = InferenceManager("stateful_gru/stateful_gru.yaml")
    assert manager.inputs == ["policy/obs"]
    assert len(manager.feedback_inputs) == 1
    model.h_state = torch.zeros(1, 1, 32)
    with torch.no_grad():
        for _ in range(STEPS):
            obs = torch.randn(1, 16)
            close(manager.run_policy({"policy/obs": obs})["policy/action"], model(obs))


INFERRED_FEEDBACK = """
import torch
import leapp
from leapp import annotate

def mix_with_feedback(data, feedback):
    centered = data - 0.5
    return torch.tanh(centered + 0.25 * feedback)

def blend_feedback(hidden, previous_feedback):
    return 0.8 * previous_feedback + 0.2 * hidden

leapp.start(name="sample_feedback_graph")

policy_memory = torch.tensor([0.0])

for _ in range(2):  # needed for inferred cross-node feedback
    policy_inputs = annotate.input_tensors("policy_step", {
        "observation_scalar": torch.tensor([1.0]),
        "policy_memory_in": policy_memory,
    })
    policy_context = mix_with_feedback(policy_inputs[0], policy_inputs[1])
    control_action = torch.clamp(policy_context * 2.0, min=-1.0, max=1.0)
    annotate.output_tensors(
        "policy_step",
        {"policy_context": policy_context,
         "control_action": control_action},
        export_with="jit",
    )

    feedback_inputs = annotate.input_tensors("feedback_update", {
        "policy_context": policy_context,
        "policy_memory_prev": policy_memory,
    })
    policy_memory = blend_feedback(feedback_inputs[0], feedback_inputs[1])
    annotate.output_tensors(
        "feedback_update",
        {"policy_memory_out": policy_memory},
        export_with="jit",
    )

leapp.stop()
leapp.compile_graph()
"""
INFERRED_FEEDBACK_FLOW = """
feedback_flow:
    feedback_update/policy_memory_out:
      - policy_step/policy_memory_in
      - feedback_update/policy_memory_prev
"""


def test_inferred_feedback(play: Play) -> None:
    script = play(INFERRED_FEEDBACK)
    path = Path("sample_feedback_graph/sample_feedback_graph.yaml")
    pipeline = yaml.safe_load(path.read_text())["pipeline"]
    assert pipeline["feedback_flow"] == yaml.safe_load(INFERRED_FEEDBACK_FLOW)["feedback_flow"]

    manager, memory = InferenceManager(str(path)), torch.tensor([0.0])
    for _ in range(STEPS):
        observed = torch.randn(1)
        context = script["mix_with_feedback"](observed, memory)
        memory = script["blend_feedback"](context, memory)
        outputs = manager.run_policy({"policy_step/observation_scalar": observed})
        close(outputs["policy_step/control_action"], torch.clamp(context * 2.0, min=-1.0, max=1.0))


# Runtime and validation

VALIDATION_START = """
leapp.start(name="my_graph", max_cached_io=5)
"""
VALIDATION_COMPILE = """
leapp.compile_graph(
    validate=True,
    rtol=1e-3,
    atol=1e-5,
    strict=True,
)
"""
VALIDATION_RUNTIME = """
from leapp import InferenceManager

manager = InferenceManager("my_graph/my_graph.yaml")

print(manager.inputs)
print(manager.outputs)

mock_inputs = manager.get_mock_input()
outputs = manager.run_policy(mock_inputs)
"""
VALIDATION_STATE = """
manager = InferenceManager("my_graph/my_graph.yaml")
manager.set_input_value("stateful_node", "h", torch.zeros(1, 32))
"""
STATEFUL_NODE = """
h = torch.zeros(1, 32)
for _ in range(7):
    x = annotate.input_tensors("stateful_node", {"x": torch.randn(1, 32)})
    state = annotate.state_tensors("stateful_node", {"h": h})
    h = torch.tanh(x + 0.5 * state)
    annotate.update_state("stateful_node", {"h": h})
    annotate.output_tensors("stateful_node", {"y": 3.0 * h}, export_with="jit")
leapp.stop()
"""
IMPORTS = """
import torch
import leapp
from leapp import annotate
"""


def test_validation_and_runtime(play: Play) -> None:
    """A looped stateful node, validated on cached samples, then run and its state set by hand."""
    compile_and_keep = VALIDATION_COMPILE.replace("leapp.compile_graph", "result = leapp.compile_graph")
    script = play(IMPORTS, VALIDATION_START, STATEFUL_NODE, compile_and_keep, VALIDATION_RUNTIME, VALIDATION_STATE)
    assert script["result"] == {"stateful_node": True}
    mocked = script["mock_inputs"]["stateful_node/x"]
    close(script["outputs"]["stateful_node/y"], 3.0 * torch.tanh(mocked))

    manager, h = script["manager"], torch.zeros(1, 32)
    for number in range(STEPS):
        if number == STEPS // 2:
            h = torch.randn(1, 32)
            manager.set_input_value("stateful_node", "h", h)
        x = torch.randn(1, 32)
        h = torch.tanh(x + 0.5 * h)
        close(manager.run_policy({"stateful_node/x": x})["stateful_node/y"], 3.0 * h)


def test_validation_is_skipped_for_nodes_without_a_model(play: Play) -> None:
    """Metadata-only nodes count as successful."""
    body = """
    a = annotate.input_tensors("plain", {"x": torch.randn(3)})
    b = a + 1
    annotate.output_tensors("plain", {"y": b}, export_with="jit")
    b = annotate.input_tensors("kept", {"y": b})
    annotate.output_tensors("kept", {"z": b * 2}, export_with="jit")
    leapp.stop()
    """
    start = VALIDATION_START.replace("max_cached_io=5", "max_cached_io=5, non_traced=['plain']")
    compile_and_keep = VALIDATION_COMPILE.replace("leapp.compile_graph", "result = leapp.compile_graph")
    assert play(IMPORTS, start, body, compile_and_keep)["result"] == {"plain": True, "kept": True}
    models = yaml.safe_load(Path("my_graph/my_graph.yaml").read_text())["models"]
    assert models["plain"]["parameters"]["model_path"] is None
    assert models["kept"]["parameters"]["model_path"] == "kept.pt"
