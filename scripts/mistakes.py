"""Write docs/mistakes.md from the table of mistakes; with ``--check``, tell whether it is up to date."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.tables.mistakes import MISTAKES, PREAMBLE, Mistake  # noqa: E402

PAGE = ROOT / "docs" / "mistakes.md"

_HEAD = f"""\
# Mistakes and answers

What leapp answers to {len(MISTAKES)} mistakes that people make. A test runs every one of them. `# HERE` marks the line that
the answer names. `scripts/mistakes.py` writes this page, and [Troubleshooting](troubleshooting.md) lists the messages. All
programs begin with:

```text
{PREAMBLE.strip()}
```
"""


def page() -> str:
    """The page as it should be."""
    return "\n".join([_HEAD, *map(_entry, MISTAKES)])


def _entry(mistake: Mistake) -> str:
    said = ", ".join(f"`` {words} ``" if "`" in words else f"`{words}`" for words in mistake.says)
    answer = {"WARNING": f"Warning: {said}.", "RIGHT": "Works."}.get(mistake.answer, f"`{mistake.answer}`: {said}.")
    code = mistake.code.strip().replace("\n\n\n", "\n\n")
    first, _, rest = mistake.name.partition(" ")
    title = f"{first if re.search(r'[^a-z]', first) else first.capitalize()} {rest}"
    return f"## {title}\n\n```text\n{code}\n```\n\n{answer}\n"


if __name__ == "__main__":
    wanted = page()
    if "--check" in sys.argv:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted
        print("docs/mistakes.md is up to date" if same else "docs/mistakes.md is stale: run python scripts/mistakes.py")
        sys.exit(not same)
    PAGE.write_text(wanted, encoding="utf-8")
