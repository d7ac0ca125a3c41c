"""EAGLE (Li et al. 2024, arXiv 2401.15077): a layer on the target's hidden states drafts a tree.

The draft layer is fed what the target said behind every token of the text, joined with the token
after it, and goes on from its own states: it drafts as a draft model does, one place after another,
with a cache of its own, and reads the target's head. The likeliest paths are gone on with and the
likeliest of all drafts make the tree (EAGLE-2, arXiv 2406.16858), which one call verifies; the
states at the path that stands are what the layer is fed next.

A draft call is a call of the layer; it is part of the decoder's own time, as heads are.

Letters: N rows of a tree, D hidden width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from decoders.core.adapter.config import Variant
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.tree import DraftTree, draw_candidates, verify_strict
from decoders.core.masks import ROOT
from decoders.core.registry import register
from decoders.core.sampling import warp
from decoders.core.types import CallResult, Emit

_MOST_NODES = 120
"""Rows of a call that may be dropped again: what caches hold beyond prompt and budget."""
_PROMPT_ROWS = 256
"""Most rows of a prompt that the layer sees: each costs the target's head a row."""


@register("eagle")
@dataclass(frozen=True, kw_only=True)
class Eagle(Decoder):
    """Draft a tree by a trained layer on the target's hidden states, verify it at once. Lossless.

    A run that names no decoders leaves it out (`by_default`): it is measured where it is asked for.

    Args:
        nodes: most drafts of a tree.
        width: most candidates for the token after a row, and rows that are gone on with.
        depth: drafts one after another at most, each one draft call.
        verify: `coupled` (the target's own picks, AR's very tokens) or `strict` (drafts are drawn,
            and rejected or not: AR's distribution; at temperature 0 it is the same).
        adapter: name of the adapter that holds the layer, see ``--adapter``.
    """

    nodes: int = 8
    width: int = 3
    depth: int = 6
    verify: Literal["coupled", "strict"] = "coupled"
    adapter: str = "eagle"

    needs = ("adapter",)
    by_default = False

    def __post_init__(self) -> None:
        """`ValueError` on an option out of range."""
        self.demand(1 <= self.nodes <= _MOST_NODES, "nodes", f"1 to {_MOST_NODES}")
        self.demand(1 <= self.depth <= _MOST_NODES, "depth", f"1 to {_MOST_NODES}")
        widest = _MOST_NODES // self.depth
        self.demand(1 <= self.width <= widest, "width", f"1 to {widest} at depth {self.depth}")

    @property
    def variants(self) -> tuple[Variant, ...]:
        """A draft layer."""
        return ("eagle",)

    @property
    def coupled(self) -> bool:
        """Coupled verification emits AR's tokens for the same seed."""
        return self.verify == "coupled"

    def steps(self, request: Request) -> Steps:
        """Prefill, then draft a tree from the states that stand and verify it."""
        run, prompt = _Answer(self, request), request.prompt_ids
        target, left = request.target, request.sampling.max_new_tokens
        rows = range(max(0, len(prompt) - _PROMPT_ROWS), len(prompt))
        result = yield target.call(prompt, read=rows, hidden=True)
        emitted, states = result.picks[-1:], _states(result)
        tokens = (*prompt[rows.start + 1 :], *emitted)
        yield Emit(tokens=emitted)
        while True:
            left -= len(emitted)
            output = request.sampling.max_new_tokens - left
            # the verifying call adds one token itself: draft at most what the budget still holds
            tree, drawn_from = run.tree(tokens, states, left - 1, output)
            result = yield target.call(
                tree.tokens,
                want="probs" if run.draws else "picks",
                read=range(len(tree)),
                positions=tree.positions(target.length),
                mask=tree.mask,
                hidden=True,
            )
            path, token = run.verify(tree, result, drawn_from, output)
            target.keep(path)
            tokens = emitted = (*(tree.tokens[row] for row in path[1:]), token)
            states = _states(result)[path]
            accepted, rejected = len(path) - 1, tree.below(path[-1])
            # the path that was judged: other paths of the tree may be longer
            drafted = accepted + len(rejected)
            yield Emit(tokens=emitted, drafted=drafted, accepted=accepted, rejected=rejected)


@dataclass(frozen=True, slots=True, eq=False)
class _Draft:
    """A candidate, the draft before it (None: the answer's last token), and its path's chance."""

    token: int
    before: _Draft | None
    chance: float


@dataclass(frozen=True, slots=True, eq=False)
class _Frontier:
    """Drafts whose continuations are known: their rows in the layer, logits, states.

    `drafts` has None for the answer's last token.
    """

    drafts: list[_Draft | None]
    rows: list[int]
    logits: Tensor
    states: Tensor


