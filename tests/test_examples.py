"""Every example runs as its reader would run it, and the bundle it leaves agrees with its eager code on new inputs.

The programs in the user documents are examples too.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import yaml

import leapp
from leapp import InferenceManager, annotate
from leapp.runtime import Pipeline
from leapp.serve import Options
from tests.serve.serving import serving
from tests.warm import run_program

REPOSITORY = Path(__file__).resolve().parents[1]
EXAMPLES = REPOSITORY / "examples"
STEPS = 12


@pytest.fixture(autouse=True)
def new_inputs() -> None:
    """Inputs that no example has seen: each seeds the generator with a number of its own."""
    torch.manual_seed(2026)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports an example for its eager code."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        state = torch.get_rng_state()
        spec.loader.exec_module(module)
        torch.set_rng_state(state)
        return module

    return load


def run(name: str, directory: Path) -> str:
    return run_program(EXAMPLES / f"{name}.py", directory, str(directory))


def run_cold(name: str, directory: Path, *arguments: str) -> str:
    """Run an example with an interpreter of its own, as its reader does."""
    command = [sys.executable, EXAMPLES / f"{name}.py", directory, *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(torch.as_tensor(actual), expected, rtol=1e-4, atol=1e-5)


def differ(values: list[torch.Tensor]) -> None:
    """A frozen model would pass every comparison with itself; new inputs must give new outputs."""
    assert any(not torch.equal(values[0], value) for value in values[1:])


def test_every_example_is_tested() -> None:
    covered = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= covered


def test_quadruped_demo(tmp_path: Path, example: Callable[[str], ModuleType]) -> None:
    printed = run_cold("quadruped_demo", tmp_path)
    assert "500 closed-loop steps" in printed
    for file in ("quadruped.yaml", "quadruped.png", "quadruped_initial_values.safetensors", "log.txt"):
        assert (tmp_path / "quadruped" / file).stat().st_size > 0
        assert file in printed

    demo = example("quadruped_demo")
    path = tmp_path / "quadruped" / "quadruped.yaml"
    manager, controller = InferenceManager(str(path)), demo.Controller()
    torch.manual_seed(99)
    seen = []
    for _ in range(STEPS):
        sensors = demo.read_sensors()
        expected = controller.step(sensors)
        outputs = manager.run_policy({f"observe/{name}": value for name, value in sensors.items()})
        close(outputs["act/targets"], expected)
        close(outputs["act/stiffness"], torch.full((1, 12), 25.0))
        seen.append(expected)
    differ(seen)

    description = yaml.safe_load(path.read_text())
    assert list(description["models"]) == ["observe", "policy", "act"]
    assert {node["parameters"]["backend"] for node in description["models"].values()} == {"onnx"}
    assert description["pipeline"]["configs"] == {"frequency": 50}
    assert "observe/previous_action" in description["pipeline"]["feedback_flow"]["policy/action"]


def test_quadruped_demo_projects_gravity(example: Callable[[str], ModuleType]) -> None:
    """A robot on its side feels gravity along its own y axis."""
    demo = example("quadruped_demo")
    half = 0.5**0.5
    upright, rolled = torch.tensor([[1.0, 0.0, 0.0, 0.0]]), torch.tensor([[half, half, 0.0, 0.0]])
    close(demo.project_gravity(upright), torch.tensor([[0.0, 0.0, -1.0]]))
    close(demo.project_gravity(rolled), torch.tensor([[0.0, -1.0, 0.0]]))


def test_getting_started(tmp_path: Path, example: Callable[[str], ModuleType]) -> None:
    run("getting_started", tmp_path)
    module = example("getting_started")
    manager = InferenceManager(str(tmp_path / "getting_started" / "getting_started.yaml"))
    assert manager.outputs == ["drive/command"]
    seen = []
    for _ in range(STEPS):
        gyro, distances = 3.0 * torch.randn(1, 3), torch.rand(1, 4)
        seen.append(module.step(gyro, distances))
        close(manager.run_policy({"features/gyro": gyro, "features/range": distances})["drive/command"], seen[-1])
    differ(seen)


def test_feedback_example(tmp_path: Path, example: Callable[[str], ModuleType]) -> None:
    run("feedback_example", tmp_path)
    module = example("feedback_example")
    manager = InferenceManager(str(tmp_path / "feedback" / "feedback.yaml"))
    assert sorted(manager.feedback_inputs) == ["tracker/estimate_before", "tracker/setpoint_before"]
    estimate, setpoint, seen = torch.zeros(2), torch.zeros(2), []
    for _ in range(STEPS):
        measured, goal = torch.randn(2), torch.randn(2)
        effort, estimate, setpoint = module.step(measured, goal, estimate, setpoint)
        outputs = manager.run_policy({"tracker/measured": measured, "planner/goal": goal})
        close(outputs["tracker/effort"], effort)
        seen.append(effort)
    differ(seen)


def test_stateful_gru_export(tmp_path: Path, example: Callable[[str], ModuleType]) -> None:
    run("stateful_gru_export", tmp_path)
    module = example("stateful_gru_export")
    manager = InferenceManager(str(tmp_path / "stateful_gru" / "stateful_gru.yaml"))
    assert manager.inputs == ["policy/observation"]
    for _ in range(2):  # the second episode starts from a reset
        policy, observation = module.make_policy(), torch.randn(1, 12)
        seen = []
        for _ in range(STEPS):
            seen.append(module.step(policy, observation))
            close(manager.run_policy({"policy/observation": observation})["policy/action"], seen[-1])
        differ(seen)  # the observation stays: only the memory can make the action change
        manager.reset()


def test_tensor_semantics(tmp_path: Path, example: Callable[[str], ModuleType]) -> None:
    run("tensor_semantics", tmp_path)
    module = example("tensor_semantics")
    path = tmp_path / "arm_plan" / "arm_plan.yaml"
    manager, seen = InferenceManager(str(path)), []
    for _ in range(STEPS):
        position, velocity, target = torch.randn(3), torch.randn(3), torch.randn(3)
        seen.append(module.step(position, velocity, target))
        inputs = {"arm/position": position, "arm/velocity": velocity, "arm/target": target}
        close(manager.run_policy(inputs)["arm/plan"], seen[-1])
    differ(seen)

    description = yaml.safe_load(path.read_text())
    assert description["pipeline"]["configs"] == {"frequency": 50, "robot": "three-joint arm"}
    assert description["models"]["arm"]["outputs"] == [
        {
            "name": "plan",
            "dtype": "float32",
            "shape": [4, 3],
            "type": "tensor",
            "kind": "target/joint/position",
            "element_names": ["__temporal_axis__", ["shoulder", "elbow", "wrist"]],
            "temporal_period_ms": 20,
            "units": "rad",
        }
    ]


def test_function_patch(tmp_path: Path, example: Callable[[str], ModuleType]) -> None:
    run("function_patch", tmp_path)
    module = example("function_patch")
    manager = InferenceManager(str(tmp_path / "function_patch" / "function_patch.yaml"))
    seen = []
    for _ in range(STEPS):
        image = module.make_image()
        close(module.to_grey(image), module.to_grey_traceable(image))
        seen.append(module.step(image))
        close(manager.run_policy({"brightness/image": image})["brightness/quarters"], seen[-1])
    differ(seen)


def test_wbc(tmp_path: Path, example: Callable[[str], ModuleType]) -> None:
    run("wbc", tmp_path)
    module = example("wbc")
    manager = InferenceManager(str(tmp_path / "whole_body" / "whole_body.yaml"))
    assert manager.feedback_inputs == ["policy/previous_action"]
    controller, robot, seen = module.WholeBodyController(), module.read_robot(), []
    torch.manual_seed(98)
    for number in range(STEPS):
        if number < STEPS // 2:
            robot = module.read_robot()
        seen.append(controller.step(**robot))
        torch.testing.assert_close(manager.run_policy(module.as_inputs(robot))["torque/torque"], seen[-1], rtol=1e-4, atol=1e-4)
    differ(seen)


def test_byom(tmp_path: Path, example: Callable[[str], ModuleType]) -> None:
    run("byom", tmp_path)
    module = example("byom")
    path = tmp_path / "byom" / "byom.yaml"
    description = yaml.safe_load(path.read_text())
    assert description["models"]["detect"]["parameters"]["model_path"] == "detector.onnx"
    assert (path.parent / "detector.onnx").read_bytes() == (tmp_path / "vendor" / "detector.onnx").read_bytes()
    manager, detector, seen = InferenceManager(str(path)), module.make_detector(), []
    torch.manual_seed(97)
    for _ in range(STEPS):
        depth = 3.0 * torch.rand(1, 1, 8, 8)
        chosen, confidence = module.step(detector, depth)
        outputs = manager.run_policy({"prepare/depth": depth})
        close(outputs["decide/chosen"], chosen)
        close(outputs["decide/confidence"], confidence)
        seen.append(chosen)
    differ(seen)


def test_static_outputs(tmp_path: Path, example: Callable[[str], ModuleType]) -> None:
    run("static_outputs", tmp_path)
    module = example("static_outputs")
    path = tmp_path / "static_outputs" / "static_outputs.yaml"
    flow = yaml.safe_load(path.read_text())["pipeline"]["data_flow"]
    assert flow["policy/kp"] == ["drive/kp"]
    assert flow["policy/kd"] == ["drive/kd"]
    manager, seen = InferenceManager(str(path)), []
    for _ in range(STEPS):
        readings = {"position": torch.randn(3), "velocity": torch.randn(3)}
        seen.append(module.step(**readings))
        inputs = {f"{node}/{name}": value for node in ("policy", "drive") for name, value in readings.items()}
        close(manager.run_policy(inputs)["drive/torque"], seen[-1])
    differ(seen)


def test_compass_navigation(tmp_path: Path, example: Callable[[str], ModuleType]) -> None:
    run("compass_navigation", tmp_path)
    module = example("compass_navigation")
    path = tmp_path / "navigation" / "navigation.yaml"
    nodes = yaml.safe_load(path.read_text())["models"]
    assert {name: node["parameters"]["backend"] for name, node in nodes.items()} == {
        "camera": "onnx",
        "odometry": "onnx",
        "route": "onnx",
        "planner": "pt2",
        "limiter": "jit",
    }
    manager, stack, seen = InferenceManager(str(path)), module.NavigationStack(), []
    torch.manual_seed(96)
    for _ in range(STEPS):
        sensed = module.sense()
        seen.append(stack.step(**sensed))
        close(manager.run_policy(module.as_inputs(sensed))["limiter/command"], seen[-1])
    differ(seen)


def test_realtime_loop(tmp_path: Path) -> None:
    printed = run_cold("realtime_loop", tmp_path, "20").splitlines()
    assert [line.split("  ")[0] for line in printed[1:]] == [
        "as it is", "+ one core", "+ locked memory", "+ SCHED_FIFO", "+ no garbage collection",
    ]  # fmt: skip
    measured = [line for line in printed[1:] if "not allowed" not in line]
    assert all(len(re.findall(r" \d+", line)) == 4 for line in measured)


def test_remote_client(tmp_path: Path) -> None:
    """The client prints what the same bundle gives here for the same inputs."""
    with leapp.session("served", save_path=tmp_path, compile={"visualize": False}):
        for _ in range(2):
            obs = annotate.input_tensors("policy", {"obs": torch.randn(3)})
            h = annotate.state_tensors("policy", {"h": torch.zeros(3)})
            h = annotate.update_state("policy", {"h": 0.5 * h + obs})
            annotate.output_tensors("policy", {"action": torch.tanh(h)}, export_with="onnx")
    pipeline = Pipeline(tmp_path / "served")
    with serving(Options(str(tmp_path / "served"))) as served:
        done = subprocess.run(
            [sys.executable, EXAMPLES / "remote_client.py", served.url, pipeline.digest or ""],
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    observations = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    expected = [pipeline({"policy/obs": observation})["policy/action"] for observation in observations]
    assert done.stdout.splitlines() == [f"policy/action {value.round(4).tolist()}" for value in expected]


def test_readme_programs(tmp_path: Path) -> None:
    """The first minute prints what was proven and writes the files that are listed; the others run as they stand."""
    readme = (REPOSITORY / "README.md").read_text()
    first, robot, remembering = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    alone = tmp_path / "alone"
    alone.mkdir()
    printed = {}
    for name, block, directory in [("first", first, tmp_path), ("robot", robot, tmp_path), ("third", remembering, alone)]:
        (directory / f"{name}.py").write_text(block)
        printed[name] = run_program(directory / f"{name}.py", directory)
    how_close = re.compile(r"to within [\d.]+e-\d+|bit for bit")  # depends on the inputs, which are drawn anew
    said = [how_close.sub("…", line) for line in printed["first"].splitlines()]
    shown = re.findall(r"```text\n(.*?)```", readme, re.DOTALL)[0].splitlines()
    assert said[:3] == [how_close.sub("…", line) for line in shown[:3]]
    assert "leapp view my_policy\n" in readme
    listed = [name for line in re.findall(r"── (.*?)  ", readme) for name in line.split(", ")]
    assert listed
    assert set(listed) <= {path.name for path in (tmp_path / "my_policy").iterdir()}


def test_getting_started_program(tmp_path: Path) -> None:
    """The blocks of the guide are one program, which compares itself with its eager code; its comments are true."""
    guide = (REPOSITORY / "docs" / "getting_started.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "program.py").write_text("\n".join(blocks))
    printed = run_program(tmp_path / "program.py", tmp_path).splitlines()
    assert printed == re.findall(r"print\(.*\)\s+# (.*)", guide)


def test_troubleshooting_quotes_messages_that_exist() -> None:
    """Each heading in back quotes is part of a message in the source, with an ellipsis for what varies."""
    messages = set()
    for file in (REPOSITORY / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
                messages.add("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                messages.add(node.value.replace("%s", "…").replace("%d", "…"))
    text = (REPOSITORY / "docs" / "troubleshooting.md").read_text()
    quoted = [quote for line in re.findall(r"^### (.*)$", text, re.MULTILINE) for quote in re.findall(r"`(.*?)`", line)]
    assert quoted
    unknown = [quote for quote in quoted if not any(quote.replace("'…'", "…") in plain(m) for m in messages)]
    assert not unknown


def plain(message: str) -> str:
    """A message with quoted and bare placeholders alike."""
    return message.replace("'…'", "…")
