"""Random programs of pure, view and in-place steps: tracing changes no bit, and the export equals the program on new inputs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from hypothesis import HealthCheck, Phase, settings

import leapp
from leapp import annotate

Value = Any
Pool = list[Value]
Step = Callable[[Pool], "Value | None"]
Draw = Callable[[random.Random, Pool], Step]

SOAK = bool(os.environ.get("LEAPP_SOAK"))


def examples(some: int, many: int) -> settings:
    """Some programs, always the same, or many new ones in a soak."""
    return settings(
        max_examples=many if SOAK else some,
        deadline=None,
        derandomize=not SOAK,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def partner(r: random.Random, pool: Pool, i: int) -> int:
    """The place of some value with the shape of the one at place ``i``."""
    return r.choice([k for k, other in enumerate(pool) if other.shape == pool[i].shape])


class Language(Protocol):
    """What programs are written in: NumPy or torch."""

    draws: Sequence[Draw]
    """The kinds of steps, each as often as it shall come up."""
    most: int
    """Elements that all values of a program have together."""

    def inputs(self, seed: int) -> Pool:
        """Three values, others for each seed."""

    def constants(self) -> Pool:
        """Values of the program's own, one of them a view of another."""

    def size(self, value: Value) -> int:
        """The number of elements."""

    def usable(self, value: Value) -> bool:
        """Whether a program may go on with a value."""

    def copy(self, value: Value) -> Value:
        """A copy on memory of its own."""

    def same(self, a: Value, b: Value) -> bool:
        """Whether two values are equal in every bit."""

    def assert_close(self, got: Value, want: Value, key: str) -> None:
        """Fail unless two values agree up to rounding."""

    def open(self, path: Path) -> Any:
        """The bundle, taking and returning such values."""


class Program:
    """Steps that ran without an error on one set of inputs; each result joins the pool that later steps draw from."""

    def __init__(self, language: Language, seed: int, length: int) -> None:
        r = random.Random(seed)
        self.language, self.seed = language, seed
        self.steps: list[Step] = []
        pool = [*self.inputs(0), *language.constants()]
        while len(self.steps) < length:
            step = r.choice(language.draws)(r, pool)
            trial = self._trial([*self.steps, step])
            if trial is not None and sum(map(language.size, trial)) < language.most:
                self.steps.append(step)
                pool = trial
        one, other = (self(self.inputs(seed)) for seed in (1, 2))
        # Constants are no outputs of a node.
        self.live = [name for name in one if not language.same(one[name], other[name])]

    def inputs(self, seed: int) -> Pool:
        return self.language.inputs(1000 * self.seed + seed)

    def _trial(self, steps: list[Step]) -> Pool | None:
        try:
            pool = self._run(steps, self.inputs(0))
        except (RuntimeError, IndexError, TypeError, ValueError):
            return None
        return pool if all(map(self.language.usable, pool)) else None

    def _run(self, steps: list[Step], inputs: Pool) -> Pool:
        pool = [*inputs, *self.language.constants()]
        for step in steps:
            out = step(pool)
            if out is not None:
                pool.append(out)
        return pool

    def __call__(self, inputs: Pool) -> dict[str, Value]:
        return {f"o{i}": t for i, t in enumerate(self._run(self.steps, inputs)) if self.language.size(t)}


def prove(language: Language, backend: str, seeds: list[int], length: int, directory: Path) -> None:
    """Trace programs, export them, and run the export on new inputs."""
    programs = [Program(language, seed, length) for seed in seeds]
    running = language.open(_exported(programs, backend, directory))
    inputs: dict[str, Value] = {}
    expected: dict[str, Value] = {}
    for n, program in enumerate(programs):
        new = program.inputs(7)
        inputs |= {f"n{n}/x{i}": language.copy(value) for i, value in enumerate(new)}
        results = program(new)
        expected |= {f"n{n}/{name}": results[name] for name in program.live}
    outputs = running({k: v for k, v in inputs.items() if k in running.inputs})
    assert set(expected) <= set(outputs)
    for key, want in expected.items():
        language.assert_close(outputs[key], want, key)


def _exported(programs: list[Program], backend: str, directory: Path) -> Path:
    leapp.start("programs", save_path=directory, escapes="error")
    done: list[tuple[Program, dict[Any, Value], dict[Any, Value]]] = []
    try:
        for n, program in enumerate(programs):
            plain, held = program.inputs(1), program.inputs(1)
            wanted = {k: program.language.copy(t) for k, t in program(plain).items()}
            declared = annotate.input_tensors(f"n{n}", {f"x{i}": value for i, value in enumerate(held)})
            outputs = program(list(declared))
            live = {k: outputs[k] for k in program.live} or {"unchanged": declared[0]}
            annotate.output_tensors(f"n{n}", live, export_with=backend)
            done.append((program, outputs, wanted))
            done.append((program, dict(enumerate(held)), dict(enumerate(plain))))
    finally:
        leapp.stop()
    # Comparing during the session would itself be a value leaving the graph.
    for program, got, want in done:
        for name, value in want.items():
            assert program.language.same(got[name], value), f"program {program.seed}: tracing changed {name}"
    leapp.compile_graph(visualize=False, allow_nonfinite=True)
    return directory / "programs" / "programs.yaml"
