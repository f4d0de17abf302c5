"""A websocket connection to a server. It handles bytes and time-outs; ports and state are in ``remote``."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from leapp.client.wire import FRAME, PROTOCOL, Assembly, Message, frames, unpack
from leapp.errors import InputError, MissingDependencyError, ServerError, ServerTimeoutError

_MAX_WELCOME = 1 << 30
_AT_ONCE = 64 * 1024
"""How many bytes a connection accepts without waiting for the server."""
_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


class Closed(ServerError):
    """The connection ended. A new one may work."""


def address(url: str) -> str:
    """The websocket address of a server.

    Raises:
        InputError: The address is not one of a server.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise InputError(f"{url!r} is not the address of a server, such as 'http://127.0.0.1:8000'.")
    return urlunsplit((_SCHEMES[parts.scheme], parts.netloc, parts.path.rstrip("/") + "/v1/session", "", ""))


class Link:
    """An open connection. Any error closes it, so that a late answer is never taken for the answer to the next request."""

    def __init__(self, websocket: Any, stack: ExitStack) -> None:
        self._socket, self._stack = websocket, stack
        self._limit = _MAX_WELCOME
        self._ticket = b""

    def bound(self, limit: int) -> None:
        """Refuse longer messages from now on."""
        self._limit = limit

    def ask(self, request: bytes | None, deadline: float) -> Message:
        """Send a request, if there is one, and return the next message.

        Raises:
            Closed: The connection ended.
            ServerTimeoutError: Nothing came in time. The connection is closed.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            if request is not None:
                self._send(request, deadline)
            assembly = Assembly(self._limit)
            while True:
                frame = self._socket.recv(timeout=max(deadline - time.monotonic(), 0.001))
                message = assembly.add(frame if isinstance(frame, bytes) else frame.encode())
                if message is not None:
                    self._ticket = assembly.ticket
                    return unpack(message)
        except TimeoutError:
            self.close()
            raise ServerTimeoutError("The server did not answer in time.") from None
        except (ConnectionClosed, OSError) as error:
            self.close()
            raise Closed(f"The connection ended: {error}.") from error
        except InputError as error:
            self.close()
            raise ServerError(f"The server's answer cannot be read: {error}") from error
        except BaseException:  # also after Ctrl-C: a late answer must not be taken for the next one
            self.close()
            raise

    def _send(self, request: bytes, deadline: float) -> None:
        watch = threading.Timer(max(deadline - time.monotonic(), 0.0), self._break)
        watch.daemon = True
        if len(request) > _AT_ONCE:
            # send() has no time-out of its own, and would block for ever on a server that does not read.
            watch.start()
        try:
            for frame in frames(request, self._ticket):
                self._socket.send(frame)
        finally:
            watch.cancel()

    def _break(self) -> None:
        with suppress(OSError):
            self._socket.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection."""
        self._stack.close()


def open_link(url: str, token: str | None, deadline: float) -> tuple[Link, Message]:
    """Connect. Returns the connection and the server's welcome.

    Raises:
        Closed: The server cannot be reached now, or takes no session now.
        ServerError: The server refuses this client for good: wrong token, wrong protocol.
    """
    try:
        from websockets.exceptions import InvalidHandshake, InvalidStatus
        from websockets.sync.client import connect
    except ImportError as error:
        raise MissingDependencyError("A client needs the package websockets: pip install 'leapp[client]'.") from error
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    stack = ExitStack()
    try:
        # No compression, because numbers do not compress. No proxy from the environment: it is not for a robot's server.
        opened = connect(
            url,
            additional_headers=headers,
            open_timeout=max(deadline - time.monotonic(), 0.001),
            close_timeout=1,
            max_size=FRAME,
            compression=None,
            proxy=None,
        )
        link = Link(stack.enter_context(opened), stack)
    except InvalidStatus as error:
        status = error.response.status_code
        if status in (401, 403):
            raise ServerError(f"{url} refuses this client (HTTP {status}): {_reason(error.response.body)}") from None
        raise Closed(f"{url} answered with HTTP {status}: {_reason(error.response.body)}") from None
    except (InvalidHandshake, OSError) as error:
        raise Closed(f"{url} cannot be reached: {error or type(error).__name__}.") from error
    welcome = link.ask(None, deadline)
    if welcome.op == "welcome" and welcome.head.get("protocol") != PROTOCOL:
        link.close()
        theirs = welcome.head.get("protocol")
        raise ServerError(f"{url} speaks protocol {theirs}, this client {PROTOCOL}. Update the older one.")
    return link, welcome


def _reason(body: bytes | bytearray | None) -> str:
    try:
        return str(json.loads(body or b"")["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "the server gave no reason."
