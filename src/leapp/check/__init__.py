"""Proof: every written model replayed on every recorded sample, then the whole pipeline in closed loop.

The files are run by the runtime that deployers use, each in an engine of its own. Nothing here knows how they were made.
"""

from __future__ import annotations

from leapp.check.compare import Difference, compare
from leapp.check.fused import check_fused
from leapp.check.replay import Outcome, Verdict, check_node, check_pipeline

__all__ = ["Difference", "Outcome", "Verdict", "check_fused", "check_node", "check_pipeline", "compare"]
