"""Hooks of mkdocs: every program of ``examples`` is a page of the site, and links to the files lead there."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LINK = re.compile(r"\]\((?:\.\./)+(examples/[\w/]+)\.py\)")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each program."""
    for path in sorted(EXAMPLES.rglob("*.py")):
        name = path.relative_to(EXAMPLES.parent)
        source = path.read_text(encoding="utf-8")
        title = (ast.get_docstring(ast.parse(source)) or path.stem).splitlines()[0].rstrip(".")
        text = f"# {title}\n\n`{name}`\n\n```python\n{source}```\n"
        files.append(File.generated(config, name.with_suffix(".md").as_posix(), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links to files of the repository to their pages."""
    here = os.path.dirname(page.file.src_uri)
    return LINK.sub(lambda found: f"]({os.path.relpath(f'{found[1]}.md', here)})", markdown)
