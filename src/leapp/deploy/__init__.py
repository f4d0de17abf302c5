"""Deployments: a bundle laid out for an inference server or for C++. Writes files; it runs no engine and starts no server."""

from __future__ import annotations

from leapp.deploy.cpp_header import CppHeader, deploy_cpp
from leapp.deploy.options import TritonOptions
from leapp.deploy.triton import Deployment, deploy_triton

__all__ = ["CppHeader", "Deployment", "TritonOptions", "deploy_cpp", "deploy_triton"]
