"""The bundles that both runtimes run: traced and exported as users do it, all ONNX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from examples.quadruped_demo import Controller, export
from torch import nn

import leapp
from leapp import TensorSemantics, annotate

JOINTS = ["hip", "knee", "ankle"]


def traced(directory: Path, name: str, step: Callable[[], object], fuse: bool = False, **start: object) -> Path:
    """Trace three passes of a program and write the bundle."""
    leapp.start(name, save_path=directory, **start)
    with torch.no_grad():
        for _ in range(3):
            step()
    leapp.stop()
    leapp.compile_graph(visualize=False, fuse=fuse)
    return directory / name


def leave(node: str, **values: torch.Tensor) -> None:
    annotate.output_tensors(node, values, export_with="onnx")


def chain(directory: Path) -> Path:
    torch.manual_seed(0)
    first, second, third = (nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 6)).eval() for _ in range(3))

    def step() -> None:
        x = annotate.input_tensors("see", {"x": torch.randn(1, 6)})
        y = first(x)
        leave("see", y=y)
        z = second(annotate.input_tensors("think", {"y": y}))
        leave("think", z=z)
        leave("move", action=third(annotate.input_tensors("move", {"z": z})) * 0.5)

    return traced(directory, "chain", step)


def fan_out(directory: Path) -> Path:
    torch.manual_seed(1)
    encode, left, right = nn.Linear(5, 8).eval(), nn.Linear(8, 3).eval(), nn.Linear(8, 4).eval()

    def step() -> None:
        features = torch.relu(encode(annotate.input_tensors("encode", {"x": torch.randn(1, 5)})))
        leave("encode", features=features)
        a = left(annotate.input_tensors("left", {"features": features}))
        leave("left", a=a)
        b = right(annotate.input_tensors("right", {"features": features}))
        leave("right", b=b)
        a, b, again = annotate.input_tensors("join", {"a": a, "b": b, "features": features})
        leave("join", sum=torch.cat([a.sin(), b.cos(), again], dim=1).sum(dim=1))

    return traced(directory, "fan_out", step)


def feedback(directory: Path) -> Path:
    before = {"estimate": torch.zeros(2), "setpoint": torch.full((2,), 0.5)}

    def step() -> None:
        measured, estimate, setpoint = annotate.input_tensors(
            "track", {"measured": torch.randn(2), "estimate_before": before["estimate"], "setpoint_before": before["setpoint"]}
        )
        estimate = estimate + 0.3 * (measured - estimate)
        leave("track", estimate=estimate, effort=torch.clamp(4.0 * (setpoint - estimate), -1.0, 1.0))
        goal, current = annotate.input_tensors("plan", {"goal": torch.randn(2), "estimate": estimate})
        setpoint = current + torch.clamp(goal - current, -0.1, 0.1)
        leave("plan", setpoint=setpoint)
        before.update(estimate=estimate, setpoint=setpoint)

    return traced(directory, "feedback", step)


def state(directory: Path) -> Path:
    torch.manual_seed(2)
    cell = nn.GRUCell(4, 7).eval()
    kept = {"h": torch.linspace(-1.0, 1.0, 7).reshape(1, 7)}

    def step() -> None:
        x = annotate.input_tensors("policy", {"x": torch.randn(1, 4)})
        h = cell(x, annotate.state_tensors("policy", {"h": kept["h"]}))
        kept["h"] = annotate.update_state("policy", {"h": h})
        leave("policy", y=h[:, :3] * 2.0)

    return traced(directory, "state", step)


class Leaky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("level", torch.ones(1, 3))
        self.register_buffer("count", torch.zeros(1, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.level = 0.9 * self.level + self.linear(x)
        self.count += 1
        return self.level / self.count


def module_buffers(directory: Path) -> Path:
    torch.manual_seed(3)
    module = Leaky().eval()

    def step() -> None:
        x = annotate.input_tensors("filter", {"x": torch.randn(1, 3)})
        annotate.module("filter", module)
        leave("filter", y=module(x))

    return traced(directory, "module_buffers", step)


def static_outputs(directory: Path) -> Path:
    torch.manual_seed(4)
    network = nn.Linear(3, 3).eval()

    def step() -> None:
        position = annotate.input_tensors(
            "policy", TensorSemantics("position", torch.randn(1, 3), "state/joint/position", JOINTS)
        )
        annotate.output_tensors(
            "policy",
            TensorSemantics("target", torch.tanh(network(position)), "target/joint/position", JOINTS, extra={"units": "rad"}),
            static_outputs=TensorSemantics("kp", torch.tensor([[40.0, 30.0, 10.0]]), "kp", JOINTS),
            export_with="onnx",
        )

    return traced(directory, "static_outputs", step)


def fused(directory: Path) -> Path:
    torch.manual_seed(5)
    first, second = nn.Linear(4, 16).eval(), nn.Linear(16, 2).eval()
    kept = {"last": torch.zeros(1, 2)}

    def step() -> None:
        x, last = annotate.input_tensors("observe", {"x": torch.randn(1, 4), "last": kept["last"]})
        features = torch.tanh(first(x) + last.sum())
        leave("observe", features=features)
        kept["last"] = second(annotate.input_tensors("act", {"features": features}))
        leave("act", action=kept["last"])

    return traced(directory, "fused", step, fuse=True)


def integers(directory: Path) -> Path:
    kept = {"count": torch.tensor([3], dtype=torch.int32)}

    def step() -> None:
        a, b, flag, small = annotate.input_tensors(
            "count",
            {
                "a": torch.randint(-50, 50, (4,)),
                "b": torch.randint(0, 100, (4,), dtype=torch.int32),
                "flag": torch.rand(4) > 0.5,
                "small": torch.randint(0, 200, (4,), dtype=torch.uint8),
            },
        )
        count = annotate.state_tensors("count", {"count": kept["count"]})
        chosen = torch.where(flag, a, b.to(torch.int64))
        kept["count"] = annotate.update_state("count", {"count": count + flag.sum().to(torch.int32)})
        leave("count", chosen=chosen, larger=a > b, bytes=small // 2, total=chosen.sum() + count)

    return traced(directory, "integers", step)


def float64(directory: Path) -> Path:
    torch.manual_seed(6)
    network = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 2)).double().eval()
    kept = {"h": torch.zeros(1, 2, dtype=torch.float64)}

    def step() -> None:
        x = annotate.input_tensors("policy", {"x": torch.randn(1, 5, dtype=torch.float64)})
        h = annotate.state_tensors("policy", {"h": kept["h"]})
        h = 0.7 * h + 0.125 * (network(x) @ torch.eye(2, dtype=torch.float64))
        kept["h"] = annotate.update_state("policy", {"h": h})
        leave("policy", y=h.exp())

    return traced(directory, "float64", step)


def dynamic_batch(directory: Path) -> Path:
    torch.manual_seed(7)
    network = nn.Sequential(nn.Linear(4, 8), nn.ELU(), nn.Linear(8, 3)).eval()
    kept = {"h": torch.zeros(3, 3)}

    def step() -> None:
        x = annotate.input_tensors("policy", {"x": torch.randn(3, 4)}, batch_axis=0)
        h = annotate.state_tensors("policy", {"h": kept["h"]}, batch_axis=0)
        h = 0.5 * h + network(x)
        kept["h"] = annotate.update_state("policy", {"h": h})
        leave("policy", y=torch.tanh(h))

    return traced(directory, "dynamic_batch", step, dynamic_batch=True)


def demo(directory: Path) -> Path:
    return export(Controller(), directory).parent


MAKERS = {
    maker.__name__: maker
    for maker in (
        chain, fan_out, feedback, state, module_buffers, static_outputs, fused, integers, float64, dynamic_batch, demo,
    )
}  # fmt: skip
