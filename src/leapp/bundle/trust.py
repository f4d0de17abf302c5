"""Decides which programs (TorchScript and ``.pt2`` files) may run.

Inspecting a bundle never opens a program. A program runs, from Python and from the command line alike, if a trusted key
signed it, if the caller allows it, or if this user exported it on this machine or ran ``leapp trust``. The last two are
recorded as a list of sha256 in the user's state directory; a file that another user could have written is ignored.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from leapp.bundle.files import as_argument
from leapp.bundle.reading import Bundle
from leapp.errors import BundleError
from leapp.graph.contract import Contract
from leapp.graph.formats import FORMATS, is_program

_MOST = 1 << 20
"""The most bytes of the record. When it is longer, the older half is dropped."""
_here: set[str] = set()
"""The programs that this process exported, for machines where the record cannot be written."""


def remember(contract: Contract) -> bool:
    """Record that this user trusts the programs of a bundle. Never raises: without a record the user must allow them again.

    Returns:
        Whether other processes will find the record.
    """
    made = set(_programs(contract).values())
    _here.update(made)
    new = _unrecorded(made)
    if not new:
        return True
    text = "".join(f"{sha256}\n" for sha256 in sorted(new)).encode()
    with contextlib.suppress(OSError):
        path = record()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size > _MOST and _is_ours(path):
            lines = path.read_text().splitlines()
            path.write_text("".join(f"{line}\n" for line in lines[len(lines) // 2 :]))
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            written = os.write(descriptor, text)
        finally:
            os.close(descriptor)
        return written == len(text) and _is_ours(path)
    return False


def untrusted(bundle: Bundle) -> list[str]:
    """The nodes whose models are programs from an untrusted source."""
    programs = {} if bundle.signature is not None else _programs(bundle.contract)
    if not programs:
        return []
    unknown = _unrecorded(set(programs.values()) - _here)
    return [name for name, sha256 in programs.items() if sha256 in unknown]


def _programs(contract: Contract) -> dict[str, str]:
    """The sha256 of each model that is a program, by node."""
    models = {name: node.model for name, node in contract.nodes.items() if is_program(node.model.backend)}
    return {name: model.sha256sum for name, model in models.items() if model.sha256sum is not None}


def require_trust(bundle: Bundle, allow_code: bool | None = None) -> None:
    """Refuse to run programs from an untrusted source.

    Args:
        bundle: The bundle.
        allow_code: True trusts the bundle's author, False refuses all programs, None needs a signature or a record.

    Raises:
        BundleError: With the node, and what to pass.
    """
    if allow_code is False:
        for name, node in bundle.contract.nodes.items():
            if is_program(node.model.backend):
                raise BundleError(
                    f"Node {name!r} is a {node.model.backend} model, which is a program; allow_code=False refuses it."
                )
    if not allow_code and (names := untrusted(bundle)):
        raise BundleError(why_untrusted(bundle, names[0]))


def why_untrusted(bundle: Bundle, name: str) -> str:
    """The message for a node that is not run."""
    kind = FORMATS[str(bundle.contract.nodes[name].model.backend)].title
    return (
        f"node '{name}': the {kind} model is a program, and you did not export it on this machine. If you trust the author "
        f"of this bundle, run 'leapp trust {as_argument(bundle.directory)}' once, or pass allow_code=True (--allow-code); "
        "trust=KEY (--trust KEY) accepts what that key signed."
    )


def _unrecorded(wanted: set[str]) -> set[str]:
    """The sha256 among ``wanted`` that are not in the record."""
    lines = b""
    with contextlib.suppress(OSError):
        if wanted and _is_ours(path := record()):
            with open(path, "rb", buffering=0) as file:
                lines = file.read()
    # The record may be long, so it is neither copied nor split.
    return {s for s in wanted if f"\n{s}\n".encode() not in lines and not lines.startswith(f"{s}\n".encode())}


def record() -> Path:
    """The file with the sha256 of the programs that this user exported or accepted."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base, "leapp", "exported-programs")


def _is_ours(path: Path) -> bool:
    """Whether only this user can have written the file."""
    if not hasattr(os, "getuid"):
        return path.is_file()
    found, user = [os.lstat(path), os.lstat(os.path.dirname(path))], os.getuid()
    mine = all(status.st_uid == user and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for status in found)
    return mine and stat.S_ISREG(found[0].st_mode)