class _Answer:
    """How trees of one answer are made and verified.

    Attributes:
        draws: whether candidates are drawn, and verified by rejection.
    """

    def __init__(self, options: Eagle, request: Request) -> None:
        self._options, self._request = options, request
        self.draws = options.verify == "strict" and not request.sampling.greedy

    def tree(
        self, tokens: tuple[int, ...], states: Tensor, most: int, output: int
    ) -> tuple[DraftTree, dict[int, Tensor]]:
        """A tree behind the answer's last token; distributions ``[V]`` by row, if they are drawn.

        Args:
            tokens: of the text since the last tree, the answer's last one included.
            states: hidden states ``[N, D]`` behind which they stand.
            most: how deep the tree may be.
            output: output position of its first drafts.
        """
        options, tree = self._options, DraftTree(tokens[-1])
        depth = min(options.depth, most)
        if depth < 1:  # the answer's last call
            return tree, {}
        logits, after = self._request.target.draft(options.adapter, states, tokens)
        frontier, num_fed = _Frontier([None], [ROOT], logits, after), 0
        drafts: list[_Draft] = []
        drawn_from: dict[_Draft | None, Tensor] = {}
        for level in range(depth):
            new = self._candidates(frontier, drawn_from, output + level)
            drafts += new
            new = sorted(new, key=lambda draft: -draft.chance)[: options.width]
            if level + 1 == depth or not new or self._settled(drafts, new[0].chance):
                break
            frontier = self._expanded(frontier, new, num_fed)
            num_fed += len(new)
        # where drafts are drawn, all stay: to choose among them would change their distribution
        if not self.draws:
            drafts = sorted(drafts, key=lambda draft: -draft.chance)[: options.nodes]
        rows: dict[_Draft | None, int] = {None: 0}
        for draft in drafts:
            rows[draft] = tree.draft(draft.token, rows[draft.before])
        return tree, {rows[draft]: probs for draft, probs in drawn_from.items()}

    def _candidates(
        self, frontier: _Frontier, drawn_from: dict[_Draft | None, Tensor], output: int
    ) -> list[_Draft]:
        """What may follow a frontier's rows at an output position, the likeliest first by row.

        Drawn ones are as many in all as a level's even share of `nodes`: the rows that have them
        are chosen by what is known before they are drawn.
        """
        options, sampling = self._options, self._request.sampling
        probs = torch.softmax(frontier.logits, -1)
        if not sampling.greedy:
            probs = warp(frontier.logits, sampling)
        best = probs.topk(min(options.width, probs.shape[-1]), -1)
        places = [
            (place, candidate, (1.0 if draft is None else draft.chance) * chance)
            for place, draft in enumerate(frontier.drafts)
            for candidate, chance in enumerate(best.values[place].tolist())
            if chance > 0
        ]
        if self.draws:
            share = max(1, options.nodes // options.depth)
            places = sorted(places, key=lambda each: -each[2])[:share]
        tokens: dict[int, list[int]] = {}
        for place in {place for place, *_ in places}:
            if self.draws:
                drawn_from[frontier.drafts[place]] = probs[place]
                num = sum(other == place for other, *_ in places)
                tokens[place] = draw_candidates(probs[place], num, self._request.uniforms, output)
            else:
                tokens[place] = best.indices[place].tolist()
        return [
            _Draft(tokens[place][candidate], frontier.drafts[place], chance)
            for place, candidate, chance in places
            if candidate < len(tokens[place])
        ]

    def _settled(self, drafts: list[_Draft], best: float) -> bool:
        """Whether no draft behind one of chance `best` could be among the likeliest `nodes`."""
        if self.draws or len(drafts) < self._options.nodes:
            return False
        return (
            sorted((draft.chance for draft in drafts), reverse=True)[self._options.nodes - 1]
            >= best
        )

    def _expanded(self, frontier: _Frontier, drafts: list[_Draft], num_fed: int) -> _Frontier:
        """Feed drafts behind a frontier's rows to the layer, which was fed so many before."""
        places = [frontier.drafts.index(draft.before) for draft in drafts]
        logits, states = self._request.target.draft(
            self._options.adapter,
            frontier.states[places],
            [draft.token for draft in drafts],
            [frontier.rows[place] for place in places],
        )
        rows = list(range(num_fed, num_fed + len(drafts)))
        return _Frontier(list(drafts), rows, logits, states)

    def verify(
        self, tree: DraftTree, result: CallResult, drawn_from: dict[int, Tensor], output: int
    ) -> tuple[list[int], int]:
        """The path that stands, and the token after it."""
        if not self.draws:
            path = tree.path(result.picks)
            return path, result.picks[path[-1]]
        assert result.probs is not None
        return verify_strict(tree, result.probs, drawn_from, self._request.uniforms, output)


def _states(result: CallResult) -> Tensor:
    """The hidden states ``[R, D]`` that a call was asked for."""
    assert result.hidden is not None
    return result.hidden
