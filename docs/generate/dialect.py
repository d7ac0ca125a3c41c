"""Markdown as forges read it, in the form that Python-Markdown reads alike.

Two things differ. A forge begins a list or a table right behind a line of text, Python-Markdown
behind an empty line alone. And what belongs to an item of a list stands below its text on a forge
(two columns in, behind ``* ``), and four columns in for Python-Markdown.
"""

from __future__ import annotations

import re

_ITEM = re.compile(r"(?:[*+-]|\d+\.) +(?=\S)")
_FENCE = re.compile(r" *(```+|~~~+)")
_COLUMNS = 4


def for_python_markdown(text: str) -> str:
    """The same page for Python-Markdown: empty lines before lists and tables, items four in."""
    lines: list[str] = []
    width = 0
    """Columns that the text of the current item stands in; 0 outside of lists."""
    fence = ""
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        inside = width and line.startswith(" " * width)
        if fence:
            if line.strip() == fence:
                fence = ""
        elif opened := _FENCE.match(line):
            fence = opened[1]
            width = width if inside else 0
        elif item := _ITEM.match(line):
            if before.strip() and not width:
                lines.append("")
            width = len(item[0])
        elif line.startswith("|") and before.strip() and not before.startswith("|"):
            lines.append("")
        elif line.strip() and not inside and not before.strip():
            width = 0
        lines.append(" " * max(_COLUMNS - width, 0) + line if inside else line)
    return "\n".join(lines)
