"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; cells are Markdown themselves, in which a bar of prose is written as an entity."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines) + "\n"


def code(text: object) -> str:
    """Text as it is typed."""
    return f"`{text}`"


def _cell(text: str) -> str:
    """One line of a cell, its bars outside of code escaped: in code they divide nothing."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [part.replace("|", "&#124;") for part in parts[::2]]
    return "`".join(parts)
