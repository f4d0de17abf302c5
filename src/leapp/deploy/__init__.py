"""Deploys bundles: writes them for an inference server, for C++ or as one ONNX model, and checks them against a target.

It writes files and starts no server. Each name is imported at its first use, so that ``leapp check`` does not load NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from leapp.deploy.cpp_header import CppHeader, deploy_cpp
    from leapp.deploy.fuse import fuse_onnx, read_fused
    from leapp.deploy.triton import Deployment, deploy_triton
    from leapp.deploy.triton_config import TritonOptions

__all__ = ["CppHeader", "Deployment", "TritonOptions", "deploy_cpp", "deploy_triton", "fuse_onnx", "read_fused"]

_HOMES = {
    "CppHeader": "cpp_header", "Deployment": "triton", "TritonOptions": "triton_config", "deploy_cpp": "cpp_header",
    "deploy_triton": "triton", "fuse_onnx": "fuse", "read_fused": "fuse",
}  # fmt: skip


if not TYPE_CHECKING:  # a type checker would accept every name of a module with __getattr__

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'leapp.deploy' has no attribute '{name}'")
        value = getattr(import_module(f"leapp.deploy.{_HOMES[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
