"""The command ``leapp``: inspects, verifies and runs bundles.

There is one module for each verb, and ``parser.VERBS`` lists them. They know nothing of tracing and exporting. A verb imports
NumPy, and modules that use it, inside its functions, so that help, completion and ``inspect`` start quickly.
"""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from leapp.errors import LeappError, visible

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: The arguments, ``sys.argv[1:]`` by default.

    Returns:
        0 ok, 1 check failed (something differs, is damaged, late or missing), 2 error (wrong usage, unreadable files);
        130 after Ctrl-C.
    """
    from leapp.cli.parser import parse

    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 -- open until the process ends
    if sys.stdout is None:
        return _unwritable("it is closed")
    try:
        return _answer(parse(sys.argv[1:] if argv is None else argv))
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 2
    except KeyboardInterrupt:
        print("leapp: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        # Without this, Python reports the same error again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A closed pipe is not an error: a reader such as head closes it when it has read enough.
        return 0 if isinstance(error, BrokenPipeError) else _unwritable(error.strerror or str(error))


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print a warning as one sentence, without the line of source that Python shows."""
    python = warnings.formatwarning
    warnings.formatwarning = lambda message, *_: f"leapp: warning: {visible(' '.join(str(message).split()))}\n"
    try:
        yield
    finally:
        warnings.formatwarning = python


def _unwritable(why: str) -> int:
    print(f"leapp: the answer cannot be written to standard output: {why}.", file=sys.stderr)
    return 2


def _answer(arguments: Namespace) -> int:
    from leapp.cli.output import Answer, report, write

    try:
        with _plain_warnings():
            answer: Answer = arguments.command(arguments)
    except BrokenPipeError:
        raise
    except Exception as error:  # every failure ends with one sentence and an exit code
        if arguments.traceback:
            raise
        expected = isinstance(error, (LeappError, OSError))
        return report(error, expected=expected, as_json=arguments.json)
    write(answer, as_json=arguments.json)  # outside of the try: it raises only if the output stream fails
    return answer.code
