"""The engine of a client: each step is a request to a server.

A step depends only on the state, the inputs and the bundle. The server holds the state while a connection lasts, and sends a
copy back with every answer. So a step can be repeated on any server, and at most one of its answers is used. That is why a
session survives the loss of its server.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from leapp.bundle.contract_yaml import contract_of
from leapp.bundle.reading import Bundle
from leapp.bundle.yaml_text import parse
from leapp.client.link import Closed, Link, address, open_link
from leapp.client.wire import Message, pack
from leapp.errors import (
    BundleError,
    InputError,
    InputTypeError,
    LeappError,
    ServerError,
    ServerTimeoutError,
    SessionLostError,
    UnknownPortError,
)
from leapp.runtime.arrays import Array, check_sum, numpy_dtype
from leapp.runtime.engine import CHECK_FIRST, Engine
from leapp.runtime.plan import make_plan
from leapp.runtime.values import to_array

_RAISED: dict[str, type[LeappError]] = {
    **{kind.__name__: kind for kind in (InputError, InputTypeError, UnknownPortError, SessionLostError)},
    "Draining": Closed,
    "Full": Closed,
}
_SPARE = 1 << 20
"""How many bytes an answer may have beside its tensors."""


class RemoteEngine:
    """Runs the steps of one session on a server. See ``leapp.runtime.engine.Engine``.

    Args:
        url: Where the server listens.
        token: The server's token, if it has one.
        timeout: The most seconds that a call may take, connecting again included.
        resume: Receive a copy of the state with every answer.
        expect_digest: Refuse any bundle but the one with this digest.

    Attributes:
        bundle: The served bundle, without its files.
        replica: The name of the replica that this session was last connected to.
    """

    frame = CHECK_FIRST

    def __init__(self, url: str, token: str | None, timeout: float, resume: bool, expect_digest: str | None) -> None:
        if not timeout > 0:
            raise InputError(f"A time-out is a positive number of seconds, not {timeout}.")
        self._address, self._token, self._resume = address(url), token, resume
        self.timeout = timeout
        self.kept_inputs: dict[str, Any] = {}
        self._expected = expect_digest
        self._link: Link | None = None
        self._closed = False
        self._state: dict[str, Array] | None = {}
        self._begin, self._steps = "initial", 0
        self._limit = 0
        self._welcome: Message | None = None
        self._welcome = self._connect(time.monotonic() + timeout)
        try:
            self.bundle = _bundle(self._welcome)
            self.plan = make_plan(self.bundle.contract)
            ports = [*self.plan.input_ports.values(), *self.plan.output_ports.values()]
            check_sum(ports)
            self.initial = self._initial_values(self._welcome.group("state"))
            self._limit = _SPARE + sum(port.nbytes for port in ports)
            self._opened_link().bound(self._limit)
        except BaseException:  # also on Ctrl-C the connection must not stay open
            self.close()
            raise
        self.reset()

    def _initial_values(self, initial: Mapping[str, Array]) -> dict[str, Array]:
        if set(initial) != set(self.plan.feedback):
            raise ServerError(f"The server's initial values are {sorted(initial)}, expected {sorted(self.plan.feedback)}.")
        return {k: to_array(k, self.plan.input_ports[k], initial[k], False) for k in self.plan.feedback}

    def _connect(self, deadline: float) -> Message:
        """Connect, and check that the server has the right bundle. Tries until the deadline."""
        pause = 0.02
        while True:
            try:
                self._link, welcome = self._opened(deadline)
                self.replica = str(welcome.head.get("replica"))
                return welcome
            except (Closed, ServerTimeoutError) as trouble:
                if time.monotonic() + pause >= deadline:
                    raise ServerTimeoutError(f"No session within {self.timeout:g} s. {trouble}") from trouble
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def _opened_link(self, deadline: float = 0.0) -> Link:
        if self._link is None:
            self._connect(deadline)
        assert self._link is not None
        return self._link

    def _opened(self, deadline: float) -> tuple[Link, Message]:
        link, welcome = open_link(self._address, self._token, deadline)
        try:
            if welcome.op == "error":
                raise _error(welcome)
            if welcome.op != "welcome":
                raise ServerError(f"The server began with {welcome.op!r} instead of a welcome.")
            self._check_bundle(welcome)
        except BaseException:  # also on Ctrl-C the connection must not stay open
            link.close()
            raise
        if self._limit:
            link.bound(self._limit)
        return link, welcome

    def _check_bundle(self, welcome: Message) -> None:
        found = welcome.head.get("digest")
        if self._expected is not None and found != self._expected:
            what = f"has the digest {found}" if found else "carries no seal"
            raise BundleError(f"Expected the bundle with digest {self._expected}, the one that {self._address} serves {what}.")
        first = self._welcome or welcome
        if any(welcome.head.get(name) != first.head.get(name) for name in ("digest", "description")):
            raise BundleError(
                f"{self._address} now serves the bundle with digest {found}, this session began with "
                f"{first.head.get('digest')}. Make a new client."
            )

    def run(self, values: Mapping[str, Array], overrides: Mapping[str, Array], kept_inputs: dict[str, Any]) -> dict[str, Any]:
        """See ``Engine``."""
        reply = self._asked("step", {"checkpoint": self._resume}, {**values, **overrides})
        outputs, state = reply.group("out"), reply.group("state")
        self._check_reply(outputs, state, self.plan.outputs)
        self.kept_inputs = kept_inputs
        self._begin, self._steps = "held", self._steps + 1
        # Without feedback the state is empty, so it is known also without ``resume``.
        self._state = state if self._resume or not self.plan.feedback else None
        return {k: outputs[k] for k in self.plan.outputs}

    def _check_reply(self, outputs: Mapping[str, Array], state: Mapping[str, Array], wanted: Sequence[str]) -> None:
        expected = [(k, self.plan.output_ports[k], outputs) for k in wanted]
        expected += [(k, self.plan.input_ports[k], state) for k in self.plan.feedback if state or self._resume]
        for where, port, found in expected:
            value = found.get(where)
            if value is None or value.shape != port.shape or value.dtype != numpy_dtype(port.dtype):
                self._drop()
                raise ServerError(f"The server's answer has no value of {where!r} that fits the port.")

    def _asked(self, op: str, head: Mapping[str, Any], inputs: Mapping[str, Array]) -> Message:
        """The answer to a request, from this connection or from new ones, until the time is up."""
        if self._closed:
            raise ServerError("This client is closed.")
        deadline = time.monotonic() + self.timeout
        while True:
            if self._begin == "lost":
                raise SessionLostError(_LOST)
            link = self._opened_link(deadline)
            state = self._state if self._begin == "given" else None
            where = {**head, "begin": self._begin, "step": self._steps}
            try:
                reply = link.ask(pack(op, where, **{"in": inputs, "state": state or {}}), deadline)
            except Closed as error:
                self._drop()
                if time.monotonic() >= deadline:
                    raise ServerTimeoutError(f"No answer within {self.timeout:g} s. {error}") from error
                continue
            except BaseException:  # also after Ctrl-C it is unknown whether the server ran the step
                self._drop()
                raise
            if reply.op != "error":
                return reply
            refusal = _error(reply)
            elsewhere = isinstance(refusal, (Closed, SessionLostError))
            if elsewhere or reply.head.get("final"):
                self._drop()
            if not elsewhere or time.monotonic() >= deadline:
                raise refusal

    def _drop(self) -> None:
        """Close the connection. The session can then continue only from the state that the client has."""
        if self._link is not None:
            self._link.close()
        self._link = None
        if self._begin == "held":
            self._begin = "lost" if self._state is None else "given"

    def close(self) -> None:
        """End the session."""
        self._drop()
        self._closed = True

    def reset(self) -> None:
        """Begin a new session from the initial values. Makes no network call."""
        self._state, self._begin, self._steps = dict(self.initial), "initial", 0
        self.kept_inputs.clear()

    def resize(self, rows: int, install: Callable[[Engine], None]) -> None:
        """See ``Engine``.

        Raises:
            InputError: Always: the server decides.
        """
        raise InputError(f"A served bundle runs with the batch it was traced with: {self.plan.batch} rows, not {rows}.")

    def read(self, key: str) -> Array:
        """See ``Engine``."""
        return np.array(self._known()[key])

    def replace(self, values: Mapping[str, Array]) -> None:
        """See ``Engine``."""
        if values:
            self.load({**self._known(), **values})

    def load(self, state: Mapping[str, Array]) -> None:
        """See ``Engine``."""
        self._state, self._begin = {k: np.array(v) for k, v in state.items()}, "given"

    def _known(self) -> dict[str, Array]:
        if self._state is None:
            state = self._asked("state", {}, {}).group("state")
            self._check_reply({}, state, ())
            self._state = state
        return self._state


_LOST = "Session lost: the server that held its state cannot be reached. Call reset(), or load_state() with a state you kept."


def _error(reply: Message) -> LeappError:
    """The error to raise for an error message of the server."""
    name, message = str(reply.head.get("error")), str(reply.head.get("message"))
    return _RAISED.get(name, ServerError)(message)


def _bundle(welcome: Message) -> Bundle:
    text, graph, digest = (welcome.head.get(name) for name in ("description", "graph", "digest"))
    if not isinstance(text, str) or not isinstance(graph, str) or not isinstance(digest, (str, type(None))):
        raise ServerError("The server's welcome does not describe a bundle.")
    name = f"{graph}.yaml"
    return Bundle(Path(name), contract_of(parse(text, name), name, text), digest, {})
