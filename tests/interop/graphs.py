"""Six small graphs written once, against the annotations alone, so that any leapp can export them.

Run as a script it exports all of them, or plays bundles on recorded inputs, with whichever leapp its interpreter has:

    python graphs.py export DIRECTORY
    python graphs.py play BUNDLES INPUTS.npz OUTPUTS.npz
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

import leapp
from leapp import InferenceManager, annotate

Values = dict[str, torch.Tensor]
STEPS = 10


def chain() -> Callable[[Values], Values]:
    """Three nodes in a row, with a network in the middle."""
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).eval()

    def step(inputs: Values) -> Values:
        a, b = annotate.input_tensors("first", {"a": inputs["first/a"], "b": inputs["first/b"]})
        mixed = torch.cat([a * 2.0, b - b.mean()], dim=-1)
        annotate.output_tensors("first", {"mixed": mixed}, export_with="onnx")
        features = annotate.input_tensors("second", {"features": mixed})
        score = network(features)
        annotate.output_tensors("second", {"score": score}, export_with="onnx")
        score = annotate.input_tensors("third", {"score": score})
        chosen = torch.softmax(score, dim=-1)
        annotate.output_tensors("third", {"chosen": chosen}, export_with="onnx")
        return {"third/chosen": chosen}

    return step


def fan_out() -> Callable[[Values], Values]:
    """One output read by two nodes, which meet again; one of them has an input of its own."""

    def step(inputs: Values) -> Values:
        x = annotate.input_tensors("source", {"x": inputs["source/x"]})
        shared = torch.sin(x)
        annotate.output_tensors("source", {"shared": shared}, export_with="jit")
        left = annotate.input_tensors("left", {"value": shared}).cumsum(dim=0)
        annotate.output_tensors("left", {"value": left}, export_with="jit")
        right, gain = annotate.input_tensors("right", {"shared": shared, "gain": inputs["right/gain"]})
        right = right * gain
        annotate.output_tensors("right", {"value": right}, export_with="jit")
        left, right = annotate.input_tensors("join", {"left": left, "right": right})
        joined = torch.maximum(left, right)
        annotate.output_tensors("join", {"joined": joined}, export_with="jit")
        return {"join/joined": joined}

    return step


def inferred_feedback() -> Callable[[Values], Values]:
    """A memory that a later node writes and two nodes read in the next pass."""
    memory = torch.full((3,), 0.25)

    def step(inputs: Values) -> Values:
        nonlocal memory
        observed, before = annotate.input_tensors("act", {"observed": inputs["act/observed"], "before": memory})
        context = torch.tanh(observed + 0.5 * before)
        action = context.clamp(-0.5, 0.5) * 2.0
        annotate.output_tensors("act", {"context": context, "action": action}, export_with="onnx")
        context, previous = annotate.input_tensors("remember", {"context": context, "previous": memory})
        memory = 0.8 * previous + 0.2 * context
        annotate.output_tensors("remember", {"memory": memory}, export_with="onnx")
        return {"act/action": action}

    return step


def state() -> Callable[[Values], Values]:
    """A history window and a counter, declared as state."""
    window, count = torch.zeros(4, 2), torch.zeros(1, dtype=torch.int64)

    def step(inputs: Values) -> Values:
        nonlocal window, count
        newest = annotate.input_tensors("history", {"newest": inputs["history/newest"]})
        old, number = annotate.state_tensors("history", {"window": window, "count": count})
        window = torch.cat([old[1:], newest.unsqueeze(0)])
        count = number + 1
        annotate.update_state("history", {"window": window, "count": count})
        average = window.mean(dim=0) + 0.001 * count
        annotate.output_tensors("history", {"average": average}, export_with="onnx")
        return {"history/average": average}

    return step


class Recurrent(nn.Module):
    """A GRU cell with its memory and a constant scale in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 6)
        self.head = nn.Linear(6, 2)
        self.register_buffer("scale", torch.tensor([2.0, 0.5]))
        self.register_buffer("memory", torch.zeros(1, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory = self.cell(x, self.memory)
        return self.head(self.memory) * self.scale


def module_buffers() -> Callable[[Values], Values]:
    """Memory kept in a module's buffer."""
    policy = Recurrent().eval()

    def step(inputs: Values) -> Values:
        observed = annotate.input_tensors("policy", {"observed": inputs["policy/observed"]})
        annotate.module("policy", policy)
        action = policy(observed)
        annotate.output_tensors("policy", {"action": action}, export_with="onnx-torchscript")
        return {"policy/action": action}

    return step


def mixed_backends() -> Callable[[Values], Values]:
    """ONNX and TorchScript nodes in turn, an integer edge, a static output and a loop around all of them."""
    network = nn.Linear(5, 4).eval()
    previous = torch.zeros(1, 4)

    def step(inputs: Values) -> Values:
        nonlocal previous
        observed, before = annotate.input_tensors("encode", {"observed": inputs["encode/observed"], "previous": previous})
        logits = network(observed) + 0.5 * before
        annotate.output_tensors("encode", {"logits": logits}, export_with="onnx")
        logits_in = annotate.input_tensors("choose", {"logits": logits})
        index = logits_in.argmax(dim=1)
        smooth = torch.softmax(logits_in, dim=1)
        annotate.output_tensors(
            "choose", {"index": index, "smooth": smooth}, static_outputs={"gain": torch.ones(2)}, export_with="jit"
        )
        index_in, smooth_in = annotate.input_tensors("apply", {"index": index, "smooth": smooth})
        picked = smooth_in.gather(1, index_in.unsqueeze(1))
        previous = smooth_in * 2.0 - 1.0
        annotate.output_tensors("apply", {"picked": picked, "next": previous}, export_with="onnx")
        return {"apply/picked": picked, "choose/gain": torch.ones(2)}

    return step


# Name, the maker of its step function, how many passes to trace, the shapes of its inputs.
GRAPHS: dict[str, tuple[Callable[[], Callable[[Values], Values]], int, dict[str, tuple[int, ...]]]] = {
    "chain": (chain, 2, {"first/a": (1, 3), "first/b": (1, 3)}),
    "fan_out": (fan_out, 2, {"source/x": (5,), "right/gain": (5,)}),
    "inferred_feedback": (inferred_feedback, 3, {"act/observed": (3,)}),
    "state": (state, 3, {"history/newest": (2,)}),
    # One pass: leapp 0.7.2 records no samples of module buffers in later passes and then refuses its own export.
    "module_buffers": (module_buffers, 1, {"policy/observed": (1, 4)}),
    "mixed_backends": (mixed_backends, 2, {"encode/observed": (1, 5)}),
}


def make(name: str) -> Callable[[Values], Values]:
    """A fresh step function; its weights are the same in every process."""
    torch.manual_seed(17)
    return GRAPHS[name][0]()


def random_inputs(name: str, generator: torch.Generator) -> Values:
    return {key: torch.randn(shape, generator=generator) for key, shape in GRAPHS[name][2].items()}


def for_each_graph(work: Callable[[str], None], errors: Path) -> None:
    """Do the work for every graph; what goes wrong with one is written down and does not stop the others."""
    errors.mkdir(parents=True, exist_ok=True)
    for name in GRAPHS:
        try:
            work(name)
        except Exception:
            (errors / f"{name}.txt").write_text(traceback.format_exc())


@torch.no_grad()
def export(directory: Path) -> None:
    """Write the bundle of every graph with the leapp at hand."""
    generator = torch.Generator().manual_seed(1)

    def work(name: str) -> None:
        step = make(name)
        leapp.start(name, save_path=str(directory))
        try:
            for _ in range(GRAPHS[name][1]):
                step(random_inputs(name, generator))
        finally:
            leapp.stop()
        leapp.compile_graph(visualize=False)

    for_each_graph(work, directory / "errors")


@torch.no_grad()
def record(inputs: Path, outputs: Path) -> None:
    """Draw new inputs and write them with what the eager code makes of them, step by step."""
    generator = torch.Generator().manual_seed(2)
    given: dict[str, np.ndarray] = {}
    wanted: dict[str, np.ndarray] = {}
    for name in GRAPHS:
        step = make(name)
        for number in range(STEPS):
            values = random_inputs(name, generator)
            given |= {f"{name}:{number}:{key}": value.numpy() for key, value in values.items()}
            wanted |= {f"{name}:{number}:{key}": value.numpy() for key, value in step(values).items()}
    np.savez(inputs, **given)
    np.savez(outputs, **wanted)


def play(bundles: Path, inputs: Path, outputs: Path) -> None:
    """Run every bundle in closed loop on recorded inputs."""
    given = np.load(inputs)
    got: dict[str, np.ndarray] = {}

    def work(name: str) -> None:
        manager = InferenceManager(str(bundles / name / f"{name}.yaml"))
        for number in range(STEPS):
            values = {key: torch.from_numpy(given[f"{name}:{number}:{key}"]) for key in GRAPHS[name][2]}
            # Copied at once: a runtime may write the next step into the same memory.
            for key, value in manager.run_policy(values).items():
                got[f"{name}:{number}:{key}"] = value.numpy().copy()

    for_each_graph(work, outputs.with_suffix(".errors"))
    np.savez(outputs, **got)


if __name__ == "__main__":
    {"export": export, "play": play}[sys.argv[1]](*map(Path, sys.argv[2:]))
