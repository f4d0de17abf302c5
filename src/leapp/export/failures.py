"""Turns every error of an exporter into an ``ExportError`` that names the node and the user's line and says what to do.

To find the line the export is repeated, and each call is noted while it runs. The line is that of the call that raises, or
that made the operator which cannot be translated.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from leapp.capture.replay import Replay
from leapp.capture.tape import Call
from leapp.capture.trees import leaves
from leapp.errors import ExportError
from leapp.export.backends import is_onnx
from leapp.export.job import RUNNING, ExportJob, ExportResult

_OTHERS = "export_with='jit' or 'pt2'"


class MissingOperatorsError(Exception):
    """Operators of the node that the backend has no translation for."""

    def __init__(self, operators: list[str], call: Any = None) -> None:
        super().__init__(", ".join(operators))
        self.operators = operators
        self.call = call
        """The recorded call that needs the first of them, if it was noted."""


@contextmanager
def explained(job: ExportJob, backend: str | None, export: Callable[[ExportJob, Path], ExportResult]) -> Iterator[None]:
    """Raise ``ExportError`` in place of any exception of the block.

    Args:
        job: The node.
        backend: The canonical name of its backend.
        export: The function that the block calls. It is called again to find the line that fails.
    """
    try:
        yield
    except ExportError as error:
        raise _mixed(error, f"{job.node}: {error}") from error.__cause__
    except MissingOperatorsError as error:
        _refuse_packed(job, backend, error)
        line = _line(job, export, lambda other: isinstance(other, MissingOperatorsError))
        what = f"{backend} has no translation of {error}{line}"
        raise ExportError(f"{job.node}: {what}. Export this node with {_OTHERS}.") from error
    except Exception as error:  # exporters raise anything
        _refuse_packed(job, backend, error)
        cause = _first_cause(error)
        line = _number_line(job, error) or _line(job, export, lambda other: _first_cause(other) == cause)
        raise _mixed(error, f"{job.node}: the {backend} export failed{line}: {cause}{_advice(error, backend)}") from error


def require_dense(job: ExportJob) -> None:
    """Refuse constants that no file format stores."""
    for constant in job.module.program.constants.values() if isinstance(job.module, Replay) else ():
        if constant.value.layout != torch.strided:
            raise ExportError(
                f"the tensor that is read at {constant.where} is sparse ({constant.value.layout}), and no backend stores "
                f"such a constant: {constant.where.text!r}. Convert it once with .to_dense()."
            )


def _refuse_packed(job: ExportJob, backend: str | None, error: Exception) -> None:
    """Raise an error if a call takes a C++ object, such as the packed weights of a quantised layer: only pt2 stores these."""
    calls = job.module.program.calls if isinstance(job.module, Replay) and backend != "pt2" else ()
    for call in calls:
        if next(leaves((call.args, call.kwargs), torch.ScriptObject), None) is not None:
            raise ExportError(
                f"{job.node}: {backend} cannot store the packed weights that {spelled_call(call)} takes. Export this node with "
                "export_with='pt2', or trace the layer before it is quantised."
            ) from error


def _line(
    job: ExportJob, export: Callable[[ExportJob, Path], ExportResult], same: Callable[[BaseException], bool]
) -> str:
    """The user's line that fails, as part of a sentence; empty if it is not found."""
    if not isinstance(job.module, Replay):
        return ""
    failed: list[tuple[Exception, Call]] = []
    noted = _Noted(job.module, failed.append)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        try:
            export(replace(job, module=noted), Path(folder))
        except Exception as error:  # exporters raise anything; it is only compared
            causes = list(_causes(error))
            told = [cause for cause in causes if same(cause)]  # the others belong to ways that were tried before
            raised = (call for cause, call in failed if any(cause is c for c in told))
            found = next(raised, None) or next((c.call for c in told if hasattr(c, "call")), None)
            found = found or _named_in(" ".join(map(str, told)), job.module.program.calls)
            if isinstance(found, Call):
                return f" (first at {spelled_call(found)})"
    return ""


