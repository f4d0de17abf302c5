"""Sessions without the client: they send what they like, and read when they like."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from leapp.client.wire import Assembly, Message, frames, pack, unpack


class Raw:
    """A session that sends what it likes."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.welcome = self.read()

    def read(self) -> Message:
        assembly = Assembly(1 << 30)
        while True:
            message = assembly.add(self._socket.recv(timeout=60))
            if message is not None:
                self._ticket = assembly.ticket
                return unpack(message)

    def put(self, data: bytes, pause: float = 0.0) -> None:
        """Send a request, its frames with a pause between them, and do not wait for the answer."""
        for frame in frames(data, self._ticket):
            self._socket.send(frame)
            time.sleep(pause)

    def flood(self, data: bytes, count: int) -> None:
        """Send a request many times, for as long as the server takes it, and read no answer."""
        with suppress(ConnectionClosed):
            for _ in range(count):
                self.put(data)

    def put_text(self, text: str) -> None:
        self._socket.send(text)

    def send(self, data: bytes) -> Message:
        self.put(data)
        return self.read()

    def step(self, step: int, given: dict[str, Any], begin: str = "held", **head: Any) -> Message:
        return self.send(pack("step", {"step": step, "begin": begin, **head}, **{"in": given}))


@contextmanager
def raw(url: str, *, max_queue: int = 16, **headers: str) -> Iterator[Raw]:
    """A session that ends with the block. It reads up to ``max_queue`` frames ahead of whoever asks for them."""
    address = url.replace("http", "ws") + "/v1/session"
    options = {"compression": None, "proxy": None, "max_size": None, "max_queue": max_queue, "close_timeout": 1}
    with connect(address, additional_headers=headers, **options) as socket:
        yield Raw(socket)
