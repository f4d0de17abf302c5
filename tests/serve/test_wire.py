"""What strangers send is a message or an error, whatever the bytes."""

from __future__ import annotations

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leapp.bundle.safetensors import RawTensor, encode
from leapp.client.wire import FRAME, Assembly, frames, pack, unpack
from leapp.errors import InputError
from leapp.serve.json_tensors import decode_state, encode_state, from_json, to_json
from leapp.serve.limits import Allowance, Allowances
from leapp.serve.metrics import Metrics, render

NUMBERS = np.random.default_rng(3)
DTYPES = [
    "float64", "float32", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
    "complex64", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
]  # fmt: skip


def value(dtype, shape) -> np.ndarray:
    numbers = NUMBERS.integers(-9, 9, shape)
    # A list of very large and small integers has no NumPy dtype; the runtime refuses it as well.
    return (np.abs(numbers) if dtype == "uint64" else numbers).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 3), (2, 0, 3)])
def test_every_dtype_and_shape_arrives_as_it_was(dtype, shape):
    sent = value(dtype, shape)
    message = unpack(pack("step", {"step": 7, "why": "ü"}, **{"in": {"a/x": sent}, "state": {"a/b/h": sent}}))
    assert (message.op, message.head) == ("step", {"step": 7, "why": "ü"})
    for found in (message.group("in")["a/x"], message.group("state")["a/b/h"]):
        assert (found.dtype, found.shape, found.tobytes()) == (sent.dtype, sent.shape, sent.tobytes())
        found[...] = 0  # memory of its own, which can be written
    assert message.group("out") == {}


def test_nan_and_infinity_keep_their_bits():
    sent = np.array([np.nan, -np.inf, -0.0, np.inf], np.float32)
    sent.view(np.uint32)[0] |= 5
    assert unpack(pack("step", {}, out={"a/x": sent})).group("out")["a/x"].tobytes() == sent.tobytes()


def test_large_messages_travel_in_frames():
    sent = pack("step", {}, out={"a/x": np.arange(FRAME // 2, dtype=np.float32)})
    pieces = list(frames(sent, b"a ticket"))
    assert len(pieces) == 3
    assert max(map(len, pieces)) <= FRAME
    assembly = Assembly(len(sent))
    for _ in range(2):  # one after another over the same connection
        assert [assembly.add(piece) for piece in pieces] == [None, None, sent]
        assert assembly.ticket == b"a ticket"


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        (b"", "eight bytes"),
        (b"\0" * 15, "eight bytes"),
        (struct.pack("<QQ", 1 << 60, 0) + b"x", "more than the 100 that are accepted. So there."),
        (struct.pack("<QQ", 101, 0), "more than the 100"),
        (struct.pack("<QQ", 3, 0) + b"1234", "longer than it says"),
        (struct.pack("<QQ", 3, 0), "empty"),
        (struct.pack("<QQ", 3, 0) + b"x" * 200, "more than the 100"),
    ],
)
def test_frames_that_lie_are_refused(frame, says):
    with pytest.raises(InputError, match=says):
        Assembly(100, " So there.").add(frame)


def test_truth_values_are_zero_or_one():
    head = pack("step")
    with pytest.raises(InputError, match="a/x"):
        unpack(head + encode({"in/a/x": RawTensor("bool", (2,), b"\1\2")}))
    with pytest.raises(InputError, match="a/x"):
        from_json("a/x", {"dtype": "bool", "shape": [1], "base64": "/w=="})


GOOD = pack("step", {"step": 3, "begin": "given"}, **{"in": {"a/x": np.ones((2, 3), np.float32), "a/on": np.array([True])}})


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(data):
    for made in (b"\xff" + data, struct.pack("<I", len(data)) + data, GOOD + b"\0" + data):
        with pytest.raises(InputError):
            unpack(made)


@settings(max_examples=800, deadline=None)
@given(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=8), st.integers(0, len(GOOD)))
def test_damage_is_refused_or_harmless(position, patch, cut):
    damaged = GOOD[:position] + patch + GOOD[position + len(patch) :]
    for data in (damaged, damaged[:cut]):
        try:
            message = unpack(data)
        except InputError:
            continue
        assert sum(v.nbytes for group in message.tensors.values() for v in group.values()) <= len(data)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=12))
