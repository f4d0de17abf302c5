"""``leapp sign``: a signature over the files of a bundle."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from leapp.bundle import check_files, open_bundle
from leapp.bundle.signing import write_signature
from leapp.cli.arguments import add_bundle
from leapp.cli.output import Answer, Text


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp sign``."""
    add_bundle(parser)
    parser.add_argument("--key", required=True, metavar="FILE", help="the private key, in PEM: NIST P-256, P-384 or P-521")
    parser.add_argument("--password-file", metavar="FILE", help="the password of the key, if it has one")


def command(arguments: Namespace) -> Answer:
    """Sign a bundle whose files match its description."""
    bundle = open_bundle(arguments.bundle)
    check_files(bundle)
    # The line break after a password is not part of it.
    password = Path(arguments.password_file).read_bytes().rstrip(b"\r\n") if arguments.password_file else None
    path, names = write_signature(bundle.path, arguments.key, password)
    return Answer({"path": str(path), "files": names}, [Text(f"signed {len(names)} files: {path}")])
