"""`Drafter`: proposes tokens that may follow one answer, and observes the target's verdict.

A drafter that runs no model defines `propose`; one that does defines `draft`, which yields calls.
Letters: N rows, D hidden width.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from decoders.core.decoder import Request
from decoders.core.drafting.tree import DraftTree
from decoders.core.types import Call, CallResult
from decoders.core.upload import upload

Drafts = Sequence[int] | DraftTree
"""A chain of tokens, or a tree of them behind the text's last token."""


class Text:
    """The committed text of one answer: `tokens`, of which the last was not fed to the target."""

    def __init__(self, request: Request) -> None:
        """Begin with the prompt alone."""
        self.tokens, self.num_prompt = list(request.prompt_ids), len(request.prompt_ids)
        self._budget = request.sampling.max_new_tokens

    @property
    def last(self) -> int:
        """The last token."""
        return self.tokens[-1]

    @property
    def output(self) -> int:
        """Output position of the next token, counted from 0."""
        return len(self.tokens) - self.num_prompt

    @property
    def left(self) -> int:
        """Tokens that the budget still holds."""
        return self._budget - self.output

    def tree(self, drafts: Drafts) -> DraftTree:
        """Make a tree of a chain of tokens, as many as the budget still holds."""
        if isinstance(drafts, DraftTree):
            return drafts
        return DraftTree.chain(self.last, drafts[: max(0, self.left - 1)])


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """The outcome of a verifying call.

    Attributes:
        tree: the drafts; none in the prompt's call.
        path: its rows that stand, from row 0 on.
        token: the target's own, behind them.
        result: the call's.
        is_prompt: it is the prompt's call.
    """

    tree: DraftTree
    path: Sequence[int]
    token: int
    result: CallResult
    is_prompt: bool

    @property
    def accepted(self) -> int:
        """Number of drafts that stand."""
        return len(self.path) - 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that became final: accepted drafts, and the target's own behind them."""
        return (*(self.tree.tokens[row] for row in self.path[1:]), self.token)

    @property
    def states(self) -> Tensor:
        """Hidden states ``[N, D]`` behind the last N tokens of the text, where asked for."""
        hidden = self.result.hidden
        assert hidden is not None
        return (
            hidden if self.is_prompt else hidden.index_select(0, upload(self.path, hidden.device))
        )


class Drafter:
    """The drafts of one answer; a subclass defines `propose` or `draft`.

    Attributes:
        hidden: how many of the prompt's last hidden states it asks for; above 0 `Verdict.states`
            are given in every turn.
        branches: its trees may branch; if not, a call verifies a chain.
        judges_prompt: the first token is drawn as the token behind drafts is, not as AR draws it.
    """

    hidden: int = 0
    branches: bool = False
    judges_prompt: bool = False

    def propose(self, text: Text, most: int) -> Drafts:
        """Propose tokens that may follow the text, of which `most` in a row can be of use."""
        raise NotImplementedError(f"{type(self).__name__} must define propose or draft")

    def draft(self, text: Text, most: int) -> Generator[Call, CallResult, Drafts]:
        """Propose with the help of calls, of the draft model as a rule; see `propose`."""
        yield from ()
        return self.propose(text, most)

    def carry(self, text: Text, tree: DraftTree) -> Mapping[str, Any]:
        """Add arguments to the call that verifies `tree`: slots that make the next drafts."""
        return {}

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Learn what stood, of the prompt's call too; the text has the new tokens already."""


class StatesDrafter(Drafter):
    """A drafter that feeds layers of its own the target's states behind the text, each once.

    Of a prompt it is the last ones: each costs the target's head a row.
    """

    hidden = 256

    def __init__(self) -> None:
        """Begin without a state."""
        self._unfed: list[Tensor] = []

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Keep the states behind the text's new tokens."""
        self._unfed.append(verdict.states)

    def unfed(self, text: Text) -> tuple[Tensor, list[int]]:
        """Take the new states ``[N, D]``, and the tokens after them, the text's last N."""
        states = torch.cat(self._unfed) if len(self._unfed) > 1 else self._unfed[0]
        self._unfed = []
        return states, text.tokens[-len(states) :]
