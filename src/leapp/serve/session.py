"""One session: a websocket connection with a state of its own.

The state exists as long as the connection. A request says which step it wants and from which state: the one held here, the
initial one, or one that it brings along. If the wanted state is not the one held here, the answer is ``SessionLostError``; the
step never runs from another state. A client must read an answer before it sends the next request, because a proxy would store
any number of unread answers. So every request carries the ticket of the answer before it, and a request without it ends the
session.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from leapp.client.wire import PROTOCOL, TICKET, Assembly, Message, frames, pack, unpack
from leapp.errors import InputError, InputTypeError, LeappError, SessionLostError, UnknownPortError
from leapp.runtime.arrays import Array
from leapp.serve.engine import State
from leapp.serve.limits import Allowance

if TYPE_CHECKING:
    from leapp.serve.service import Receive, Send, Service

_BAD = (InputError, InputTypeError, UnknownPortError, SessionLostError)
_NORMAL, _POLICY, _TOO_BIG, _RESTART, _LATER = 1000, 1008, 1009, 1012, 1013
_MOMENT = 1.0
"""How many seconds a client has to read the last message."""


class _End(Exception):
    """The session is over. Carries the error for the client and the websocket's close code."""

    def __init__(self, code: int, error: str = "", message: str = "") -> None:
        super().__init__(message)
        self.code, self.error, self.message = code, error, message


class Session:
    """The server's side of one connection."""

    def __init__(self, service: Service, receive: Receive, send: Send) -> None:
        self._service, self._receive, self._send = service, receive, send
        self._allowance = Allowance(service.options.rate)
        self._state: State | None = None
        self._step = 0
        self._ticket = b""

    async def run(self, full: str = "") -> None:
        """Answer requests until one side ends the session. With ``full``, only send that as the reason for a refusal."""
        draining = asyncio.ensure_future(self._service.draining.wait())
        try:
            await self._talk(full, draining)
        except (OSError, asyncio.TimeoutError):
            pass  # the client disconnected or does not read; the session ends with the connection
        finally:
            draining.cancel()

    async def _talk(self, full: str, draining: asyncio.Future[Any]) -> None:
        try:
            if full:
                raise _End(_LATER, "Full", full)
            welcome = {**self._service.welcome(), "protocol": PROTOCOL}
            await self._reply(pack("welcome", welcome, state=self._service.engine.initial))
            self._service.metrics.add("leapp_sessions_total")
            while True:
                if self._service.draining.is_set():  # checked first, because a next request may always be waiting
                    self._leave()
                request = await self._next(draining)
                await self._reply(await self._answer(request))
        except _End as end:
            if end.error:
                self._count(end.error)
                await self._reply(pack("error", {"error": end.error, "message": end.message, "final": True}))
            if end.code != _NORMAL and not (end.code == _TOO_BIG and await self._has_left()):
                await self._send({"type": "websocket.close", "code": end.code})

    async def _has_left(self) -> bool:
        """Whether the client disconnects soon. Its messages are read meanwhile: closing now would lose the last answer."""

        async def wait() -> None:
            while (await self._receive())["type"] != "websocket.disconnect":
                pass

        try:
            await asyncio.wait_for(wait(), _MOMENT)
        except asyncio.TimeoutError:
            return False
        return True

    def _leave(self) -> NoReturn:
        raise _End(_RESTART, "Draining", f"Replica {self._service.replica} is draining. Connect again.")

    async def _next(self, draining: asyncio.Future[Any]) -> bytes:
        """The next request. Ends the session when there will be none."""
        service = self._service
        assembly = Assembly(service.max_bytes, service.hint)
        while True:
            coming = asyncio.ensure_future(self._receive())
            await asyncio.wait({coming, draining}, timeout=service.options.idle, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                if draining.done():
                    self._leave()
                raise _End(_RESTART, "Draining", f"No request for {service.options.idle:g} s. Connect again.")
            event = coming.result()
            if event["type"] == "websocket.disconnect":
                raise _End(_NORMAL)
            frame = event.get("bytes")
            if frame is None:
                raise _End(_POLICY, "InputError", "A session takes binary messages. JSON goes to /v1/step.")
            service.metrics.add("leapp_received_bytes_total", len(frame))
            try:
                request = assembly.add(frame)
            except InputError as error:
                # After this the beginning of the next message is not known.
                raise _End(_TOO_BIG, "InputError", str(error)) from None
            if request is None:
                continue
            if assembly.ticket != self._ticket:
                raise _End(_POLICY, "InputError", "The request does not show the ticket of the last answer. Read it first.")
            return request

    async def _answer(self, request: bytes) -> bytes:
        wait = self._allowance.wait()
        if wait:
            most = f"More than {self._service.options.rate:g} requests a second. Try again in {wait:.3f} s."
            return self._problem("RateLimitError", most)
        try:
            message = unpack(request)
            if message.op == "step":
                return await self._stepped(message)
            if message.op == "state":
                return pack("state", {"step": self._step}, state=self._begin(message))
            raise InputError(f"A session takes 'step' and 'state', not {message.op!r}.")
        except _BAD as error:
            return self._problem(type(error).__name__, str(error))
        except LeappError as error:
            return self._problem("ServerError", str(error))
        except Exception as error:  # an engine may raise any type; the client gets the message, and the session continues
            return self._problem("ServerError", f"The step failed: {error}")

    async def _stepped(self, message: Message) -> bytes:
        state, step = self._begin(message), self._number(message)
        outputs, after = await self._service.engine.step(state, message.group("in"))
        self._state, self._step = after, step + 1
        self._service.metrics.add("leapp_steps_total", label='transport="websocket"')
        copy: Mapping[str, Array] = after if message.head.get("checkpoint") is True else {}
        return pack("stepped", {"step": self._step}, out=outputs, state=copy)

    def _number(self, message: Message) -> int:
        step = message.head.get("step")
        if type(step) is not int or not 0 <= step < 1 << 53:
            raise InputError("A request must say its step, a number from 0.")
        return step

    def _begin(self, message: Message) -> State:
        """The state that a request starts from."""
        begin = message.head.get("begin")
        if begin == "initial":
            return self._service.engine.initial
        if begin == "given":
            return message.group("state")
        if begin != "held":
            raise InputError("A request begins from the state 'held', 'initial' or 'given'.")
        if self._state is None or self._number(message) != self._step:
            has = "no state" if self._state is None else f"the state of step {self._step}"
            raise SessionLostError(
                f"Session lost: replica {self._service.replica} holds {has} of this session, not that of step "
                f"{message.head.get('step')}. Call reset()."
            )
        return self._state

    def _problem(self, error: str, message: str) -> bytes:
        self._count(error)
        return pack("error", {"error": error, "message": message})

    def _count(self, error: str) -> None:
        self._service.metrics.add("leapp_refused_total", label=f'error="{error}"')

    async def _reply(self, message: bytes) -> None:
        self._service.metrics.add("leapp_sent_bytes_total", len(message))
        self._ticket = secrets.token_bytes(TICKET)
        for frame in frames(message, self._ticket):
            await asyncio.wait_for(self._send({"type": "websocket.send", "bytes": frame}), self._service.options.idle)
