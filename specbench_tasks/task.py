"""Define conversations and their references.

Confidence intervals cluster by `Conversation`; each turn of a conversation is one *prompt*.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FAMILIES = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
"""The six task families, under the names Spec-Bench reports them (arXiv 2401.07851, Table 1)."""
MT_BENCH = (
    *("writing", "roleplay", "reasoning", "math"),
    *("coding", "extraction", "stem", "humanities"),
)
FAMILY_OF = {name: name for name in FAMILIES} | dict.fromkeys(MT_BENCH, "mt_bench")
"""Family of every value of Spec-Bench's ``category``."""
LISTS = ("copy", "replace", "shuffle")
"""Tasks on lists with a known ceiling of independent parallel prediction; run only if named."""
SETS = {
    "gsm8k": (("GSM8K",), "math_reasoning"),
    "math500": (("MATH-500",), "math_reasoning"),
    "mtbench": (("MT-bench", "Spec-Bench"), "mt_bench"),
    "humaneval": (("HumanEval",), "other"),
    "mbpp": (("MBPP",), "other"),
}
"""Sets with published acceptance, under AIPerf's names (ai-dynamo/aiperf#1046).

Each has the shapes and the family of its rows, see `specbench_tasks.shapes`. As a source of tasks a
set is a family of its own.
"""
SCORED_SETS = ("gsm8k", "math500")
"""Sets whose answers are compared with a gold answer; no answer is executed."""
EMBEDDED = frozenset(("zoo", *FAMILIES, *LISTS))
"""Names of embedded tasks, which ``--tasks`` can combine; any other text is one source."""
OTHER = "other"
"""The family of a user's prompts that name no family: they are timed but not scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Define one checkable demand on an answer, e.g. ``kind="contains", value="Lily"``."""

    kind: Literal["contains", "starts_with", "ends_with", "num_sentences"]
    value: str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldAnswer:
    """Hold the reference against which one turn's answer is scored.

    `answers` holds the gold answers (any one suffices); only ``mt_bench`` has `constraints`.
    """

    answers: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """Hold the user messages of one conversation, with one reference (or None) per turn.

    `id` is unique within a task set and stable across versions of the harness, e.g.
    ``zoo-qa-00017`` or ``specbench-81``. `replies` are the data's answers to the turns, used
    as the history of later turns; the baseline's answer replaces one that is None or missing.
    """

    id: str
    family: str
    turns: tuple[str, ...]
    references: tuple[GoldAnswer | None, ...]
    replies: tuple[str | None, ...] = ()
    system: str | None = None

    def reply(self, turn: int) -> str | None:
        """Return the data's answer to a turn, counted from 1, or None if it has none."""
        return self.replies[turn - 1] if turn <= len(self.replies) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Hold conversations in the order of their rows, and notes for the user on their reading."""

    conversations: list[Conversation]
    notes: tuple[str, ...]


class DataUnavailable(ValueError):
    """Report missing data that cannot be downloaded: offline, gone, or not the pinned file."""
