"""Counts what a replica does, and writes the counts of all replicas as Prometheus text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_KINDS = {
    "leapp_steps_total": ("counter", "Steps that ran, by transport."),
    "leapp_batched_steps_total": ("counter", "Steps that ran as rows of a batch; the runs are leapp_step_seconds_count."),
    "leapp_refused_total": ("counter", "Requests that were refused or failed, by error."),
    "leapp_sessions_total": ("counter", "Sessions that were opened."),
    "leapp_sessions": ("gauge", "Sessions that are open."),
    "leapp_received_bytes_total": ("counter", "Bytes of requests."),
    "leapp_sent_bytes_total": ("counter", "Bytes of answers."),
    "leapp_draining": ("gauge", "1 while the replica takes no more requests."),
    "leapp_step_seconds": ("histogram", "Time of one run of the engines."),
    "leapp_wait_seconds": ("histogram", "Time a step waited for the engines."),
}

Snapshot = dict[str, Any]


class Metrics:
    """The figures of one replica."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, float]] = {name: {} for name, (kind, _) in _KINDS.items() if kind != "histogram"}
        self._times = {name: [0.0] * (len(_BOUNDS) + 2) for name, (kind, _) in _KINDS.items() if kind == "histogram"}

    def add(self, name: str, value: float = 1, label: str = "") -> None:
        """Add to a counter or a gauge. The label is written ``name="value"``."""
        series = self._values[name]
        series[label] = series.get(label, 0) + value

    def time(self, name: str, seconds: float) -> None:
        """Count a duration."""
        row = self._times[name]
        row[bisect_left(_BOUNDS, seconds)] += 1
        row[-1] += seconds

    def snapshot(self) -> Snapshot:
        """The figures as plain values, for ``render``."""
        return {"values": {k: dict(v) for k, v in self._values.items()}, "times": {k: list(v) for k, v in self._times.items()}}


def render(replicas: Mapping[str, Snapshot]) -> str:
    """The Prometheus text of the figures of some replicas."""
    lines = []
    for name, (kind, text) in _KINDS.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for replica, snapshot in sorted(replicas.items()):
            mark = f'replica="{replica}"'
            if kind == "histogram":
                lines += _histogram(name, mark, snapshot["times"][name])
            else:
                found = snapshot["values"][name] or {"": 0}
                lines += [f"{name}{{{mark}{label and ','}{label}}} {value:g}" for label, value in sorted(found.items())]
    return "\n".join(lines) + "\n"


def _histogram(name: str, mark: str, row: list[float]) -> list[str]:
    lines, total = [], 0.0
    for bound, count in zip([*map(str, _BOUNDS), "+Inf"], row, strict=False):
        total += count
        lines.append(f'{name}_bucket{{{mark},le="{bound}"}} {total:.0f}')
    return [*lines, f"{name}_sum{{{mark}}} {row[-1]!r}", f"{name}_count{{{mark}}} {total:.0f}"]
