"""Options that several verbs share, and the functions that parse their values. Imports no large package."""

from __future__ import annotations

import argparse

from leapp.graph.tolerances import ATOL, RTOL, check_tolerances


def add_bundle(parser: argparse.ArgumentParser) -> None:
    """The bundle that a verb works on."""
    parser.add_argument("bundle", metavar="BUNDLE", help="the directory of a bundle, or its .yaml file")


def add_opened_bundle(parser: argparse.ArgumentParser) -> None:
    """The bundle that a verb opens with ``open_for``."""
    add_bundle(parser)
    add_opening(parser)


def add_opening(parser: argparse.ArgumentParser) -> None:
    """Which files of a bundle may be read, and which key must have signed it."""
    parser.add_argument("--allow-outside", action="store_true", help="accept files outside the directory of an unsealed bundle")
    parser.add_argument("--trust", action="append", metavar="KEY", help="refuse a bundle that this public key did not sign")


def add_code(parser: argparse.ArgumentParser) -> None:
    """Whether programs in a bundle may run."""
    parser.add_argument("--allow-code", action="store_true", help="accept TorchScript and .pt2 models exported elsewhere")


def add_tolerances(parser: argparse.ArgumentParser) -> None:
    """How far values may differ."""
    parser.add_argument("--rtol", type=tolerance, default=RTOL, metavar="X", help="relative tolerance (default: %(default)s)")
    parser.add_argument("--atol", type=tolerance, default=ATOL, metavar="X", help="absolute tolerance (default: %(default)s)")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """How the models run."""
    threads = "threads of one ONNX session (default: 1, and one for each core if values are large)"
    parser.add_argument("--threads", type=count, metavar="N", help=threads)
    parser.add_argument("--provider", action="append", metavar="NAME", help="ONNX Runtime providers, preferred ones first")
    add_code(parser)
    parser.add_argument("--no-code", action="store_true", help="refuse TorchScript and .pt2 models, which are programs")


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def tolerance(text: str) -> float:
    """A tolerance when values are compared."""
    try:
        number = float(text)
        check_tolerances(number, 0.0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a finite number of at least 0") from None
    return number


def rate(text: str) -> float:
    """A rate in hertz."""
    return _positive(text, 1e6, "a rate in hertz")


def seconds(text: str) -> float:
    """A time in seconds."""
    return _positive(text, 1e9, "a time in seconds")


def _positive(text: str, below: float, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < below:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what} above 0 and below {below:g}")
    return number
