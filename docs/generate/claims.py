"""The sections of docs/claims.md, from `claims.toml`: every figure is read from the file it names.

A figure stands in braces, its form before the word ``from`` and its source behind it::

    {0.00x [] from cpu-zoo/summary.csv decoder=ptp speedup above 1}

* The form gives decimals, the unit, thousands (``0,000``), and ``[]`` for the 95 % interval.
* A source is a table or a record, see `docs.generate.sources`. A page (.md) needs a quoted part of
  a heading instead: the figure is written out, and must stand in that section.
* ``above N`` or ``below N`` states what the sentence claims: the value, and its interval if shown,
  must satisfy it.
"""

from __future__ import annotations

import operator
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

from docs.generate.places import DOCS
from docs.generate.sources import Interval, paths_of, resolve
from docs.generate.tables import table

SAID = DOCS / "generate" / "claims.toml"
VERDICTS = ("confirmed", "partly", "refuted here", "not testable here")
FIGURE = re.compile(
    r"\{(?P<value>[+-]?\d[\d,.]*)(?P<unit>x| ?[%A-Za-z]+)??(?P<ends> \[.*?\])?"
    r" from (?P<source>[^}]+)\}"
)
_SCALES = {"": 1, "x": 1, "%": 100, "M": 1e-6, "MB": 1e-6, "kB": 1e-3, "minutes": 1 / 60}
_BOUNDS: dict[str, Callable[[float, float], bool]] = {"above": operator.gt, "below": operator.lt}
_HEADINGS = ("claim", "run", "figure", "in a sentence", "verdict")


def sections() -> list[dict[str, Any]]:
    """Return the headings and claims of the page, as the file has them."""
    found: list[dict[str, Any]] = tomllib.loads(SAID.read_text(encoding="utf-8"))["sections"]
    return found


def claims() -> str:
    """Return the count of verdicts, and a table of claims under each heading."""
    given = [claim["verdict"] for section in sections() for claim in section["claims"]]
    tally = ", ".join(f"{given.count(verdict)} {verdict}" for verdict in VERDICTS)
    parts = [f"{len(given)} claims: {tally}."]
    for section in sections():
        rows = []
        for claim in section["claims"]:
            cells = [claim.get(name, "-") for name in ("claim", "runs", "figure", "sentence")]
            filled = [FIGURE.sub(shown, " ".join(cell.split())) for cell in cells]
            rows.append([*filled, f"**{claim['verdict']}**"])
        parts.append(f"## {section['heading']}\n\n{table(_HEADINGS, rows)}")
    return "\n\n".join(part.strip() for part in parts)


def shown(figure: re.Match[str]) -> str:
    """Return a figure as the page shows it.

    Raises:
        ValueError: the source names no value.
    """
    words, _ = _bound(figure["source"])
    unit, ends = figure["unit"] or "", figure["ends"] or ""
    if words[0].endswith(".md"):
        return f"{figure['value']}{unit}{ends}"
    said = resolve(words)
    scale = _SCALES[unit.strip()]
    value, low, high = (_written(figure["value"], scale, each) for each in _numbers(said))
    return f"{value}{unit}{f' [{low}, {high}]' if ends else ''}"


def broken() -> Iterator[str]:
    """Yield one line for each sentence that its figure does not bear out."""
    for section in sections():
        for claim in section["claims"]:
            for text in (claim.get("figure", ""), claim["sentence"]):
                for figure in FIGURE.finditer(" ".join(text.split())):
                    if not _holds(figure):
                        yield f"{claim['claim']}: {shown(figure)} ({figure['source']})"


def _holds(figure: re.Match[str]) -> bool:
    words, bound = _bound(figure["source"])
    if words[0].endswith(".md"):
        return _stands_below(shown(figure), *words)
    said = _numbers(resolve(words))
    ends = said if figure["ends"] else said[:1]
    return bound is None or all(_BOUNDS[bound[0]](end, bound[1]) for end in ends if end is not None)


def _numbers(said: Interval) -> tuple[float | None, float | None, float | None]:
    return said.value, said.low, said.high


def _written(form: str, scale: float, value: float | None) -> str:
    if value is None:
        return "?"
    decimals = len(form.partition(".")[2])
    sign = "+" if form.startswith("+") else ""
    return f"{value * scale:{sign}{',' if ',' in form else ''}.{decimals}f}"


def _bound(source: str) -> tuple[list[str], tuple[str, float] | None]:
    words = shlex.split(source)
    if len(words) > 2 and words[-2] in _BOUNDS:
        return words[:-2], (words[-2], float(words[-1]))
    return words, None


def _stands_below(text: str, name: str, heading: str) -> bool:
    (path,) = paths_of(name)
    parts = re.split(r"^#+ ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    chosen = [part for part in parts if heading in part.partition("\n")[0]]
    if len(chosen) != 1:
        raise ValueError(f"{name} has {len(chosen)} headings with {heading!r}, not 1")
    value, _, ends = text.partition(" [")
    number = re.escape(re.sub(r"[^\d.,+-]+$", "", value))
    interval = rf"x?( %)? \[{re.escape(ends)}" if ends else ""
    return (
        re.search(rf"(?<![\d.,]){number}{interval}(?!\d|\.\d)", " ".join(chosen[0].split()))
        is not None
    )