def test_any_frames_give_bounded_messages(pieces):
    assembly = Assembly(64)
    try:
        for piece in pieces:
            message = assembly.add(piece)
            assert message is None or len(message) <= 64
    except InputError:
        pass


SHAPES = st.one_of(st.lists(st.integers(-2, 1 << 70) | st.booleans(), max_size=70), st.none(), st.text(max_size=3))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["float32", "bool", "bfloat16", "object", "V8", "f4,f4", "M8[s]"]), SHAPES, st.text(max_size=12))
def test_any_base64_tensor_is_an_array_or_an_error_that_names_the_port(dtype, shape, text):
    try:
        assert isinstance(from_json("a/x", {"dtype": dtype, "shape": shape, "base64": text}), np.ndarray)
    except InputError as error:
        assert "a/x" in str(error)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("encoding", ["list", "base64"])
def test_json_gives_back_the_same_numbers(dtype, encoding):
    sent = value(dtype, (2, 3))
    if sent.dtype.kind == "f":
        sent[0, :3] = np.nan, -np.inf, 1 / 3
    found = from_json("a/x", json.loads(json.dumps(to_json(sent, encoding), allow_nan=False)))
    assert np.asarray(found).astype(sent.dtype).tobytes() == sent.tobytes()


def test_a_state_goes_back_to_its_own_bundle_only():
    state = {"a/h": np.array([1.5, np.nan], np.float32)}
    text = encode_state(state, "d1", 4)
    found, step = decode_state(text, "d1", {"a/h": None})
    assert (step, found["a/h"].tobytes()) == (4, state["a/h"].tobytes())
    wrong = [(text, "d2", ["a/h"]), (text, "d1", ["a/g"]), (text[:-8], "d1", ["a/h"]), (7, "d1", []), ("ä", "d1", [])]
    for other, digest, ports in wrong:
        with pytest.raises(InputError, match="state"):
            decode_state(other, digest, dict.fromkeys(ports))


def test_an_allowance_fills_up_at_its_rate():
    now = [0.0]
    allowance = Allowance(4, lambda: now[0])
    assert [allowance.wait() for _ in range(5)] == [0, 0, 0, 0, 0.25]
    now[0] = 0.25
    assert [allowance.wait(), allowance.wait()] == [0, 0.25]
    now[0] = 100
    assert [allowance.wait() for _ in range(5)] == [0, 0, 0, 0, 0.25]


def test_one_asker_does_not_use_up_the_allowance_of_another():
    allowances = Allowances(1.0, most=3)
    assert allowances.wait("a") == 0 < allowances.wait("a")
    assert [allowances.wait(name) for name in "bcdefg"] == [0] * 6
    assert allowances.wait("a") == 0  # forgotten, so that the table does not grow
    assert allowances.wait("g") > 0


def test_figures_of_several_replicas_are_one_page():
    one, two = Metrics(), Metrics()
    one.add("leapp_steps_total", 3, 'transport="json"')
    two.time("leapp_step_seconds", 0.003)
    two.time("leapp_step_seconds", 9.0)
    lines = render({"r1": one.snapshot(), "r2": two.snapshot()}).splitlines()
    assert lines.count("# TYPE leapp_steps_total counter") == 1
    assert 'leapp_steps_total{replica="r1",transport="json"} 3' in lines
    assert 'leapp_step_seconds_bucket{replica="r2",le="0.0025"} 0' in lines
    assert 'leapp_step_seconds_bucket{replica="r2",le="0.005"} 1' in lines
    assert 'leapp_step_seconds_bucket{replica="r2",le="+Inf"} 2' in lines
    assert 'leapp_step_seconds_count{replica="r2"} 2' in lines
    assert 'leapp_step_seconds_sum{replica="r2"} 9.003' in lines
