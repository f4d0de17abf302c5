"""Writes cpp/include/leapp/fold.hpp: which characters file systems that ignore case or accents treat as equal.

A character becomes its canonical decomposition after case folding. Run it when Unicode grows; the table in the repository is
that of the Unicode version it names.
"""

from __future__ import annotations

import sys
import unicodedata
from pathlib import Path

HEAD = """\
// Names compared as file systems compare them that ignore case and accents. Written by scripts/cpp_fold.py, Unicode {version}.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include "value.hpp"

namespace leapp::detail {{

/// A character and what it becomes, each entry ended by a zero. Sorted by the character.
inline constexpr char32_t folds[] = {{
{table}
}};
inline constexpr unsigned fold_starts[] = {{
{starts}
}};

/// The name with every character decomposed and in lower case: equal for names that are one file on some systems.
inline std::string folded(std::string_view name) {{
  std::string out;
  for (std::size_t at = 0; at < name.size();) {{
    auto [size, c] = utf8_at(name, at);
    if (size == 0) size = 1, c = 0xfffd;
    at += size;
    const auto* begin = std::begin(fold_starts);
    const auto* end = std::end(fold_starts);
    const auto before = [](unsigned start, char32_t wanted) {{ return folds[start] < wanted; }};
    const auto* found = std::lower_bound(begin, end, c, before);
    if (c >= 0xac00 && c < 0xd7a4) {{  // Korean syllables are made of letters by a rule
      const char32_t index = c - 0xac00, tail = index % 28;
      append_utf8(out, 0x1100 + index / 588);
      append_utf8(out, 0x1161 + index % 588 / 28);
      if (tail != 0) append_utf8(out, 0x11a7 + tail);
    }} else if (found != end && folds[*found] == c) {{
      for (const char32_t* made = &folds[*found + 1]; *made != 0; ++made) append_utf8(out, *made);
    }} else {{
      append_utf8(out, c);
    }}
  }}
  return out;
}}

}}  // namespace leapp::detail
"""


def fold(text: str) -> str:
    """The text without the differences that some file systems ignore."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFC", text).casefold())


def rows(words: list[str]) -> str:
    """Words in rows of 128 columns at most."""
    lines, line = [], "   "
    for word in words:
        if len(line) + len(word) + 2 > 128:
            lines.append(line)
            line = "   "
        line += f" {word},"
    return "\n".join([*lines, line])


def main() -> None:
    """Write the header."""
    table: list[str] = []
    starts: list[str] = []
    for code in range(1, 0x110000):
        if 0xAC00 <= code < 0xD7A4 or 0xD800 <= code < 0xE000:
            continue
        made = fold(chr(code))
        if made != chr(code):
            starts.append(str(len(table)))
            table += [hex(code), *(hex(ord(c)) for c in made), "0"]
    text = HEAD.format(version=unicodedata.unidata_version, table=rows(table), starts=rows(starts))
    Path(sys.argv[1] if len(sys.argv) > 1 else "cpp/include/leapp/fold.hpp").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
