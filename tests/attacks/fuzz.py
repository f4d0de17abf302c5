"""Coverage-guided fuzzing of all that is parsed: descriptions, tensors, recordings, messages, signatures.

    python fuzz.py TARGET CORPUS [options of libFuzzer]

Needs atheris. Whatever the bytes are, the answer is a value or an error of the library.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["leapp"]):
    from leapp.bundle import signing, yaml_text
    from leapp.bundle.contract_yaml import contract_of
    from leapp.bundle.integrity import INTEGRITY, seal, verified_seal
    from leapp.bundle.onnx_files import external_files
    from leapp.bundle.safetensors import decode
    from leapp.client.wire import Assembly, unpack
    from leapp.errors import LeappError
    from leapp.graph.contract import Port
    from leapp.runtime.plan import make_plan
    from leapp.runtime.recording_files import read
    from leapp.serve.json_tensors import decode_state

PORT = Port(name="x", dtype="float32", shape=(2,))
SIDES = {"in": {"p/x": PORT}, "out": {"p/y": PORT}, "state": {"p/h": PORT}}
FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))


def description(data: bytes) -> None:
    """As it is, and sealed again, so that no seal stands in the way."""
    text = data.decode("utf-8", "replace")
    document = yaml_text.parse(text, "g.yaml")
    contract_of(document, "g.yaml", text)
    rest = {key: value for key, value in document.items() if key != INTEGRITY}
    sealed, _ = seal(yaml_text.dump(rest, sort_keys=False), {})
    document = yaml_text.parse(sealed, "g.yaml")
    verified_seal(document, "g.yaml")
    make_plan(contract_of(document, "g.yaml", sealed))


def recording(suffix: str) -> Callable[[bytes], None]:
    """A reader of recordings of one kind."""
    path = FOLDER / f"r{suffix}"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        read(path, SIDES)

    return run


def wire(data: bytes) -> None:
    """A message, whole and in pieces."""
    unpack(data)
    assembly = Assembly(1 << 20)
    assembly.add(data)


def state(data: bytes) -> None:
    """What a client gives back over HTTP."""
    decode_state(data.decode("latin-1"), "d", {})


def signature(data: bytes) -> None:
    """The file, and what would be signed."""
    for parse in (signing._envelope, signing._resources):
        try:
            parse(data)
        except ValueError:
            continue


TARGETS: dict[str, Callable[[bytes], object]] = {
    "description": description,
    "safetensors": lambda data: decode(data, "v.safetensors"),
    "npz": recording(".npz"),
    "mcap": recording(".mcap"),
    "wire": wire,
    "state": state,
    "onnx": lambda data: external_files(data, "model"),
    "signature": signature,
}


def main() -> None:
    """Run one target."""
    target = TARGETS[sys.argv.pop(1)]

    def test(data: bytes) -> None:
        try:
            target(data)
        except LeappError:
            pass

    atheris.Setup(sys.argv, test)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
