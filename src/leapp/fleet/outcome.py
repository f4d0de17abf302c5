"""What travels from a worker to the report: plain values that every engine can carry."""

from __future__ import annotations

import msgspec

from leapp.fleet.statistics import Statistics


class Result(msgspec.Struct):
    """What one recording showed.

    Attributes:
        steps: How many steps it has.
        outputs: The differences of each output, by key.
        states: The differences of each state after a step, by key.
    """

    steps: int
    outputs: dict[str, Statistics]
    states: dict[str, Statistics]


class Outcome(msgspec.Struct):
    """What became of one recording.

    Attributes:
        number: Which recording, counted from 0.
        key: What its result is kept under; empty if it could not be replayed.
        result: What it showed; None if the journal has it already, or if it could not be replayed.
        error: Why it could not be replayed.
    """

    number: int
    key: bytes = b""
    result: Result | None = None
    error: str = ""
