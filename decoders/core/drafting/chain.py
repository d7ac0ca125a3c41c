"""Draft tokens one by one in a session of a draft model, for `spec` and its cascade of models.

Sources: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318); cascades:
staged speculative decoding (arXiv 2308.04623), cascade speculative drafting (arXiv 2312.11462).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

from torch import Tensor

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.length import Length
from decoders.core.drafting.rules import RULES
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Rule, Turn
from decoders.core.model import Call, Session
from decoders.core.outputs import Chain
from decoders.core.types import CallResult, Output

_INNER = 1 << 30
"""A step beyond those of every answer: its uniforms serve no verification by the target."""


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
        _roll_back(self._session, self._drafts, text, verdict)
        self._length.observe(verdict.tree, verdict.path)
        self._drafts = []


class CascadeDrafter(Drafter):
    """Draft with `Request.draft`, which verifies and extends the drafts of a smaller model.

    The drafts are draws from the draft model itself, so the target verifies them by its usual rule.
    If drafts are drawn, the draft model verifies with separate uniforms, new in each step. Coupled
    drafts are the draft model's picks for the answer's own uniforms.
    """

    def __init__(self, request: Request, rule: Rule, k: int, smaller: Session, most: int) -> None:
        """Draft up to `k` tokens per step by `rule`, the smaller model up to `most` at a time."""
        assert request.draft is not None
        self._session, self._smaller_session = request.draft, smaller
        inner = dataclasses.replace(request, draft=smaller)
        self._smaller = ModelDrafter(inner, rule, Length(most), 0.0)
        self._request, self._k = request, k
        self._draws = rule.draws(request.sampling)
        self._rule = RULES["rejection" if self._draws else "coupled"]
        self._drafts: list[int] = []

    def draft(self, text: Text, most: int) -> Generator[Call, CallResult, DraftTree]:
        """Let the draft model verify drafts and add a token, until there are enough drafts."""
        inner, start, probs = copy.copy(text), len(text.tokens), list[Tensor]()
        inner.tokens, limit = [*text.tokens], min(self._k, most)
        if self._draws:
            inner.uniforms = self._request.uniforms.at_step(_INNER + text.output)
        while (left := limit - len(inner.tokens) + start) > 0:
            tree = yield from self._smaller.draft(inner, left - 1)
            unseen = inner.tokens[self._session.length :]
            result = yield self._session.call(
                [*unseen, *tree.tokens[1:]],
                output=("probs", "acceptance") if self._draws else "picks",
                read=range(len(unseen) - 1, len(unseen) + tree.num_drafts),
                drafts=tree.chain_drafts,
                draft_probs=tree.draft_probs,
                uniforms=inner.uniforms,
            )
            path, token, *_ = self._rule.decide(Turn(tree, result, inner.uniforms, inner.output))
            verdict = Verdict(tree, path, token, result, is_prompt=False)
            self._session.truncate(len(inner.tokens) + verdict.accepted)
            if result.probs is not None:
                probs += result.probs[: len(path)]
            inner.tokens += verdict.tokens
            self._smaller.observe(inner, verdict)
        self._drafts = inner.tokens[start:]
        tree = DraftTree.chain(text.last, self._drafts)
        tree.probs = dict(enumerate(probs))
        return tree

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Roll back rejected drafts in both models."""
        _roll_back(self._session, self._drafts, text, verdict)
        _roll_back(self._smaller_session, self._drafts, text, verdict)
        self._drafts = []


def _roll_back(session: Session, drafts: Sequence[int], text: Text, verdict: Verdict) -> None:
    """Keep the text and the accepted drafts in a draft model's session, and drop the rest."""
    tokens = verdict.tokens
    agree = [draft == token for draft, token in zip(drafts, tokens[:-1], strict=False)]
    num_kept = [*agree, False].index(False)
    session.truncate(min(session.length, len(text.tokens) - len(tokens) + num_kept))
