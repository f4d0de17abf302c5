"""Attacks start from the sealed bundle of the bundle's own tests."""

from __future__ import annotations

from tests.bundle.conftest import bundle

__all__ = ["bundle"]
