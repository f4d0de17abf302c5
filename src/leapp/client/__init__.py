"""Runs a bundle on a server, with the interface of ``leapp.runtime.Pipeline``.

Importing this package loads neither torch nor onnx, onnxruntime or ray. A connection needs the package ``websockets``.
"""

from __future__ import annotations

from leapp.client.pipeline import Client

__all__ = ["Client"]
