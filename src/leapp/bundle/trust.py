"""Which models may run as programs: TorchScript and ``.pt2`` files that this user exported on this machine.

Looking at a bundle never opens a program. Commands that run one ask here first. The record is a list of sha256 in the
user's state directory, written at export; a file that another user could have written is not believed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from leapp.errors import BundleError
from leapp.graph.contract import Contract

__all__ = ["PROGRAMS", "remember", "require_trust", "untrusted", "why_untrusted"]

PROGRAMS = {"jit": "TorchScript", "pt2": ".pt2"}
"""Backends whose models are programs."""

_MOST = 1 << 20
"""Bytes of the record; beyond them the older half is forgotten."""
_here: set[str] = set()
"""What this process exported, for machines without a place to write it down."""


def remember(contract: Contract) -> None:
    """Note that this user exported the programs of a bundle. Never fails: a lost note costs a question later."""
    made = {node.model.sha256sum for node in contract.nodes.values() if node.model.backend in PROGRAMS}
    _here.update(sha256 for sha256 in made if sha256 is not None)
    new = {sha256 for sha256 in made if sha256 is not None} - _recorded()
    if not new:
        return
    with contextlib.suppress(OSError):
        path = _record()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _MOST and _is_ours(path):
            lines = path.read_text().splitlines()
            path.write_text("".join(f"{line}\n" for line in lines[len(lines) // 2 :]))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            os.write(descriptor, "".join(f"{sha256}\n" for sha256 in sorted(new)).encode())
        finally:
            os.close(descriptor)


def untrusted(contract: Contract, nodes: Iterable[str] | None = None) -> list[str]:
    """The nodes whose models are programs that this user did not export on this machine."""
    known: set[str] | None = None
    found = []
    for name in contract.nodes if nodes is None else nodes:
        model = contract.nodes[name].model
        if model.backend in PROGRAMS and model.sha256sum is not None:
            known = _here | _recorded() if known is None else known
            if model.sha256sum not in known:
                found.append(name)
    return found


def require_trust(contract: Contract, allow_code: bool) -> None:
    """Refuse to run a bundle with somebody else's programs without consent.

    Raises:
        BundleError: With the node, and what to pass.
    """
    if not allow_code and (names := untrusted(contract)):
        raise BundleError(why_untrusted(contract, names[0]))


def why_untrusted(contract: Contract, name: str) -> str:
    """What to tell about a node that is not run."""
    kind = PROGRAMS[str(contract.nodes[name].model.backend)]
    return (
        f"node '{name}': the {kind} model is a program, and you did not export it on this machine. "
        "Pass --allow-code if you trust whoever made this bundle."
    )


def _recorded() -> set[str]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        path = _record()
        if _is_ours(path):
            return set(path.read_text(encoding="ascii").split())
    return set()


def _record() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "leapp" / "exported-programs"


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have written the file."""
    if not hasattr(os, "getuid"):
        return path.is_file()
    for place in (path, path.parent):
        status = place.lstat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
    return stat.S_ISREG(path.lstat().st_mode)
