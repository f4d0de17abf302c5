"""Makes the ``system information`` of a bundle: machine and package versions. Imports none of these packages."""

from __future__ import annotations

import functools
import platform
import sys
from typing import Any

from leapp.graph.contract import CONFIG_VERSION


def system_information(torch_version: str | None = None, cuda: str | None = None) -> dict[str, Any]:
    """The block for this machine.

    Args:
        torch_version: ``torch.__version__`` of the exporting process.
        cuda: ``torch.version.cuda``; ``None`` without CUDA, which readers expect as the text ``None``.
    """
    return {
        "cuda version": str(cuda),
        "leapp config version": CONFIG_VERSION,
        "leapp version": leapp_version(),
        "os": _os_name(),
        "python version": platform.python_version(),
        "torch version": None if torch_version is None else str(torch_version),
        "warp version": getattr(sys.modules.get("warp"), "__version__", None),
    }


def package_version(name: str) -> str | None:
    """The version of an installed package; None if it is not installed."""
    # Imported here because it is slow.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


@functools.cache
def leapp_version() -> str:
    """The version of leapp."""
    return package_version("leapp") or "1.0.0.dev0"


@functools.cache
def _os_name() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return platform.platform()
    return f"{release.get('NAME', 'Linux')} {release.get('VERSION_ID', '')}".strip()
