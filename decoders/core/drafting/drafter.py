"""Define `Drafter`, which proposes tokens that may follow a text and learns from the verdict.

A drafter that yields no calls defines `propose`; a drafter that yields calls defines `draft`.
Letters: N rows, D hidden width.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from decoders.core.decoder import Request
from decoders.core.device import upload
from decoders.core.drafting.tree import DraftTree
from decoders.core.model import Call, DraftCall
from decoders.core.types import CallResult

Drafts = Sequence[int] | DraftTree
"""A chain of tokens, or a tree of tokens after the text's last token."""


class Text:
    """Hold the committed `tokens` of prompt and answer, all but the last in the target's cache.

    `uniforms` draw the next drafts, if they are drawn.
    """

    def __init__(self, request: Request) -> None:
        """Begin with the prompt."""
        self.tokens, self.num_prompt = list(request.prompt_ids), len(request.prompt_ids)
        self._budget, self.uniforms = request.sampling.max_new_tokens, request.uniforms

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
        """Number of tokens left in the budget."""
        return self._budget - self.output

    def tree(self, drafts: Drafts, drafter: Drafter) -> DraftTree:
        """Turn a chain, cut to the budget, into a tree, or return a drafter's tree unchanged."""
        if isinstance(drafts, DraftTree):
            return drafts
        if not (isinstance(drafts, Sequence) and {*map(type, drafts)} <= {int}):
            kind = type(drafter)
            name = "propose" if kind.draft is Drafter.draft else "draft"
            line = f"{kind.__name__}.{name} returned {drafts!r:.60}; return a list of token ids"
            raise TypeError(f"{line} or a DraftTree")
        return DraftTree.chain(self.last, drafts[: max(0, self.left - 1)])


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Describe the outcome of a verifying call.

    Attributes:
        tree: the drafts; the prompt's call has none.
        path: accepted rows of the tree, starting with row 0.
        token: the target's own token after the accepted drafts.
        result: the call's result.
        is_prompt: this is the prompt's call.
    """

    tree: DraftTree
    path: Sequence[int]
    token: int
    result: CallResult
    is_prompt: bool

    @property
    def accepted(self) -> int:
        """Number of accepted drafts."""
        return len(self.path) - 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """Tokens that became final: accepted drafts, then the target's own token."""
        return (*[self.tree.tokens[row] for row in self.path[1:]], self.token)

    @property
    def states(self) -> Tensor:
        """Hidden states ``[N, D]`` that predicted the text's last N tokens, if `hidden`."""
        hidden = self.result.hidden
        assert hidden is not None
        return (
            hidden if self.is_prompt else hidden.index_select(0, upload(self.path, hidden.device))
        )


class Drafter:
    """Draft the tokens of one answer by a subclass's `propose` or `draft`.

    Attributes:
        hidden: number of the prompt's last hidden states that the drafter needs. Above 0, every
            verdict has `Verdict.states`, taken after `hidden_layers` if any are named.
        outputs: further forms in which verifying calls are read for the drafter.
        branches: trees may branch; if false, every call verifies a chain.
        judges_prompt: the verification rule draws the first token; else it is drawn as in AR.
    """

    hidden: int = 0
    hidden_layers: Sequence[int] = ()
    outputs: str | Sequence[str] = ()
    branches: bool = False
    judges_prompt: bool = False

    def propose(self, text: Text, most: int) -> Drafts:
        """Propose up to `most` tokens that may follow the text (any further token is dropped)."""
        raise NotImplementedError(f"{type(self).__name__} must define propose or draft")

    def draft(self, text: Text, most: int) -> Generator[Call | DraftCall, CallResult, Drafts]:
        """Propose as `propose` does, but yield calls of a draft model or of a drafter's network."""
        yield from ()
        return self.propose(text, most)

    def carry(self, text: Text, tree: DraftTree) -> Mapping[str, Any]:
        """Return extra arguments for the verifying call, e.g. slots that make the next drafts."""
        return {}

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Learn from a verdict, also the prompt's. The text already has the new tokens."""
