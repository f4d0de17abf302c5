"""The default tolerances when floats are compared."""

from __future__ import annotations

RTOL = 1e-3
"""The relative tolerance."""

ATOL = 1e-5
"""The absolute tolerance, which is added to the relative one."""
