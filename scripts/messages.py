"""Write the list of all messages into docs/troubleshooting.md; with ``--check``, tell whether it is up to date.

Messages are collected from the source: what is raised, what is logged as a warning or an error, what the command line says.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "leapp"
PAGE = ROOT / "docs" / "troubleshooting.md"
MARK = "<!-- What follows is written by scripts/messages.py. -->"

AREAS = {
    "annotations.py": "Annotating", "semantics.py": "Annotating", "tracing": "Tracing and compiling", "capture": "Recording",
    "export": "Exporting", "check": "Proving", "bundle": "Bundles", "graph": "Wiring", "runtime": "Running",
    "cli": "The command line",
    "serve": "Serving", "client": "Clients", "fleet": "Fleets", "deploy": "Deploying", "view": "Pictures and pages",
}  # fmt: skip
LOUD = {"warning": "warning", "error": "error", "exception": "error"}
LEVELS = {"WARNING": "warning", "ERROR": "error", "SYSTEM": "note", "FATAL": "error"}


class Message(NamedTuple):
    """A message, with ``…`` for what changes from case to case."""

    area: str
    kind: str
    text: str


def messages() -> list[Message]:
    """Every message of the library, sorted."""
    found = {m for path in sorted(SOURCE.rglob("*.py")) if path.name != "completion.py" for m in _of(path)}
    return sorted(found, key=lambda m: (list(dict.fromkeys([*AREAS.values(), "Elsewhere"])).index(m.area), m.text.lower()))


def _of(path: Path) -> Iterator[Message]:
    area = AREAS.get(path.relative_to(SOURCE).parts[0], "Elsewhere")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for kind, argument in _said(node):
            text = _text(argument)
            if re.search(r"[A-Za-z]{3}.* .*[A-Za-z]{2}", text.replace("…", "")):
                yield Message(area, kind, text)


def _said(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The texts that a statement or an expression says to the user, each with what kind of message it is."""
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        name = _name(node.exc.func)
        if name.endswith("Error") and name not in ("AttributeError", "AssertionError", "SystemError") and node.exc.args:
            yield name, node.exc.args[0]
    elif isinstance(node, ast.Call) and node.args:
        name, of = _name(node.func), _name(getattr(node.func, "value", node.func))
        if of == "logger" and name in LOUD:
            yield LOUD[name], node.args[0]
        elif of == "logger" and name == "log" and len(node.args) > 1 and _name(node.args[0]) in LEVELS:
            yield LEVELS[_name(node.args[0])], node.args[1]
        elif of == "warnings" and name == "warn":
            yield "warning", node.args[0]
        elif (of, name) == ("proof", "fail") and len(node.args) > 1:
            yield "ValidationError", node.args[1]
        elif name in ("Failure", "Unproven", "PassDifference", "difference", "Finding"):
            yield "report", next((a for a in node.args if isinstance(a, (ast.JoinedStr, ast.Constant))), node.args[0])
    elif isinstance(node, ast.Yield) and isinstance(node.value, ast.JoinedStr):
        yield "warning", node.value


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr) -> str:
    """A string of the source with an ellipsis for each part that is computed."""
    if isinstance(node, ast.Constant):
        text = node.value if isinstance(node.value, str) else "…"
        return re.sub(r"%[-.\d]*[sdrgfi]", "…", text)
    if isinstance(node, ast.JoinedStr):
        return re.sub("…+", "…", "".join(_text(v) if isinstance(v, ast.Constant) else "…" for v in node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def section() -> str:
    """The generated end of the page."""
    lines = [MARK, "", "## Every message", ""]
    lines += ["With `…` for what changes from case to case. A message says what to do itself; the entries above say more.", ""]
    area = ""
    for message in messages():
        if message.area != area:
            area = message.area
            lines += [*([""] if lines[-1] else []), f"### {area}", ""]
        text = " ".join(message.text.split())
        ticks = "``" if "`" in text else "`"
        lines.append(f"- {message.kind}: {ticks}{' ' if ticks == '``' else ''}{text}{' ' if ticks == '``' else ''}{ticks}")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page as it should be."""
    return PAGE.read_text(encoding="utf-8").partition(MARK)[0].rstrip("\n") + "\n\n" + section()


if __name__ == "__main__":
    wanted = page()
    if "--check" in sys.argv:
        same = PAGE.read_text(encoding="utf-8") == wanted
        print("docs/troubleshooting.md is up to date" if same else "it is stale: run python scripts/messages.py")
        sys.exit(not same)
    PAGE.write_text(wanted, encoding="utf-8")
