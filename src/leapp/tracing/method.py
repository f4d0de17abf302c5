"""Reads the ports of a function decorated with ``annotate.method``: parameters are inputs, returned names are outputs."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leapp.errors import AnnotationError, AnnotationTypeError
from leapp.graph.suggest import nearest
from leapp.semantics import TensorSemantics

Declare = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class MethodNode:
    """The arguments of ``annotate.method`` for one function."""

    name: str
    export_with: str | None = None
    backend_params: dict[str, Any] = field(default_factory=dict)
    output_names: list[str] | None = None
    input_semantics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    output_semantics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    graph_outputs: Any = None

    def meaning(self, port: str, value: Any, what: str) -> TensorSemantics | None:
        """The semantics of a port, if some were given."""
        fields = (self.input_semantics if what == "input" else self.output_semantics).get(port)
        return None if fields is None else TensorSemantics(port, value, **fields)

    def refuse_unknown_ports(self, inputs: Iterable[str], outputs: Iterable[Any]) -> None:
        """Raise if semantics were given for a port that the function does not have."""
        for what, given, ports in (("input", self.input_semantics, inputs), ("output", self.output_semantics, outputs)):
            known = [str(p) for p in ports]
            for port in given:
                if port not in known:
                    raise AnnotationError(
                        f"annotate.method() of node '{self.name}': {what}_semantics names '{port}', which is not an {what}."
                        f"{nearest(port, known)}"
                    )


def _unbound(function: Any) -> Any:
    """The function in a ``functools.partial``, which may be nested."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def node_name_of(function: Callable[..., Any]) -> str:
    """The name of the node of a function."""
    function = _unbound(function)
    name = str(getattr(function, "__name__", type(function).__name__))
    return "lambda" if name == "<lambda>" else name


def refuse_unfit(function: Any) -> None:
    """Raise for an object that cannot be a node. Coroutines and generators return before their code has run."""
    plain = _unbound(function)
    kinds = {
        "a coroutine function": inspect.iscoroutinefunction(plain), "a generator": inspect.isgeneratorfunction(plain),
        "an async generator": inspect.isasyncgenfunction(plain), "a class": isinstance(plain, type),
        "not callable": not callable(plain),
    }  # fmt: skip
    for kind, found in kinds.items():
        if found:
            name = getattr(plain, "__qualname__", type(plain).__name__)
            raise AnnotationTypeError(
                f"annotate.method(): '{name}' is {kind}. Decorate a function that computes and returns its outputs, or use "
                "annotate.input_tensors() and annotate.output_tensors() inside it."
            )


def bind_arguments(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], declare: Declare
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Declare each argument that was passed, under its parameter's name; ``self`` and ``cls`` are left alone."""
    names = positional_names(function)
    declared = []
    extra = 0
    for i, value in enumerate(args):
        if i < len(names):
            name = names[i]
            skip = i == 0 and name in ("self", "cls")
        else:
            name, skip = f"arg_{extra}", False
            extra += 1
        declared.append(value if skip or not _carries_tensors(value) else declare(name, value))
    return tuple(declared), {k: declare(k, v) if _carries_tensors(v) else v for k, v in kwargs.items()}


def self_of(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The object that a method is called on, or ``None``."""
    function = _unbound(function)
    owner = getattr(function, "__self__", None)
    if owner is None and args and positional_names(function)[:1] == ["self"]:
        owner = args[0]
    return None if isinstance(owner, type) else owner


def positional_names(function: Callable[..., Any]) -> list[str]:
    """The names of the parameters that may be given by position."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _carries_tensors(value: Any) -> bool:
    return not isinstance(value, (int, float, str, bytes, type(None)))


def output_names_of(function: Callable[..., Any], result: Any, names: list[str] | None) -> dict[str, Any]:
    """The result as a payload: one entry for each returned position."""
    parts = list(result) if isinstance(result, tuple) and not hasattr(result, "_fields") else [result]
    if names is not None:
        if len(names) != len(parts):
            raise AnnotationError(
                f"output_names names {len(names)} values, but the function returned {len(parts)}."
            )
        return dict(zip(names, parts, strict=True))
    found = _returned_names(function, len(parts))
    return {found.get(i) or f"output{i + 1}": part for i, part in enumerate(parts)}


def _returned_names(function: Callable[..., Any], count: int) -> dict[int, str]:
    """For each position, the first name that a ``return`` statement of that length gives it."""
    found: dict[int, str] = {}
    for value in _returns(function):
        items = value.elts if isinstance(value, ast.Tuple) else [value]
        if len(items) != count:
            continue
        for i, item in enumerate(items):
            if isinstance(item, ast.Name) and i not in found and item.id not in found.values():
                found[i] = item.id
    return found


def _returns(function: Callable[..., Any]) -> list[ast.expr]:
    """The expressions that the function itself returns, not those of functions inside it."""
    function = _unbound(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return []
    name = getattr(function, "__name__", None)
    body = next((n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name), None)
    found: list[ast.expr] = []
    pending: list[ast.AST] = list(body.body) if body is not None else []
    while pending:
        item = pending.pop(0)
        if isinstance(item, ast.Return) and item.value is not None:
            found.append(item.value)
        if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            pending.extend(ast.iter_child_nodes(item))
    return found
