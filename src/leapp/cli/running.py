"""``leapp run`` and ``bench``: a bundle at work."""

from __future__ import annotations

import math
import time
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from leapp.bundle import Bundle, read_samples
from leapp.cli.consent import consent, open_for
from leapp.cli.output import Answer, Cell, Table, Text, announce, progress
from leapp.errors import InputError
from leapp.graph.contract import Port, split_key
from leapp.runtime import Pipeline
from leapp.runtime.arrays import Array, form, numpy_dtype, random_array
from leapp.runtime.recording_files import load_npz
from leapp.runtime.values import from_raw

__all__ = ["bench", "run"]

_MICROSECONDS = ("p50", "p99", "p999", "longest", "jitter", "noise_p50", "noise_p999")


def _load(arguments: Namespace) -> tuple[Bundle, Pipeline, float]:
    began = time.perf_counter()
    bundle = open_for(arguments)
    allow_code = consent(arguments, bundle)
    with progress("opening engines"):
        pipeline = Pipeline(bundle, threads=arguments.threads, providers=arguments.provider, allow_code=allow_code)
    return bundle, pipeline, time.perf_counter() - began


def run(arguments: Namespace) -> Answer:
    """Run a bundle and show what it returns."""
    bundle, pipeline, _ = _load(arguments)
    series, steps, origin = _inputs(bundle, arguments.input, arguments.steps)
    made: dict[str, list[Array]] = {where: [] for where in pipeline.outputs}
    recorder = pipeline.record(arguments.record) if arguments.record else nullcontext(pipeline)
    with recorder as step, progress("running", steps) as advance:
        for number in range(steps):
            given = {where: values[number % len(values)] for where, values in series.items()}
            for where, value in step(given).items():
                made[where].append(value)
            advance()
    stacked = {where: np.stack(values) for where, values in made.items()}
    if arguments.output:
        with open(arguments.output, "wb") as file:  # given a name, NumPy would write to another one
            np.savez(file, allow_pickle=False, **stacked)
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
    table = Table(f"{steps} steps on {origin}", head, rows, spare=("mean", "value", "last step"))
    return Answer(data, [table, *written])


def _inputs(bundle: Bundle, path: str | None, steps: int | None) -> tuple[dict[str, list[Array]], int, str]:
    """The values of every graph input, step by step, how many steps, and where they come from."""
    contract = bundle.contract
    ports = {
        f"{n}/{p.name}": p for n, names in contract.pipeline.inputs.items() for p in contract.nodes[n].inputs if p.name in names
    }
    if path is not None:
        series = _read_series(path, ports)
        longest = max((len(values) for values in series.values()), default=1)
        return series, steps or longest, path
    samples = read_samples(bundle)
    if ports and all(samples.get(split_key(where)[0]) for where in ports):
        recorded = {}
        for where in ports:
            node, name = split_key(where)
            recorded[where] = [from_raw(sample.inputs[name]) for sample in samples[node]]
        return recorded, steps or min(len(values) for values in recorded.values()), "the recorded samples"
    count = steps or 1
    drawn = {where: [random_array(port) for _ in range(count)] for where, port in ports.items()}
    return drawn, count, "random values" if ports else "no inputs"


def _read_series(path: str, ports: Mapping[str, Port]) -> dict[str, list[Array]]:
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
        raise InputError(f"{path} holds '{unknown[0]}', which is no graph input. Those are {', '.join(ports)}.")
    series = {where: _steps(path, where, ports[where], array) for where, array in arrays.items()}
    lengths = {len(values) for values in series.values() if len(values) > 1}
    if len(lengths) > 1:
        found = ", ".join(f"{where} {len(values)}" for where, values in series.items())
        raise InputError(f"{path} holds different numbers of steps: {found}.")
    return series


def _steps(path: str, where: str, port: Port, array: Array) -> list[Array]:
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
    wide = values.astype(np.float64)
    return {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}


def _few(value: Array, limit: int = 6) -> str:
    flat = value.reshape(-1)
    texts = [f"{v:.4g}" if v.dtype.kind in "fc" else str(v) for v in flat[:limit]]
    return ", ".join(texts) + (", …" if flat.size > limit else "")


def bench(arguments: Namespace) -> Answer:
    """Time the steps of a bundle."""
    bundle, pipeline, opened = _load(arguments)
    steps = arguments.steps or (max(1, round(5 * arguments.rate)) if arguments.rate else 1000)
    if arguments.rate and steps > arguments.rate:
        # The steps, and then as many times nothing, to know the machine's own noise.
        announce(f"timing {steps} steps at {arguments.rate:g} Hz takes {2 * steps / arguments.rate:.0f} s ...")
    latency = pipeline.bench(steps, arguments.rate)
    frequency = pipeline.frequency
    late = judge(latency.misses or 0, latency.noise_misses or 0)
    data: dict[str, Any] = {
        "graph": bundle.graph,
        "ok": not late,
        "opened_s": opened,
        "frequency_hz": frequency,
        "steps": latency.steps,
        "rate_hz": latency.rate,
        "misses": latency.misses,
        "noise_misses": latency.noise_misses,
        **{f"{name}_us": getattr(latency, name) for name in _MICROSECONDS},
    }
    figures = {"median": "p50", "99 %": "p99", "99.9 %": "p999", "longest": "longest", "jitter": "jitter"}
    rows = [[name, f"{getattr(latency, attribute):.1f} µs"] for name, attribute in figures.items()]
    rows.append(["this machine, doing nothing", f"{latency.noise_p50:.1f} µs, 99.9 % {latency.noise_p999:.1f} µs"])
    rows.append(["opened in", f"{opened:.2f} s"])
    parts: list[Table | Text] = [Table(f"{bundle.graph}: {steps} steps", ("what", "time"), rows)]
    rate = arguments.rate or frequency
    if rate:
        share = latency.p50 * rate / 1e4
        parts.append(Text(f"At {rate:g} Hz a step may take {1e6 / rate:.0f} µs; the median takes {share:.2f} % of it."))
    if latency.misses is not None:
        words = f"{latency.misses} of {steps} steps were late." if latency.misses else "No step was late."
        if latency.noise_misses:
            words += f" This machine, doing nothing, was late {latency.noise_misses} times."
            words += "" if late or not latency.misses else " That is its own noise."
        parts.append(Text(words, "red" if late else "green"))
    if arguments.page:
        from leapp.cli.looking import write_bundle_page

        page = write_bundle_page(bundle, arguments.page, measured=True)
        data["page"] = str(page)
        parts.append(Text(f"wrote {page}"))
    return Answer(data, parts, 1 if late else 0)


def judge(misses: int, noise: int) -> bool:
    """Whether more steps were late than the idle machine accounts for, give or take two standard deviations."""
    return misses > noise + 2 * math.sqrt(noise)
