"""The commands and their options. Everything here is cheap: commands are imported when they run."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from leapp.graph.suggest import close

__all__ = ["build", "parse"]

_TARGETS = ("isaac-ros", "tensorrt", "onnxruntime", "openvino")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed arguments. Leaves with ``SystemExit`` on ``--help``, ``--version`` and wrong usage."""
    return build().parse_args(argv)


def build() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = _Parser(
        prog="leapp",
        description="Look at exported policy pipelines, prove them, run them.",
        epilog="BUNDLE is the directory of a bundle or its .yaml file. Exit codes: 0 ok, 1 check failed, 2 error.",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and leave")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    one = _command(commands, "inspect", "looking", "what to feed a bundle, what it returns, what it lacks")
    one.add_argument("bundle")
    one.add_argument("--quick", action="store_true", help="do not check the model files")

    one = _command(commands, "verify", "proving", "check every file and replay the recorded samples on this machine")
    one.add_argument("bundle")
    _opening(one)
    _code(one)
    one.add_argument("--thorough", action="store_true", help="run ONNX models at every level of graph optimisation")
    one.add_argument("--digest", help="also require this digest")
    one.add_argument("--timeout", type=_seconds, default=600.0, metavar="S",
                     help="most seconds that a model may take to open, or to run once (default: %(default)s)")  # fmt: skip
    _tolerances(one)

    one = _command(commands, "run", "running", "run a bundle and show its outputs")
    one.add_argument("bundle")
    _opening(one)
    one.add_argument("--input", metavar="FILE.npz", help="values by node/port; one value, or one for each step")
    one.add_argument("--steps", type=_count, help="how many steps (default: as many as the input has)")
    one.add_argument("--output", metavar="FILE.npz", help="write the outputs of all steps")
    one.add_argument("--record", metavar="FILE.npz", help="write everything, for leapp replay")
    _engine(one)

    one = _command(commands, "bench", "running", "time the steps of a bundle")
    one.add_argument("bundle")
    _opening(one)
    one.add_argument("--rate", type=_rate, metavar="HZ", help="start steps at this rate and count those that are late")
    one.add_argument("--steps", type=_count, help="how many steps (default: 1000, or 5 seconds at the rate)")
    one.add_argument("--page", metavar="DIRECTORY", help="also write a page that shows where the time goes")
    _engine(one)

    one = _command(commands, "replay", "replaying", "give recordings to a bundle and compare what it returns")
    one.add_argument("bundle")
    _opening(one)
    one.add_argument("recordings", nargs="+", metavar="RECORDING", help="a file, or a pattern such as 'runs/**/*.mcap'")
    one.add_argument("--baseline", metavar="BUNDLE", help="compare with this bundle on the recorded inputs")
    one.add_argument("--output", metavar="FILE.parquet", help="write one row for each port of each recording")
    one.add_argument("--journal", metavar="FILE", help="file to resume from (default: beside --output)")
    one.add_argument("--worst", type=_count, default=5, help="worst recordings to list for each port (default: %(default)s)")
    one.add_argument("--engine", choices=("local", "ray"), default="local", help="this process, or Ray (default: local)")
    one.add_argument("--address", help="the Ray cluster (default: one on this machine)")
    one.add_argument("--workers", type=_count, help="recordings that Ray replays at a time (default: all cores)")
    _tolerances(one)
    _engine(one)

    one = _command(commands, "view", "looking", "write the page of a bundle and open it")
    one.add_argument("bundle")
    _opening(one)
    one.add_argument("--output", metavar="DIRECTORY", help="where to write it (default: a temporary directory)")
    one.add_argument("--verify", action="store_true", help="replay the samples and show how close the files come")
    one.add_argument("--recording", metavar="FILE", help="play this recorded run over the graph")
    _code(one)
    one.add_argument("--no-open", action="store_true", help="only write it")

    one = _command(commands, "diff", "comparing", "what changed between two bundles")
    one.add_argument("bundle", metavar="A")
    one.add_argument("other", metavar="B")
    _opening(one)
    _code(one)

    one = _command(commands, "seal", "sealing", "seal a bundle anew after an edit by hand")
    one.add_argument("bundle")

    one = _command(commands, "sign", "sealing", "sign a bundle with a private key")
    one.add_argument("bundle")
    one.add_argument("--key", required=True, metavar="FILE", help="the private key, in PEM: NIST P-256, P-384 or P-521")
    one.add_argument("--password-file", metavar="FILE", help="the password of the key, if it has one")

    one = _command(commands, "sbom", "sealing", "what a bundle is made of, as a CycloneDX bill of materials")
    one.add_argument("bundle")
    _opening(one)
    one.add_argument("-o", "--output", metavar="FILE.json", help="write it to a file")
    one.add_argument("--licence", "--license", metavar="SPDX", help="the licence of the bundle, such as Apache-2.0")

    one = _command(commands, "trust", "consent", "let the TorchScript and .pt2 models of a bundle run on this machine")
    one.add_argument("bundle")

    one = _command(commands, "fuse", "fusing", "write the whole pipeline as one ONNX model")
    one.add_argument("bundle")
    _opening(one)
    one.add_argument("-o", "--output", required=True, metavar="FILE.onnx", help="the file to write")

    one = _command(commands, "deploy", "deploying", "lay a bundle out for an inference server, or for C++")
    one.add_argument("target", choices=("triton", "cpp"), help="the server, or cpp for a header with types")
    one.add_argument("bundle")
    _opening(one)
    one.add_argument("-o", "--output", required=True, metavar="DIRECTORY", help="the directory to write")
    _code(one)
    _triton(one)

    one = _command(commands, "serve", "serving", "serve a bundle to many clients, on Ray Serve")
    one.add_argument("bundle")
    _opening(one)
    _serving(one)
    _engine(one)

    one = _command(commands, "check", "looking", "whether a target can take a bundle")
    one.add_argument("bundle")
    one.add_argument("--profile", required=True, choices=_TARGETS, help="the target")

    _command(commands, "schema", "looking", "the JSON Schema of a bundle's description")
    _command(commands, "doctor", "machine", "versions, engines and known problems of this machine")
    one = _command(commands, "completion", "completion", "a shell's completion script")
    one.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def _command(commands: Any, name: str, module: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(command=_late(module, name))
    parser.add_argument("--json", action="store_true", help="answer as JSON")
    parser.add_argument("--traceback", action="store_true", help=argparse.SUPPRESS)
    return parser


def _late(module: str, name: str) -> Callable[[argparse.Namespace], Any]:
    return lambda arguments: getattr(import_module(f"leapp.cli.{module}"), name)(arguments)


def _opening(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allow-outside", action="store_true", help="let files of an unsealed bundle lie elsewhere")
    parser.add_argument("--trust", action="append", metavar="KEY", help="refuse a bundle that this public key did not sign")


def _code(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allow-code", action="store_true", help="run TorchScript and .pt2 models exported elsewhere")


def _tolerances(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rtol", type=float, default=1e-3, help="relative tolerance (default: %(default)s)")
    parser.add_argument("--atol", type=float, default=1e-5, help="absolute tolerance (default: %(default)s)")


def _engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=_count, default=1, help="threads of one ONNX session (default: 1)")
    parser.add_argument("--provider", action="append", metavar="NAME", help="ONNX Runtime provider, in order of preference")
    _code(parser)
    parser.add_argument("--no-code", action="store_true", help="refuse TorchScript and .pt2 models, which are programs")


def _triton(parser: argparse.ArgumentParser) -> None:
    """The options of ``TritonOptions``; its defaults hold where none is given."""
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--backend", choices=("native", "python"), help="the server's own engines, or leapp.runtime in its Python backend")
    add("--model-version", type=_count, dest="version", metavar="N", help="the number of this version (default: 1)")
    add("--version-policy", choices=("latest", "all", "specific"), help="which versions the server loads (default: latest)")
    add("--max-batch-size", type=_count, metavar="N", help="requests that may be put together (default: none are)")
    add("--instances", type=_count, metavar="N", help="instances of each model (default: 1)")
    add("--kind", choices=("auto", "cpu", "gpu"), help="where engines run (default: auto)")
    add("--gpus", type=_numbers, metavar="0,1", help="the GPUs to use with --kind gpu")
    add("--sequences", type=_count, metavar="N", help="sequences an instance serves at a time (default: 1024)")
    add("--idle-seconds", type=_seconds, metavar="S", help="how long a silent sequence keeps its state (default: 60)")
    add("--threads", type=_count, metavar="N", help="threads of one ONNX session; Python backend only (default: 1)")
    add("--nonfinite", choices=("ignore", "raise"), help="about NaN in inputs; Python backend only (default: ignore)")
    add("--dtype", action="append", dest="dtypes", type=_pair, metavar="PORT=DTYPE",
        help="the dtype by which clients know a port; Python backend only (default: the port's own)")  # fmt: skip


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.rpartition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port with a dtype such as policy/obs=float32")
    return name, value


def _numbers(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,1")
    return tuple(int(part) for part in parts)


def _serving(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--digest", help="refuse any bundle but the one with this digest")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen; others than this machine need a token")
    parser.add_argument("--port", type=_count, default=8000, help="(default: %(default)s)")
    parser.add_argument("--token-file", metavar="FILE", help="the token that clients must show (default: LEAPP_TOKEN, if set)")
    parser.add_argument("--replicas", type=_count, help="how many replicas (default: 1)")
    parser.add_argument("--autoscaling", metavar="JSON", help="Ray Serve's autoscaling_config, instead of --replicas")
    parser.add_argument("--resources", metavar="JSON", help="Ray's options of one replica, such as its GPUs")
    parser.add_argument("--address", help="the Ray cluster to join (default: one on this machine)")
    parser.add_argument("--nonfinite", choices=("ignore", "raise"), default="ignore", help="what to do about NaN in inputs")
    parser.add_argument("--batch", type=_count, metavar="ROWS", help="run up to so many sessions at once, as rows of a batch")
    parser.add_argument("--max-bytes", type=_count, help="most bytes of a request (default: what the ports need)")
    parser.add_argument("--rate", type=_rate, default=1000.0, help="most requests a second of a client (default: %(default)s)")
    parser.add_argument("--sessions", type=_count, default=256, help="most sessions of a replica (default: %(default)s)")
    parser.add_argument("--sessions-per-client", type=_count, metavar="N",
                        help="most sessions of one address in a replica (default: half of --sessions)")  # fmt: skip
    parser.add_argument("--idle", type=_seconds, default=600.0, help="seconds until idle sessions end (default: %(default)s)")
    parser.add_argument("--timeout", type=_seconds, default=600.0,
                        help="seconds that opening or a step may take; then the replica ends (default: 600)")  # fmt: skip
    parser.add_argument("--drain", type=_seconds, default=20.0, help="seconds that sessions have to end (default: %(default)s)")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _rate(text: str) -> float:
    return _positive(text, 1e6, "a rate in hertz")


def _seconds(text: str) -> float:
    return _positive(text, 1e9, "a time in seconds")


def _positive(text: str, below: float, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < below:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return number


class _Parser(argparse.ArgumentParser):
    """Says what is wrong on one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        """Leave with the message, and with the nearest choice where a word is none of them."""
        wrong = re.match(r"argument .*?: invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong is not None:
            message += close(wrong[1], [choice.strip(" '") for choice in wrong[2].split(",")], 0.6)
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Version(argparse.Action):
    """Prints the version; only then is it worth importing."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from leapp.bundle.system import system_information

        print(f"leapp {system_information()['leapp version']}")
        parser.exit()
