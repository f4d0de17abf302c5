"""The server as a plain ASGI application: it runs under Ray Serve, and under any other ASGI server.

``/v1/session`` is a websocket with binary tensors, ``/v1/step`` the same in JSON, ``/v1/bundle`` describes the ports;
``/healthz`` and ``/metrics`` are for monitoring. A client is not trusted before its token is checked, and the size of a
request is limited before it is read. A request that is refused changes nothing.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from leapp.errors import InputError, InputTypeError, LeappError, UnknownPortError
from leapp.runtime.ports import PortInfo
from leapp.serve.engine import SharedEngine
from leapp.serve.json_tensors import decode_state, encode_state, from_json, longest_text, to_json
from leapp.serve.limits import Allowances
from leapp.serve.metrics import Metrics, Snapshot, render
from leapp.serve.options import Options, is_loopback
from leapp.serve.rows import RowEngine
from leapp.serve.session import Session

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Gather = Callable[[str, Snapshot], Awaitable[Mapping[str, Snapshot]]]

_SPARE = 64 * 1024
_BAD = (InputError, InputTypeError, UnknownPortError)


class Refusal(LeappError):
    """A request that is answered with an HTTP status instead of a result."""

    def __init__(self, status: int, message: str, wait: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.wait = status, wait


class Service:
    """Serves one bundle.

    Args:
        options: The options of the server.
        replica: The name of this replica in figures and messages.
        gather: Takes the name and figures of this replica, and returns those of all replicas. None if this is the only one.

    Raises:
        BundleError: The bundle cannot be opened or run.

    Example:
        >>> service = Service(Options("exports/my_policy"))  # an ASGI application, for any ASGI server
    """

    def __init__(self, options: Options, replica: str = "local", gather: Gather | None = None) -> None:
        self.options, self.replica, self._gather = options, replica, gather
        self.metrics = Metrics()
        self.engine = SharedEngine(options, self.metrics) if options.batch is None else RowEngine(options, self.metrics)
        sizes = self.engine.sizes()
        # A request may contain a state twice: in the state, and among the inputs, where it replaces the held one.
        self.max_bytes = options.max_bytes or 2 * sum(sizes.values()) + _SPARE
        ports = [*self.engine.pipeline.input_ports.values(), *self.engine.pipeline.feedback_ports.values()]
        self._max_json = options.max_bytes or longest_text(ports) + 2 * self.max_bytes
        needs = ", ".join(f"{where} {size}" for where, size in sizes.items())
        self.hint = f" The ports take, in bytes: {needs}."
        self.draining = asyncio.Event()
        self.open = 0
        self._allowances = Allowances(options.rate)
        self._holders: Counter[str] = Counter()

    def drain(self) -> None:
        """Accept no more requests: sessions end after their current step, and new ones are refused.

        Example:
            >>> Service(Options("exports/my_policy")).drain()
        """
        if not self.draining.is_set():
            self.metrics.add("leapp_draining")
            self.draining.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.drain()
                self.engine.close()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return

    # Which clients are admitted.

    def _admit(self, scope: Scope) -> None:
        """Refuse a client that is not admitted.

        Raises:
            Refusal: The token is missing or wrong, or a web page sends a request to a server without a token.
        """
        headers = {name.lower(): value for name, value in scope.get("headers", [])}
        if self.options.token is not None:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {self.options.token}".encode()):
                raise Refusal(401, "This server requires its token: 'Authorization: Bearer TOKEN'.")
        elif b"origin" in headers:
            # A browser lets any web page send requests to this machine; only a token keeps them out.
            raise Refusal(403, "Web pages are not served without a token.")
        elif (host := headers.get(b"host")) is not None and not self._is_own(host.decode("latin-1")):
            # A web page whose domain resolves to this machine (DNS rebinding) sends its own domain here.
            raise Refusal(403, "This server answers only requests to its own address; the Host header names another one.")
        if self.draining.is_set():
            raise Refusal(503, f"Replica {self.replica} is draining. Try again.", 1.0)

    def _is_own(self, host: str) -> bool:
        """Whether a request's ``Host`` is this server's address."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return is_loopback(name) or name == self.options.host.lower()

    def _limit(self, scope: Scope) -> None:
        client = scope.get("client") or ("",)
        wait = self._allowances.wait(str(client[0]))
        if wait:
            raise Refusal(429, f"More than {self.options.rate:g} requests a second. Try again in {wait:.3f} s.", wait)

    # Websockets.

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            if path != "/v1/session":
                raise Refusal(404, f"There is no {path}; sessions are at /v1/session.")
            self._limit(scope)
            self._admit(scope)
        except Refusal as refusal:
            self._count(refusal)
            await _refuse_websocket(scope, send, refusal)
            return
        # Counted before the first await, so that a draining replica reports every open session.
        self.open += 1
        client = str((scope.get("client") or ("",))[0])
        self._holders[client] += 1
        self.metrics.add("leapp_sessions")
        try:
            await send({"type": "websocket.accept"})
            most = self.options.sessions_per_client or max(1, self.options.sessions // 2)
            full = ""
            if self.open > self.options.sessions:
                full = f"Replica {self.replica} has reached its limit of {self.options.sessions} sessions."
            elif self._holders[client] > most:
                full = f"{client or 'This client'} has {most} sessions in replica {self.replica}, the limit for one address."
            await Session(self, receive, send).run(full)
        finally:
            self.open -= 1
            self._holders[client] -= 1
            if not self._holders[client]:
                del self._holders[client]
            self.metrics.add("leapp_sessions", -1)

    # HTTP.

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        try:
            status, body = await self._answer(scope["method"], path, scope, receive)
            headers = {}
        except Refusal as refusal:
            self._count(refusal)
            status, body = refusal.status, _problem(refusal, str(refusal))
            headers = {"retry-after": f"{max(refusal.wait, 1):.0f}"} if refusal.wait else {}
        except _BAD as error:
            self._count(error)
            status, headers, body = 400, {}, _problem(error, str(error))
        except Exception as error:  # an engine may raise any type; the client gets the message, and the server continues
            self._count(error)
            status, headers, body = 500, {}, _problem(error, f"The step failed: {error}")
        await _respond(send, "http.response", status, body, headers)

    async def _answer(self, method: str, path: str, scope: Scope, receive: Receive) -> tuple[int, dict[str, Any] | str]:
        routes = {"/healthz": "GET", "/metrics": "GET", "/v1/bundle": "GET", "/v1/step": "POST"}
        if path not in routes:
            raise Refusal(404, f"There is no {path}; there are {', '.join(routes)} and the websocket /v1/session.")
        if method != routes[path]:
            raise Refusal(405, f"{path} takes {routes[path]}, not {method}.")
        if path == "/healthz":
            status = "draining" if self.draining.is_set() else "ready"
            return (503 if status == "draining" else 200), {"status": status, "replica": self.replica}
        self._limit(scope)
        self._admit(scope)
        if path == "/metrics":
            mine = self.metrics.snapshot()
            return 200, render({self.replica: mine} if self._gather is None else await self._gather(self.replica, mine))
        if path == "/v1/bundle":
            return 200, self._description()
        return 200, await self._json_step(await self._body(scope, receive))

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        most = self._max_json
        parts, size = [], 0
        while True:
            try:
                message = await asyncio.wait_for(receive(), self.options.idle)
            except asyncio.TimeoutError:
                raise Refusal(408, f"The rest of the request did not come within {self.options.idle:g} s.") from None
            if message["type"] == "http.disconnect":
                raise Refusal(400, "The request ended early.")
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise Refusal(413, f"The request is longer than {most} bytes, the most that is accepted.{self.hint}")
            parts.append(part)
            if not message.get("more_body"):
                self.metrics.add("leapp_received_bytes_total", size)
                return b"".join(parts)

    async def _json_step(self, body: bytes) -> dict[str, Any]:
        request = _request(body)
        if "digest" in request and request["digest"] != self.engine.digest:
            raise Refusal(409, f"This server has the bundle with digest {self.engine.digest}, not {request['digest']}.")
        state, step = self.engine.initial, 0
        if request.get("state") is not None:
            state, step = decode_state(request["state"], self.engine.digest, self.engine.pipeline.feedback_ports)
        inputs = {where: from_json(where, value) for where, value in request["inputs"].items()}
        outputs, after = await self.engine.step(state, inputs)
        self.metrics.add("leapp_steps_total", label='transport="json"')
        encoding = request.get("encoding", "list")
        return {
            "outputs": {where: to_json(value, encoding) for where, value in outputs.items()},
            "state": encode_state(after, self.engine.digest, step + 1),
            "step": step + 1,
        }

    def _description(self) -> dict[str, Any]:
        pipeline = self.engine.pipeline
        return {
            "graph": self.engine.graph,
            "digest": self.engine.digest,
            "frequency": pipeline.frequency,
            "inputs": [_port(port) for port in pipeline.input_ports.values()],
            "state": [_port(port) for port in pipeline.feedback_ports.values()],
            "outputs": [_port(port) for port in pipeline.output_ports.values()],
        }

    def welcome(self) -> dict[str, Any]:
        """The first message of a session, without the initial values.

        Example:
            >>> Service(Options("exports/my_policy")).welcome()["graph"]
            'my_policy'
        """
        return {
            "digest": self.engine.digest,
            "graph": self.engine.graph,
            "description": self.engine.description,
            "replica": self.replica,
            "session": uuid.uuid4().hex,
        }

    def _count(self, error: Exception) -> None:
        name = str(error.status) if isinstance(error, Refusal) else type(error).__name__
        self.metrics.add("leapp_refused_total", label=f'error="{name}"')


async def _refuse_websocket(scope: Scope, send: Send, refusal: Refusal) -> None:
    if "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    await _respond(send, "websocket.http.response", refusal.status, _problem(refusal, str(refusal)), {})


async def _respond(send: Send, event: str, status: int, body: dict[str, Any] | str, headers: dict[str, str]) -> None:
    """Send a text, or an object as JSON."""
    kind = "text/plain; version=0.0.4" if isinstance(body, str) else "application/json"
    data = (body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)).encode()
    headers = {**headers, "content-type": kind, "content-length": str(len(data))}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": f"{event}.start", "status": status, "headers": encoded})
    await send({"type": f"{event}.body", "body": data})


def _problem(error: Exception, message: str) -> dict[str, Any]:
    return {"error": {"type": type(error).__name__, "message": message}}


def _request(body: bytes) -> dict[str, Any]:
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        raise InputError("The body is not JSON.") from None
    if not isinstance(request, dict) or not isinstance(request.get("inputs"), dict):
        raise InputError("The body is an object with 'inputs', an object from 'node/port' to values.")
    unknown = sorted(set(request) - {"inputs", "state", "digest", "encoding"})
    if unknown:
        raise InputError(f"The body has the unknown fields {unknown}; it takes inputs, state, digest and encoding.")
    if request.get("encoding", "list") not in ("list", "base64"):
        raise InputError("'encoding' is 'list' or 'base64'.")
    return request


def _port(port: PortInfo) -> dict[str, Any]:
    return {name: getattr(port, name) for name in ("key", "dtype", "shape", "kind", "element_names", "units", "limits")}
