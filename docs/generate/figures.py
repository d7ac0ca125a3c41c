"""Keep numbers in pages equal to their source files: `python -m docs.generate.figures`.

A comment directly after a measured number names its source::

    2.03x [1.75, 2.37]<!-- from cpu-zoo/summary.csv decoder=ptp speedup above 1 -->

* The file is in ``results/reference``, else relative to the repository's root. A pattern with
  ``*`` names several files, whose values are summed.
* A table (.csv) needs filters that leave one row (``family=all`` by default), and a column or
  arithmetic on columns without spaces. ``over FILTERS`` divides by the value in another row;
  ``short-of FILTERS`` subtracts that ratio from 1. In ``tables/by_prompt.csv``, speed-ups are
  paired by prompt, over `ar` or another decoder, with the interval of the report.
* A record (.json, .jsonl, .toml) needs the path of a value: ``measured.accuracy.0``, or with
  ``/`` if a key contains a dot. In a .jsonl file, the last line with the value counts. Weights
  (.safetensors) have only ``parameters``.
* A page (.md) needs a quoted part of a heading; the number must appear in that section as shown.
* ``above N`` or ``below N`` states what the sentence claims: the value, and its interval if shown,
  must satisfy it.

The command updates the numbers in the pages, and lists sentences that no longer hold.
"""

from __future__ import annotations

import operator
import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass

from docs.generate.places import ROOT, pages, text_of
from docs.generate.sources import Interval, paths_of, resolve

_NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?"
SHOWN = re.compile(
    rf"(?P<value>{_NUMBER})(?P<unit>x|\s?(?:%|MB|M|kB|GB|minutes|hours|ms|points)(?![a-z]))?"
    rf"(?:\s\[(?P<low>{_NUMBER}),\s(?P<high>{_NUMBER})\])?[)*]*\s?<!-- from\s(?P<source>.*?)\s-->",
    re.DOTALL,
)
"""Matches a number, its interval, and its source."""
_MARK = re.compile(r"<!--\s*from\b(.*?)-->", re.DOTALL)
_SCALES = {"%": 100, "points": 100, "M": 1e-6, "MB": 1e-6, "GB": 1e-9, "kB": 1e-3} | {
    "minutes": 1 / 60,
    "hours": 1 / 3600,
    "ms": 1000,
}
_BOUNDS: dict[str, Callable[[float, float], bool]] = {"above": operator.gt, "below": operator.lt}


@dataclass(frozen=True)
class Figure:
    """A number in a page, with its source.

    Args:
        page: path of the page in the repository.
        line: line of the number, from 1.
        value, low, high: text as shown; `low` and `high` are "" without an interval.
        unit: unit after the value: one of `_SCALES`, "x" or "".
        source: text of the comment, without its delimiters.
    """

    page: str
    line: int
    value: str
    low: str
    high: str
    unit: str
    source: str

    @property
    def place(self) -> str:
        """Page and line, in the form that editors open."""
        return f"{self.page}:{self.line}"


def readable() -> dict[str, str]:
    """Return the pages whose numbers are checked, by path."""
    others = ("README.md", "results/reference/README.md", "zoo/README.md")
    return pages() | {path: text_of(path) for path in (*others, "zoo/smollm2-135m/README.md")}


def figures(text: str, page: str) -> list[Figure]:
    """Return the numbers of a page that name their source.

    Raises:
        ValueError: a source does not directly follow a number.
    """
    found = []
    for shown in SHOWN.finditer(text):
        parts = {name: shown[name] or "" for name in ("value", "low", "high", "unit")}
        source = " ".join(shown["source"].split())
        line = text.count("\n", 0, shown.start()) + 1
        parts["unit"] = parts["unit"].strip()
        found.append(Figure(page=page, line=line, source=source, **parts))
    marks = _MARK.findall(text)
    if len(found) != len(marks):
        known = {figure.source for figure in found}
        lost = [mark for mark in marks if " ".join(mark.split()) not in known]
        raise ValueError(f"{page}: no number stands directly before the source {lost}")
    return found


