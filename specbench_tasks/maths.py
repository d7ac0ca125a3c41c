r"""Read the answer to a mathematical question, and compare it with a gold answer.

An answer is the last ``\boxed{…}``; else the last formula if it ends the text (``$…$``, ``\(…\)``,
``\[…\]``); else the last number, or the end of the text. A gold answer is one number, as in GSM8K,
a word, or any other expression, as in MATH.

*Numbers* are read as texts write them: 7, -1,250.50, .75, $5, 3/4, 1 1/2, 1 000 000, 2,5, ½.

*Expressions* are compared by math-verify, in a separate process with limits. An answer is
untrusted text. math-verify reads LaTeX by a grammar and runs none of it as code, but SymPy may then
compute for hours (``9^{9^{9^9}}``): see `specbench_tasks.child`.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from specbench_tasks.child import Ended, answer_questions, ask

_BOXED = re.compile(r"\\f?boxed\s*\{")
_SPAN = re.compile(
    r"\\\((.+?)\\\) | \\\[(.+?)\\\] | \$\$(.+?)\$\$"
    r"| (?<![\\$])\$(?![\s$])([^$\n]+?)(?<![\\\s])\$(?!\d)",
    re.VERBOSE | re.DOTALL,
)
_FRACTION = re.compile(
    r"(\d?)\s*\\[dt]?frac\s*(?:\{\s*(-?)(\d+)\s*\}|\s(\d)|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))"
)
_REPLACED = (
    (re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\!\s*"), ""),
    (re.compile(r"\\(?:text|mbox|textbf|textit|mathrm|mathbf|operatorname)\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})"), "°"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\(?:[,;: ]|quad)|~"), " "),
    (re.compile(r"\\([$%#&])"), r"\1"),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
)
"""LaTeX that does not change the meaning."""
_SYMBOLS = str.maketrans({
    "\u00b2": "^2", "\u00b3": "^3", "\N{MINUS SIGN}": "-", "\u00b7": r"\cdot ",
    "∞": r"\infty ", "±": r"\pm ", "∈": r"\in ",
})  # fmt: skip
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?|[A-Za-zπ]|\([^()]*\))")
"""Signs that a text without LaTeX writes."""
_OPERATOR = re.compile(
    r"[+*/=^_(){}\[\]<>|\\\d~√π∞≤≥±\u00d7÷·]|(?<!\w)[-\u2212](?!\w)|[-\u2212](?=[A-Za-z]\b)"
)
"""Text that occurs in an expression, but not around a single number."""
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[ '\u2019-]+[^\W\d_]+)*|\(?[A-Za-z]\)?|[^\x00-\x7f\d]+")
"""A gold answer of words, a letter in parentheses such as (C), or another script."""
_SENTENCE = re.compile(r"(?<![\\{])\b[A-Za-z]{3,}\b.*(?<![\\{])\b[A-Za-z]{3,}\b", re.DOTALL)
_LEAD = re.compile(r"(?:^|[=:]|[^\W\d_]{2,})[\s*$]*\Z")
"""Text that may precede an answer at the end of a text."""
_TAIL = re.compile(r"(?:[=:]|\b(?:is|are|get|answer|equals)\b)")
_BLANKS = "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}"
"""Spaces that group digits, besides ordinary spaces."""
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
_CPU_S = 3
"""Limit of processor seconds for one comparison."""
_MAX_CHARACTERS = 1_000
"""Limit of characters of an expression."""


def same(text: str, gold: str) -> bool:
    """Return whether the answer in `text` is the gold answer."""
    expected, answer = _gold(gold), boxed(text)
    if answer is None:
        answer = _formula_at_end(text)
    if (number := one_number(expected)) is not None:
        if answer is None:
            return final_number(_without_latex(text)) == number
        result = one_number(answer.rpartition("=")[2])
        return equal(_simple(answer), _simple(expected)) if result is None else result == number
    if answer is None:
        return _ends_with(text, expected)
    if _key(answer) == _key(expected):
        return True
    return not _is_words(expected) and equal(_simple(answer), _simple(expected))


def unreadable(gold: str) -> bool:
    """Return whether no answer can be compared with a gold answer."""
    expected = _gold(gold)
    if one_number(expected) is not None or _is_words(expected):
        return False
    expression = _simple(expected)
    return bool(_SENTENCE.search(_without_latex(expected))) or not equal(expression, expression)


def boxed(text: str) -> str | None:
    r"""Return the content of the last ``\boxed{…}`` of a text, None without a closed box."""
    for start in reversed([match.end() for match in _BOXED.finditer(text)]):
        depth = 1
        for end, sign in enumerate(text[start:], start):
            depth += (sign == "{") - (sign == "}")
            if not depth:
                return text[start:end].strip()
    return None


def one_number(text: str) -> float | None:
    """Return the number of a text with only words, a currency or a unit besides it, or None."""
    text = plain(_without_latex(text)).strip().removeprefix("####")
    matches = [*_NUMBER.finditer(text)]
    if len(matches) != 1:
        return None
    before, after = text[: matches[0].start()], text[matches[0].end() :]
    if re.match(r"[A-Za-z](?![A-Za-z])", after):  # 3x is no number of x
        return None
    return None if _OPERATOR.search(before + " " + after) else value(matches[0])


def _formula_at_end(text: str) -> str | None:
    """Return the last formula in LaTeX if no number or long text follows it."""
    match = [None, *_SPAN.finditer(text)][-1]
    if (
        match is None
        or _NUMBER.search(plain(rest := text[match.end() :]))
        or "." in rest.strip(" .\n*")
    ):
        return None
    inside = next(group for group in match.groups() if group is not None)
    if match[4] is not None and not re.search(r"[\\^_{=]|^.$|^\S+ [-+*/] \S+$", inside.strip()):
        return None  # e.g. $5 and 6$
    return inside.strip()


def _ends_with(text: str, expected: str) -> bool:
    """Return whether a text without formulas ends with an answer."""
    end = text.strip().splitlines()[-1:] or [""]
    line, key = end[0].rstrip(" .!*$"), _key(expected)
    for start in range(len(line)):
        if _key(line[start:]) == key and _LEAD.search(line[:start]):
            return True
    answer = _TAIL.split(line)[-1].strip(" $*")
    return not _is_words(expected) and bool(answer) and equal(_simple(answer), _simple(expected))


def _gold(text: str) -> str:
    answer = boxed(text)
    return (text if answer is None else answer).strip().strip("$").rstrip(".").strip()


def _is_words(text: str) -> bool:
    return bool(_WORDS.fullmatch(_without_latex(text).strip()))


def _key(text: str) -> str:
    """Return text in a normal form, in which equal answers of words are equal."""
    text = _without_latex(text).strip(" .$")
    if _WORDS.fullmatch(text):
        alone = text.strip("()")
        return alone if len(alone) == 1 else " ".join(alone.casefold().split())
    return "".join(text.split())


def _simple(text: str) -> str:
    for pattern, new in _REPLACED[:1] + _REPLACED[3:4]:
        text = pattern.sub(new, text)
    return _ROOT.sub(r"\\sqrt{\1}", text.translate(_SYMBOLS))


def _without_latex(text: str) -> str:
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    return _FRACTION.sub(_fraction, text)


def _fraction(match: re.Match[str]) -> str:
    before, sign, *parts = match.groups()
    over, under = (part for part in parts if part is not None)
    return f"{before}{' ' * bool(before)}{sign or ''}{over}/{under}"


def plain(text: str) -> str:
    """Return text with the fractions, spaces and separators of English texts."""
    return _VULGAR.sub(_written, text).translate(_SIGNS)


def _written(match: re.Match[str]) -> str:
    before, sign = match.groups()
    return before + " " * bool(before) + unicodedata.normalize("NFKC", sign)


def final_number(text: str) -> float | None:
    """Return the last number of `text`, or None if it has none.

    Signs, thousands separators, decimal commas, fractions and mixed numbers are parsed; currencies,
    units and per cent signs are ignored, so that 75% is 75.
    """
    last = [None, *_NUMBER.finditer(plain(text))][-1]
    return None if last is None else value(last)


def value(match: re.Match[str]) -> float:
    """Return the number of a match."""
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


@lru_cache(maxsize=4096)
def equal(answer: str, gold: str) -> bool:
    """Return whether two LaTeX expressions are readable, simple enough and equal."""
    if max(len(answer), len(gold)) > _MAX_CHARACTERS:
        return False
    try:
        return bool(ask(__name__, _CPU_S, answer, gold))
    except Ended:
        return False


def serve() -> None:
    """Compare pairs of expressions, in the child."""
    import logging

    import math_verify

    logging.disable()
    latex = [math_verify.LatexExtractionConfig(boxed_match_priority=0)]

    def are_equal(*pair: str) -> bool:
        try:
            answer, gold = (
                math_verify.parse(
                    "\\boxed{" + text + "}",
                    extraction_config=latex,
                    fallback_mode="no_fallback",
                    parsing_timeout=None,
                )
                for text in pair
            )
            is_equal = answer and gold and math_verify.verify(gold, answer, timeout_seconds=None)
            return bool(is_equal)
        except Exception:  # SymPy may raise anything
            return False

    answer_questions(are_equal)
