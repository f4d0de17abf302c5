"""``start``, ``stop`` and ``compile_graph``: one session for the process."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, cast

import torch

from leapp.annotations import annotate
from leapp.capture.recorder import Recorder
from leapp.compat.core import default_cpu
from leapp.errors import AnnotationError, AnnotationTypeError, LeappError, SessionError, StorageError
from leapp.extras import require
from leapp.graph.html import card
from leapp.graph.suggest import knows_its_keywords
from leapp.graph.tolerances import check_tolerances
from leapp.semantics import GraphConfigs
from leapp.tracing.examine import examine
from leapp.tracing.failed import keep_log
from leapp.tracing.log import FATAL, RAISED, Log, logger
from leapp.tracing.log import close as close_log
from leapp.tracing.patches import FunctionPatch, Patches, check_patches, follow_copies, forget_copies
from leapp.tracing.report import Report
from leapp.tracing.session import Session
from leapp.tracing.settings import LONGEST_NAME, Settings

F = TypeVar("F", bound=Callable[..., Any])
_ESCAPES = ("warn", "error", "ignore")
Escapes = Literal["warn", "error", "ignore"]
Target = Literal["onnxruntime", "tensorrt", "openvino", "isaac-ros"]


class CompileOptions(TypedDict, total=False):
    """The arguments of :func:`compile_graph`, for ``session(compile=...)``."""

    visualize: bool
    verbose: bool | None
    validate: bool | Literal["thorough"]
    rtol: float
    atol: float
    strict: bool
    graph_configs: GraphConfigs | None
    dry_run: bool
    fuse: bool
    target: Target | None
    allow_nonfinite: bool
    allow_random: bool
    sbom: bool | str


class _ManagerType(type):
    """Makes ``ExportManager.interpreting`` work on the class as on its instance."""

    @property
    def interpreting(cls) -> bool:
        """Whether a session is open."""
        return ExportManager().interpreting


class ExportManager(metaclass=_ManagerType):
    """The process-wide manager behind ``leapp.start``, ``stop`` and ``compile_graph``. There is one instance.

    Notebooks show what it has traced, and after ``compile_graph()`` what was found.

    Example:
        >>> ExportManager().interpreting  # whether a session is open
        False
    """

    _instance: ExportManager | None = None

    def __new__(cls) -> ExportManager:
        """The one instance."""
        if cls._instance is None:
            cls._instance = super().__new__(cls)
            cls._instance._reset()
        return cls._instance

    @property
    def interpreting(self) -> bool:
        """Whether a session is open."""
        return self.session is not None and self.session.is_open

    @classmethod
    def is_interpret_graph_enabled(cls) -> bool:
        """Whether a session is open and its nodes are traced."""
        return cls().interpreting

    def _reset(self) -> None:
        self.session: Session | None = None
        self.settings: Settings | None = None
        self.patches: Patches | None = None
        self.report: Report | None = None

    def _repr_html_(self) -> str:
        if self.session is None or self.settings is None:
            return card("ExportManager", {"session": "none"}, [])
        if self.report is None:
            return card("ExportManager", {"graph": self.settings.graph}, [self.session._repr_html_()])
        facts, parts = self.session.described()
        return card("ExportManager", {"graph": self.settings.graph, **facts}, [*parts, self.report._repr_html_()])

    def _leave(self) -> None:
        """Undo everything the session did to the process. An interrupt is raised after all of it is undone."""
        try:
            self._undo()
        except BaseException:  # Ctrl-C may have come in the middle: undo the rest before it is raised
            self._undo()
            raise

    def _undo(self) -> None:
        """Undo what the session did. It may be repeated after an interrupt: the session counts as open until all is undone."""
        annotate._session = None
        try:
            if self.session is not None:
                self.session.end()
        finally:
            try:
                if self.patches is not None:
                    self.patches.remove()
            finally:
                forget_copies()
                Recorder.sweep()
                if self.session is not None:
                    self.session.is_open = False


def _leave_child() -> None:
    """Leave the session in a forked process: the session and its log file belong to the parent."""
    manager = ExportManager()
    if manager.interpreting:
        close_log()
        manager._leave()
        manager._reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_child)


def _place(name: Any, save_path: Any) -> tuple[str, Path]:
    """The graph's name and directory. ``name`` may carry a path; an absolute one wins over ``save_path``."""
    if not isinstance(name, (str, os.PathLike)):
        raise AnnotationTypeError(f"the graph's name is a string or a path, not {type(name).__name__}.")
    text = os.path.normpath(os.path.expanduser(os.fspath(name))) if os.fspath(name) else ""
    parent, graph = os.path.split(text)
    if not graph or graph in (".", ".."):
        raise AnnotationError(f"'{os.fspath(name)}' does not name a graph. Give a name such as 'my_policy'.")
    if not graph.isprintable() or len(graph) > LONGEST_NAME:
        raise AnnotationError(
            f"{graph[:80]!r} cannot be the graph's name: it names files, so it has at most {LONGEST_NAME} characters, all of "
            "which can be printed."
        )
    return graph, Path(os.path.expanduser(os.fspath(save_path)), parent, graph)


