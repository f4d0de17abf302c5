"""The engines of a replica: a function from state and inputs to outputs and next state.

Each session has its own state. The state in the engines is overwritten before each step, so no session can read the values of
another. Steps run one after another on one thread, in the order of their requests.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from leapp.bundle.contract_yaml import dump_contract
from leapp.bundle.reading import fingerprint
from leapp.runtime import Pipeline
from leapp.runtime.arrays import Array, numpy_dtype
from leapp.runtime.state import fix_batch
from leapp.serve.metrics import Metrics
from leapp.serve.options import Options, open_served

State = Mapping[str, Array]
"""The value of every fed-back input. It never changes after it was made."""


class SharedEngine:
    """A bundle, loaded once for all sessions of a replica.

    Args:
        options: The options of the server.
        metrics: Where durations are counted.

    Raises:
        BundleError: The bundle cannot be opened or run.
    """

    def __init__(self, options: Options, metrics: Metrics) -> None:
        self.bundle = bundle = open_served(options)
        self.pipeline = Pipeline(
            bundle,
            threads=options.threads,
            providers=options.providers,
            device=options.device,
            nonfinite=options.nonfinite,
            allow_code=options.allow_code,
        )
        if options.batch is not None and self.pipeline.batch is not None:
            self.pipeline.reset(batch=options.batch)
        fix_batch(self.pipeline)  # the inputs of one session must not change the batch size of all
        self.pipeline.warm_up()
        # A state is tied to its bundle by a digest, also if the bundle has no seal.
        self.digest, self.graph = bundle.digest or fingerprint(bundle), bundle.graph
        self.description = dump_contract(bundle.contract)
        self.initial: State = self.pipeline.state()
        self._metrics = metrics
        self._inside: State | None = None
        self.busy_since: float | None = None
        """When the step that runs now began."""
        self._thread = ThreadPoolExecutor(1, "leapp-engine")

    def sizes(self) -> dict[str, int]:
        """The bytes of one value of every port that a request may carry."""
        ports = [*self.pipeline.input_ports.values(), *self.pipeline.feedback_ports.values()]
        return {port.key: math.prod(port.shape) * numpy_dtype(port.dtype).itemsize for port in ports}

    async def step(self, state: State, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], State]:
        """Run one step from a state. Returns the outputs and the next state; the one given stays as it is.

        Raises:
            LeappError: The inputs or the state do not fit.
        """
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._step, time.perf_counter(), state, inputs)

    def _step(self, asked: float, state: State, inputs: Mapping[str, Any]) -> tuple[dict[str, Array], State]:
        began = self.busy_since = time.perf_counter()
        self._metrics.time("leapp_wait_seconds", began - asked)
        after = None
        try:
            if state is not self._inside:
                self._inside = None
                self.pipeline.load_state(state)
            self._inside = None
            outputs = self.pipeline(inputs)
            after = self.pipeline.state()
        finally:
            self._inside, self.busy_since = after, None
        self._metrics.time("leapp_step_seconds", time.perf_counter() - began)
        return outputs, after

    def is_stuck(self, seconds: float) -> bool:
        """Whether the present step has taken longer than that."""
        since = self.busy_since
        return since is not None and time.perf_counter() - since > seconds

    def close(self) -> None:
        """Let the last step end and stop the thread."""
        self._thread.shutdown()
