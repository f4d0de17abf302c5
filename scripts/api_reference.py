"""Write docs/api.md from the docstrings of the public names; with ``--check``, tell whether it is up to date."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import leapp
from leapp import bundle, client, deploy, errors, fleet, runtime, serve
from leapp.runtime.runner import Runner
from leapp.serve.cluster import Cluster
from leapp.tracing import lifecycle
from leapp.tracing import report as reports

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Example):$")
ENTRY = re.compile(r"^(\*{0,2}\w+): (.*)$")

INTRODUCTION = """# API reference

Every public name, from its docstring. `scripts/api_reference.py` writes this page; change the docstring, not the page.
"""


def public() -> dict[str, dict[str, Any]]:
    """The names of the page, by section."""
    return {
        "Sessions": {
            "leapp.start": lifecycle.start,
            "leapp.stop": lifecycle.stop,
            "leapp.compile_graph": lifecycle.compile_graph,
            "leapp.session": lifecycle.session,
            "leapp.report": lifecycle.report,
            "leapp.FunctionPatch": leapp.FunctionPatch,
            "leapp.ExportManager": leapp.ExportManager,
        },
        "Annotations": {f"annotate.{name}": getattr(type(leapp.annotate), name) for name in _methods(type(leapp.annotate))},
        "Meaning": {
            "leapp.TensorSemantics": leapp.TensorSemantics,
            "leapp.TemporalAxis": leapp.TemporalAxis,
            "leapp.GraphConfigs": leapp.GraphConfigs,
            "leapp.InputKindEnum": leapp.InputKindEnum,
            "leapp.OutputKindEnum": leapp.OutputKindEnum,
        },
        "Running": {
            "leapp.InferenceManager": leapp.InferenceManager,
            "leapp.Pipeline": leapp.Pipeline,
            "What both share": Runner,
            **{f"leapp.runtime.{name}": getattr(runtime, name) for name in runtime.__all__ if name != "Pipeline"},
        },
        "Fleets of recordings": {f"leapp.fleet.{name}": getattr(fleet, name) for name in fleet.__all__},
        "Serving": {
            **{f"leapp.client.{name}": getattr(client, name) for name in client.__all__},
            **{f"leapp.serve.{name}": getattr(serve, name) for name in serve.__all__},
            "leapp.serve.cluster.Cluster": Cluster,
        },
        "Deploying": {f"leapp.deploy.{name}": getattr(deploy, name) for name in deploy.__all__},
        "Findings": {
            "Report": reports.Report,
            "EscapeInfo": reports.EscapeInfo,
            "ConstantInfo": reports.ConstantInfo,
            "GlueInfo": reports.GlueInfo,
            "ProofInfo": reports.ProofInfo,
        },
        "Bundles": {f"leapp.bundle.{name}": getattr(bundle, name) for name in bundle.__all__},
        "Errors": {f"leapp.errors.{name}": getattr(errors, name) for name in errors.__all__},
    }


def page() -> str:
    """The whole page."""
    lines = [INTRODUCTION]
    for section, names in public().items():
        lines.append(f"## {section}\n")
        for name, value in names.items():
            lines += _described(name, value)
    return "\n".join(lines).rstrip() + "\n"


def _described(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if inspect.isclass(value) and issubclass(value, BaseException):
        yield f"Derives from {' and '.join(f'`{base.__name__}`' for base in value.__bases__)}.\n"
    elif not (inspect.isclass(value) and hasattr(value, "__members__")):
        call = name if "." in name else value.__name__
        yield f"```python\n{call}{_signature(value)}\n```\n"
    yield markdown(inspect.getdoc(value) or "")
    if inspect.isclass(value):
        yield from _constructor(value)
        if hasattr(value, "__members__"):
            yield "".join(f"- `{member}` = `{item.value}`\n" for member, item in value.__members__.items())
        yield from _properties(value)
        for method in _methods(value):
            yield f"**`{method}{_signature(getattr(value, method))}`**\n"
            yield markdown(inspect.getdoc(getattr(value, method)) or "")


def _constructor(owner: type) -> Iterator[str]:
    """What the constructor says of its arguments, where the class does not."""
    made = vars(owner).get("__init__")
    if made is not None and made.__doc__:
        yield markdown(inspect.cleandoc(made.__doc__).partition("\n\n")[2])


def _properties(owner: type) -> Iterator[str]:
    """A list of the properties, each with the first sentence of its docstring."""
    getters = {name: getattr(value, "fget", None) or getattr(value, "func", None) for name, value in _members(owner).items()}
    lines = [
        f"- `{name}`: {_inline(' '.join((inspect.getdoc(getter) or '').split(chr(10) * 2)[0].split()))}\n"
        for name, getter in getters.items()
        if getter is not None and not name.startswith("_")
    ]
    if lines:
        yield "*Properties*\n\n" + "".join(lines)


def _members(owner: type) -> dict[str, Any]:
    """What a class defines, with the classes it is put together from. Other bases have a place of their own on the page."""
    parts = [part for part in owner.__mro__[1:] if owner is Runner and part is not object]
    return {name: value for part in (owner, *parts) for name, value in vars(part).items()}


def _methods(owner: type) -> list[str]:
    """Public methods of a class, in the order they are written. A second name is not repeated."""
    seen: dict[Any, str] = {}
    for name, value in _members(owner).items():
        if inspect.isfunction(value) and (not name.startswith("_") or name == "__call__"):
            seen.setdefault(value, name)
    return list(seen.values())


def _signature(value: Any) -> str:
    """The signature as it is written, without ``self``, one argument a line when it is long."""
    signature = inspect.signature(value)
    shown: list[str] = []
    keyword_only = False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            if not any(p.startswith("*") for p in shown):
                shown.append("*")
        star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = star + parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {parameter.annotation}"
        if parameter.default is not parameter.empty:
            default = "..." if "factory" in repr(parameter.default) else repr(parameter.default)
            text += f" = {default}" if parameter.annotation is not parameter.empty else f"={default}"
        shown.append(text)
    result = signature.return_annotation
    tail = "" if result is signature.empty or inspect.isclass(value) else f" -> {result}"
    line = f"({', '.join(shown)}){tail}"
    whole = inspect.isclass(value) or "." not in value.__qualname__ or value.__qualname__.startswith("Annotate.")
    return line if len(line) < 100 or not whole else "(\n" + "".join(f"    {text},\n" for text in shown) + f"){tail}"


def markdown(docstring: str) -> str:
    """A docstring in Google style as Markdown."""
    lines: list[str] = []
    section = None
    for line in docstring.splitlines():
        if found := SECTION.match(line):
            section = found[1]
            lines.append("```pycon" if section == "Example" else f"*{section}*\n")
        elif section is None or (line and not line.startswith(" ")):
            if section == "Example":
                lines.append("```\n")
            section = None
            lines.append(_inline(line))
        elif section == "Example":
            lines.append(line.removeprefix("    "))
        else:
            lines.append(_entry(line.removeprefix("    "), section))
    text = "\n".join(lines).rstrip()
    return text + ("\n```\n" if section == "Example" else "\n")


def _entry(line: str, section: str) -> str:
    if section == "Returns" or not line.strip():
        return _inline(line.strip())
    if line.startswith(" "):
        return _inline(f"  {line.strip()}")
    found = ENTRY.match(line)
    return _inline(f"- `{found[1]}`: {found[2]}" if found else f"- {line}")


def _inline(text: str) -> str:
    return re.sub(r":\w+:`([^`]*)`", r"`\1`", text).replace("``", "`")


def main() -> int:
    """Write the page, or compare it."""
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    same = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()
    print("docs/api.md is up to date" if same else "docs/api.md is stale: run python scripts/api_reference.py")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
