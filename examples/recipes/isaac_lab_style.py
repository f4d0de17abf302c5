"""An environment in the style of Isaac Lab: managers, observation terms, history. Annotations sit in property getters.

One node carries the whole task. The robot's data declares an input when a term reads it, with kind, joint names and the
`isaaclab_connection` that a deployer wires it to; the observation manager declares its history and the action manager the
last action as state. None of the terms knows about the export. The classes here imitate the real ones in a few lines.

    python examples/recipes/isaac_lab_style.py [output directory]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import leapp
from leapp import GraphConfigs, InferenceManager, InputKindEnum, OutputKindEnum, TensorSemantics, annotate

TASK = "Velocity-Flat-Quadruped-v0"
JOINTS = [f"{leg}_{joint}" for leg in ("FL", "FR", "RL", "RR") for joint in ("hip", "thigh", "calf")]
HISTORY = 5
XYZ = ["x", "y", "z"]


class RobotData:
    """What the simulator fills in, read through getters."""

    def __init__(self) -> None:
        self.raw: dict[str, torch.Tensor] = {}
        self.default_joint_pos = torch.tensor([[0.0, 0.8, -1.6] * 4])

    def _read(self, name: str, kind: InputKindEnum, elements: list[str]) -> torch.Tensor:
        connection = {"isaaclab_connection": f"state:robot:{name}"}
        return annotate.input_tensors(TASK, TensorSemantics(name, self.raw[name], kind, [None, elements], connection))

    @property
    def joint_pos(self) -> torch.Tensor:
        return self._read("joint_pos", InputKindEnum.JOINT_POSITION, JOINTS)

    @property
    def joint_vel(self) -> torch.Tensor:
        return self._read("joint_vel", InputKindEnum.JOINT_VELOCITY, JOINTS)

    @property
    def root_ang_vel_b(self) -> torch.Tensor:
        return self._read("root_ang_vel_b", InputKindEnum.BODY_ANGULAR_VELOCITY, XYZ)

    @property
    def projected_gravity_b(self) -> torch.Tensor:
        return self._read("projected_gravity_b", InputKindEnum.VECTOR3D, XYZ)


class CommandManager:
    """The velocity that the user asks for."""

    def __init__(self) -> None:
        self.raw = torch.zeros(1, 3)

    def get_command(self, name: str) -> torch.Tensor:
        extra = {"isaaclab_connection": f"command:{name}"}
        elements = [None, ["lin_x", "lin_y", "ang_z"]]
        meaning = TensorSemantics(name, self.raw, InputKindEnum.COMMAND_BODY_VELOCITY, elements, extra)
        return annotate.input_tensors(TASK, meaning)


class ObservationManager:
    """Terms with a scale, joined, and the joined vectors of the last steps: newest last."""

    def __init__(self, terms: dict[str, tuple[Callable[[], torch.Tensor], float]], size: int) -> None:
        self.terms = terms
        self.buffer = torch.zeros(1, HISTORY, size)

    def compute(self) -> torch.Tensor:
        now = torch.cat([scale * term() for term, scale in self.terms.values()], dim=-1)
        buffer = annotate.state_tensors(TASK, {"observation_history": self.buffer})
        buffer = torch.roll(buffer, shifts=-1, dims=1)
        buffer[:, -1] = now
        self.buffer = annotate.update_state(TASK, {"observation_history": buffer})
        return buffer.flatten(1)


class ActionManager:
    """Joint position targets around the default pose; remembers the raw action."""

    def __init__(self, robot: RobotData) -> None:
        self.robot = robot
        self.action = torch.zeros(1, len(JOINTS))

    def last_action(self) -> torch.Tensor:
        return annotate.state_tensors(TASK, {"last_action": self.action})

    def process_action(self, action: torch.Tensor) -> torch.Tensor:
        self.action = annotate.update_state(TASK, {"last_action": action})
        return self.robot.default_joint_pos + 0.25 * action.clamp(-4.0, 4.0)


class Environment:
    """The managers and a policy, stepped as in play mode."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.robot, self.commands = RobotData(), CommandManager()
        self.actions = ActionManager(self.robot)
        robot = self.robot
        terms = {
            "base_ang_vel": (lambda: robot.root_ang_vel_b, 0.25),
            "projected_gravity": (lambda: robot.projected_gravity_b, 1.0),
            "velocity_commands": (lambda: self.commands.get_command("base_velocity"), 2.0),
            "joint_pos_rel": (lambda: robot.joint_pos - robot.default_joint_pos, 1.0),
            "joint_vel_rel": (lambda: robot.joint_vel, 0.05),
            "actions": (self.actions.last_action, 1.0),
        }
        size = 9 + 3 * len(JOINTS)
        self.observations = ObservationManager(terms, size)
        self.policy = nn.Sequential(nn.Linear(HISTORY * size, 64), nn.ELU(), nn.Linear(64, len(JOINTS))).eval()

    @torch.inference_mode()
    def step(self, sensed: dict[str, torch.Tensor]) -> torch.Tensor:
        self.commands.raw = sensed["base_velocity"]
        self.robot.raw = sensed
        targets = self.actions.process_action(self.policy(self.observations.compute()))
        extra = {"isaaclab_connection": "write:robot:joint_pos_target"}
        meaning = TensorSemantics("targets", targets, OutputKindEnum.JOINT_POSITION, [None, JOINTS], extra)
        return annotate.output_tensors(TASK, meaning, export_with="onnx")


def sense() -> dict[str, torch.Tensor]:
    sizes = {"root_ang_vel_b": 3, "projected_gravity_b": 3, "base_velocity": 3, "joint_pos": 12, "joint_vel": 12}
    return {name: torch.randn(1, size) for name, size in sizes.items()}


def export(directory: Path) -> Path:
    environment = Environment()
    leapp.start(TASK, save_path=directory)
    for _ in range(3):
        environment.step(sense())
    leapp.stop()
    leapp.compile_graph(graph_configs=GraphConfigs(frequency=50))
    return directory / TASK / f"{TASK}.yaml"


def main() -> None:
    path = export(Path(sys.argv[1] if len(sys.argv) > 1 else "exports"))
    manager, environment = InferenceManager(path), Environment()
    for port in manager.input_ports.values():
        print(port.key, list(port.shape), port.kind, port.extra["isaaclab_connection"])
    print("state:", manager.feedback_inputs)
    for _ in range(3):
        sensed = sense()
        outputs = manager.run_policy({f"{TASK}/{name}": value for name, value in sensed.items()})
        print("bundle", outputs[f"{TASK}/targets"][0, :3].tolist())
        print("eager ", environment.step(sensed)[0, :3].tolist())


if __name__ == "__main__":
    main()
