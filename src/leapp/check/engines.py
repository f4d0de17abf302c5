"""Opens one node at a time in an engine of its own, as deployers do.

ONNX Runtime rewrites a model when it opens it, depending on its optimisation level, so each level is tested by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from leapp.bundle import Bundle
from leapp.bundle.reading import read_model_files
from leapp.graph.contract import Contract, Wiring
from leapp.runtime import Pipeline
from leapp.runtime.arrays import check_sum
from leapp.runtime.load import EngineOptions, External, OnnxUnit, Unit, open_session, open_units
from leapp.runtime.one_node import run_unit
from leapp.runtime.plan import Plan, make_plan
from leapp.runtime.values import rows_of, to_array

Array = np.ndarray[Any, np.dtype[Any]]
Engine = Callable[[Mapping[str, Array]], Mapping[str, Array]]
Place = Callable[..., Any]
"""Calls a function that opens an engine, in this process or in another one. Returns the engine or a proxy of it."""

LEVELS = ("disable_all", "basic", "extended", "all")
"""ONNX Runtime's levels of graph optimisation."""


def here(function: Callable[..., Any], *args: Any) -> Any:
    """The place that opens engines in this process: it calls the function."""
    return function(*args)


def engines(bundle: Bundle, name: str, thorough: bool, place: Place = here) -> Iterator[tuple[str, Engine]]:
    """The engines that run a node, each with a label: the runtime's own, then with ``thorough`` every level of ONNX Runtime.

    An engine takes and returns values by port name.

    Args:
        bundle: The bundle.
        name: The node.
        thorough: Whether to give every level too.
        place: Where engines are opened.
    """
    yield "", place(open_engine, bundle, name)
    if thorough and bundle.contract.nodes[name].model.backend == "onnx":
        yield from ((f"ONNX Runtime at level {level}", place(open_level, bundle, name, level)) for level in LEVELS)


def open_engine(bundle: Bundle, name: str) -> Engine:
    """The engine that the runtime has for a node."""
    plan = _plan(bundle, name)
    check_sum([*plan.input_ports.values(), *plan.output_ports.values()])
    (unit,) = open_units(bundle, plan, [name], EngineOptions())
    return _runs(plan, unit)


def open_pipeline(bundle: Bundle) -> Pipeline:
    """The whole bundle as a pipeline. Programs in it run without a check of trust, which is up to the caller."""
    return Pipeline(bundle, allow_code=True)


def open_level(bundle: Bundle, name: str, level: str) -> Engine:
    """ONNX Runtime at one of its ``LEVELS``."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    spelled = level.upper() if level == "disable_all" else f"ENABLE_{level.upper()}"
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_{spelled}")
    model, beside = read_model_files(bundle, name)
    session = open_session(External(model, beside) if beside else model, options, providers=["CPUExecutionProvider"])
    plan = _plan(bundle, name)
    inputs = {where: port.name for where, port in plan.input_ports.items()}
    outputs = {where: port.name for where, port in plan.output_ports.items()}
    return _runs(plan, OnnxUnit(repr(name), session, inputs, outputs))


def _plan(bundle: Bundle, name: str) -> Plan:
    """The plan of one node of a checked contract, with all its ports as inputs and outputs of the graph."""
    node = bundle.contract.nodes[name]
    inputs, outputs = tuple(p.name for p in node.inputs), tuple(p.name for p in node.outputs)
    wiring = Wiring(inputs={name: inputs}, outputs={name: outputs})
    return make_plan(Contract(nodes={name: node}, pipeline=wiring), checked=True)


def _runs(plan: Plan, unit: Unit) -> Engine:
    """A unit that takes and returns values by port name, with any number of rows if its node does."""

    def run(given: Mapping[str, Array]) -> Mapping[str, Array]:
        counts = (rows_of(given[port.name], port) for port in plan.input_ports.values())
        rows = next((count for count in counts if count is not None), None)
        now = plan if rows is None else plan.at(rows)
        values = [to_array(where, port, given[port.name], cast=False) for where, port in now.input_ports.items()]
        made = run_unit(now, unit, values)
        return {now.output_ports[where].name: value for where, value in zip(unit.outputs, made, strict=True)}

    return run
