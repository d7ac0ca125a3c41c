"""Text of records, shown and never obeyed: for the terminal, for Markdown and for LaTeX.

What a model wrote, what a decoder raised or what a run folder of somebody else holds may contain
escape sequences, tags or commands. HTML is escaped by its template; these are for everything else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

_ABSOLUTE = re.compile(r"^(?:/|~|[A-Za-z]:[\\/])")
_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SHOWN = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *_BIDI), 0xFFFD),
}
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def printable(text: str) -> str:
    """Text whose control characters are seen (ESC as ␛) instead of moving the terminal's cursor.

    New lines and tabs stay; what would reverse the direction of writing becomes �.
    """
    return text.translate(_SHOWN)


def portable(text: str) -> str:
    """Printable text with absolute paths cut down to their last part."""
    words = re.split(r"(\s+|['\"(),=\[\]])", printable(text))
    return "".join(Path(w).name if _ABSOLUTE.match(w) else w for w in words)


def markdown(text: str) -> str:
    """Text in a line or table cell of Markdown: no tag, link, code or new cell begins in it."""
    line = printable(" ".join(text.split()))
    for old, new in (("|", "\\|"), ("<", "&lt;"), ("](", "]\\("), ("`", "\\`")):
        line = line.replace(old, new)
    return line


def latex(text: str) -> str:
    """Text in one line of LaTeX, where no command, argument or comment begins in it."""
    line = printable(" ".join(text.split()))
    return "".join(_LATEX.get(character, character) for character in line)


def colourless(console: Console) -> bool:
    """Whether no colour reaches the reader: a pipe, a file, a plain terminal, or ``NO_COLOR``."""
    return console.color_system is None or console.no_color
