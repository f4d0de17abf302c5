"""Exports the patterns, or plays bundles of them on recorded inputs, with whichever leapp its interpreter has.

    python graphs.py export DIRECTORY
    python graphs.py play BUNDLES INPUTS.npz OUTPUTS.npz

What goes wrong with one row (a pattern on a backend) is written down and does not stop the others.
"""

from __future__ import annotations

import inspect
import json
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import leapp
from leapp import InferenceManager

if __package__:
    from .patterns import PATTERNS, Pattern, Step, Values
else:
    from patterns import PATTERNS, Pattern, Step, Values

STEPS = 20


def rows() -> Iterator[tuple[str, Pattern, str]]:
    """Every pattern on each of its backends, with a name for the row."""
    for chosen in PATTERNS.values():
        for backend in chosen.backends:
            yield f"{chosen.name}-{backend}", chosen, backend


def make(chosen: Pattern, backend: str, directory: Path | None = None) -> Step:
    """A fresh program; its weights are the same in every process."""
    torch.manual_seed(17)
    given = {"directory": directory} if "directory" in inspect.signature(chosen.make).parameters else {}
    return chosen.make(backend, **given)


def run(chosen: Pattern, step: Step, values: Values) -> Values:
    """One step on copies of the values, under the mode that the pattern asks for."""
    with getattr(torch, chosen.mode)():
        return step({k: v.clone() for k, v in values.items()})


def plain(value: torch.Tensor) -> Any:
    """A value as an array of its own: a runtime may write the next step into the same memory."""
    value = torch.as_tensor(value).detach()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy().copy()


def reason(error: BaseException) -> str:
    """What went wrong, in one line that is the same on every machine."""
    first = next((line for line in str(error).splitlines() if line.strip()), "").strip()
    text = re.sub(r"/[^\s'\":,]*/", "", f"{type(error).__name__}: {first}")
    text = re.sub(r"\x1b\[\d*m|0x[0-9a-f]+|>\.\d+", "", text)
    return text if len(text) <= 120 else text[:117] + "..."


def for_each_row(work: Callable[[str, Pattern, str], None], errors: Path) -> None:
    """Do the work for every row, and write down what failed and why."""
    found: dict[str, str] = {}
    for name, chosen, backend in rows():
        try:
            work(name, chosen, backend)
        except Exception as error:
            found[name] = reason(error)
    errors.write_text(json.dumps(found, indent=1))


def export(directory: Path) -> None:
    """Write the bundle of every row with the leapp at hand."""
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(1)

    def work(name: str, chosen: Pattern, backend: str) -> None:
        step = make(chosen, backend, directory / f"{name} models")
        leapp.start(name, save_path=str(directory), **chosen.start)
        try:
            for _ in range(chosen.passes):
                run(chosen, step, chosen.draw(generator))
        finally:
            leapp.stop()
        # Only one of the two wants to hear that random numbers are meant.
        known = inspect.signature(leapp.compile_graph).parameters
        options = {"allow_random": True} if "allow_random" in known else {}
        leapp.compile_graph(visualize=False, graph_configs=chosen.configs and chosen.configs(), **options)

    for_each_row(work, directory / "errors.json")


def record(inputs: Path, outputs: Path) -> None:
    """Draw new inputs and write them with what the eager code makes of them, step by step."""
    generator = torch.Generator().manual_seed(2)
    given: dict[str, Any] = {}
    wanted: dict[str, Any] = {}
    for chosen in PATTERNS.values():
        step = make(chosen, chosen.backends[0])
        for number in range(STEPS):
            values = chosen.draw(generator)
            given |= {f"{chosen.name}:{number}:{key}": plain(value) for key, value in values.items()}
            wanted |= {f"{chosen.name}:{number}:{key}": plain(value) for key, value in run(chosen, step, values).items()}
    np.savez(inputs, **given)
    np.savez(outputs, **wanted)


def player(path: Path) -> Callable[[Values], dict[str, Any]]:
    """One step of a bundle. A leapp that runs ONNX without torch runs it both ways, which must agree."""
    # Only one of the two asks before it opens files that lie outside the bundle.
    known = inspect.signature(InferenceManager.__init__).parameters
    options = {name: True for name in ("allow_outside", "allow_code") if name in known}
    manager = InferenceManager(str(path), **options)
    names = {key.removesuffix("_in"): key for key in manager.inputs} | {key: key for key in manager.inputs}
    pipeline: Any = None
    if all(node["parameters"]["backend"] == "onnx" for node in manager.models.values()):
        try:
            from leapp.runtime import Pipeline
        except ImportError:
            pass  # leapp 0.7.2 has none
        else:
            pipeline = Pipeline(path, **options)

    def step(values: Values) -> dict[str, Any]:
        unknown = set(manager.inputs) - {names.get(key) for key in values}
        if unknown:
            raise ValueError(f"the bundle asks for {', '.join(sorted(unknown))} as well")
        given = {names[key]: value for key, value in values.items()}
        got = {key: plain(value) for key, value in manager.run_policy(given).items()}
        if pipeline is not None:
            other = pipeline({key: plain(value) for key, value in given.items()})
            for key, value in got.items():
                np.testing.assert_array_equal(np.asarray(other[key]), value, err_msg=f"leapp.runtime, {key}")
        return got

    return step


def play(bundles: Path, inputs: Path, outputs: Path) -> None:
    """Run every bundle in closed loop on recorded inputs."""
    given = np.load(inputs)
    missing = json.loads((bundles / "errors.json").read_text())
    got: dict[str, Any] = {}

    def work(name: str, chosen: Pattern, backend: str) -> None:
        if name in missing:
            return
        step = player(bundles / name / f"{name}.yaml")
        for number in range(STEPS):
            drawn = chosen.draw(torch.Generator())
            values = {k: torch.from_numpy(given[f"{chosen.name}:{number}:{k}"]).to(drawn[k].dtype) for k in chosen.inputs}
            got.update({f"{name}:{number}:{key}": value for key, value in step(values).items()})

    for_each_row(work, outputs.with_suffix(".json"))
    np.savez(outputs, **got)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    {"export": export, "play": play}[sys.argv[1]](*map(Path, sys.argv[2:]))
