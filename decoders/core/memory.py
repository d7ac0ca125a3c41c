"""Memories of earlier answers (`Decoder.remembers`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Memory(Protocol):
    """The earlier answers of one scope, as a decoder that remembers keeps them."""

    def add(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Take in an answer that has ended (nothing else may change a memory)."""


class PastAnswers(list[tuple[tuple[int, ...], tuple[int, ...]]]):
    """A memory of prompts and their answers in the order in which these ended."""

    def add(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        """Append an answer."""
        self.append((tuple(prompt), tuple(tokens)))
