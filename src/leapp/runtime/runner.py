"""A loaded bundle: opening it, and steps on whatever a caller gives.

A face adds how values come in and go out (``pipeline``, ``inference_manager``). It looks first whether all is as expected, and
comes here when it is not.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from leapp.bundle.reading import Bundle, open_bundle, read_initial_values, require_digest, require_signed
from leapp.bundle.signing import Keys
from leapp.bundle.trust import require_trust
from leapp.errors import InputError, InputTypeError
from leapp.graph.contract import Port
from leapp.runtime.arrays import Array, allocate, check_sum, is_float
from leapp.runtime.buffers import Program
from leapp.runtime.description import Catalogue
from leapp.runtime.engines import EngineOptions, Unit
from leapp.runtime.load import open_units
from leapp.runtime.plan import make_plan
from leapp.runtime.recording_api import Runs
from leapp.runtime.values import from_raw

__all__ = ["NonFinite", "Runner"]

NonFinite = Literal["ignore", "warn", "raise"]


class Runner(Catalogue, Runs):
    """A loaded bundle. Use ``leapp.runtime.Pipeline`` or ``leapp.InferenceManager``."""

    def __init__(
        self,
        model_path: str | os.PathLike[str] | Bundle,
        *,
        threads: int = 1,
        providers: Sequence[str] | None = None,
        device: str | None = None,
        cast: bool = False,
        sticky: bool = False,
        nonfinite: NonFinite = "ignore",
        copy: bool = True,
        allow_code: bool | None = None,
        allow_outside: bool = False,
        expect_digest: str | None = None,
        trust: Keys | None = None,
    ) -> None:
        """Open a bundle.

        Args:
            model_path: The bundle's YAML file or its directory, or a bundle that is already open.
            threads: Threads of one ONNX session.
            providers: ONNX Runtime execution providers. None takes CUDA when present, then the CPU.
            device: Where TorchScript and ``.pt2`` nodes run. None takes CUDA when present, else the CPU.
            cast: Convert inputs of another dtype when the kind fits, such as float64 to float32.
            sticky: Reuse the last value of an input that is not given (zeros before the first).
            nonfinite: What to do about NaN and infinity in inputs.
            copy: Return outputs on memory of their own. False returns views that the next step overwrites.
            allow_code: TorchScript and ``.pt2`` models are programs. True runs them, whoever made them, False refuses them.
                None runs those that you exported on this machine, that a key in ``trust`` signed, or that you accepted with
                ``leapp trust``.
            allow_outside: Let files of an unsealed bundle lie outside its directory.
            expect_digest: Refuse any bundle but the one with this digest.
            trust: Files with public keys. Refuse a bundle that none of them signed, before anything of it is parsed.
        """
        if nonfinite not in ("ignore", "warn", "raise"):
            raise InputError(f"nonfinite is 'ignore', 'warn' or 'raise', not {nonfinite!r}.")
        self.model_path = model_path
        if isinstance(model_path, Bundle):
            self._bundle = model_path
            require_signed(model_path, trust)
            require_digest(model_path, expect_digest)
        else:
            self._bundle = open_bundle(
                model_path, allow_outside=allow_outside, expect_digest=expect_digest, trust=trust
            )
        self._plan = make_plan(self._bundle.contract)
        check_sum([*self._plan.input_ports.values(), *self._plan.output_ports.values()])
        self._allow_code = allow_code
        self._options = EngineOptions(threads, tuple(providers) if providers is not None else None, device)
        self._cast, self._sticky, self._nonfinite, self._copy = cast, sticky, nonfinite, copy
        self._lock = threading.RLock()
        self._held = {}
        self._initial = self._initial_values()
        self._plain = not sticky and nonfinite == "ignore"
        self._program = None
        if not self._plan.missing:
            self._program = self._load()
            self._prepare()
            self.reset()

    def _units(self, nodes: Sequence[str]) -> list[Unit]:
        require_trust(self._bundle, self._allow_code)
        return open_units(self._bundle, self._plan, nodes, self._options)

    def _load(self) -> Program:
        self._engines = self._units(self._plan.order)
        return Program(self._plan, self._engines, self._register_inputs)

    def _initial_values(self) -> dict[str, Array]:
        stored = read_initial_values(self._bundle)
        ports = self._plan.input_ports
        return {k: from_raw(stored[k]) if k in stored else allocate(ports[k]) for k in self._plan.feedback}

    # Inputs, the careful way.

    def _gather(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Check everything a caller gave. Changes nothing but the batch, and that only where no state depends on it.

        Returns:
            The value of each input, of each overridden state, and of each input to hold once the step is done.
        """
        if not isinstance(given, Mapping):
            raise InputTypeError(f"A step takes a mapping from 'node/port' to values, got {type(given).__name__}.")
        if self._plan.batch is not None:
            self._follow_batch(given)
        values: dict[str, Any] = {}
        overrides: dict[str, Any] = {}
        for name, value in given.items():
            where = self._plan.input_key(name)
            self._refuse_internal(where)
            if where in values or where in overrides:
                raise InputError(f"Input {where!r} is given twice.")
            port = self._plan.input_ports[where]
            fitted = self._fit(where, port, value)
            self._check_finite(where, port, fitted)
            (overrides if where in self._plan.feedback else values)[where] = fitted
        missing = [k for k in self._plan.inputs if k not in values and k not in self._held]
        if missing and not self._sticky:
            raise InputError(f"Missing input {', '.join(map(repr, missing))}. A step takes {self.inputs}.")
        held = {**self._held, **{k: self._own(k, allocate(self._plan.input_ports[k])) for k in missing}}
        values = {k: values[k] if k in values else held[k] for k in self._plan.inputs}
        if self._sticky:
            held |= {k: self._duplicate(v) for k, v in values.items()}
        return values, overrides, held

    def _check_finite(self, where: str, port: Port, value: Any) -> None:
        if self._nonfinite == "ignore" or not is_float(port) or self._finite(value):
            return
        message = f"Input {where!r} holds NaN or infinity."
        if self._nonfinite == "raise":
            raise InputError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=5)

    def _step_carefully(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step on whatever was given. A step that fails leaves the state and the held inputs as they were."""
        with self._lock:
            values, overrides, held = self._gather(given)
            before = {k: self._read(k) for k in overrides}
            began = None
            try:
                self._replace({k: self._host(k, value) for k, value in overrides.items()})
                began = self._program.frame
                results: dict[str, Any] = began.step(None, self._in_order(values))
                self._held = held
            except BaseException:
                if began is None or self._program.frame is began:
                    self._replace(before)
                else:  # an interrupt after the step was done: only its results are lost
                    self._held = held
                raise
            return results
