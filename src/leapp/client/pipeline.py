"""``Client``: a pipeline whose steps run on a server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leapp.client.remote import RemoteEngine
from leapp.runtime.arrays import Array
from leapp.runtime.pipeline import Pipeline
from leapp.runtime.runner import NonFinite


class Client(Pipeline):
    """A served bundle, used like ``leapp.runtime.Pipeline``: NumPy in, NumPy out, ``reset()``, ``state()`` and the rest.

    One client is one session with a state of its own. Inputs are checked here and once more by the server. A step that
    fails leaves the state as it was. ``reset()`` makes no network call, and begins a new session if the old one was lost.

    Args:
        url: Where ``leapp serve`` listens, such as ``http://127.0.0.1:8000``.
        token: The server's token, if it has one.
        timeout: The most seconds a call may take, connecting again included.
        resume: Receive a copy of the state with every answer. If the server is lost, the session continues on another one
            from that state. Without it only outputs are sent, and a lost server raises ``SessionLostError`` until
            ``reset()`` or ``load_state()``.
        expect_digest: Refuse any bundle but the one with this digest.
        cast: Convert inputs of another dtype when the kind fits, such as float64 to float32.
        sticky: Reuse the last value of an input that is not given (zeros before the first).
        nonfinite: What to do about NaN and infinity in inputs. The server may be stricter.

    Raises:
        BundleError: The server has another bundle than the expected one.
        ServerError: The server cannot be reached or refuses this client.

    Example:
        >>> with Client(url, expect_digest=pipeline.digest) as remote:
        ...     outputs = remote({"policy/obs": obs})
    """

    _engine: RemoteEngine

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
        self._set_options(cast=cast, sticky=sticky, nonfinite=nonfinite)
        self._engine = RemoteEngine(url, token, timeout, resume, expect_digest)
        self._bundle = self._engine.bundle
        self.model_path = url

    @property
    def timeout(self) -> float:
        """The most seconds that a call may take. It can be changed between calls."""
        return self._engine.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._engine.timeout = seconds

    @property
    def replica(self) -> str:
        """The name of the replica that this session was last connected to, as in the server's figures and messages.

        Example:
            >>> Client(url).replica
            'local'
        """
        return self._engine.replica

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
            SessionLostError: The server that held the state is lost (without ``resume`` only). Call ``reset()``.
            ServerError: The server refused or failed. The state is untouched then.
        """
        return self._step_checked(inputs)

    def close(self) -> None:
        """End the session.

        Example:
            >>> remote.close()
        """
        with self._lock:
            self._engine.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
