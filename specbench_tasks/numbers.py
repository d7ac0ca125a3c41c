"""Numbers as texts write them: 7, -1,250.50, .75, $5, 3/4, 1 1/2, 1 000 000, 2,5, ½."""

from __future__ import annotations

import re
import unicodedata

_BLANKS = "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}"
"""Spaces that group digits; so do ordinary ones."""
_NUMBER = re.compile(
    r"""
    (?: (?<![\w)]) (?P<sign>[-\N{MINUS SIGN}]) )?     # no sign: the hyphen of 5-3 or COVID-19
    (?: [$€£¥][ ]? )?
    (?<![A-Za-z\d]) (?<!\d\.)                         # not inside a word or a number, as in m2
    (?: (?:(?P<whole>\d+)[ ])? (?<!/) (?P<over>\d+)/(?P<under>0*[1-9]\d*) (?![\d/])
      | (?<!\d[ ]) (?P<blanks> [1-9]\d{0,2}(?:[ ]\d{3})+ (?![\d/]|[ ]\d|,\d{3}) (?:[.,]\d+)? )
      | (?<![\d,],) (?P<comma> (?: [1-9]\d{0,2}(?:\.\d{3})+ | \d+ )
            , (?: \d{1,2} | (?<=\b0,)\d{3,} | (?<=\d\.\d{3},)\d+ ) (?![\d/]|[,.]\d) )
      | (?P<points> [1-9]\d{0,2}(?:\.\d{3}){2,} (?![\d/]|[,.]\d) )
      | (?P<decimal> (?: \d{1,3}(?:,\d{3})+(?!\d) | \d+ ) (?:\.\d+)? | (?<!\.)\.\d+ )
    )
    """,
    re.VERBOSE,
)
"""A number. Commas before three digits group them as in English; else one is a decimal comma."""
_SIGNS = str.maketrans({
    **dict.fromkeys(_BLANKS, " "),
    "\N{FRACTION SLASH}": "/",
    "\N{ARABIC DECIMAL SEPARATOR}": ".",
    "\N{ARABIC THOUSANDS SEPARATOR}": ",",
})  # fmt: skip
_VULGAR = re.compile(r"(\d?)([\u00bc-\u00be\u2150-\u215e\u2189])")
"""A fraction of one character, such as ½, and a digit before it."""


def plain(text: str) -> str:
    """Return text whose fractions, spaces and separators are those that English texts have."""
    return _VULGAR.sub(_written, text).translate(_SIGNS)


def _written(match: re.Match[str]) -> str:
    before, sign = match.groups()
    return before + " " * bool(before) + unicodedata.normalize("NFKC", sign)


def numbers(text: str) -> list[re.Match[str]]:
    """Return where `text`, which must be `plain`, has numbers."""
    return [*_NUMBER.finditer(text)]


def final_number(text: str) -> float | None:
    """Return the last number of `text`, or None if it has none.

    Signs, thousands separators, decimal commas, fractions and mixed numbers are parsed; currencies,
    units and per cent signs are ignored, so that 75% is 75.
    """
    last = [None, *numbers(plain(text))][-1]
    return None if last is None else value(last)


def value(match: re.Match[str]) -> float:
    """Return the number that was found."""
    if match["over"]:
        over, under = float(match["over"]), float(match["under"])
        size = (float(match["whole"] or 0) * under + over) / under
    elif match["decimal"]:
        size = float(match["decimal"].replace(",", ""))
    else:  # grouped by blanks or points, or with a decimal comma
        digits = match["blanks"] or match["comma"] or match["points"].replace(".", "")
        if match["comma"]:
            digits = digits.replace(".", "")
        size = float(digits.replace(" ", "").replace(",", "."))
    return -size if match["sign"] else size
