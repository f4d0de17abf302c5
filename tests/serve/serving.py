"""A served policy without Ray: the same application under a small ASGI server in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import uvicorn

import leapp
from leapp import annotate
from leapp.serve import Options, Service


@dataclass
class Served:
    """A running service."""

    service: Service
    url: str
    server: uvicorn.Server
    loop: asyncio.AbstractEventLoop

    def drain(self) -> None:
        self.loop.call_soon_threadsafe(self.service.drain)


@contextmanager
def serving(options: Options, port: int = 0) -> Iterator[Served]:
    """Serve on a free port until the end of the block, which drops every connection."""
    service = Service(options)
    server = uvicorn.Server(
        uvicorn.Config(service, host="127.0.0.1", port=port, log_level="critical", timeout_graceful_shutdown=0)
    )
    loops: list[asyncio.AbstractEventLoop] = []

    def run() -> None:
        loop = asyncio.new_event_loop()
        loops.append(loop)
        loop.run_until_complete(server.serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.005)
    bound = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Served(service, f"http://127.0.0.1:{bound}", server, loops[0])
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def export(directory: Path, seed: int = 0) -> Path:
    """A recurrent policy of two nodes, with a state that does not start at zero, and ports of several dtypes.

    A ``mode`` outside 0 to 255 passes every check and makes the engine fail.
    """
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(3, 3, generator=generator)
    table = torch.randn(256, generator=generator)
    memory = torch.full((1, 3), 0.25)
    leapp.start("leg", save_path=str(directory))
    for _ in range(3):
        given = {
            "q": torch.randn(1, 3, generator=generator),
            "on": torch.tensor([True, False, True]),
            "mode": torch.randint(0, 9, (2,), generator=generator),
        }
        q, on, mode = annotate.input_tensors("filter", given)
        before = annotate.state_tensors("filter", {"memory": memory})
        new = 0.5 * before + torch.where(on, q, before) + torch.index_select(table, 0, mode).sum()
        annotate.update_state("filter", {"memory": new})
        annotate.output_tensors("filter", {"smooth": new}, export_with="onnx")
        smooth = annotate.input_tensors("policy", {"smooth": new})
        annotate.output_tensors("policy", {"target": torch.tanh(smooth @ weight)}, export_with="onnx")
        memory = new.detach()
    leapp.stop()
    assert leapp.compile_graph(visualize=False)
    return directory / "leg"
