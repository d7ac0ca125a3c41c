"""Draft tokens one by one in a session of a draft model, for `spec` and its cascade.

Source: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.length import Length
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Rule
from decoders.core.model import Call, Session
from decoders.core.outputs import Chain
from decoders.core.types import CallResult, Output


class ModelDrafter(Drafter):
    """Draft with the session `Request.draft`, whose cache is rolled back with the target's."""

    def __init__(self, request: Request, rule: Rule, length: Length, stop: float) -> None:
        """Draft `length` tokens per step, but end after a draft less probable than `stop`."""
        assert request.draft is not None
        self._session, self._length, self._stop = request.draft, length, stop
        self._keeps_probs = rule.draws(request.sampling)
        self._output: Output = "probs" if self._keeps_probs else "draws"
        self._drafts: list[int] = []

    def draft(self, text: Text, most: int) -> Generator[Call, CallResult, DraftTree]:
        """Feed the text that the draft model's cache lacks, then draft (by `auto` one by one).

        The last draft is not fed. After full acceptance it is fed together with the bonus token.
        """
        drafts, confidences, probs = list[int](), list[float](), dict[int, Tensor]()
        limit, chain = self._length.limit, None
        if not self._length.is_auto:
            chain = Chain(min(limit, most) - 1, limit - 1, self._stop)
        while len(drafts) < min(limit, most):
            extra = self._session.length - len(text.tokens)  # drafts in the cache, if positive
            unseen = drafts[extra:] if extra >= 0 else [*text.tokens[extra:], *drafts]
            about: Any = {"output": self._output, "uniforms": text.uniforms, "chain": chain}
            result = yield self._session.call(unseen, **about)
            if self._keeps_probs:
                assert result.probs is not None
                probs |= enumerate(result.probs, len(drafts))
            drafts += result.picks
            confidences += result.confidences
            if confidences[-1] < self._stop or not self._length.next_pays(confidences):
                break
        self._drafts = drafts
        tree = DraftTree.chain(text.last, drafts, confidences)
        tree.probs = probs
        return tree

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Roll back rejected drafts, after which the cache may lack the end of the text."""
        roll_back(self._session, self._drafts, text, verdict)
        self._length.observe(verdict.tree, verdict.path)
        self._drafts = []


def roll_back(session: Session, drafts: Sequence[int], text: Text, verdict: Verdict) -> None:
    """Keep the text and the accepted drafts in a draft model's session, and drop the rest."""
    tokens = verdict.tokens
    agree = [draft == token for draft, token in zip(drafts, tokens[:-1], strict=False)]
    num_kept = [*agree, False].index(False)
    session.truncate(min(session.length, len(text.tokens) - len(tokens) + num_kept))
