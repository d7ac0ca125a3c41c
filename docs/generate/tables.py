"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown cells; bars are escaped, in code as well, for forges."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines) + "\n"


def code(text: object) -> str:
    """Return text in code formatting."""
    return f"`{text}`"


def _cell(text: str) -> str:
    """Return a cell on one line; outside of code, bars become HTML entities."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [part.replace("|", "&#124;") for part in parts[::2]]
    parts[1::2] = [part.replace("|", "\\|") for part in parts[1::2]]
    return "`".join(parts)
