"""``leapp seal``, ``sign`` and ``sbom``: a new seal after an edit by hand, a signature, and what a bundle is made of."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

from leapp.bundle import check_files, open_bundle
from leapp.bundle.sbom import bom_text
from leapp.bundle.sealing import seal_again
from leapp.bundle.signing import write_signature
from leapp.cli.consent import open_for
from leapp.cli.output import Answer, Text

__all__ = ["sbom", "seal", "sign"]


def seal(arguments: Namespace) -> Answer:
    """Seal a bundle anew."""
    path, digest = seal_again(arguments.bundle)
    open_bundle(path, expect_digest=digest)
    return Answer({"path": str(path), "digest": digest}, [Text(f"sealed {path}, digest {digest}")])


def sign(arguments: Namespace) -> Answer:
    """Sign a bundle whose files are what its description says."""
    bundle = open_bundle(arguments.bundle)
    check_files(bundle)
    # A password ends with its line.
    password = Path(arguments.password_file).read_bytes().rstrip(b"\r\n") if arguments.password_file else None
    path, names = write_signature(bundle.path, arguments.key, password)
    return Answer({"path": str(path), "files": names}, [Text(f"signed {len(names)} files: {path}")])


def sbom(arguments: Namespace) -> Answer:
    """The bill of materials of a bundle. It is JSON with or without ``--json``."""
    text = bom_text(open_for(arguments), licence=arguments.licence)
    if arguments.output is None:
        return Answer(json.loads(text), [Text(text.removesuffix("\n"))])
    Path(arguments.output).write_text(text, encoding="utf-8", newline="\n")
    return Answer({"output": arguments.output}, [Text(f"wrote {arguments.output}")])
