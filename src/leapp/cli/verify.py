"""``leapp verify``: checks every file, and replays every sample on this machine's engines."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leapp import errors
from leapp.bundle import Bundle, Sample, check_files, read_samples
from leapp.bundle.files import memory_of_machine
from leapp.bundle.trust import require_trust, untrusted, why_untrusted
from leapp.cli.arguments import add_code, add_opened_bundle, add_tolerances, seconds
from leapp.cli.opening import open_for
from leapp.cli.output import Answer, Cell, Table, Text, progress
from leapp.errors import BundleError, BundleFileError, LeappError
from leapp.graph.contract import key

if TYPE_CHECKING:
    from leapp.check.engines import Place
    from leapp.check.samples import Outcome


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of ``leapp verify``."""
    add_opened_bundle(parser)
    add_code(parser)
    parser.add_argument("--thorough", action="store_true", help="replay ONNX models at every level of graph optimisation")
    parser.add_argument("--digest", help="refuse any bundle but the one with this digest")
    parser.add_argument("--timeout", type=seconds, default=600.0, metavar="S",
                        help="seconds that a model may take to open, or to run once (default: %(default)s)")  # fmt: skip
    add_tolerances(parser)


def command(arguments: Namespace) -> Answer:
    """Check a bundle. A missing bundle is an error; a bundle that fails a step is a failed check."""
    from leapp.check.engine_process import EngineProcess

    if not Path(arguments.bundle).exists():
        raise BundleFileError(f"{arguments.bundle} does not exist.")
    steps: list[dict[str, Any]] = []
    try:
        bundle = open_for(arguments)
        if bundle.signature is not None:
            steps.append(_step("signature", True, f"made by the key {bundle.signature.key}"))
        fits = ", seal fits, annotations were changed" if bundle.seal.annotated else ", digest fits"
        steps.append(_step("description", True, "follows the schema" + (fits if bundle.digest else "")))
        check_files(bundle)
        words = f"{len(bundle.files)} files unchanged" if bundle.digest else "models unchanged; the bundle carries no seal"
        steps.append(_step("files", True, words))
        samples = read_samples(bundle)
    except BundleError as error:
        steps.append(_step("files" if steps else "description", False, str(error)))
        return _answer(arguments, steps, [])
    # An engine has no limits for memory and time, so the models run in a process that has them.
    with EngineProcess(arguments.timeout, memory_of_machine()) as engine_process:
        if not samples:
            steps.append(_trial(bundle, arguments.allow_code, engine_process.open))
            return _answer(arguments, steps, [], bundle)
        outputs = _replay(bundle, samples, arguments, steps, engine_process.open)
    return _answer(arguments, steps, outputs, bundle)


def _step(name: str, ok: bool, text: str) -> dict[str, Any]:
    return {"step": name, "ok": ok, "text": text}


def _trial(bundle: Bundle, allow_code: bool, place: Place) -> dict[str, Any]:
    """Check a bundle without samples: whether the models open and run on this machine."""
    from leapp.check.engines import open_pipeline
    from leapp.runtime.arrays import random_array
    from leapp.runtime.plan import make_plan

    try:
        require_trust(bundle, allow_code or None)
        with progress("opening engines"):
            plan = make_plan(bundle.contract)
            place(open_pipeline, bundle)({where: random_array(plan.input_ports[where]) for where in plan.inputs})
    except Exception as error:  # an engine may raise any type; it is the result of this step
        return _step("trial", False, _why(error))
    return _step("trial", True, "ran on random values; the bundle carries no samples to compare with")


