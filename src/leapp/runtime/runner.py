"""A loaded bundle: opens it, and runs steps whose inputs must be checked first.

``pipeline`` and ``inference_manager`` add the conversion of values. A step whose inputs already have the expected form runs in
generated code and does not come here.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from leapp.bundle.reading import Bundle, open_bundle, read_initial_values, require_digest, require_signed
from leapp.bundle.signing import Keys
from leapp.bundle.trust import require_trust
from leapp.errors import InputError, InputTypeError
from leapp.graph.contract import Port
from leapp.runtime.arrays import allocate, check_sum, is_float
from leapp.runtime.buffers import Program
from leapp.runtime.codegen import CallerCode
from leapp.runtime.description import Description
from leapp.runtime.engine import LocalEngine, NoEngine
from leapp.runtime.load import EngineOptions, Unit, open_units
from leapp.runtime.plan import Plan, make_plan
from leapp.runtime.recording_api import RecordingApi
from leapp.runtime.values import from_raw

NonFinite = Literal["ignore", "warn", "raise"]


class Runner(Description, RecordingApi):
    """A loaded bundle. Use ``leapp.runtime.Pipeline`` or ``leapp.InferenceManager``."""

    _tensors_enter = False
    """Whether the caller's tensors go to torch nodes directly, without a copy in host memory."""

    def __init__(
        self,
        model_path: str | os.PathLike[str] | Bundle,
        *,
        threads: int | None = None,
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
            threads: Threads of one ONNX session. None takes one, and one for each core (at most 8) if an input or output has
                16,384 elements or more.
            providers: ONNX Runtime execution providers. None takes CUDA when present, then the CPU.
            device: Where TorchScript and ``.pt2`` nodes run. None takes CUDA when present, else the CPU.
            cast: Convert inputs of another dtype when the kind fits, such as float64 to float32.
            sticky: Reuse the last value of an input that is not given (zeros before the first).
            nonfinite: What to do about NaN and infinity in inputs.
            copy: Return outputs on memory of their own. False returns views that the next step overwrites.
            allow_code: TorchScript and ``.pt2`` models are programs. True runs them all, False refuses them.
                None runs those that you exported on this machine, that a key in ``trust`` signed, or that you accepted with
                ``leapp trust``.
            allow_outside: Let files of an unsealed bundle lie outside its directory.
            expect_digest: Refuse any bundle but the one with this digest.
            trust: Files with public keys. Refuse a bundle that none of them signed, before anything of it is parsed.
        """
        self._set_options(cast=cast, sticky=sticky, nonfinite=nonfinite, copy=copy)
        self.model_path = model_path
        if isinstance(model_path, Bundle):
            self._bundle = model_path
            require_signed(model_path, trust)
            require_digest(model_path, expect_digest)
        else:
            self._bundle = open_bundle(model_path, allow_outside=allow_outside, expect_digest=expect_digest, trust=trust)
        self._allow_code = allow_code
        self._options = EngineOptions(threads, tuple(providers) if providers is not None else None, device)
        self._engine = self._open_engine(make_plan(self._bundle.contract, checked=self._bundle is not model_path))

    def _set_options(
        self, *, cast: bool = False, sticky: bool = False, nonfinite: NonFinite = "ignore", copy: bool = True
    ) -> None:
        if nonfinite not in ("ignore", "warn", "raise"):
            raise InputError(f"nonfinite is 'ignore', 'warn' or 'raise', not {nonfinite!r}.")
        self._cast, self._sticky, self._nonfinite, self._copy = cast, sticky, nonfinite, copy
        self._lock = threading.RLock()

    def _open_engine(self, plan: Plan) -> LocalEngine | NoEngine:
        check_sum([*plan.input_ports.values(), *plan.output_ports.values()])
        stored = read_initial_values(self._bundle)
        if plan.missing:
            return NoEngine(plan)
        initial = {k: from_raw(stored[k]) if k in stored else allocate(plan.input_ports[k]) for k in plan.feedback}
        trust_form = not self._sticky and self._nonfinite == "ignore"
        units = self._units(plan, plan.order)
        return LocalEngine(plan, units, initial, self._tensors_enter, self._caller_code(), self._lock, trust_form)

    def _units(self, plan: Plan, nodes: Sequence[str]) -> list[Unit]:
        require_trust(self._bundle, self._allow_code)
        return open_units(self._bundle, plan, nodes, self._options)

    def _caller_code(self) -> Callable[[Plan, Program], CallerCode]:
        """What makes the object that writes the lines of a step that take the caller's values and return the results.

        It does not refer to this object, which could not be freed at once then.
        """
        raise NotImplementedError

    def __del__(self) -> None:
        engine = vars(self).get("_engine")
        if isinstance(engine, LocalEngine):
            engine.release()

    # Steps on inputs that must be checked first.

    def _gather(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Check all values of a caller. Changes nothing but the batch size, and that only if no state depends on it.

        Returns:
            The value of each input, of each overridden state, and the kept inputs once the step is done.
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
        kept = self._engine.kept_inputs
        missing = [k for k in self._plan.inputs if k not in values and k not in kept]
        if missing and not self._sticky:
            raise InputError(f"Missing input {', '.join(map(repr, missing))}. A step takes {self.inputs}.")
        kept = {**kept, **{k: self._own(k, allocate(self._plan.input_ports[k])) for k in missing}}
        values = {k: values[k] if k in values else kept[k] for k in self._plan.inputs}
        if self._sticky:
            kept |= {k: self._duplicate(v) for k, v in values.items()}
        return values, overrides, kept

    def _check_finite(self, where: str, port: Port, value: Any) -> None:
        if self._nonfinite == "ignore" or not is_float(port) or self._finite(value):
            return
        message = f"Input {where!r} holds NaN or infinity."
        if self._nonfinite == "raise":
            raise InputError(message)
        warnings.warn(message, RuntimeWarning, stacklevel=5)

    def _step_checked(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check all inputs, then run one step. A step that fails leaves the state and the kept inputs as they were."""
        with self._lock:
            values, overrides, kept = self._gather(given)
            return self._engine.run(values, {k: self._host(k, value) for k, value in overrides.items()}, kept)