def _opens_or_not(function: F) -> F:
    """Decorate a function that opens a session: if it is interrupted, even while it returns, no session stays open."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> None:
        manager = ExportManager()
        before = manager.session
        try:
            function(*args, **kwargs)
        except BaseException:  # also on Ctrl-C
            if manager.session is not before and manager.interpreting:
                manager._leave()
            raise

    return cast(F, call)


@_opens_or_not
@knows_its_keywords
def start(
    name: str | os.PathLike[str],
    save_path: str | os.PathLike[str] = ".",
    verbose: bool = False,
    dry_run: bool = False,
    non_traced: str | Iterable[str] | None = None,
    max_cached_io: int = 5,
    global_patching: bool = True,
    patching: Iterable[FunctionPatch] | None = None,
    *,
    escapes: Escapes = "warn",
    dynamic_batch: bool = False,
    min_passes: int = 1,
) -> None:
    """Open a session: from here on, annotated code is recorded.

    Args:
        name: The graph's name, or a path whose last part is the name.
        save_path: Where the graph's directory is made. ``~`` is expanded.
        verbose: Show every log line on the console.
        dry_run: Trace and write the YAML, but export no model.
        non_traced: Nodes to leave out of tracing; their ports and wiring are still recorded.
        max_cached_io: How many passes of a node are kept as samples, the first included.
        global_patching: Follow values through NumPy and through ``patching``.
        patching: Replacements for functions that torch cannot record.
        escapes: What to do about values that leave the graph: ``"warn"``, ``"error"`` or ``"ignore"``.
        dynamic_batch: Write models that take any number of rows in the place of the traced one, which must be two or more.
            Code that has the traced number baked into it is refused with its line.
        min_passes: How many passes of every node ``compile_graph()`` asks for. One pass cannot show whether a frozen value
            changes from call to call; with 2, a session that ran once is refused.

    Example:
        >>> leapp.start("my_policy", save_path="exports")
    """
    manager = ExportManager()
    require("Exporting")
    Recorder.sweep()
    graph, directory = _place(name, save_path)
    if not isinstance(max_cached_io, int):
        raise AnnotationTypeError(f"max_cached_io is a number of samples, not {type(max_cached_io).__name__}.")
    if not isinstance(min_passes, int) or isinstance(min_passes, bool) or min_passes < 1:
        raise AnnotationError(f"min_passes={min_passes!r}: give a number of passes, 1 or more.")
    if escapes not in _ESCAPES:
        raise AnnotationError(f"escapes={escapes!r}: choose one of {', '.join(map(repr, _ESCAPES))}.")
    if non_traced is not None and not isinstance(non_traced, (str, Iterable)):
        raise AnnotationTypeError(f"non_traced is a list of node names, not {type(non_traced).__name__}.")
    patches = check_patches(patching)
    if patches and not global_patching:
        raise AnnotationError("patching= has no effect with global_patching=False. Leave global_patching at True.")
    directory.mkdir(parents=True, exist_ok=True)
    again = manager.interpreting
    if again:
        manager._leave()
    log = Log(directory / "log.txt", verbose)
    if again:
        logger.warning("start() was called while a session was open: what that session had traced is dropped.")
    names = [non_traced] if isinstance(non_traced, str) else list(non_traced or ())
    manager.session = Session(
        non_traced=names, max_cached_io=max_cached_io, escapes=escapes, dynamic_batch=dynamic_batch, min_passes=min_passes
    )
    manager.settings = Settings(graph, directory, dry_run, log)
    manager.report = None
    manager.patches = Patches(manager.session.recorder, patches, follow_arrays=global_patching)
    try:
        manager.session.begin()
        follow_copies()
        manager.session.is_open = True
        annotate._session = manager.session
    except BaseException:  # also on Ctrl-C no half-open session may stay
        manager._leave()
        raise


def stop() -> None:
    """Close the session. Everything it changed in the process is undone.

    It may be called in another thread than ``start()``, and ends the recording everywhere at once.

    Example:
        >>> leapp.start("my_policy")
        >>> action = step(obs)
        >>> leapp.stop()
    """
    manager = ExportManager()
    Recorder.sweep()
    if not manager.interpreting or manager.session is None:
        raise SessionError("stop() was called but no session is open. Call leapp.start() first.")
    manager._leave()
    for name in manager.session.unfinished():
        logger.warning("node '%s' has inputs but no outputs: output_tensors('%s', ...) was never called.", name, name)


@knows_its_keywords
def compile_graph(
    visualize: bool = True,
    verbose: bool | None = None,
    validate: bool | Literal["thorough"] = True,
    rtol: float = 1e-3,
    atol: float = 1e-5,
    strict: bool = True,
    graph_configs: GraphConfigs | None = None,
    *,
    dry_run: bool = False,
    fuse: bool = False,
    target: Target | None = None,
    allow_nonfinite: bool = False,
    allow_random: bool = False,
    sbom: bool | str = False,
) -> dict[str, Any] | bool:
    """Write the bundle: a model for each node, the YAML, initial values, samples and the picture.

    Args:
        visualize: Draw the pipeline. A drawing error is logged and stops nothing.
        verbose: Override the console verbosity.
        validate: Run every written file on every recorded sample, then the whole pipeline in closed loop. ``"thorough"``
            runs ONNX models at every optimisation level of ONNX Runtime.
        rtol: Relative tolerance of the comparison.
        atol: Absolute tolerance of the comparison.
        strict: Raise if validation fails. The bundle on disk is then left as it was.
        graph_configs: Facts about the whole graph, such as its frequency.
        dry_run: Write no models.
        fuse: Also write the whole pipeline as one ONNX model, ``<graph>.onnx``. All nodes must be ONNX.
        target: What the bundle is for: ``"onnxruntime"``, ``"tensorrt"``, ``"openvino"`` or ``"isaac-ros"``. It chooses the
            ONNX opset and the spelling of the YAML, and what the target cannot take is refused before anything is written.
        allow_nonfinite: Accept NaN and infinity in outputs where the traced code and the model both have them. Without it
            they fail the node. They are reported either way.
        allow_random: Accept nodes that draw random numbers when they run. Without it their result is not ``True``.
        sbom: Also write ``<graph>.cdx.json``, a CycloneDX bill of materials: models with their hashes, versions, the git commit
            of the program. A text is the licence that it names, as an SPDX identifier or expression.

    Returns:
        A dict from node to ``True``, ``False`` or the error it raised (anything but ``True`` is false), or ``True`` if
        nothing was validated.

    Example:
        >>> leapp.compile_graph(graph_configs=GraphConfigs(frequency=50))
        {'policy': True}
    """
    from leapp.tracing.compiling import compile_session  # late: it loads exporters and engines, which tracing does not need

    manager = ExportManager()
    Recorder.sweep()
    if manager.interpreting:
        raise SessionError("compile_graph() was called while the session is open. Call leapp.stop() first.")
    if manager.session is None or manager.settings is None:
        raise SessionError("compile_graph() was called but nothing was traced. Call leapp.start() first.")
    if graph_configs is not None and not isinstance(graph_configs, GraphConfigs):
        raise AnnotationTypeError(f"graph_configs is a GraphConfigs, not {type(graph_configs).__name__}.")
    if validate not in (True, False, "thorough"):
        raise AnnotationError(f"validate={validate!r}: choose True, False or 'thorough'.")
    check_tolerances(rtol, atol)
    unfinished = manager.session.unfinished()
    if unfinished:
        raise SessionError(
            f"{len(unfinished)} node(s) have inputs but no outputs: {', '.join(unfinished)}. "
            "Call annotate.output_tensors() for each before stop()."
        )
    if verbose is not None:
        manager.settings.log.verbose(verbose)
    # The models draw random numbers when they are tried. The program goes on with the numbers that it would have had.
    with default_cpu(), torch.random.fork_rng(devices=()):
        manager.report = examine(manager.session)
        try:
            return compile_session(
                manager.session, manager.settings, manager.report,
                visualize=visualize, validate=validate, rtol=rtol, atol=atol, strict=strict, configs=graph_configs,
                dry_run=dry_run or manager.settings.dry_run, fuse=fuse, target=target,
                allow_nonfinite=allow_nonfinite, allow_random=allow_random, sbom=sbom,
            )  # fmt: skip
        except LeappError as error:
            logger.log(FATAL, "%s", error, extra=RAISED)
            if manager.session.nodes and not isinstance(error, StorageError):
                keep_log(manager.settings.directory, manager.settings.log.path)
            raise


def report() -> Report:
    """What the last session found: escapes, constants, pruned inputs, glue, validation.

    Example:
        >>> [str(escape) for escape in leapp.report().escapes]
        []
    """
    manager = ExportManager()
    if manager.session is None:
        raise SessionError("report() was called but nothing was traced. Call leapp.start() first.")
    if manager.report is not None:
        return manager.report
    with default_cpu():
        return examine(manager.session)


@knows_its_keywords
@contextmanager
def session(
    name: str | os.PathLike[str],
    save_path: str | os.PathLike[str] = ".",
    verbose: bool = False,
    dry_run: bool = False,
    non_traced: str | Iterable[str] | None = None,
    max_cached_io: int = 5,
    global_patching: bool = True,
    patching: Iterable[FunctionPatch] | None = None,
    *,
    escapes: Escapes = "warn",
    dynamic_batch: bool = False,
    min_passes: int = 1,
    compile: CompileOptions | None = None,
) -> Iterator[ExportManager]:
    """A session as a block: stopped on the way out, and compiled if the block did not raise. Gives the manager.

    Args:
        name: As for :func:`start`, like all further arguments but the last.
        save_path: Where the graph's directory is made.
        verbose: Show every log line on the console.
        dry_run: Trace and write the YAML, but export no model.
        non_traced: Nodes to leave out of tracing.
        max_cached_io: How many passes of a node are kept as samples.
        global_patching: Follow values through NumPy and through ``patching``.
        patching: Replacements for functions that torch cannot record.
        escapes: What to do about values that leave the graph.
        dynamic_batch: Write models that take any number of rows.
        min_passes: How many passes of every node are asked for.
        compile: Arguments for :func:`compile_graph`.

    Example:
        >>> with leapp.session("my_policy", save_path="exports"):
        ...     action = step(obs)
    """
    manager = ExportManager()
    before = manager.session
    try:
        start(
            name, save_path, verbose, dry_run, non_traced, max_cached_io, global_patching, patching, escapes=escapes,
            dynamic_batch=dynamic_batch, min_passes=min_passes,
        )  # fmt: skip
        yield manager
    finally:
        try:
            if manager.interpreting and manager.session is not before:
                stop()
        finally:  # stop() may have been interrupted
            if manager.interpreting and manager.session is not before:
                manager._leave()
    compile_graph(**(compile or {}))
