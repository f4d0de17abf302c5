"""``leapp verify``: every file checked, every sample replayed on this machine's engines."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from leapp.bundle import Bundle, Sample, check_files, read_samples
from leapp.bundle.files import memory_of_machine
from leapp.bundle.trust import require_trust, untrusted, why_untrusted
from leapp.check.engine_process import Apart, ApartError
from leapp.check.engines import Place, open_pipeline
from leapp.check.figures import measure_node
from leapp.check.samples import Outcome, check_pipeline
from leapp.cli.consent import open_for
from leapp.cli.output import Answer, Cell, Table, Text, progress
from leapp.errors import BundleError, BundleFileError, LeappError
from leapp.graph.contract import key
from leapp.runtime.arrays import random_array
from leapp.runtime.plan import make_plan

__all__ = ["measure", "verify"]

_RTOL, _ATOL = 1e-3, 1e-5


def verify(arguments: Namespace) -> Answer:
    """Check a bundle. What cannot be opened at all is an error; what can and is not right is a no."""
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
    # No engine can be told how much memory and time a model may take.
    with Apart(arguments.timeout, memory_of_machine()) as apart:
        if not samples:
            steps.append(_trial(bundle, arguments.allow_code, apart.open))
            return _answer(arguments, steps, [], bundle)
        outputs = _replay(bundle, samples, arguments, steps, apart.open)
    return _answer(arguments, steps, outputs, bundle)


def _step(name: str, ok: bool, text: str) -> dict[str, Any]:
    return {"step": name, "ok": ok, "text": text}


def _trial(bundle: Bundle, allow_code: bool, place: Place) -> dict[str, Any]:
    """All that can be proven without samples: that the models open and run here."""
    try:
        require_trust(bundle, allow_code or None)
        with progress("opening engines"):
            plan = make_plan(bundle.contract)
            place(open_pipeline, bundle)({where: random_array(plan.input_ports[where]) for where in plan.inputs})
    except Exception as error:  # any engine may raise anything
        return _step("trial", False, _why(error))
    return _step("trial", True, "ran on random values; the bundle carries no samples to compare with")


def _replay(
    bundle: Bundle,
    samples: Mapping[str, Sequence[Sample]],
    arguments: Namespace,
    steps: list[dict[str, Any]],
    place: Place,
) -> list[dict[str, Any]]:
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
            except Exception as error:  # any engine may raise anything; it belongs to this node
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
    try:
        # Feedback multiplies rounding differences.
        tolerance = 10 * arguments.rtol, 10 * arguments.atol
        verdicts = check_pipeline(bundle, samples, *tolerance, random, partial(place, open_pipeline))
    except (ApartError, LeappError) as error:
        return _step("closed loop", False, _why(error))
    if verdicts:
        return _step("closed loop", False, str(verdicts[0]))
    return _step("closed loop", True, f"{min(map(len, samples.values()))} passes with feedback reproduced")


def _why(error: Exception) -> str:
    return f"cannot be run: {' '.join(str(error).removeprefix('BundleError: ').split())}"


def _answer(
    arguments: Namespace, steps: list[dict[str, Any]], outputs: list[dict[str, Any]], bundle: Bundle | None = None
) -> Answer:
    ok = all(step["ok"] for step in steps)
    rows: list[list[Cell]] = [
        [("ok", "green") if step["ok"] else ("failed", "bold red"), step["step"], step["text"]] for step in steps
    ]
    figures = [[o["key"], f"{o['largest']:.3g}", f"{o['mean']:.3g}", f"{o['exact']} of {o['count']}"] for o in outputs]
    parts: list[Table | Text] = [Table(f"{arguments.bundle}", ("", "what", "result"), rows)]
    if figures:
        parts.append(
            Table("Differences from the traced values", ("output", "largest", "mean", "equal"), figures, spare=("mean",))
        )
    signer = None if bundle is None or bundle.signature is None else bundle.signature.key
    limits = {"bytes": memory_of_machine(), "seconds": arguments.timeout}
    data = {"ok": ok, "signed_by": signer, "limits": limits, "steps": steps, "outputs": outputs}
    # Anybody can make checksums; only a signature says whose bundle it is.
    first = f"Verified: signed by {signer}" if signer else "Checksums match"
    words = f"{first}, {'samples reproduced' if outputs else 'values not compared'}."
    end = Text(words if ok else "Not verified.", "green" if ok else "bold red")
    if bundle is not None:
        parts.append(Text(""))
        size = f"{limits['bytes'] / 2**30:.0f} GiB"
        parts.append(Text(f"Models run in a process with at most {size} of memory and {arguments.timeout:g} s for an answer."))
    return Answer(data, [*parts, Text(""), end], 0 if ok else 1)


def measure(bundle: Bundle, samples: Mapping[str, Sequence[Sample]], advance: Callable[[], None]) -> dict[str, Any]:
    """Figures of every node, as the page takes them. The caller has asked whether the models may run."""
    validation: dict[str, Any] = {}
    nodes: dict[str, Any] = {}
    for name, node in bundle.contract.nodes.items():
        if node.model.model_path is not None and samples.get(name):
            found, seconds = measure_node(bundle, name, samples[name], _RTOL, _ATOL)
            validation |= {key(name, port): figures.as_dict() for port, figures in found.figures.items()}
            nodes[name] = {"passed": not found.verdicts, "seconds": seconds}
        advance()
    return {"validation": validation, "nodes": nodes}
