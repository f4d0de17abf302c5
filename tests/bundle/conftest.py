"""A small sealed bundle with every kind of file: models, initial values, samples, a picture, a log."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from leapp.bundle import RawTensor, Sample
from leapp.bundle.sidecars import describe_model, write_initial_values, write_samples
from leapp.bundle.staging import Staging
from leapp.bundle.system import system_information
from leapp.graph.contract import Contract, Node, Port, Wiring


def ports(*names: str, shape: tuple[int, ...] = (2,)) -> tuple[Port, ...]:
    return tuple(Port(name=name, dtype="float32", shape=shape) for name in names)


def write(final: Path, content: str = "one", nodes: tuple[str, ...] = ("pre", "pol")) -> str:
    """Export ``nodes`` in a row, with state in the last one. ``content`` makes two exports differ in every file."""
    last = nodes[-1]
    described = {name: Node(inputs=ports("x"), outputs=ports("y")) for name in nodes[:-1]}
    described[last] = Node(inputs=ports("x", "h"), outputs=ports("y", "h"))
    pipeline = Wiring(
        data_flow={f"{a}/y": (f"{b}/x",) for a, b in zip(nodes, nodes[1:])},
        feedback_flow={f"{last}/h": (f"{last}/h",)},
        inputs={nodes[0]: ("x",)},
        outputs={last: ("y",)},
        configs={"frequency": 50, "made": content},
    )
    contract = Contract(nodes=described, pipeline=pipeline, system=system_information("2.13.0", None))
    value = RawTensor.of(np.full(2, len(content), np.float32))
    with Staging(final) as staging:
        for name in nodes:
            path = staging.path / f"{name}.pt"
            path.write_text(f"{content} {name} " * 50)
            model = describe_model(path, staging.path, "jit")
            described[name] = msgspec.structs.replace(described[name], model=model)
        name = write_initial_values(staging.path, final.name, {f"{last}/h": value}, contract)
        samples = {
            node: [Sample({p.name: value for p in ports_.inputs}, {p.name: value for p in ports_.outputs}) for _ in range(2)]
            for node, ports_ in described.items()
        }
        write_samples(staging.path, final.name, samples)
        (staging.path / f"{final.name}.png").write_bytes(content.encode())
        pipeline = msgspec.structs.replace(pipeline, initial_values=name)
        staging.commit(final.name, msgspec.structs.replace(contract, pipeline=pipeline))
        assert staging.digest is not None
        return staging.digest


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The directory of a sealed bundle called ``g``."""
    final = tmp_path / "g"
    final.mkdir()
    (final / "log.txt").write_text("started\n")
    write(final)
    return final
