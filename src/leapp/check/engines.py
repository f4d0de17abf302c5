"""One node at a time in an engine of its own, as deployers would open it.

ONNX Runtime rewrites a model when it opens it, more or less freely by level; each level is a program of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from leapp.bundle import Bundle
from leapp.bundle.reading import read_model_files
from leapp.graph.contract import Contract, Wiring, key
from leapp.runtime import Pipeline
from leapp.runtime.buffers import run_session
from leapp.runtime.load import External, OnnxUnit, open_session
from leapp.runtime.plan import make_plan

__all__ = ["LEVELS", "Place", "alone", "engines", "here", "open_engine", "open_level", "open_pipeline"]

Array = np.ndarray[Any, np.dtype[Any]]
Engine = Callable[[Mapping[str, Array]], Mapping[str, Array]]
Place = Callable[..., Any]
"""Calls a function with arguments, in this process or in another one, for something that can be called from here."""

LEVELS = ("disable_all", "basic", "extended", "all")
"""ONNX Runtime's levels of graph optimisation."""


def here(function: Callable[..., Any], *args: Any) -> Any:
    """Open something in this process: simply call the function that opens it."""
    return function(*args)


def engines(bundle: Bundle, name: str, thorough: bool, place: Place = here) -> Iterator[tuple[str, Engine]]:
    """The engines that run a node, each with a label: the runtime's own, then with ``thorough`` every level of ONNX Runtime.

    An engine takes and returns values by port name.

    Args:
        bundle: The bundle.
        name: The node.
        thorough: Whether every level is wanted.
        place: Where engines are opened.
    """
    yield "", place(open_engine, bundle, name)
    if thorough and bundle.contract.nodes[name].model.backend == "onnx":
        yield from ((f"ONNX Runtime at level {level}", place(open_level, bundle, name, level)) for level in LEVELS)


def open_engine(bundle: Bundle, name: str) -> Engine:
    """The engine that the runtime has for a node."""
    running = open_pipeline(alone(bundle, name))

    def run(given: Mapping[str, Array]) -> Mapping[str, Array]:
        outputs = running({key(name, port): value for port, value in given.items()})
        return {port.name: outputs[key(name, port.name)] for port in bundle.contract.nodes[name].outputs}

    return run


def open_pipeline(bundle: Bundle) -> Pipeline:
    """The whole bundle. Whoever checks one has asked before whether its programs may run; an export checks its own."""
    return Pipeline(bundle, allow_code=True)


def alone(bundle: Bundle, name: str) -> Bundle:
    """A bundle with one node, all of whose ports are the graph's."""
    node = bundle.contract.nodes[name]
    pipeline = Wiring(
        inputs={name: tuple(p.name for p in node.inputs)}, outputs={name: tuple(p.name for p in node.outputs)}
    )
    return replace(bundle, contract=Contract(nodes={name: node}, pipeline=pipeline, system=bundle.contract.system))


def open_level(bundle: Bundle, name: str, level: str) -> Engine:
    """ONNX Runtime at one of its ``LEVELS``."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    spelled = level.upper() if level == "disable_all" else f"ENABLE_{level.upper()}"
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{spelled}")
    model, beside = read_model_files(bundle, name)
    session = open_session(External(model, beside) if beside else model, options, providers=["CPUExecutionProvider"])
    plan = make_plan(alone(bundle, name).contract)
    inputs = {where: port.name for where, port in plan.input_ports.items()}
    outputs = {where: port.name for where, port in plan.output_ports.items()}
    unit = OnnxUnit(name, session, inputs, outputs)

    def run(given: Mapping[str, Array]) -> Mapping[str, Array]:
        return dict(zip(outputs.values(), run_session(plan, unit, [given[port] for port in inputs.values()]), strict=True))

    return run
