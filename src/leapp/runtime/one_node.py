"""Runs one node by itself on newly allocated memory, without state and without a generated step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from leapp.errors import BundleError
from leapp.runtime.arrays import Array, allocate
from leapp.runtime.buffers import Binding
from leapp.runtime.codegen import failed, wrong
from leapp.runtime.load import OnnxUnit, TorchUnit, Unit
from leapp.runtime.plan import Plan


def run_unit(plan: Plan, unit: Unit, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a unit for checked inputs.

    Raises:
        BundleError: The engine failed, or an output does not have the form of its port.
    """
    try:
        return _run_torch(plan, unit, inputs) if isinstance(unit, TorchUnit) else run_session(plan, unit, inputs)
    except BundleError:
        raise
    except Exception as error:  # the errors of engines have no common base class
        raise failed(unit.label, error) from error


def run_session(plan: Plan, unit: OnnxUnit, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of an ONNX unit. See ``run_unit``."""
    binding = Binding(unit.session)
    values = [np.ascontiguousarray(value) for value in inputs]
    for (key, name), value in zip(unit.inputs.items(), values, strict=True):
        binding.read(name, plan.input_ports[key], value)
    results = [allocate(plan.output_ports[key]) for key in unit.outputs]
    for (key, name), value in zip(unit.outputs.items(), results, strict=True):
        binding.write(name, plan.output_ports[key], value)
    binding.run(binding.bound, None)
    return results


def _run_torch(plan: Plan, unit: TorchUnit, inputs: Sequence[Array]) -> list[Array]:
    import torch

    from leapp.runtime.torch_engines import TORCH_DTYPES, array_over, tensor_over

    ports = [plan.input_ports[key] for key in unit.inputs]
    values = [tensor_over(np.array(value, order="C"), port.dtype) for value, port in zip(inputs, ports, strict=True)]
    with torch.no_grad():
        result = unit.call(*values)
    made = [result] if unit.single else list(result)
    for key, value in zip(unit.outputs, made, strict=True):
        port = plan.output_ports[key]
        if value.shape != port.shape or value.dtype is not TORCH_DTYPES[port.dtype]:
            raise wrong(value, port.shape, TORCH_DTYPES[port.dtype], key)
    return [array_over(value) for value in made]
