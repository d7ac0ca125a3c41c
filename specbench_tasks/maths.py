r"""Reads the answer to a mathematical question, and compares it with a gold answer.

An answer is the last ``\boxed{…}``; else the last formula if it ends the text (``$…$``, ``\(…\)``,
``\[…\]``); else the last number, or the end of the text. A gold answer is one number, as in GSM8K,
a word, or any other expression, as in MATH: `specbench_tasks.algebra` compares these.
"""

from __future__ import annotations

import re

from specbench_tasks.algebra import equal, readable
from specbench_tasks.numbers import final_number, numbers, plain, value

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
"""LaTeX that does not change what is meant."""
_OPERATOR = re.compile(
    r"[+*/=^_(){}\[\]<>|\\\d~√π∞≤≥±\u00d7÷·]|(?<!\w)[-\u2212](?!\w)|[-\u2212](?=[A-Za-z]\b)"
)
"""What is in an expression, and not around one number of a text."""
_WORDS = re.compile(r"[^\W\d_]{2,}(?:[ '\u2019-]+[^\W\d_]+)*|\(?[A-Za-z]\)?|[^\x00-\x7f\d]+")
"""A gold answer of words, a letter in parentheses such as (C), or another script."""
_SENTENCE = re.compile(r"(?<![\\{])\b[A-Za-z]{3,}\b.*(?<![\\{])\b[A-Za-z]{3,}\b", re.DOTALL)
_LEAD = re.compile(r"(?:^|[=:]|[^\W\d_]{2,})[\s*$]*\Z")
"""What may stand before an answer at the end of a text."""
_TAIL = re.compile(r"(?:[=:]|\b(?:is|are|get|answer|equals)\b)")


def same(text: str, gold: str) -> bool:
    """Return whether the answer in `text` is the gold answer."""
    expected = _gold(gold)
    answer = boxed(text)
    if (number := one_number(expected)) is not None:
        return _is_number(text, answer, number, expected)
    if answer is None:
        answer = _formula_at_end(text)
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
    return bool(_SENTENCE.search(_without_latex(expected))) or not readable(_simple(expected))


def boxed(text: str) -> str | None:
    r"""Return what the last ``\boxed{…}`` of a text holds, None without one that is closed."""
    for start in reversed([match.end() for match in _BOXED.finditer(text)]):
        depth = 1
        for end, sign in enumerate(text[start:], start):
            depth += (sign == "{") - (sign == "}")
            if not depth:
                return text[start:end].strip()
    return None


def one_number(text: str) -> float | None:
    """Return the number that is all of a text but words, a currency or a unit, or None."""
    text = plain(_without_latex(text)).strip().removeprefix("####")
    matches = numbers(text)
    if len(matches) != 1:
        return None
    before, after = text[: matches[0].start()], text[matches[0].end() :]
    if re.match(r"[A-Za-z](?![A-Za-z])", after):  # 3x is no number of x
        return None
    return None if _OPERATOR.search(before + " " + after) else value(matches[0])


def _is_number(text: str, answer: str | None, number: float, expected: str) -> bool:
    if answer is None:
        answer = _formula_at_end(text)
    if answer is None:
        return final_number(_without_latex(text)) == number
    result = one_number(answer.rpartition("=")[2])
    return equal(_simple(answer), _simple(expected)) if result is None else result == number


def _formula_at_end(text: str) -> str | None:
    """Return the last formula in LaTeX if no number or long text follows it."""
    match = [None, *_SPAN.finditer(text)][-1]
    if match is None or numbers(plain(rest := text[match.end() :])) or "." in rest.strip(" .\n*"):
        return None
    inside = next(group for group in match.groups() if group is not None)
    if match[4] is not None and not re.search(r"[\\^_{=]|^.$|^\S+ [-+*/] \S+$", inside.strip()):
        return None  # $5 and 6$, say
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
    """Return text in a form that is equal for equal answers of words."""
    text = _without_latex(text).strip(" .$")
    if _WORDS.fullmatch(text):
        alone = text.strip("()")
        return alone if len(alone) == 1 else " ".join(alone.casefold().split())
    return "".join(text.split())


def _simple(text: str) -> str:
    for pattern, new in _REPLACED[:1] + _REPLACED[3:4]:
        text = pattern.sub(new, text)
    return text


def _without_latex(text: str) -> str:
    for pattern, new in _REPLACED:
        text = pattern.sub(new, text)
    return _FRACTION.sub(_fraction, text)


def _fraction(match: re.Match[str]) -> str:
    before, sign, *parts = match.groups()
    over, under = (part for part in parts if part is not None)
    return f"{before}{' ' * bool(before)}{sign or ''}{over}/{under}"