def wrong(figure: Figure) -> str:
    """Return one line about what is wrong with a figure; empty if nothing is.

    Raises:
        ValueError: the figure's source names no value.
    """
    words, bound = _bound(shlex.split(figure.source))
    if words[0].endswith(".md"):
        stands = _stands_below(figure, *words)
        return "" if stands else f"{figure.place}: {figure.value} is not in {figure.source}"
    said = resolve(words)
    expected = as_shown(figure, said)
    if (figure.value, figure.low, figure.high) != expected:
        shown = f"{figure.value} [{figure.low}, {figure.high}]" if figure.low else figure.value
        says = f"{expected[0]} [{expected[1]}, {expected[2]}]" if figure.low else expected[0]
        return f"{figure.place}: shows {shown}, {figure.source} says {says}"
    ends = (said.value, said.low, said.high) if figure.low else (said.value,)
    if bound and not all(_BOUNDS[bound[0]](end, bound[1]) for end in ends if end is not None):
        rests = f"{figure.value} is not {bound[0]} {bound[1]:g}, on which the sentence rests"
        return f"{figure.place}: {rests} ({figure.source})"
    return ""


def as_shown(figure: Figure, said: Interval) -> tuple[str, str, str]:
    """Return value, low and high in the figure's unit and decimals; "" for parts not shown."""
    scale = _SCALES.get(figure.unit, 1)

    def written(text: str, value: float | None) -> str:
        if not text:
            return ""
        if value is None:
            return "?"
        decimals = len(text.partition(".")[2])
        number = f"{value * scale:{',' if ',' in text else ''}.{decimals}f}"
        return f"+{number}" if text.startswith("+") and value >= 0 else number

    return (
        written(figure.value, said.value),
        written(figure.low, said.low),
        written(figure.high, said.high),
    )


def _bound(words: list[str]) -> tuple[list[str], tuple[str, float] | None]:
    if len(words) > 2 and words[-2] in _BOUNDS:
        return words[:-2], (words[-2], float(words[-1]))
    return words, None


def _stands_below(figure: Figure, name: str, heading: str) -> bool:
    (path,) = paths_of(name)
    sections = re.split(r"^#+ ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    chosen = [part for part in sections if heading in part.partition("\n")[0]]
    if len(chosen) != 1:
        raise ValueError(f"{name} has {len(chosen)} headings with {heading!r}, not 1")
    interval = rf"x?( %)? \[{figure.low}, {figure.high}\]" if figure.low else ""
    pattern = rf"(?<![\d.,]){re.escape(figure.value)}{interval}(?![\d]|\.\d)"
    return re.search(pattern, " ".join(chosen[0].split())) is not None


def renewed(text: str, page: str) -> str:
    """Return a page with every number updated from its file; keep numbers sourced from pages."""

    def again(shown: re.Match[str]) -> str:
        piece, (figure,) = shown[0], figures(shown[0], page)
        words, _ = _bound(shlex.split(figure.source))
        if words[0].endswith(".md"):
            return piece
        says = dict(zip(("value", "low", "high"), as_shown(figure, resolve(words)), strict=True))
        for name in ("high", "low", "value"):  # from the end, so that earlier places stay valid
            if shown[name]:
                start, end = (edge - shown.start() for edge in shown.span(name))
                piece = piece[:start] + says[name] + piece[end:]
        return piece

    return SHOWN.sub(again, text)


def main() -> None:
    """Update the numbers in every page, and print the sentences that no longer hold."""
    for page, text in readable().items():
        if (new := renewed(text, page)) != text:
            (ROOT / page).write_text(new, encoding="utf-8")
            sys.stdout.write(f"{page}: renewed\n")
        for line in filter(None, map(wrong, figures(new, page))):
            sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
