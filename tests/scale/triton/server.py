"""A real tritonserver on loopback ports: the one that the pytriton wheel carries. It has the Python backend only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytriton
import tritonclient.grpc as grpc

HOME = Path(pytriton.__file__).parent
SERVER = HOME / "tritonserver"
STUB = SERVER / "python_backend_stubs" / f"{sys.version_info.major}.{sys.version_info.minor}" / "triton_python_backend_stub"
START_SECONDS = 90.0


@dataclass
class Server:
    """A running server.

    Attributes:
        url: Where gRPC clients connect.
        process: The server's process.
        log: The file it writes to.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def stop(self) -> int:
        """Ask the server to stop and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def backends(directory: Path) -> Path:
    """A backend directory with the stub for this Python beside the Python backend, where the server looks for it."""
    python = directory / "python"
    python.mkdir(parents=True)
    for part in (*(SERVER / "backends" / "python").iterdir(), STUB):
        if part.name != "__pycache__":
            (python / part.name).symlink_to(part)
    return directory


def environment() -> dict[str, str]:
    """What the server and its Python processes inherit: this venv's packages and the wheel's libraries."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    env["LD_LIBRARY_PATH"] = str(HOME.parent / "nvidia_pytriton.libs")
    # The stub finds its packages as a python of this PATH would.
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    env["OMP_NUM_THREADS"] = "1"
    return env


@contextmanager
def serving(repository: Path, work: Path) -> Iterator[Server]:
    """Serve a repository until the block ends; what still runs then is killed."""
    work.mkdir(parents=True, exist_ok=True)
    port, log = free_ports(1)[0], work / "server.log"
    command = [
        str(SERVER / "bin" / "tritonserver"),
        f"--model-repository={repository}",
        f"--backend-directory={backends(work / 'backends')}",
        "--allow-http=false",
        "--allow-metrics=false",
        "--grpc-address=127.0.0.1",
        f"--grpc-port={port}",
        "--exit-timeout-secs=20",
    ]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment(), cwd=work)
    server = Server(f"127.0.0.1:{port}", process, log)
    try:
        _wait_ready(server)
        yield server
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _wait_ready(server: Server) -> None:
    end = time.monotonic() + START_SECONDS
    with grpc.InferenceServerClient(server.url) as client:
        while time.monotonic() < end and server.process.poll() is None:
            try:
                if client.is_server_ready():
                    return
            except grpc.InferenceServerException:
                pass
            time.sleep(0.1)
    raise AssertionError(f"The server did not become ready:\n{server.log.read_text()[-6000:]}")
