"""Compares LaTeX expressions by math-verify, in a process of its own with limits.

An answer is untrusted text. math-verify reads LaTeX by a grammar and runs none of it as code, but
SymPy may then compute for hours (``9^{9^{9^9}}``): see `specbench_tasks.child`.
"""

from __future__ import annotations

from functools import lru_cache

from specbench_tasks.child import Ended, answer_questions, ask

_CPU_S = 3
"""Most seconds of a processor for one comparison."""
_MAX_CHARACTERS = 1_000
"""Most characters of an expression."""


def equal(answer: str, gold: str) -> bool:
    """Return whether two LaTeX expressions are readable, simple enough and equal."""
    return _ask(answer, gold)


def readable(expression: str) -> bool:
    """Return whether LaTeX can be read, and equals itself within the limits."""
    return _ask(expression, expression)


@lru_cache(maxsize=4096)
def _ask(answer: str, gold: str) -> bool:
    if max(len(answer), len(gold)) > _MAX_CHARACTERS:
        return False
    try:
        return bool(ask("specbench_tasks.algebra", _CPU_S, answer, gold))
    except Ended:
        return False


def serve() -> None:
    """Answer whether pairs of expressions are equal: for the child."""
    import logging

    import math_verify

    logging.disable()
    latex = [math_verify.LatexExtractionConfig(boxed_match_priority=0)]

    def same(*pair: str) -> bool:
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
        except Exception:  # SymPy raises anything at all
            return False

    answer_questions(same)
