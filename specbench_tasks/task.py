"""Conversations and their references.

One `Conversation` is the unit that intervals cluster by; each of its turns is one *prompt*.
"""

from __future__ import annotations

from dataclasses import dataclass

FAMILIES = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
"""The six task families, under the names Spec-Bench reports them (arXiv 2401.07851, Table 1)."""
LISTS = ("copy", "replace", "shuffle")
"""Tasks on lists whose ceiling under independent parallel prediction is known; by name only."""
EMBEDDED = frozenset(("zoo", *FAMILIES, *LISTS))
"""Names that ``--tasks`` takes together; any other text is one source."""
OTHER = "other"
"""The family of prompts of one's own that name none: timed, and scored by nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """One checkable demand on an answer, e.g. ``kind="contains", value="Lily"``."""

    kind: str
    value: str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldAnswer:
    """The reference that one turn's answer is scored against.

    `answers` holds the gold answers (any one suffices); `constraints` is ``mt_bench``'s alone.
    """

    answers: tuple[str, ...] = ()
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """User messages of one conversation, with one reference (or None) per turn.

    `id` is unique within a task set and stable across versions of the harness, e.g.
    ``zoo-qa-test-00017`` or ``specbench-81``. `replies` are answers to its turns that the data
    holds: the history of later turns (None, or no entry: the baseline's answer is).
    """

    id: str
    family: str
    turns: tuple[str, ...]
    references: tuple[GoldAnswer | None, ...]
    replies: tuple[str | None, ...] = ()
    system: str | None = None

    def __post_init__(self) -> None:
        if not self.turns or len(self.turns) != len(self.references):
            raise ValueError(
                f"conversation {self.id!r} has {len(self.turns)} turns and "
                f"{len(self.references)} references; give one reference (or None) per turn"
            )

    def reply(self, turn: int) -> str | None:
        """Return the answer that the data holds to a turn, counted from 1; None: it holds none."""
        return self.replies[turn - 1] if turn <= len(self.replies) else None
