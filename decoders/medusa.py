"""Medusa-1 (Cai et al. 2024, arXiv 2401.10774): heads on the target's last hidden state draft.

Where the target has said its next token, heads on the hidden state behind it have said the ones
after that: head h the token h + 2 places on. Their likeliest candidates make a tree of drafts
behind the token, which one call verifies; the path stands that the target follows itself, and the
state at its end drafts the next tree. No draft model, no second cache, one call a step.

The tree is made anew in every step, the likeliest rows first (the paper fixes one beforehand).

Letters: H heads, N rows of a tree, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from decoders.core.adapter.config import Variant
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.tree import DraftTree, draw_candidates, likeliest_paths, verify_strict
from decoders.core.registry import register
from decoders.core.sampling import warp
from decoders.core.types import CallResult, Emit

_MOST_NODES = 120
"""Rows of a call that may be dropped again: what caches hold beyond prompt and budget."""


@register("medusa")
@dataclass(frozen=True, kw_only=True)
class Medusa(Decoder):
    """Draft a tree from the target's hidden state by trained heads, verify it at once. Lossless.

    A run that names no decoders leaves it out (`by_default`): it is measured where it is asked for.

    Args:
        nodes: most drafts of a tree.
        width: most candidates for the token after a row.
        heads: most heads asked, hence the longest path; 0 is all that there are.
        verify: `coupled` (the target's own picks, AR's very tokens) or `strict` (drafts are drawn,
            and rejected or not: AR's distribution; at temperature 0 it is the same).
        adapter: name of the adapter that holds the heads, see ``--adapter``.
    """

    nodes: int = 8
    width: int = 4
    heads: int = 0
    verify: Literal["coupled", "strict"] = "coupled"
    adapter: str = "medusa"

    needs = ("adapter",)
    by_default = False

    def __post_init__(self) -> None:
        """`ValueError` on an option out of range."""
        self.demand(1 <= self.nodes <= _MOST_NODES, "nodes", f"1 to {_MOST_NODES}")
        self.demand(self.width >= 1, "width", "1 or above")
        self.demand(self.heads >= 0, "heads", "0 (all there are) or above")

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Heads, no slots."""
        return ("medusa",)

    @property
    def coupled(self) -> bool:
        """Coupled verification emits AR's tokens for the same seed."""
        return self.verify == "coupled"

    def steps(self, request: Request) -> Steps:
        """Prefill, then draft a tree from the last state that stands and verify it."""
        run = _Answer(self, request)
        target, left = request.target, request.sampling.max_new_tokens
        result = yield target.call(request.prompt_ids, hidden=True)
        emitted, state = result.picks, _states(result)
        yield Emit(tokens=emitted)
        while True:
            left -= len(emitted)
            output = request.sampling.max_new_tokens - left
            # the verifying call adds one token itself: draft at most what the budget still holds
            tree, drawn_from = run.tree(emitted[-1], state, left - 1, output)
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
            emitted = (*(tree.tokens[row] for row in path[1:]), token)
            state = _states(result)[path[-1] :][:1]
            accepted, rejected = len(path) - 1, tree.below(path[-1])
            if len(rejected) != tree.depth - accepted:  # the path left that of the first drafts
                rejected = ()
            yield Emit(tokens=emitted, drafted=tree.depth, accepted=accepted, rejected=rejected)


class _Answer:
    """How trees of one answer are made and verified.

    Attributes:
        draws: whether candidates are drawn, and verified by rejection.
    """

    def __init__(self, options: Medusa, request: Request) -> None:
        assert request.adapter is not None
        self._options, self._request = options, request
        num_heads = request.adapter.num_slots
        self._num_heads = min(options.heads, num_heads) if options.heads else num_heads
        self.draws = options.verify == "strict" and not request.sampling.greedy

    def tree(self, last: int, state: Tensor, most: int, output: int) -> tuple[DraftTree, Tensor]:
        """A tree behind token `last`, and the distributions ``[H, V]`` of its depths.

        Args:
            last: the last token of the answer.
            state: hidden state ``[1, D]`` behind which it stands.
            most: how deep the tree may be.
            output: output position of its first drafts.
        """
        options, sampling = self._options, self._request.sampling
        logits = self._request.target.propose(options.adapter, state)[0]
        logits = logits[: max(0, min(self._num_heads, most))]
        # greedy: how sure a head is of its candidates is what shapes the tree
        probs = torch.softmax(logits, -1) if sampling.greedy else warp(logits, sampling)
        best = probs.topk(min(options.width, probs.shape[-1]), -1)
        chances: list[list[float]] = best.values.tolist()
        candidates: list[list[int]] = best.indices.tolist()
        if self.draws:
            candidates = [
                draw_candidates(row, options.width, self._request.uniforms, output + depth)
                for depth, row in enumerate(probs)
            ]
        tree, rows = DraftTree(last), [0]
        for parent, depth, candidate in likeliest_paths(chances, options.nodes):
            rows.append(tree.draft(candidates[depth][candidate], rows[parent]))
        return tree, probs

    def verify(
        self, tree: DraftTree, result: CallResult, drawn_from: Tensor, output: int
    ) -> tuple[list[int], int]:
        """The path that stands, and the token after it."""
        if not self.draws:
            path = tree.path(result.picks)
            return path, result.picks[path[-1]]
        assert result.probs is not None
        by_row = {row: drawn_from[d] for row, d in enumerate(tree.depths) if d < len(drawn_from)}
        return verify_strict(tree, result.probs, by_row, self._request.uniforms, output)


def _states(result: CallResult) -> Tensor:
    """The hidden states ``[R, D]`` that a call was asked for."""
    assert result.hidden is not None
    return result.hidden
