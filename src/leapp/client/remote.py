"""The client: a pipeline whose step runs on a server.

A step is a function of the state, the inputs and the bundle. The server holds the state for as long as a connection lasts
and sends a copy back with every answer, so a step can be asked for again anywhere, any number of times, and the result of
at most one answer is used. That is all it takes to survive a server that goes away.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
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
from leapp.graph.contract import Port
from leapp.runtime.arrays import Array, numpy_dtype
from leapp.runtime.pipeline import Pipeline
from leapp.runtime.runner import NonFinite

__all__ = ["Client"]

_RAISED: dict[str, type[LeappError]] = {
    **{kind.__name__: kind for kind in (InputError, InputTypeError, UnknownPortError, SessionLostError)},
    "Draining": Closed,
    "Full": Closed,
}
_SPARE = 1 << 20
"""Bytes for all of an answer that is no tensor."""


class Client(Pipeline):
    """A served bundle, used like ``leapp.runtime.Pipeline``: NumPy in, NumPy out, ``reset()``, ``state()`` and the rest.

    One client is one session with a state of its own. Inputs are checked here and once more by the server. Whatever goes
    wrong, the state stays as it was before the step.

    Args:
        url: Where ``leapp serve`` listens, such as ``http://127.0.0.1:8000``.
        token: The server's token, if it has one.
        timeout: The most seconds a call may take, connecting again included.
        resume: Receive a copy of the state with every answer. A session whose server is gone then goes on with another
            one, from exactly where it was. Without it nothing but outputs travels, and a lost server raises
            ``SessionLostError`` until ``reset()`` or ``load_state()``.
        expect_digest: Refuse any bundle but the one with this digest.
        cast: Convert inputs of another dtype when the kind fits, such as float64 to float32.
        sticky: Reuse the last value of an input that is not given (zeros before the first).
        nonfinite: What to do about NaN and infinity in inputs. The server may be stricter.

    Raises:
        BundleError: The server has another bundle than the expected one.
        ServerError: The server cannot be reached or refuses this client.

    Attributes:
        timeout: As given; may be changed between calls.

    Example:
        >>> with Client(url, expect_digest=pipeline.digest) as remote:
        ...     outputs = remote({"policy/obs": obs})
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float = 10.0,
        resume: bool = True,
        expect_digest: str | None = None,
        cast: bool = False,
        sticky: bool = False,
        nonfinite: NonFinite = "ignore",
    ) -> None:
        if not timeout > 0:
            raise InputError(f"A time-out is a positive number of seconds, not {timeout}.")
        self._address, self._token, self._resume = address(url), token, resume
        self.timeout = timeout
        self._expected = expect_digest
        self._link: Link | None = None
        self._closed = False
        self._begin = "initial"
        self._mine: dict[str, Array] | None = {}
        self._steps = 0
        self._limit = 0
        self._welcome = self._connect(time.monotonic() + timeout)
        super().__init__(_bundle(self._welcome), cast=cast, sticky=sticky, nonfinite=nonfinite)
        ports = [*self._plan.input_ports.values(), *self._plan.output_ports.values()]
        self._limit = _SPARE + sum(_size(port) for port in ports)
        self._opened_link().bound(self._limit)
        self.model_path = url

    @property
    def replica(self) -> str:
        """The name of the replica that this session was last connected to, as in the server's figures and messages.

        Example:
            >>> Client(url).replica
            'local'
        """
        return self._replica

    # Opening: what a local pipeline does with engines.

    def _load(self) -> Any:
        return self

    def _prepare(self) -> None:
        pass

    def _initial_values(self) -> dict[str, Array]:
        initial = self._welcome.group("state")
        if set(initial) != set(self._plan.feedback):
            raise ServerError(f"The server's initial values are {sorted(initial)}, expected {sorted(self._plan.feedback)}.")
        return {k: self._fit(k, self._plan.input_ports[k], initial[k]) for k in self._plan.feedback}

    def _connect(self, deadline: float) -> Message:
        """A new connection that is known to serve the right bundle. Tries until the deadline."""
        pause = 0.02
        while True:
            try:
                self._link, welcome = self._opened(deadline)
                self._replica = str(welcome.head.get("replica"))
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
        except BaseException:
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
        first = getattr(self, "_welcome", welcome)
        if any(welcome.head.get(name) != first.head.get(name) for name in ("digest", "description")):
            raise BundleError(
                f"{self._address} now serves the bundle with digest {found}, this session began with "
                f"{first.head.get('digest')}. Make a new client."
            )

    # Steps.

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run one step on the server.

        Args:
            inputs: A value for each of ``inputs``. A key of ``feedback_inputs`` replaces that state for this step.

        Returns:
            A value for each of ``outputs``.

        Raises:
            InputError: A value is missing or does not fit. The state is untouched then.
            UnknownPortError: A key names no input. The state is untouched then.
            ServerTimeoutError: No answer in time. With ``resume`` the step can be asked for again.
            SessionLostError: The state is gone with its server (without ``resume`` only). Call ``reset()``.
            ServerError: The server refused or failed. The state is untouched then.
        """
        with self._lock:
            values, overrides, held = self._gather(inputs)
            given = {**values, **{k: self._host(k, v) for k, v in overrides.items()}}
            reply = self._asked("step", {"checkpoint": self._resume}, given)
            outputs, state = reply.group("out"), reply.group("state")
            self._check_reply(outputs, state, self._plan.outputs)
            self._held = held
            self._begin, self._steps = "held", self._steps + 1
            # A pipeline without feedback has a state that is known to be empty.
            self._mine = state if self._resume or not self._plan.feedback else None
            return {k: outputs[k] for k in self._plan.outputs}

    def _check_reply(self, outputs: Mapping[str, Array], state: Mapping[str, Array], wanted: Sequence[str]) -> None:
        expected = [(k, self._plan.output_ports[k], outputs) for k in wanted]
        expected += [(k, self._plan.input_ports[k], state) for k in self._plan.feedback if state or self._resume]
        for where, port, found in expected:
            value = found.get(where)
            if value is None or value.shape != port.shape or value.dtype != numpy_dtype(port.dtype):
                self._drop()
                raise ServerError(f"The server's answer has no value of {where!r} that fits the port.")

    def _asked(self, op: str, head: Mapping[str, Any], inputs: Mapping[str, Array]) -> Message:
        """The answer to a request, from this connection or from the next ones until the time is up."""
        if self._closed:
            raise ServerError("This client is closed.")
        deadline = time.monotonic() + self.timeout
        while True:
            if self._begin == "lost":
                raise SessionLostError(_LOST)
            link = self._opened_link(deadline)
            state = self._mine if self._begin == "given" else None
            where = {**head, "begin": self._begin, "step": self._steps}
            try:
                reply = link.ask(pack(op, where, **{"in": inputs, "state": state or {}}), deadline)
            except Closed as error:
                self._drop()
                if time.monotonic() >= deadline:
                    raise ServerTimeoutError(f"No answer within {self.timeout:g} s. {error}") from error
                continue
            except BaseException:
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
        """Forget the connection. From now on only the state of this side is there to go on from."""
        if self._link is not None:
            self._link.close()
        self._link = None
        if self._begin == "held":
            self._begin = "lost" if self._mine is None else "given"

    def close(self) -> None:
        """End the session.

        Example:
            >>> remote.close()
        """
        with self._lock:
            self._drop()
            self._closed = True

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # State, as far as this side knows it.

    def reset(self, node: str | None = None, mask: Any = None, *, batch: int | None = None) -> None:
        """Put the state back to its initial values. Asks nobody, and begins a new session if the old one was lost.

        Args:
            node: Reset the state of this node only.
            mask: One truth value a row: reset these rows of every state, along their batch axis.
            batch: The number of rows; a served bundle has the traced one only.

        Example:
            >>> remote.reset()
        """
        if node is not None or mask is not None or batch is not None:
            super().reset(node, mask, batch=batch)
            return
        with self._lock:
            self._mine, self._begin, self._steps = dict(self._initial), "initial", 0
            self._held.clear()

    def _resize(self, rows: int) -> None:
        raise InputError(f"A served bundle runs with the batch it was traced with: {self._plan.batch} rows, not {rows}.")

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state`` returned, here or in another client or pipeline of the same bundle.

        Raises:
            UnknownPortError: A key is missing or names no state. Nothing is changed then.
            InputError: A value does not fit. Nothing is changed then.

        Example:
            >>> remote.load_state(pipeline.state())
        """
        with self._lock:
            before = self._mine, self._begin
            self._mine, self._begin = dict(self._initial), "given"
            try:
                super().load_state(state)
            except BaseException:
                self._mine, self._begin = before
                raise

    def _known(self) -> dict[str, Array]:
        if self._mine is None:
            state = self._asked("state", {}, {}).group("state")
            self._check_reply({}, state, ())
            self._mine = state
        return self._mine

    def _read(self, where: str) -> Array:
        return np.array(self._known()[where])

    def _replace(self, values: Mapping[str, Array]) -> None:
        if values:
            self._mine, self._begin = {**self._known(), **{k: np.array(v) for k, v in values.items()}}, "given"


_LOST = "Session lost: the server that held its state is gone. Call reset(), or load_state() with a state you kept."


def _error(reply: Message) -> LeappError:
    """What an error of the server means to the caller."""
    name, message = str(reply.head.get("error")), str(reply.head.get("message"))
    return _RAISED.get(name, ServerError)(message)


def _bundle(welcome: Message) -> Bundle:
    text, graph, digest = (welcome.head.get(name) for name in ("description", "graph", "digest"))
    if not isinstance(text, str) or not isinstance(graph, str) or not isinstance(digest, (str, type(None))):
        raise ServerError("The server's welcome does not describe a bundle.")
    name = f"{graph}.yaml"
    return Bundle(Path(name), contract_of(parse(text, name), name, text), digest, {})


def _size(port: Port) -> int:
    return math.prod(port.shape) * numpy_dtype(port.dtype).itemsize
