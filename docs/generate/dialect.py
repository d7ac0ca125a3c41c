"""Converts the Markdown of code forges such as GitHub to equivalent Python-Markdown.

Three things differ. A forge allows a list or table directly after a line of text, and an item after
one of several paragraphs; Python-Markdown needs an empty line before. And the further content of a
list item is indented to the item's text on a forge (by two columns after ``* ``), but by four
columns for Python-Markdown. In a table, a forge needs a backslash before a bar in code;
Python-Markdown would show it.
"""

from __future__ import annotations

import re

_ITEM = re.compile(r"(?:[*+-]|\d+\.) +(?=\S)")
_CODE = re.compile(r"`[^`]*`")
_FENCE = re.compile(r" *(```+|~~~+)")
_COLUMNS = 4


def for_python_markdown(text: str) -> str:
    """Convert a page: add empty lines before lists and tables, and indent items by four."""
    lines: list[str] = []
    width = 0
    """Indentation of the current item's text, in columns; 0 outside of lists."""
    apart = False
    """Whether an empty line stands in the current item: its parts are paragraphs and tables."""
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
            if before.strip() and (apart or not width):
                lines.append("")
            width, apart = len(item[0]), False
        elif not line.strip():
            apart = bool(width)
        elif line.startswith("|") and before.strip() and not before.startswith("|"):
            lines.append("")
        elif line.strip() and not inside and not before.strip():
            width = 0
        if line.startswith("|") and not fence:
            line = _CODE.sub(lambda code: code[0].replace("\\|", "|"), line)
        lines.append(" " * max(_COLUMNS - width, 0) + line if inside else line)
    return "\n".join(lines)
