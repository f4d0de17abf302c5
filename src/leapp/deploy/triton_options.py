"""The options of a Triton deployment, and the parts of a configuration that follow from them alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from leapp.deploy.pbtxt import Word
from leapp.errors import InputError

__all__ = ["TritonOptions", "instance_group", "sequence_batching", "versions"]


@dataclass(frozen=True, slots=True)
class TritonOptions:
    """How a Triton model repository is written.

    Attributes:
        backend: ``native`` gives every node to the server's own engine; ``python`` runs ``leapp.runtime`` in its Python
            backend.
        version: The number of the version directory, and the version a client may ask for.
        version_policy: Which versions the server loads: ``latest``, ``all`` or ``specific``, which is this one.
        max_batch_size: The most requests of different sequences the server may put together; 0 for one at a time.
        instances: How many instances of each model.
        kind: Where instances of engine models run: ``auto``, ``cpu`` or ``gpu``.
        gpus: The GPUs to use with ``kind="gpu"``; all if empty.
        sequences: How many sequences an instance serves at the same time; more have to wait.
        idle_seconds: A sequence that sends nothing for so long is forgotten.
        threads: Threads of one ONNX session; the Python backend only.
        nonfinite: What to do about NaN and infinity in inputs, ``ignore`` or ``raise``; the Python backend only.
        dtypes: The dtype by which clients know a port, where it is not the port's own; the Python backend only, which
            converts. What comes in is rounded to the port's dtype, what goes out keeps its value.

    Raises:
        InputError: Two options contradict each other.

    Example:
        >>> TritonOptions(backend="python", idle_seconds=10).sequences
        1024
    """

    backend: Literal["native", "python"] = "native"
    version: int = 1
    version_policy: Literal["latest", "all", "specific"] = "latest"
    max_batch_size: int = 0
    instances: int = 1
    kind: Literal["auto", "cpu", "gpu"] = "auto"
    gpus: tuple[int, ...] = ()
    sequences: int = 1024
    idle_seconds: float = 60.0
    threads: int = 1
    nonfinite: Literal["ignore", "raise"] = "ignore"
    dtypes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("version", "instances", "sequences", "threads"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is at least 1, not {getattr(self, name)}.")
        if not 0 < self.idle_seconds < 1e9:
            raise InputError(f"idle_seconds is a time above 0, not {self.idle_seconds}.")
        if self.max_batch_size < 0:
            raise InputError(f"max_batch_size is at least 0, not {self.max_batch_size}.")
        if self.gpus and self.kind != "gpu":
            raise InputError(f"gpus={list(self.gpus)} needs kind='gpu', not {self.kind!r}.")
        if self.backend == "python" and self.max_batch_size:
            raise InputError("The Python backend steps one sequence at a time: leave max_batch_size at 0.")
        if self.backend == "python" and self.kind == "gpu":
            raise InputError("Instances of the Python backend run on the CPU: leave kind at 'auto'.")
        if self.backend == "native" and (self.threads != 1 or self.nonfinite != "ignore" or self.dtypes):
            raise InputError("threads, nonfinite and dtypes are options of backend='python'; the server's engines have none.")


def versions(options: TritonOptions) -> dict[str, Any]:
    """The ``version_policy`` of a configuration."""
    said = {"latest": {"num_versions": 1}, "all": {}, "specific": {"versions": [options.version]}}
    return {options.version_policy: said[options.version_policy]}


def instance_group(options: TritonOptions, *, engine: bool) -> list[dict[str, Any]]:
    """The ``instance_group`` of a model that an engine runs, or of one that is Python."""
    kind = f"KIND_{options.kind.upper()}" if engine else "KIND_CPU"
    gpus = {"gpus": list(options.gpus)} if engine and options.gpus else {}
    return [{"count": options.instances, "kind": Word(kind), **gpus}]


def sequence_batching(options: TritonOptions) -> dict[str, Any]:
    """The ``sequence_batching`` of a model with state, states aside.

    Sequences are served oldest first: the other strategy keeps a slot of a batch for each, and without batches there is
    only one.
    """
    return {
        "max_sequence_idle_microseconds": round(options.idle_seconds * 1e6),
        "oldest": {"max_candidate_sequences": options.sequences},
    }
