"""Deployments: a bundle laid out for an inference server. Writes files; it runs no engine and starts no server."""

from __future__ import annotations

from leapp.deploy.options import TritonOptions
from leapp.deploy.triton import Deployment, deploy_triton

__all__ = ["Deployment", "TritonOptions", "deploy_triton"]
