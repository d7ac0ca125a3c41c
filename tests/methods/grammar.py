"""Decoding under a grammar (Willard and Louf 2023, arXiv 2307.09702): answers are lists of numbers.

    bench run --decoders lookup,spec --law tests/methods/grammar.py:Numbers

A finite automaton reads the answer's characters, as in ``12, 7, 30``, until the budget ends the
list. A token is allowed if the automaton can read all of it. The tokens that a state allows are
looked for once; nothing else outlives a call, because drafts may be read that nobody accepts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

START = "start"
EDGES = {
    START: {"digit": "one"},
    "one": {"digit": "two", ",": "comma"},
    "two": {",": "comma"},
    "comma": {" ": START},
}
"""The states, and which character leads from one to which."""


class Numbers:
    """A law that forbids all that makes an answer no beginning of a list of numbers."""

    def __init__(self, tokenizer: Any) -> None:
        """Take the texts of all tokens from the tokenizer."""
        self._texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
        self._allowed: dict[str, list[int]] = {}

    def __call__(self, answer: tuple[int, ...], logits: Tensor) -> Tensor:
        """Return the logits ``[V]`` after an answer's ids so far."""
        state: str | None = START
        for token in answer:
            state = self.after(state, token)
        return self.restrict(state, logits)

    def after(self, state: str | None, token: int) -> str | None:
        """Return the state after a token, or None if the automaton cannot read it."""
        text = self._texts[token]
        for sign in text:
            state = EDGES.get(state or "", {}).get("digit" if sign.isdecimal() else sign)
        return state if text else None

    def restrict(self, state: str | None, logits: Tensor) -> Tensor:
        """Return logits without the tokens that a state does not allow (None: without any)."""
        if state is not None and state not in self._allowed:
            tokens = range(len(self._texts))
            self._allowed[state] = [token for token in tokens if self.after(state, token)]
        bars = torch.full_like(logits, float("-inf"))
        bars[self._allowed.get(state or "", [])] = 0.0
        return logits + bars