def _named_in(text: str, calls: Iterable[Call]) -> Call | None:
    """The first call of an operator that torch cannot write into a file: its error names the operator."""
    named = set(re.findall(r"serializing node (\w+)", text))
    return next((call for call in calls if getattr(call.func, "__name__", "").partition(".")[0] in named), None)


class _Noted(torch.nn.Module):
    """A replay that sets ``RUNNING`` to the call that it runs.

    Args:
        replay: The replay.
        note: Called with each error of a call and the call. There are several if a backend tries several ways. Not a list of
            the module: ``torch.export`` puts back what the lists of a module held.
    """

    def __init__(self, replay: Replay, note: Callable[[tuple[Exception, Call]], None]) -> None:
        super().__init__()
        self.replay, self.note = replay, note
        self.train(False)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of the replay."""
        env = self.replay.run(inputs, self._around)
        return tuple(env[slot] for slot in self.replay.program.outputs)

    def _around(self, index: int, call: Call, args: Any, kwargs: Any) -> Any:
        token = RUNNING.set(call)
        try:
            return call.func(*args, **kwargs)
        except Exception as error:
            self.note((error, call))
            raise
        finally:
            RUNNING.reset(token)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def spelled_call(call: Call) -> str:
    """A call as messages name it: the function, the user's line and its text."""
    name = getattr(call.func, "__name__", str(call.func))
    return f"{name} at {call.where.quoted}"


_READ = "the value of a tensor decides what is computed, as an index, a size or a condition. Keep it a tensor"

# torch 2.7 writes numbers as JSON, which has neither NaN nor complex numbers.
_NUMBER = (
    "this version of torch cannot write {what} as a number into a .pt2 file. Give the call a tensor, as in "
    "torch.tensor({example}), export the node with 'jit' or 'onnx', or use a newer torch."
)
_NUMBERS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "not JSON compliant": (
        _NUMBER.format(what="NaN", example="float('nan')"),
        lambda number: isinstance(number, float) and math.isnan(number),
    ),
    "Unsupported argument type: <class 'complex'>": (
        _NUMBER.format(what="complex numbers", example="1j"),
        lambda number: isinstance(number, complex),
    ),
}
"""Text of torch's error about a number that it cannot write, with our text and a test for such numbers."""


def _unwritten(error: BaseException) -> tuple[str, Callable[[Any], bool]] | None:
    return next((found for said, found in _NUMBERS.items() if said in str(_innermost(error))), None)


def _number_line(job: ExportJob, error: BaseException) -> str:
    """The first call with a number that torch cannot write, as part of a sentence. The call itself raises no error."""
    unwritten = _unwritten(error)
    if unwritten is None or not isinstance(job.module, Replay):
        return ""
    for call in job.module.program.calls:
        if any(map(unwritten[1], leaves((call.args, call.kwargs), (float, complex), skip=()))):
            return f" (first at {spelled_call(call)})"
    return ""


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_cause(error: BaseException) -> str:
    """The text of the innermost error. The outer ones repeat it at length."""
    error = _innermost(error)
    if "DataDependent" in type(error).__name__ or "_local_scalar_dense" in str(error):
        return f"{_READ}."
    if (unwritten := _unwritten(error)) is not None:
        return unwritten[0]
    text = str(error).partition("The error above occurred when calling torch.export")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:6])}" if lines else type(error).__name__


def _advice(error: BaseException, backend: str | None) -> str:
    text = str(error)
    if "nference tensor" in text or "inference_mode" in text:
        return " Trace under torch.no_grad() instead of torch.inference_mode()."
    if backend == "pt2" and _unwritten(error) is None:
        return " Other backends may write it: export_with='jit' or 'onnx'."
    return f" Other backends may write it: {_OTHERS}." if is_onnx(backend) else ""


def _mixed(error: BaseException, message: str) -> ExportError:
    """An ``ExportError`` that is also an instance of the exporter's own exception class, so that callers may catch either."""
    if isinstance(error, ExportError):
        return ExportError(message)
    try:
        kind = type("ExportError", (ExportError, type(error)), {"__init__": Exception.__init__, "__str__": Exception.__str__})
        mixed: ExportError = kind(message)
    except TypeError:
        # Some exception classes fix their memory layout and cannot be combined.
        return ExportError(message)
    return mixed
