"""Format numbers, each kind with one rounding, and make text from records safe to show.

Text from a model, a decoder's exception or somebody else's run folder may contain escape sequences,
tags or commands. HTML templates escape it; `printable` escapes it for the terminal, `markdown` and
`latex` for files.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

UNKNOWN = "-"
"""Text of an unknown number."""
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


def csv_value(value: float) -> float:
    """Round to the six digits of CSV files: numbers from records and from files show alike."""
    return float(f"{value:.6g}")


def percent(share: float | None, unit: str = " %", places: int = 1) -> str:
    """Format a share as a percentage, ``57.1 %``, which is 100 % only for a share of 1.

    Args:
        share: a fraction of 1; None and NaN are unknown.
        unit: text after the number; empty if the heading has the unit.
        places: decimal places; more than one only to tell two numbers apart.
    """
    if share is None or math.isnan(share):
        return UNKNOWN
    shown = round(100 * csv_value(share), places)
    if share < 1 <= shown / 100:
        shown = 100 - 10**-places
    return f"{shown:.{places}f}{unit}"


def factor(value: float | None, unit: str = "x") -> str:
    """Format a speed-up, or another ratio of two numbers: ``2.52x``."""
    return UNKNOWN if value is None or math.isnan(value) else f"{csv_value(value):.2f}{unit}"


def change(share: float | None, unit: str = " %") -> str:
    """Format a relative change, or a difference of two shares, with its sign: ``+4.0 %``."""
    return UNKNOWN if share is None or math.isnan(share) else f"{100 * csv_value(share):+.1f}{unit}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: ``1 prompt``, ``2 prompts``, ``6 families``."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun}"


def shown_value(value: object) -> str:
    """Format the value of an option or setting: ``none`` if it is empty, flags as in TOML."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown_value, value)) or "none"
    text = "none" if value in (None, "", {}) else str(value)
    return text.lower() if isinstance(value, bool) else text


def name_lines(name: str, width: int = 26) -> list[str]:
    """Break a decoder's name into lines, if possible after a slash, a colon, an @ or a blank."""
    marked = re.sub(r"(?<=[/:@])", "\v", name)  # white space to textwrap, which no name has
    lines = textwrap.wrap(marked, width, replace_whitespace=False)
    return [line.replace("\v", "") for line in lines]


def shortened(text: str, limit: int = 600) -> str:
    """Return a text, shortened to its beginning and its end if it exceeds the limit."""
    if len(text) <= limit:
        return text
    head, left_out = limit * 3 // 4, len(text) - limit
    return f"{text[:head]}\n[… {left_out} characters …]\n{text[head + left_out :]}"


def printable(text: str) -> str:
    """Make control characters visible (ESC as ␛), so that they do not move the cursor.

    New lines and tabs stay; characters that reverse the writing direction become �.
    """
    return text.translate(_SHOWN)


def portable(text: str) -> str:
    """Return printable text with absolute paths shortened to their last part."""
    words = re.split(r"(\s+|['\"(),=\[\]])", printable(text))
    return "".join(Path(w).name if _ABSOLUTE.match(w) else w for w in words)


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the known values of nested mappings as portable texts, under dotted keys."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", portable(shown_value(value))


def markdown(text: str) -> str:
    """Escape text for a line or table cell of Markdown: no tag, link, code or cell can begin."""
    line = printable(" ".join(text.split()))
    for old, new in (("|", "\\|"), ("<", "&lt;"), ("](", "]\\("), ("`", "\\`")):
        line = line.replace(old, new)
    return line


def latex(text: str) -> str:
    """Escape text for one line of LaTeX: no command, argument or comment can begin."""
    line = printable(" ".join(text.split()))
    return "".join(_LATEX.get(character, character) for character in line)


def colourless(console: Console) -> bool:
    """Return whether a console is without colour: pipe, file, plain terminal, ``NO_COLOR``."""
    return console.color_system is None or console.no_color
