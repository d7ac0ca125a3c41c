"""EAGLE (Li et al. 2024, arXiv 2401.15077): a layer on the target's hidden states drafts a tree.

The draft layer reads the target's hidden state at each position of the text, joined with the token
picked there. Then it continues from its own states: like a draft model, it drafts one token after
another and has its own cache, but the target's head computes its logits. The likeliest paths are
extended, and the likeliest of all drafts form the tree (EAGLE-2, arXiv 2406.16858). One call
verifies the tree, and the hidden states of the accepted path are the layer's next input.

A draft call is one run of the layer; its time counts as the decoder's own, as for heads.

Letters: N rows of a tree, D hidden width, V vocabulary, W words that the layer may draft.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, StatesDrafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.tree import DraftTree, draw_candidates, likeliest_candidates
from decoders.core.drafting.verification import Exact
from decoders.core.masks import ROOT
from decoders.core.registry import register
from decoders.core.types import MAX_DRAFTS
from decoders.core.upload import upload


@register("eagle")
@dataclass(frozen=True, kw_only=True)
class Eagle(DraftAndVerify):
    """Draft a tree by a trained layer on the target's hidden states and verify it. Lossless.

    Args:
        nodes: most drafts of a tree.
        width: most candidates for the token after a row, and most rows extended at each level.
        depth: most drafts on a path; each level of the tree costs one draft call.
        verify: `coupled` (the target's own picks, exactly AR's tokens) or `rejection` (drafts are
            drawn, then accepted or rejected: AR's distribution; the same at temperature 0).
        adapter: name of the adapter that holds the layer, see ``--adapter``.
    """

    nodes: int = 8
    width: int = 3
    depth: int = 6
    verify: Exact = "coupled"
    adapter: str = "eagle"

    needs = ("adapter",)
    variants = ("eagle",)
    by_default = False

    def __post_init__(self) -> None:
        self.demand(1 <= self.nodes <= MAX_DRAFTS, "nodes", f"1 to {MAX_DRAFTS}")
        self.demand(1 <= self.depth <= MAX_DRAFTS, "depth", f"1 to {MAX_DRAFTS}")
        limit = MAX_DRAFTS // self.depth
        self.demand(1 <= self.width <= limit, "width", f"1 to {limit} at depth {self.depth}")

    def drafter(self, request: Request) -> Drafter:
        """Draft from the target's hidden states of the text."""
        return _TreeDrafter(self, request)


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """A candidate token, its parent (None: the answer's last token), its path's probability."""

    token: int
    before: _Draft | None
    chance: float


@dataclass(frozen=True, slots=True, eq=False)
class _Frontier:
    """Drafts (None: the answer's last token) in the layer's rows `first`, `first` + 1, …."""

    drafts: list[_Draft | None]
    first: int
    logits: Tensor
    states: Tensor


class _TreeDrafter(StatesDrafter):
    """Drafts the trees of one answer."""

    branches = True

    def __init__(self, options: Eagle, request: Request) -> None:
        super().__init__()
        self._options, self._request = options, request
        self._layer = functools.partial(request.target.drafter, options.adapter)
        self._words: Sequence[int] | None = None
        self._draws = not options.verification.by_picks(request.sampling)

    def propose(self, text: Text, most: int) -> DraftTree:
        """Make a tree after the last token, and draw its drafts if rejection sampling is used."""
        options, tree = self._options, DraftTree(text.last)
        depth = min(options.depth, most)
        if depth < 1:  # the answer's last call
            return tree
        states, tokens = self.unfed(text)
        layer = self._layer(len(tokens))
        self._words = layer.words
        logits, after = layer.feed(states, tokens)
        frontier = _Frontier([None], ROOT, logits, after)
        drafts: list[_Draft] = []
        drawn_from: dict[_Draft | None, Tensor] = {}
        for level in range(depth):
            new = self._candidates(frontier, drawn_from, text.output + level)
            drafts += new
            new = sorted(new, key=lambda draft: -draft.chance)[: options.width]
            if level + 1 == depth or not new:
                break
            enough = sorted((draft.chance for draft in drafts), reverse=True)[options.nodes - 1 :]
            if not self._draws and enough and enough[0] >= new[0].chance:
                break  # no deeper draft could be among the likeliest
            frontier = self._expanded(frontier, new)
        # drawn drafts are all kept: a selection among them would change their distribution
        if not self._draws:
            drafts = sorted(drafts, key=lambda draft: -draft.chance)[: options.nodes]
        rows: dict[_Draft | None, int] = {None: 0}
        for draft in drafts:
            rows[draft] = tree.draft(draft.token, rows[draft.before])
        tree.probs = {rows[draft]: probs for draft, probs in drawn_from.items()}
        return tree

    def _candidates(
        self, frontier: _Frontier, drawn_from: dict[_Draft | None, Tensor], output: int
    ) -> list[_Draft]:
        """Rank the candidates for the tokens after a frontier's rows, at an output position.

        If candidates are drawn, every level has an even share of `nodes`, and the rows to draw from
        are chosen by probabilities known before the draw.
        """
        options = self._options
        probs, chances, candidates = likeliest_candidates(
            frontier.logits, self._request.sampling, options.width
        )
        if (words := self._words) is not None:
            candidates = [[words[candidate] for candidate in row] for row in candidates]
            if self._draws:
                whole = probs.new_zeros(len(probs), self._request.target.model.vocab_size)
                probs = whole.index_copy_(-1, upload(words, probs.device), probs)
        ranked = [
            (row, candidate, (1.0 if draft is None else draft.chance) * chance)
            for row, draft in enumerate(frontier.drafts)
            for candidate, chance in enumerate(chances[row])
            if chance > 0
        ]
        if self._draws:
            share = max(1, options.nodes // options.depth)
            ranked = sorted(ranked, key=lambda each: -each[2])[:share]
        tokens: dict[int, list[int]] = {}
        for row in {row for row, *_ in ranked}:
            if self._draws:
                drawn_from[frontier.drafts[row]] = probs[row]
                num = sum(other == row for other, *_ in ranked)
                tokens[row] = draw_candidates(probs[row], num, self._request.uniforms, output)
            else:
                tokens[row] = candidates[row]
        return [
            _Draft(tokens[row][candidate], frontier.drafts[row], chance)
            for row, candidate, chance in ranked
            if candidate < len(tokens[row])
        ]

    def _expanded(self, frontier: _Frontier, drafts: list[_Draft]) -> _Frontier:
        ranked = [frontier.drafts.index(draft.before) for draft in drafts]
        logits, states = self._layer(len(drafts)).draft(
            frontier.states.index_select(0, upload(ranked, frontier.states.device)),
            [draft.token for draft in drafts],
            [frontier.first + row for row in ranked],
        )
        return _Frontier(list(drafts), frontier.first + len(frontier.drafts), logits, states)