def _replay(
    bundle: Bundle,
    samples: Mapping[str, Sequence[Sample]],
    arguments: Namespace,
    steps: list[dict[str, Any]],
    place: Place,
) -> list[dict[str, Any]]:
    from leapp.check.samples import measure_node

    outputs: list[dict[str, Any]] = []
    random: set[str] = set()
    nodes = [name for name, node in bundle.contract.nodes.items() if node.model.model_path is not None]
    refused = [] if arguments.allow_code else untrusted(bundle)
    with progress("replaying samples", len(nodes) + 1) as advance:
        for name in nodes:
            if name in refused:
                steps.append(_step(f"node {name}", False, f"not run: {why_untrusted(bundle, name)}"))
                continue
            try:
                tolerance = arguments.rtol, arguments.atol
                found, _ = measure_node(
                    bundle, name, samples.get(name, ()), *tolerance, thorough=arguments.thorough, place=place
                )
            except Exception as error:  # an engine may raise any type; it is the result of this node
                steps.append(_step(f"node {name}", False, _why(error)))
            else:
                steps.append(_node_step(name, found, arguments.thorough))
                random |= {name} if found.random else set()
                outputs += [{"key": key(name, port), **figures.as_dict()} for port, figures in found.figures.items()]
            advance()
        if all(step["ok"] for step in steps) and len(nodes) == len(bundle.contract.nodes) == len(samples):
            steps.append(_closed_loop(bundle, samples, arguments, random, place))
        advance()
    for name in bundle.contract.nodes:
        if name not in nodes:
            steps.append(_step(f"node {name}", True, "has no model; nothing was run"))
    return outputs


def _node_step(name: str, found: Outcome, thorough: bool) -> dict[str, Any]:
    where = " at every optimisation level" if thorough else ""
    if found.verdicts:
        return _step(f"node {name}", False, str(found.verdicts[0]))
    if found.random:
        ports = ", ".join(sorted(found.random))
        words = f"draws random numbers; {found.passes} samples ran{where}, {ports} compared by shape and dtype only"
        return _step(f"node {name}", True, words)
    if not found.passes:
        return _step(f"node {name}", True, "can be opened; the bundle carries no values to compare with")
    return _step(f"node {name}", True, f"{found.passes} samples reproduced{where}")


def _closed_loop(
    bundle: Bundle, samples: Mapping[str, Sequence[Sample]], arguments: Namespace, random: set[str], place: Place
) -> dict[str, Any]:
    from leapp.check.engine_process import EngineProcessError
    from leapp.check.engines import open_pipeline
    from leapp.check.samples import check_pipeline

    try:
        # Feedback multiplies rounding differences.
        tolerance = 10 * arguments.rtol, 10 * arguments.atol
        verdicts = check_pipeline(bundle, samples, *tolerance, random, partial(place, open_pipeline))
    except (EngineProcessError, LeappError) as error:
        return _step("closed loop", False, _why(error))
    if verdicts:
        return _step("closed loop", False, str(verdicts[0]))
    return _step("closed loop", True, f"{min(map(len, samples.values()))} passes reproduced, outputs fed back")


def _why(error: Exception) -> str:
    text = " ".join(str(error).split())
    # The engine process writes the class of an error before its text. The names of leapp's classes do not help a user.
    name, _, rest = text.partition(": ")
    return f"cannot be run: {rest if hasattr(errors, name) else text}"


def _answer(
    arguments: Namespace, steps: list[dict[str, Any]], outputs: list[dict[str, Any]], bundle: Bundle | None = None
) -> Answer:
    ok = all(step["ok"] for step in steps)
    rows: list[list[Cell]] = [
        [("ok", "green") if step["ok"] else ("failed", "bold red"), step["step"], step["text"]] for step in steps
    ]
    figures = [[o["key"], f"{o['largest']:.3g}", f"{o['mean']:.3g}", f"{o['exact']} of {o['count']}"] for o in outputs]
    parts: list[Table | Text] = [
        Table(f"{arguments.bundle}", ("", "what", "result"), rows),
        Table("Differences from the traced values", ("output", "largest", "mean", "equal"), figures, spare=("mean",)),
    ]
    signer = None if bundle is None or bundle.signature is None else bundle.signature.key
    limits = {"bytes": memory_of_machine(), "seconds": arguments.timeout}
    data = {"ok": ok, "signed_by": signer, "limits": limits, "steps": steps, "outputs": outputs}
    # Checksums show that files are unchanged. Only a signature shows who made them.
    first = f"Verified: signed by {signer}" if signer else "Checksums match"
    words = f"{first}, {'samples reproduced' if outputs else 'values not compared'}."
    end = Text(words if ok else "Not verified.", "green" if ok else "bold red")
    if bundle is not None:
        parts.append(Text(""))
        size = f"{limits['bytes'] / 2**30:.0f} GiB of memory and {arguments.timeout:g} s for each call"
        parts.append(Text(f"Models ran in a separate process, limited to {size}."))
    return Answer(data, [*parts, Text(""), end], 0 if ok else 1)
