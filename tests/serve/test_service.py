"""The application and the client, without Ray: equal to a local pipeline, and unmoved by bad requests."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
import torch
from websockets.exceptions import ConnectionClosed, InvalidStatus

import leapp
from leapp import annotate
from leapp.client import Client
from leapp.client.wire import pack
from leapp.errors import (
    BundleError,
    InputError,
    InputTypeError,
    ServerError,
    ServerTimeoutError,
    SessionLostError,
    UnknownPortError,
)
from leapp.runtime import Pipeline
from leapp.serve import Options, Service
from tests.serve.serving import export, serving
from tests.serve.sessions import raw

TOKEN = "correct-horse-battery"


def inputs(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [
        {
            "filter/q": generator.standard_normal((1, 3)).astype(np.float32),
            "filter/on": generator.integers(0, 2, 3).astype(bool),
            "filter/mode": generator.integers(0, 9, 2),
        }
        for _ in range(count)
    ]


def same(found, wanted) -> None:
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        assert (found[key].dtype, found[key].shape) == (value.dtype, value.shape)
        assert found[key].tobytes() == value.tobytes(), key


def post(url: str, body, headers=None, path="/v1/step"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def get(url: str, path: str, headers=None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers or {}), timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


# The client is a pipeline.


@pytest.mark.parametrize("resume", [True, False])
def test_a_client_is_used_like_a_pipeline(bundle, serve, resume):
    served, local = serve(Options(str(bundle))), Pipeline(bundle)
    with Client(served.url, resume=resume, expect_digest=local.digest) as remote:
        assert (remote.inputs, remote.outputs, remote.feedback_inputs) == (local.inputs, local.outputs, local.feedback_inputs)
        assert remote.ports == local.ports
        assert (remote.digest, remote.configs, remote.model_path) == (local.digest, local.configs, served.url)
        same(remote.state(), local.state())
        for given in inputs(8):
            same(remote(given), local(given))
        same(remote.state(), local.state())
        kept = remote.state()
        remote.set_input_value("filter", "memory", 2.5)
        local.set_input_value("filter", "memory", 2.5)
        for given in inputs(3, 1):
            same(remote(given), local(given))
        override = {**inputs(1, 2)[0], "filter/memory": np.full((1, 3), -1, np.float32)}
        same(remote(override), local(override))
        for runner in (remote, local):
            runner.reset(node="filter")
        same(remote(inputs(1)[0]), local(inputs(1)[0]))
        for runner in (remote, local):
            runner.reset(mask=np.array([True]))
        same(remote(inputs(1)[0]), local(inputs(1)[0]))
        for runner in (remote, local):
            runner.load_state(kept)
        for given in inputs(3, 3):
            same(remote(given), local(given))
        remote.reset()
        local.reset()
        for given in inputs(3, 4):
            same(remote(given), local(given))
        remote.warm_up()
        same(remote.state(), local.state())


def test_a_run_of_a_client_can_be_recorded_and_replayed(bundle, serve, tmp_path):
    with Client(serve(Options(str(bundle))).url) as remote:
        with remote.record(tmp_path / "run.npz") as step:
            for given in inputs(6):
                step(given)
        assert Pipeline(bundle).replay(tmp_path / "run.npz").difference is None
        remote.reset()
        assert remote.replay(tmp_path / "run.npz").difference is None
        assert remote.bench(steps=3).p50 > 0


def test_sessions_do_not_see_each_other(bundle, serve):
    url = serve(Options(str(bundle))).url
    failures = []

    def run(seed: int) -> None:
        try:
            local = Pipeline(bundle)
            with Client(url, resume=bool(seed % 2)) as remote:
                for number, given in enumerate(inputs(60, seed)):
                    if seed == 0:
                        given["filter/q"][:] = np.nan  # would colour every state it reached
                    if number % 17 == 16:
                        remote.reset()
                        local.reset()
                    same(remote(given), local(given))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


# Servers go away.


def test_a_session_goes_on_with_the_next_server(bundle):
    local = Pipeline(bundle)
    given = inputs(30)
    with serving(Options(str(bundle))) as first:
        port = int(first.url.rpartition(":")[2])
        remote = Client(first.url)
        for values in given[:10]:
            same(remote(values), local(values))
    with serving(Options(str(bundle)), port) as second:
        assert second.service.open == 0
        for values in given[10:20]:
            same(remote(values), local(values))
        same(remote.state(), local.state())
    with serving(Options(str(bundle)), port):
        for values in given[20:]:
            same(remote(values), local(values))
        remote.close()
        with pytest.raises(ServerError, match="closed"):
            remote(given[0])


def test_without_a_copy_of_the_state_the_session_is_lost_until_reset(bundle):
    local = Pipeline(bundle)
    given = inputs(10)
    with serving(Options(str(bundle))) as first:
        port = int(first.url.rpartition(":")[2])
        remote = Client(first.url, resume=False)
        for values in given:
            same(remote(values), local(values))
        kept = remote.state()
        remote(given[0])
    with serving(Options(str(bundle)), port):
        for ask in (lambda: remote(given[0]), remote.state, lambda: remote.reset(node="filter"), lambda: remote(given[0])):
            with pytest.raises(SessionLostError, match=r"reset\(\)"):
                ask()
        with pytest.raises(UnknownPortError):
            remote.load_state({"filter/nonsense": kept["filter/memory_in"]})
        with pytest.raises(SessionLostError):
            remote(given[0])
        remote.load_state(kept)
        same(remote(given[0]), local(given[0]))
        remote.reset()
        local.reset()
        same(remote(given[0]), local(given[0]))
        remote.close()


def test_a_server_that_does_not_come_back_is_a_timeout_and_the_state_stays(bundle):
    with serving(Options(str(bundle))) as served:
        remote = Client(served.url, timeout=60)
        remote(inputs(1)[0])
        before = remote.state()
    remote.timeout = 0.3
    with pytest.raises(ServerTimeoutError, match=r"0\.3 s"):
        remote(inputs(1)[0])
    same(remote.state(), before)
    with pytest.raises(ServerTimeoutError):
        Client("http://127.0.0.1:9", timeout=0.2)


def test_a_late_answer_is_never_taken_for_the_next_one(bundle, serve):
    served, local = serve(Options(str(bundle))), Pipeline(bundle)
    remote = Client(served.url)
    given = inputs(6)
    same(remote(given[0]), local(given[0]))
    step = served.service.engine.step

    async def slow(*arguments):
        await asyncio.sleep(1.0)
        return await step(*arguments)

    served.service.engine.step, remote.timeout = slow, 0.2
    with pytest.raises(ServerTimeoutError):
        remote(given[1])
    served.service.engine.step, remote.timeout = step, 20
    same(remote.state(), local.state())
    for values in given[1:]:
        same(remote(values), local(values))
    remote.close()


def test_another_bundle_is_refused(bundle, serve, tmp_path):
    other = export(tmp_path, seed=1)
    digest = Pipeline(bundle).digest
    with serving(Options(str(bundle))) as served:
        port = int(served.url.rpartition(":")[2])
        remote = Client(served.url, expect_digest=digest)
        remote(inputs(1)[0])
        with pytest.raises(BundleError, match="expected|Expected"):
            Client(served.url, expect_digest="0" * 64)
        unpinned = Client(served.url)
        unpinned(inputs(1)[0])
    with serving(Options(str(other)), port):
        before = remote.state()
        with pytest.raises(BundleError, match=digest):
            remote(inputs(1)[0])
        with pytest.raises(BundleError, match="Make a new client"):
            unpinned(inputs(1)[0])
        same(remote.state(), before)
    with pytest.raises(BundleError, match=digest):
        serve(Options(str(other), expect_digest=digest))


# Draining, idleness, fullness.


def test_draining_lets_sessions_end_and_refuses_new_ones(bundle, serve):
    served, local = serve(Options(str(bundle))), Pipeline(bundle)
    remote = Client(served.url, timeout=0.5)
    with raw(served.url) as session:
        same(remote(inputs(1)[0]), local(inputs(1)[0]))
        assert get(served.url, "/healthz")[0] == 200
        served.drain()
        last = session.read()
        assert (last.op, last.head["error"], last.head["final"]) == ("error", "Draining", True)
        with pytest.raises(ConnectionClosed) as closed:
            session.read()
        assert closed.value.rcvd.code == 1012
    assert get(served.url, "/healthz")[0] == 503
    assert post(served.url, {"inputs": {}})[0] == 503
    with pytest.raises(ServerTimeoutError, match="draining"):
        remote(inputs(1)[0])
    same(remote.state(), local.state())


def test_a_step_in_work_is_finished_before_the_session_drains(bundle, serve):
    served, local = serve(Options(str(bundle))), Pipeline(bundle)
    began, step = threading.Event(), served.service.engine.step

    async def slow(*arguments):
        began.set()
        await asyncio.sleep(0.3)
        return await step(*arguments)

    served.service.engine.step = slow
    threading.Thread(target=lambda: (began.wait(), served.drain())).start()
    with raw(served.url) as session:
        made = session.step(0, inputs(1)[0], "initial")
        same(made.group("out"), local(inputs(1)[0]))
        assert session.read().head["error"] == "Draining"


def test_an_idle_session_ends_and_is_resumed(bundle, serve):
    served, local = serve(Options(str(bundle), idle=0.2)), Pipeline(bundle)
    with Client(served.url) as remote:
        same(remote(inputs(1)[0]), local(inputs(1)[0]))
        while served.service.open:
            time.sleep(0.02)
        same(remote(inputs(1)[0]), local(inputs(1)[0]))


def test_a_full_replica_says_so(bundle, serve):
    url = serve(Options(str(bundle), sessions=1)).url
    with Client(url) as first:
        with pytest.raises(ServerTimeoutError, match="reached its limit of"):
            Client(url, timeout=3)
        first(inputs(1)[0])
    with Client(url, timeout=20) as second:
        second(inputs(1)[0])


# Bad requests name the port and change nothing.

Q, ON, MODE = (inputs(1)[0][k] for k in ("filter/q", "filter/on", "filter/mode"))
BAD = {
    "missing": ({"filter/q": Q, "filter/mode": MODE}, "InputError", "filter/on"),
    "unknown port": ({"filter/q": Q, "filter/on": ON, "filter/mode": MODE, "filter/z": Q}, "UnknownPortError", "filter/z"),
    "unknown node": ({"filter/q": Q, "filter/on": ON, "filter/mode": MODE, "no/q": Q}, "UnknownPortError", "no/q"),
    "internal": ({"filter/q": Q, "filter/on": ON, "filter/mode": MODE, "policy/smooth": Q}, "InputError", "policy/smooth"),
    "misshaped": ({"filter/q": Q[0], "filter/on": ON, "filter/mode": MODE}, "InputError", "filter/q"),
    "empty": ({"filter/q": Q[:0], "filter/on": ON, "filter/mode": MODE}, "InputError", "filter/q"),
    "other dtype": ({"filter/q": Q.astype(np.float64), "filter/on": ON, "filter/mode": MODE}, "InputError", "filter/q"),
    "NaN": ({"filter/q": Q * np.nan, "filter/on": ON, "filter/mode": MODE}, "InputError", "filter/q"),
    "misshaped state": (
        {"filter/q": Q, "filter/on": ON, "filter/mode": MODE, "filter/memory": Q[0]}, "InputError", "filter/memory",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def strict(bundle):
    with serving(Options(str(bundle), nonfinite="raise")) as served:
        yield served


@pytest.mark.parametrize("case", BAD)
def test_bad_inputs_leave_a_session_as_it_was(bundle, strict, case):
    given, kind, port = BAD[case]
    local = Pipeline(bundle)
    with raw(strict.url) as session:
        same(session.step(0, inputs(1)[0], "initial").group("out"), local(inputs(1)[0]))
        answer = session.step(1, given)
        assert (answer.op, answer.head["error"]) == ("error", kind)
        assert port in answer.head["message"]
        same(session.step(1, inputs(1, 5)[0]).group("out"), local(inputs(1, 5)[0]))


@pytest.mark.parametrize(
    ("head", "state", "kind"),
    [
        ({"begin": "given"}, {}, "UnknownPortError"),
        ({"begin": "given"}, {"filter/memory_in": Q[0]}, "InputError"),
        ({"begin": "given"}, {"filter/other": Q}, "UnknownPortError"),
        ({"begin": "elsewhere"}, {}, "InputError"),
        ({"begin": ["held"]}, {}, "InputError"),
        ({"begin": "held", "step": 2}, {}, "SessionLostError"),
        ({"begin": "held", "step": 0}, {}, "SessionLostError"),
        ({"begin": "held", "step": True}, {}, "InputError"),
        ({"begin": "initial", "step": -1}, {}, "InputError"),
        ({"begin": "initial", "step": None}, {}, "InputError"),
    ],
)
def test_a_request_steps_from_the_state_it_names_or_not_at_all(bundle, strict, head, state, kind):
    local = Pipeline(bundle)
    with raw(strict.url) as session:
        same(session.step(0, inputs(1)[0], "initial").group("out"), local(inputs(1)[0]))
        answer = session.send(pack("step", {"step": 1, **head}, **{"in": inputs(1)[0], "state": state}))
        assert (answer.op, answer.head["error"]) == ("error", kind), answer.head
        same(session.step(1, inputs(1, 5)[0], checkpoint=True).group("out"), local(inputs(1, 5)[0]))


def test_a_step_asked_for_twice_runs_once(bundle, strict):
    local = Pipeline(bundle)
    with raw(strict.url) as session:
        session.step(0, inputs(1)[0], "initial")
        local(inputs(1)[0])
        same(session.step(1, inputs(1, 1)[0]).group("out"), local(inputs(1, 1)[0]))
        assert session.step(1, inputs(1, 1)[0]).head["error"] == "SessionLostError"
        same(session.step(2, inputs(1, 2)[0]).group("out"), local(inputs(1, 2)[0]))


def test_a_session_without_a_step_has_no_state(strict):
    with raw(strict.url) as session:
        assert session.step(0, inputs(1)[0]).head["error"] == "SessionLostError"
        assert session.send(pack("state", {"begin": "held", "step": 0})).head["error"] == "SessionLostError"


@pytest.mark.parametrize("data", [b"", b"\xff" * 40, pack("dance"), pack("step")[:-1], pack("step", {"step": 0})])
def test_messages_that_are_none_leave_the_session_open(bundle, strict, data):
    with raw(strict.url) as session:
        assert session.send(data).head["error"] == "InputError"
        same(session.step(0, inputs(1)[0], "initial").group("out"), Pipeline(bundle)(inputs(1)[0]))


def test_a_message_that_is_too_long_ends_the_session(bundle, strict):
    with raw(strict.url) as session:
        answer = session.step(0, {"filter/q": np.zeros((1 << 20, 3), np.float32)}, "initial")
        assert answer.head["final"] is True
        assert "filter/q 12" in answer.head["message"]
        with pytest.raises(ConnectionClosed):
            session.read()
    with raw(strict.url) as session:
        session.put_text("text")
        assert session.read().head["final"] is True


def test_the_last_word_reaches_a_client_that_is_still_sending(bundle, strict):
    with raw(strict.url) as session:
        given = {"filter/q": np.zeros((1 << 20, 3), np.float32)}
        session.put(pack("step", {"step": 0, "begin": "initial"}, **{"in": given}), pause=0.02)
        assert "filter/q 12" in session.read().head["message"]


def test_the_client_refuses_bad_inputs_itself(bundle, strict):
    with Client(strict.url) as remote:
        remote(inputs(1)[0])
        before, steps = remote.state(), strict.service.metrics.snapshot()["values"]["leapp_steps_total"]
        for given, error in [({}, InputError), ({"filter/q": "text"}, InputTypeError), ({"no/q": 1}, UnknownPortError)]:
            with pytest.raises(error):
                remote(given)
        with pytest.raises(InputError, match="filter/q"):  # only the server minds
            remote({**inputs(1)[0], "filter/q": Q * np.nan})
        same(remote.state(), before)
        assert strict.service.metrics.snapshot()["values"]["leapp_steps_total"] == steps


def test_an_engine_that_fails_leaves_the_state(bundle, serve):
    served, local = serve(Options(str(bundle))), Pipeline(bundle)
    failing = {**inputs(1)[0], "filter/mode": np.array([0, 999])}
    with Client(served.url) as remote:
        same(remote(inputs(1)[0]), local(inputs(1)[0]))
        with pytest.raises(ServerError, match="filter.*out of data bounds"):
            remote(failing)
        same(remote(inputs(1, 1)[0]), local(inputs(1, 1)[0]))
    assert post(served.url, {"inputs": plain(failing)})[0] == 500


# Who may ask, and how often.


def test_a_token_is_needed_for_others_than_this_machine(bundle):
    for host in ("0.0.0.0", "192.0.2.1", "::", "robot.example"):
        with pytest.raises(InputError, match="token"):
            Options(str(bundle), host=host)
        Options(str(bundle), host=host, token=TOKEN)
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        Options(str(bundle), host=host)
    with pytest.raises(InputError, match="16"):
        Options(str(bundle), token="short")
    assert TOKEN not in repr(Options(str(bundle), token=TOKEN))


def test_without_the_token_nothing_is_answered(bundle, serve):
    url = serve(Options(str(bundle), token=TOKEN)).url
    right = {"Authorization": f"Bearer {TOKEN}"}
    assert get(url, "/healthz")[0] == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}):
        assert get(url, "/metrics", headers)[0] == 401
        assert get(url, "/v1/bundle", headers)[0] == 401
        assert post(url, {"inputs": {}}, headers)[0] == 401
        with pytest.raises(InvalidStatus, match="401"), raw(url, **headers):
            pass
    for wrong in (None, "wrong"):
        with pytest.raises(ServerError, match="token"):
            Client(url, token=wrong)
    assert get(url, "/metrics", right)[0] == 200
    with Client(url, token=TOKEN) as remote:
        same(remote(inputs(1)[0]), Pipeline(bundle)(inputs(1)[0]))


def test_web_pages_need_the_token(bundle, strict):
    with pytest.raises(InvalidStatus, match="403"), raw(strict.url, Origin="http://evil.example"):
        pass
    assert post(strict.url, {"inputs": {}}, {"Origin": "http://evil.example"})[0] == 403


def test_more_than_the_rate_is_refused(bundle, serve):
    served, local = serve(Options(str(bundle), rate=0.001)), Pipeline(bundle)
    with raw(served.url) as session:
        same(session.step(0, inputs(1)[0], "initial").group("out"), local(inputs(1)[0]))
        refused = session.step(1, inputs(1)[0]).head
        assert (refused["error"], "0.001 requests a second" in refused["message"]) == ("RateLimitError", True)
        assert post(served.url, {"inputs": {}})[0] == 429
        with pytest.raises(ServerError, match="requests a second"):
            Client(served.url, timeout=0.5)


def test_a_refused_request_steps_nothing_and_may_be_sent_again(bundle, serve):
    served, local = serve(Options(str(bundle), rate=2.0)), Pipeline(bundle)
    with raw(served.url) as session:
        for number, given in enumerate(inputs(6)):
            while (answer := session.step(number, given, "held" if number else "initial")).op == "error":
                assert answer.head["error"] == "RateLimitError"
                time.sleep(0.05)
            same(answer.group("out"), local(given))


# JSON over HTTP.


def plain(given):
    return {key: value.tolist() for key, value in given.items()}


@pytest.mark.parametrize("encoding", ["list", "base64"])
def test_json_steps_equal_a_local_run(bundle, strict, encoding):
    local, state = Pipeline(bundle), None
    for number, given in enumerate(inputs(10)):
        body = {"inputs": plain(given), "encoding": encoding, "digest": local.digest, "state": state}
        status, answer = post(strict.url, body)
        assert (status, answer["step"]) == (200, number + 1), answer
        twice = post(strict.url, body)[1]
        assert twice == answer  # asking again changes nothing
        want = local(given)["policy/target"]
        found = answer["outputs"]["policy/target"]
        if encoding == "list":
            assert np.array(found, np.float32).tobytes() == want.tobytes()
        else:
            assert found["dtype"] == "float32"
        state = answer["state"]
    status, text = get(strict.url, "/v1/bundle")
    described = json.loads(text)
    assert [port["key"] for port in described["inputs"]] == local.inputs
    assert (described["digest"], described["state"][0]["shape"]) == (local.digest, [1, 3])


@pytest.mark.parametrize("case", BAD)
def test_bad_json_inputs_name_the_port(strict, case):
    given, kind, port = BAD[case]
    body = plain(given)
    if case == "NaN":
        body["filter/q"] = [["NaN", 1, 2]]
    if case == "other dtype":  # numbers in JSON have no dtype
        body["filter/q"] = {"dtype": "float64", "shape": [1, 3], "base64": "AAAA" * 8}
    status, answer = post(strict.url, {"inputs": body})
    assert (status, answer["error"]["type"]) == (400, kind), answer
    assert port in answer["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"\xff\xfe{", 400),
        (b"[" * 100_000, 400),
        (b"[1]", 400),
        (b'{"inputs": {"filter/q": ' + b"[" * 900 + b"1" + b"]" * 900 + b"}}", 400),
        (b'{"inputs": []}', 400),
        (b'{"inputs": {"filter/q": [[NaN]]}}', 400),
        (b'{"inputs": {"filter/q": ' + b"9" * 5000 + b"}}", 400),
        ({"inputs": {}, "stat": "x"}, 400),
        ({"inputs": {}, "encoding": "pickle"}, 400),
        ({"inputs": {}, "state": "AAAA"}, 400),
        ({"inputs": {}, "state": {"a": 1}}, 400),
        ({"inputs": {"filter/q": {"a": 1}}}, 400),
        ({"inputs": {"filter/q": [[1, "x", 2]]}}, 400),
        ({"inputs": {"filter/q": [[1], [2, 3]]}}, 400),
        ({"inputs": {}, "digest": "0" * 64}, 409),
        (b" " * 2_000_000, 413),
    ],
)
def test_json_that_cannot_be_is_refused(strict, body, status):
    found, answer = post(strict.url, body)
    assert (found, bool(answer["error"]["message"])) == (status, True)


def test_other_paths_and_methods(strict):
    assert get(strict.url, "/")[0] == 404
    assert get(strict.url, "/v1/step")[0] == 405
    assert post(strict.url, {}, path="/metrics")[0] == 405
    with pytest.raises(InvalidStatus, match="404"), raw(strict.url + "/elsewhere"):
        pass
    text = get(strict.url, "/metrics")[1]
    assert 'leapp_refused_total{replica="local",error="404"}' in text
    assert "# TYPE leapp_step_seconds histogram" in text


def test_addresses():
    for wrong in ("ftp://host", "http://", ""):
        with pytest.raises(InputError, match="address"):
            Client(wrong)
    with pytest.raises(InputError, match="time-out"):
        Client("127.0.0.1:1", timeout=0)


def test_a_request_whose_rest_never_comes_is_given_up(bundle, serve):
    served = serve(Options(str(bundle), idle=0.5))
    with socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2]))) as slow:
        slow.settimeout(20)
        slow.sendall(b"POST /v1/step HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b" 408 " in slow.recv(4096).split(b"\r\n")[0]
    assert post(served.url, {"inputs": plain(inputs(1)[0])})[0] == 200


@pytest.mark.parametrize("step", [0, 1])
def test_who_does_not_read_answers_gets_no_more_of_them(bundle, serve, step):
    served, local = serve(Options(str(bundle), rate=1e9)), Pipeline(bundle)
    with raw(served.url) as greedy, Client(served.url) as other:
        for number in range(step):
            greedy.step(number, inputs(1)[0], "initial")
        before = served.service.metrics.snapshot()["values"]["leapp_steps_total"]
        greedy.flood(pack("step", {"step": step, "begin": "initial"}, **{"in": inputs(1)[0]}), 50)
        same(greedy.read().group("out"), local(inputs(1)[0]))
        last = greedy.read()
        assert (last.op, last.head["final"]) == ("error", True)
        assert "ticket" in last.head["message"]
        with pytest.raises(ConnectionClosed):
            greedy.read()
        after = served.service.metrics.snapshot()["values"]["leapp_steps_total"]
        assert sum(after.values()) == sum(before.values()) + 1
        local.reset()
        same(other(inputs(1)[0]), local(inputs(1)[0]))


@pytest.mark.parametrize("gone", [OSError("gone"), None])
def test_who_is_gone_when_the_last_word_is_said(bundle, gone):
    """No error reaches the server that runs the application: it would take it for one of ours."""

    async def talk():
        service = Service(Options(str(bundle), idle=0.2))
        sent = []

        async def send(event):
            if event["type"] == "websocket.send" and sent:
                if gone is None:
                    await asyncio.Event().wait()  # does not read
                raise gone
            sent.extend([event] if "bytes" in event else [])

        async def receive():
            return {"type": "websocket.receive", "text": "no binary message"}

        await service({"type": "websocket", "path": "/v1/session", "headers": [], "client": ("robot", 1)}, receive, send)
        return len(sent), service.open

    assert asyncio.run(talk()) == (1, 0)


def export_wide(directory, inputs, outputs):
    """A policy that sums so many numbers, and returns the sum so many times."""
    leapp.start("wide", save_path=str(directory))
    x = annotate.input_tensors("policy", {"x": torch.ones(inputs)})
    annotate.output_tensors("policy", {"y": x.sum() * torch.ones(outputs)}, export_with="onnx")
    leapp.stop()
    leapp.compile_graph(visualize=False)
    return directory / "wide"


def test_a_server_that_does_not_read_is_a_timeout(tmp_path, serve):
    served = serve(Options(str(export_wide(tmp_path, 8_000_000, 1))))
    given = {"policy/x": np.ones(8_000_000, np.float32)}
    release, woke = threading.Event(), threading.Event()

    def hang():
        release.wait(60)
        woke.set()

    with Client(served.url, timeout=60) as remote:
        assert remote(given)["policy/y"] == 8_000_000
        served.loop.call_soon_threadsafe(hang)
        remote.timeout = 0.5
        with pytest.raises(ServerTimeoutError):
            remote(given)
        assert not woke.is_set()
        release.set()
        remote.timeout = 60
        assert remote(given)["policy/y"] == 8_000_000


def test_who_never_reads_a_large_answer_is_let_go(tmp_path, serve):
    served = serve(Options(str(export_wide(tmp_path, 1, 8_000_000)), idle=1.0))
    with raw(served.url, max_queue=1) as silent, Client(served.url, timeout=60) as other:
        silent.put(pack("step", {"step": 0, "begin": "initial"}, **{"in": {"policy/x": np.ones(1, np.float32)}}))
        while sum(served.service.metrics.snapshot()["values"]["leapp_steps_total"].values()) < 1:
            time.sleep(0.02)
        given = {"policy/x": np.full(1, 3, np.float32)}
        assert other(given)["policy/y"].sum() == 24_000_000
        while served.service.open > 1:
            other(given)


def test_draining_does_not_wait_for_a_session_that_always_has_a_request_ready(bundle, serve):
    served, local = serve(Options(str(bundle), rate=1e9)), Pipeline(bundle)
    step, arrived = served.service.engine.step, threading.Event()

    async def last(*arguments):
        await asyncio.to_thread(arrived.wait, 20)
        served.service.drain()
        return await step(*arguments)

    served.service.engine.step = last
    given = inputs(1)[0]
    with raw(served.url) as session:
        for number in range(50):
            session.put(pack("step", {"step": number, "begin": "initial"}, **{"in": given}))
        arrived.set()
        same(session.read().group("out"), local(given))
        assert session.read().head["error"] == "Draining"
        with pytest.raises(ConnectionClosed):
            session.read()
