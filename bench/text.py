"""Text of numbers, one rounding each, and of records, shown and never obeyed.

A quality or a share is printed by `percent`, a speed-up or another factor by `factor`, a relative
change by `change`, wherever it is printed. What a model wrote, what a decoder raised or what a run
folder of somebody else holds may contain escape sequences, tags or commands. HTML is escaped by its
template; the rest is for the terminal, for Markdown and for LaTeX.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

UNKNOWN = "-"
"""What stands for a number that is not known."""
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


def percent(share: float | None, unit: str = " %", places: int = 1) -> str:
    """A share, or a quality, in per cent: ``57.1 %``; what falls short of 100 does not become it.

    Args:
        share: a fraction of 1; None and NaN are unknown.
        unit: what follows the number; nothing where the heading says it.
        places: decimals, others than one only where two numbers must be told apart.
    """
    if share is None or math.isnan(share):
        return UNKNOWN
    shown = round(100 * share, places)
    if share < 1 <= shown / 100:
        shown = 100 - 10**-places
    return f"{shown:.{places}f}{unit}"


def factor(value: float | None, unit: str = "x") -> str:
    """A speed-up, or another ratio of two numbers: ``2.52x``."""
    return UNKNOWN if value is None or math.isnan(value) else f"{value:.2f}{unit}"


def change(share: float | None, unit: str = " %") -> str:
    """A relative change, or a difference of two shares, in per cent with its sign: ``+4.0 %``."""
    return UNKNOWN if share is None or math.isnan(share) else f"{100 * share:+.1f}{unit}"


def counted(number: int, noun: str) -> str:
    """A number with its noun: ``1 prompt``, ``2 prompts``, ``6 families``."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun}"


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
