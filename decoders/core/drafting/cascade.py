"""Speculate within drafting: a smaller model drafts for the draft model, which verifies its drafts.

The drafts are draws from the draft model itself, so the target verifies them by its usual rule.
Sources: staged speculative decoding (arXiv 2308.04623), cascade speculative drafting (arXiv
2312.11462).
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Generator

from torch import Tensor

from decoders.core.decoder import Request
from decoders.core.drafting.chain import ModelDrafter, roll_back
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.length import Length
from decoders.core.drafting.rules import RULES
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Rule, Turn
from decoders.core.model import Call, Session
from decoders.core.types import CallResult

_INNER = 1 << 30
"""A step beyond those of every answer: its uniforms serve no verification by the target."""


class CascadeDrafter(Drafter):
    """Draft with `Request.draft`, which verifies and extends the drafts of a smaller model.

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
        roll_back(self._session, self._drafts, text, verdict)
        roll_back(self._smaller_session, self._drafts, text, verdict)
        self._drafts = []
