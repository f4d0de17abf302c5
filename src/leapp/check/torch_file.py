"""Runs TorchScript and ``.pt2`` files directly in PyTorch, without the copies that the runtime makes of inputs and outputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from leapp.bundle import Bundle, Sample
from leapp.bundle.reading import model_file
from leapp.check.engines import Array, Place
from leapp.errors import ValidationError
from leapp.runtime.values import from_raw


def check_torch_file(bundle: Bundle, name: str, samples: Sequence[Sample], place: Place) -> None:
    """Refuse a model that takes its inputs in another order than the node has them, or that writes to them.

    Raises:
        ValidationError: The model does one of these. ONNX models cannot: their inputs have names and are read-only.
    """
    node = bundle.contract.nodes[name]
    if node.model.backend not in ("jit", "pt2"):
        return
    ports, taken = [port.name for port in node.inputs], argument_order(bundle, name)
    if taken != ports and sorted(taken) == sorted(ports):
        raise ValidationError(
            f"it takes its inputs in the order {', '.join(taken)}, but the node declares {', '.join(ports)}. Declare the "
            "inputs of the node in the order of the model."
        )
    run = place(open_direct, bundle, name)
    for number, sample in enumerate(samples):
        written = run({port: from_raw(value) for port, value in sample.inputs.items()})
        if written:
            raise ValidationError(
                f"it writes to its input '{written[0]}' (sample {number}), which changes the data of its caller. Write the "
                "model without in-place operations on its inputs, or let it clone them first."
            )


def open_direct(bundle: Bundle, name: str) -> Callable[[Mapping[str, Array]], list[str]]:
    """A function that runs a model on inputs by port name, and returns the names of those that it wrote to."""
    import torch

    from leapp.runtime.torch_engines import tensor_over

    call, _ = _load(bundle, name)
    ports = bundle.contract.nodes[name].inputs

    def run(given: Mapping[str, Array]) -> list[str]:
        values = [tensor_over(given[port.name].copy(), port.dtype) for port in ports]
        before = [value.clone() for value in values]
        with torch.no_grad():
            call(*values)
        pairs = zip(ports, before, values, strict=True)
        return [port.name for port, old, new in pairs if not torch.equal(_bits(old), _bits(new))]

    return run


def _bits(t: Any) -> Any:
    import torch

    return t.contiguous().reshape(-1).view(torch.uint8)


def argument_order(bundle: Bundle, name: str) -> list[str]:
    """The names that a TorchScript or ``.pt2`` model gives its arguments."""
    return _load(bundle, name)[1]


def _load(bundle: Bundle, name: str) -> tuple[Callable[..., Any], list[str]]:
    import torch

    path = str(model_file(bundle, name))
    if bundle.contract.nodes[name].model.backend == "pt2":
        program = torch.export.load(path)
        return program.module(), list(program.graph_signature.user_inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module: Any = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
    return module.eval(), [argument.name for argument in module.forward.schema.arguments][1:]
