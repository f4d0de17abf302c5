"""``leapp run``: run a bundle and show its outputs."""

from __future__ import annotations

import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from leapp.bundle import Bundle, read_samples
from leapp.cli.arguments import add_engine, add_opened_bundle, count
from leapp.cli.opening import open_pipeline
from leapp.cli.output import Answer, Cell, Table, Text, progress
from leapp.errors import InputError
from leapp.graph.contract import Port, split_key
from leapp.graph.validate import graph_ports

if TYPE_CHECKING:
    from leapp.runtime.arrays import Array


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp run``."""
    add_opened_bundle(parser)
    parser.add_argument("--input", metavar="FILE.npz", help="an array for each node/port: one value, or one per step")
    parser.add_argument("--steps", type=count, metavar="N", help="how many steps (default: as many as the input has)")
    parser.add_argument("--output", metavar="FILE.npz", help="write the outputs of all steps")
    parser.add_argument("--record", metavar="FILE.npz", help="record inputs, outputs and states, for leapp replay")
    add_engine(parser)


def command(arguments: Namespace) -> Answer:
    """Run a bundle and show what it returns."""
    import numpy as np

    from leapp.runtime.arrays import form

    bundle, pipeline, _ = open_pipeline(arguments)
    series, steps, origin = _inputs(bundle, arguments.input, arguments.steps)
    made: dict[str, list[Array]] = {where: [] for where in pipeline.outputs}
    recorder = pipeline.record(arguments.record) if arguments.record else nullcontext(pipeline)
    with recorder as step, progress("running", steps) as advance:
        for number in range(steps):
            given = {where: values[number % len(values)] for where, values in series.items()}
            for where, value in step(given).items():
                made[where].append(value)
            advance()
    stacked: dict[str, Any] = {where: np.stack(values) for where, values in made.items()}
    if arguments.output:
        with open(arguments.output, "wb") as file:  # a file object, because np.savez would add .npz to a name without it
            np.savez(file, **stacked)
    data = {
        "graph": bundle.graph,
        "steps": steps,
        "inputs": origin,
        "outputs": {where: _summary(values) for where, values in stacked.items()},
        "output": arguments.output,
        "record": arguments.record,
    }
    rows: list[list[Cell]] = []
    for where, values in stacked.items():
        figures = [f"{figure:.4g}" if figure is not None else "" for figure in _summary(values).values()]
        rows.append([(where, "bold"), form(values.dtype, values.shape[1:]), *figures, _few(values[-1])])
    written = [Text(f"wrote {path}") for path in (arguments.output, arguments.record) if path]
    head = ("output", "value", "min", "mean", "max", "last step")
    table = Table(f"{steps} step{'s' * (steps != 1)} on {origin}", head, rows, spare=("mean", "value", "last step"))
    return Answer(data, [table, *written])


def _inputs(bundle: Bundle, path: str | None, steps: int | None) -> tuple[dict[str, list[Array]], int, str]:
    """The values of every graph input, step by step, the number of steps, and the source of the values as text."""
    from leapp.check.samples import graph_inputs
    from leapp.runtime.arrays import random_array

    ports = graph_ports(bundle.contract, "inputs")
    if path is not None:
        series = _read_series(path, ports)
        longest = max((len(values) for values in series.values()), default=1)
        return series, steps or longest, path
    samples = read_samples(bundle)
    if ports and all(samples.get(split_key(where)[0]) for where in ports):
        passes = min(len(samples[split_key(where)[0]]) for where in ports)
        recorded = [graph_inputs(bundle.contract, samples, number) for number in range(passes)]
        return {where: [step[where] for step in recorded] for where in ports}, steps or passes, "the recorded samples"
    count = steps or 1
    drawn = {where: [random_array(port) for _ in range(count)] for where, port in ports.items()}
    return drawn, count, "random values" if ports else "no inputs"


def _read_series(path: str, ports: Mapping[str, Port]) -> dict[str, list[Array]]:
    from leapp.runtime.recording_files import load_npz

    try:
        arrays = load_npz(path)
    except zipfile.BadZipFile as error:
        raise InputError(f"{path} is not an .npz file. Write one with an array for each node/port.") from error
    except (ValueError, EOFError) as error:
        raise InputError(f"{path} is not an .npz file of arrays: {error}") from error
    for where in ports:
        if where not in arrays:
            held = ", ".join(arrays) or "nothing"
            raise InputError(f"{path} has no '{where}'. It must hold {', '.join(ports)}; it holds {held}.")
    unknown = [name for name in arrays if name not in ports]
    if unknown:
        raise InputError(f"{path} holds '{unknown[0]}', which is not a graph input. The graph inputs are {', '.join(ports)}.")
    series = {where: _steps(path, where, ports[where], array) for where, array in arrays.items()}
    lengths = {len(values) for values in series.values() if len(values) > 1}
    if len(lengths) > 1:
        found = ", ".join(f"{where} {len(values)}" for where, values in series.items())
        raise InputError(f"{path} holds different numbers of steps: {found}.")
    return series


def _steps(path: str, where: str, port: Port, array: Array) -> list[Array]:
    from leapp.runtime.arrays import numpy_dtype

    dtype = numpy_dtype(port.dtype)
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        array = array.view(dtype)
    if array.shape == port.shape:
        return [array]
    if array.shape[1:] == port.shape and len(array):
        return list(array)
    wanted = f"{list(port.shape)} or {['steps', *port.shape]}".replace("'", "")
    raise InputError(f"{path}: '{where}' has the shape {list(array.shape)}; expected {wanted}.")


def _summary(values: Array) -> dict[str, Any]:
    if not values.size or values.dtype.kind == "c":
        return {"min": None, "mean": None, "max": None}
    wide = values.astype("float64")
    return {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}


def _few(value: Array, limit: int = 6) -> str:
    flat = value.reshape(-1)
    texts = [f"{v:.4g}" if v.dtype.kind in "fc" else str(v) for v in flat[:limit]]
    return ", ".join(texts) + (", …" if flat.size > limit else "")
