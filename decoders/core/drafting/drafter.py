"""`Drafter`: proposes what may come next in one answer, and is told what the target made of it.

`decoders.core.drafting.loop` has the loop that verifies what it proposes. A drafter that runs no
model defines `propose`; one that does defines `draft`, which yields calls. A chain of drafts is a
tree without branches.

Letters: N rows, D hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from decoders.core.decoder import Request
from decoders.core.drafting.tree import DraftTree
from decoders.core.types import Call, CallResult, Slots


class Text:
    """The committed text of one answer: the prompt, and all tokens that are final.

    Attributes:
        tokens: all of them; the last one has not been fed to the target.
        num_prompt: how many are the prompt's.
    """

    def __init__(self, request: Request) -> None:
        """The prompt alone."""
        self.tokens, self.num_prompt = list(request.prompt_ids), len(request.prompt_ids)
        self._sampling = request.sampling

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
        return self._sampling.max_new_tokens - self.output

    @property
    def ended(self) -> bool:
        """Whether the answer is over: its budget is spent, or its last token stops it."""
        return self.left <= 0 or self.last in self._sampling.stop_ids

    def draft(self, proposed: Sequence[int] | Draft) -> Draft:
        """Make a draft of a chain of tokens, as many as the budget still holds."""
        if isinstance(proposed, Draft):
            return proposed
        return Draft(DraftTree.chain(self.last, proposed[: max(0, self.left - 1)]))


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """What one verifying call is to verify.

    Attributes:
        tree: the drafts behind the text's last token. Rows that are no drafts come after them.
        probs: distributions ``[V]`` that a row's drafts were drawn from, by row; a row that is left
            out has drafts that are certain. Read where drafts are verified by rejection.
        read: rows of the tree that the call reads; None: all. Drafts are always among them.
        first: tokens that making this draft committed: they are final, and part of the text.
        sources: the drafter of every row, where several drafted; or nothing.
    """

    tree: DraftTree
    probs: Mapping[int, Tensor] | None = None
    read: Sequence[int] | None = None
    first: tuple[int, ...] = ()
    sources: tuple[str, ...] = ()

    @property
    def chain_probs(self) -> Sequence[Tensor] | None:
        """The distributions of a chain's drafts in order; None where they are certain."""
        if not self.probs:
            return None
        return [self.probs[row] for row in range(len(self.tree) - 1)]


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """What a verifying call made of a draft.

    Attributes:
        draft: what was verified; nothing in the prompt's call.
        path: rows of its tree that stand, from row 0 on.
        token: the target's own, behind them.
        result: the call's.
        is_prompt: whether it is the prompt's call.
    """

    draft: Draft
    path: Sequence[int]
    token: int
    result: CallResult
    is_prompt: bool

    @property
    def accepted(self) -> int:
        """How many drafts stand."""
        return len(self.path) - 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens that became final: the accepted drafts, and the target's own behind them."""
        return (*(self.draft.tree.tokens[row] for row in self.path[1:]), self.token)

    @property
    def states(self) -> Tensor:
        """Hidden states ``[N, D]`` behind which the last N tokens of the text stand.

        Only where the drafter asked for them (`Drafter.hidden`).
        """
        assert self.result.hidden is not None
        return self.result.hidden if self.is_prompt else self.result.hidden[[*self.path]]


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """Slots that a verifying call carries behind its tokens, to make the next draft from.

    Attributes:
        slots: see `Call`, as the others.
        positions: of tokens and slots.
        mask: of tokens and slots.
    """

    slots: Slots | None = None
    positions: Sequence[int] | None = None
    mask: Tensor | None = None


class Drafter:
    """The drafts of one answer. Base of all drafters; a subclass defines `propose` or `draft`.

    Attributes:
        hidden: how many of the prompt's last hidden states it asks for; above 0 `Verdict.states`
            are given in every turn.
        branches: whether its trees may branch. If not, a call verifies a chain.
        judges_prompt: whether the first token is drawn as the token behind drafts is, rather than
            as AR draws it.
    """

    hidden: int = 0
    branches: bool = False
    judges_prompt: bool = False

    def propose(self, text: Text, most: int) -> Sequence[int] | Draft:
        """Propose tokens that may follow the text, or a tree of them; none is allowed.

        Args:
            text: what is committed.
            most: how many tokens in a row can still be of use.
        """
        raise NotImplementedError(f"{type(self).__name__} must define propose or draft")

    def draft(self, text: Text, most: int) -> Generator[Call, CallResult, Sequence[int] | Draft]:
        """Propose with the help of calls, of the draft model as a rule; see `propose`."""
        yield from ()
        return self.propose(text, most)

    def carry(self, text: Text, draft: Draft) -> Carried | None:
        """Ask for slots in the call that verifies `draft` (in the prompt's call: no drafts)."""
        return None

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Learn what stood, of the prompt's call too; the text has the new tokens already."""
