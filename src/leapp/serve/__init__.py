"""Serve a bundle to many clients on Ray Serve.

``Service`` is the server as a plain ASGI application; ``leapp.serve.cluster`` puts it on Ray, which is imported only there.
"""

from __future__ import annotations

from leapp.serve.options import Options
from leapp.serve.service import Service

__all__ = ["Options", "Service"]
