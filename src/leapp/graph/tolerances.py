"""How far a float may be from the expected one unless the caller says otherwise."""

from __future__ import annotations

RTOL = 1e-3
"""Relative to the size of the expected value."""

ATOL = 1e-5
"""Absolute, added to the relative one."""
