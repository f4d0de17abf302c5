"""Tensors in files, against the reference implementation of the format and against hostile headers."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import safetensors.torch
import torch

from leapp.bundle import RawTensor, Sample
from leapp.bundle.safetensors import decode, decode_samples, encode, encode_samples
from leapp.errors import BundleError
from leapp.graph.contract import Contract, Node, Port, Wiring
from leapp.graph.dtypes import DTYPES


def random_tensor(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    kind = getattr(torch, dtype)
    size = torch.empty(0, dtype=kind).element_size()
    high = 2 if dtype == "bool" else 256
    flat = torch.randint(0, high, (int(np.prod(shape)) * size,), dtype=torch.uint8)
    return flat.view(kind).reshape(shape)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (3, 2), (0, 4)])
def test_every_dtype_survives(dtype, shape):
    value = random_tensor(dtype, shape)
    raw = decode(encode({"n/p": RawTensor.of(value), "n/q": RawTensor.of(value)}), "f")["n/p"]
    assert (raw.dtype, raw.shape) == (dtype, shape)
    assert bytes(raw.data) == value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    assert raw.numpy().shape == shape


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int64", "bool", "uint8", "float8_e4m3fn"])
def test_reference_library_reads_ours_and_we_read_its(dtype):
    tensors = {"a/x": random_tensor(dtype, (2, 3)), "bé/y z": random_tensor("float64", (5,)), "c": torch.tensor(True)}
    ours = encode({name: RawTensor.of(value) for name, value in tensors.items()}, {"k": "v"})
    for name, value in safetensors.torch.load(ours).items():
        assert value.dtype == tensors[name].dtype
        assert RawTensor.of(value) == RawTensor.of(tensors[name])
    theirs = decode(safetensors.torch.save(tensors), "f")
    assert {name: (t.dtype, t.shape, bytes(t.data)) for name, t in theirs.items()} == {
        name: (r.dtype, r.shape, r.data) for name, r in ((n, RawTensor.of(v)) for n, v in tensors.items())
    }


def test_views_and_negated_and_conjugated_tensors_are_written_by_value():
    base = torch.arange(12.0).reshape(3, 4)
    assert np.array_equal(RawTensor.of(base.T[1:]).numpy(), base.T[1:].numpy())
    complex_ = torch.tensor([1 + 2j, 3 - 1j])
    assert np.array_equal(RawTensor.of(complex_.conj()).numpy(), complex_.conj().resolve_conj().numpy())
    assert np.array_equal(RawTensor.of(np.arange(6, dtype=">i4")[::2]).numpy(), [0, 2, 4])


def header(entries: object, body: bytes = b"") -> bytes:
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + body


def entry(start: int, end: int, shape=(1,), dtype="F32") -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


HOSTILE = {
    "empty": b"",
    "short": b"\x01\x00",
    "header longer than file": struct.pack("<Q", 1 << 62) + b"{}",
    "header not json": header(b"{nope"),
    "header not an object": header([1]),
    "header not utf-8": header(b'{"\xff": 1}'),
    "deep header": header(b"[" * 100_000),
    "duplicate key": header(b'{"a":%s,"a":%s}' % ((json.dumps(entry(0, 4)).encode(),) * 2), b"\0" * 4),
    "entry not an object": header({"a": 3}),
    "unknown dtype": header({"a": entry(0, 4, dtype="F31")}, b"\0" * 4),
    "negative shape": header({"a": entry(0, 4, shape=(-1,))}, b"\0" * 4),
    "float shape": header({"a": entry(0, 4, shape=(1.0,))}, b"\0" * 4),
    "bool shape": header({"a": entry(0, 4, shape=(True,))}, b"\0" * 4),
    "shape too large": header({"a": entry(0, 4, shape=(1 << 40, 1 << 40))}, b"\0" * 4),
    "offsets past the end": header({"a": entry(0, 8, shape=(2,))}, b"\0" * 4),
    "offsets backwards": header({"a": entry(4, 0)}, b"\0" * 4),
    "overlap": header({"a": entry(0, 4), "b": entry(0, 4)}, b"\0" * 4),
    "hole": header({"a": entry(0, 4), "b": entry(8, 12)}, b"\0" * 12),
    "trailing bytes": header({"a": entry(0, 4)}, b"\0" * 5),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(name):
    with pytest.raises(BundleError, match="values"):
        decode(HOSTILE[name], "values.safetensors")


def sample_contract() -> Contract:
    x = Port(name="x", dtype="float32", shape=(2,))
    return Contract(
        nodes={"n": Node(inputs=(x,), outputs=(x,)), "m": Node(inputs=(), outputs=(x,))},
        pipeline=Wiring(inputs={"n": ("x",)}, outputs={"n": ("x",), "m": ("x",)}),
    )


def test_samples_survive_and_whole_passes_are_dropped_at_the_cap():
    def raw(seed: int) -> RawTensor:
        return RawTensor.of(np.random.default_rng(seed).random(2, np.float32))

    samples = {
        "n": [Sample({"x": raw(i)}, {"x": raw(i + 10)}) for i in range(3)],
        "m": [Sample({}, {"x": raw(i + 20)}) for i in range(3)],
    }
    data, kept = encode_samples(samples)
    assert kept == 3
    read = decode_samples(data, sample_contract(), "s")
    assert bytes(read["n"][2].outputs["x"].data) == raw(12).data
    assert bytes(read["m"][1].outputs["x"].data) == raw(21).data
    data, kept = encode_samples(samples, max_bytes=60)
    assert kept == 2
    assert {node: len(passes) for node, passes in decode_samples(data, sample_contract(), "s").items()} == {
        "n": 2,
        "m": 2,
    }
    assert encode_samples(samples, max_bytes=10)[1] == 0


BAD_SAMPLES = {
    "unknown node": {"0/in/q/x": (2,)},
    "unknown port": {"0/in/n/x": (2,), "0/out/n/x": (2,), "0/in/n/z": (2,)},
    "missing output": {"0/in/n/x": (2,)},
    "wrong shape": {"0/in/n/x": (3,), "0/out/n/x": (2,)},
    "missing pass": {"1/in/n/x": (2,), "1/out/n/x": (2,)},
    "not a pass": {"a/in/n/x": (2,)},
    "not a side": {"0/both/n/x": (2,)},
}


@pytest.mark.parametrize("name", BAD_SAMPLES)
def test_samples_that_do_not_fit_the_contract_are_refused(name):
    data = encode({key: RawTensor.of(np.zeros(shape, np.float32)) for key, shape in BAD_SAMPLES[name].items()})
    with pytest.raises(BundleError, match="s.safetensors"):
        decode_samples(data, sample_contract(), "s.safetensors")
