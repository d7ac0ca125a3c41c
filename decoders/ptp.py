"""Parallel Token Prediction (Draxler, Will et al. 2025, arXiv 2512.21323).

Every output position has its uniform u before anything is generated, and sampling is a function of
the text and u: ``token = pick(distribution, u)``. An adapter has learned this function for many
positions at once: one call over slots that carry the next uniforms proposes the next tokens
together. A proposal is accepted if it is the target's own pick for its u, so the output is AR's for
the same seed, token for token. At temperature 0 slots carry no u and propose the greedy text.

* `sequential`: one call proposes, one verifies.
* `pqd` (Partial Quadratic Decoding): one call verifies the last proposals and makes the next ones,
  in a branch of slots after every row where verification may stop; the branches share a budget.

Letters: n drafts to verify, m of them accepted, p the last committed position.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from decoders.core import masks
from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text, Verdict
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.mask_slots import branch_positions
from decoders.core.drafting.proposer import Proposer, allocate, branch_chances
from decoders.core.drafting.tree import DraftTree
from decoders.core.model import Call
from decoders.core.registry import register
from decoders.core.types import CallResult


@register("ptp")
@dataclass(frozen=True, kw_only=True)
class ParallelTokenPrediction(DraftAndVerify):
    """Predict many tokens at once from their uniforms, verify them exactly. Lossless, coupled.

    Args:
        mode: `sequential` (propose, then verify) or `pqd` (both in one call).
        slots: maximum number of slots of a proposal; 0: as many as the adapter was trained with.
        budget: maximum number of slots of a `pqd` round over all branches (the prefill has one
            branch, of `slots`).
        row_cost: cost of one more row in a call, in calls of one row; 0 always spends the budget.
        adapter: name of the adapter, see ``--adapter``.
    """

    mode: Literal["sequential", "pqd"] = "sequential"
    slots: int = 0
    budget: int = 32
    row_cost: float = 0.02
    adapter: str = "ptp"

    needs = ("adapter",)
    variants = ("o-ptp", "c-ptp")
    combines = False

    def __post_init__(self) -> None:
        self.demand(self.slots >= 0, "slots", "0 (the adapter's) or above")
        self.demand(self.budget >= 1, "budget", "1 or above")
        self.demand(self.row_cost >= 0, "row_cost", "0 or above")
        self.demand_read("mode", {"pqd": ("budget",)})

    def drafter(self, request: Request) -> Drafter:
        """Make the drafter of this mode."""
        return _Quadratic(self, request) if self.mode == "pqd" else _Sequential(self, request)


class _SlotDrafter(Drafter):
    """Share the parts of both modes: the prompt's call proposes if slots may see its last token."""

    def __init__(self, options: ParallelTokenPrediction, request: Request) -> None:
        self._options, self._target = options, request.target
        alone = options.mode == "sequential"
        adapter, row_cost = options.adapter, options.row_cost
        self._proposer = Proposer(request, adapter, options.slots, row_cost=row_cost, alone=alone)

    def carry(self, text: Text, tree: DraftTree) -> Mapping[str, Any]:
        """Put one branch of slots after the prompt."""
        if text.output or self._proposer.standalone:
            return {}
        return self._one_branch(text, num_tokens=text.num_prompt)

    def _one_branch(self, text: Text, num_tokens: int) -> dict[str, Any]:
        # this call and the verifying call each add a token of their own to the proposal
        room = text.left - (2 if num_tokens else 1)
        slots = self._proposer.one_branch(text, room)
        positions = self._proposer.positions(self._target.length, num_tokens, slots)
        return {"slots": slots, "positions": positions}

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Take the proposal of the prompt's call, and learn acceptance from later calls."""
        if verdict.is_prompt:
            self._proposer.take(verdict.result)
        else:
            self._proposer.observe(verdict.tree.num_drafts, verdict.accepted)


class _Sequential(_SlotDrafter):
    """Propose in a separate call, which may also give a token."""

    _is_made = False

    def draft(self, text: Text, most: int) -> Generator[Call, CallResult, DraftTree]:
        """Return the proposal of the prompt's call first, then of one slot call per step."""
        first: tuple[int, ...] = ()
        if not self._is_made:
            tokens = () if self._proposer.standalone else (text.last,)
            slots_call, result = self._one_branch(text, len(tokens)), CallResult()
            if tokens or slots_call["slots"] is not None:
                result = yield self._target.call(tokens, **slots_call)
            first = result.picks
            text.tokens += first
            self._proposer.take(result)
        self._is_made = False
        drafts = self._proposer.worthwhile(text.left - 1)
        tree = DraftTree.chain(text.last, drafts, self._proposer.chances)
        tree.first = first
        return tree

    def observe(self, text: Text, verdict: Verdict) -> None:
        super().observe(text, verdict)
        self._is_made = verdict.is_prompt and not self._proposer.standalone


class _Quadratic(_SlotDrafter):
    """Propose in the verifying call, after all n + 1 rows where verification may stop."""

    def propose(self, text: Text, most: int) -> DraftTree:
        """Return the last call's proposal after the accepted drafts."""
        proposer = self._proposer
        return DraftTree.chain(text.last, proposer.drafts[: max(0, most)], proposer.chances)

    def carry(self, text: Text, tree: DraftTree) -> Mapping[str, Any]:
        """Put a branch of slots after every row, longer after likelier rows."""
        if not text.output:
            return super().carry(text, tree)
        proposer, shift = self._proposer, self._proposer.num_unused_slots
        sizes = allocate(
            branch_chances(proposer.chances[: tree.num_drafts]),
            proposer.survival,
            budget=min(self._options.budget, self._target.room - 1 - tree.num_drafts),
            max_size=proposer.max_size,
            num_unused_slots=shift,
            row_cost=self._options.row_cost,
        )
        # m + 1 tokens are emitted before branch m is verified, and that call adds one itself
        rooms = [text.left - m - 2 for m in range(len(sizes))]
        pairs = zip(sizes, rooms, strict=True)
        self._sizes = sizes = [min(size, room + shift) if room > 0 else 0 for size, room in pairs]
        if not any(sizes):
            return {}
        # the slot that predicts position p has position p - 1, in C-PTP as in O-PTP
        return {
            "slots": proposer.branches(sizes, tree.tokens, text.output),
            "positions": branch_positions(self._target.length, len(tree), sizes, shift),
            "mask": masks.branches(sizes, proposer.standalone),
        }

    def observe(self, text: Text, verdict: Verdict) -> None:
        """Take the proposals of the branch after the last accepted row."""
        super().observe(text, verdict)
        if not verdict.is_prompt:
            read = [max(0, size - self._proposer.num_unused_slots) for size in self._sizes]
            start = sum(read[: verdict.accepted])
            behind = slice(start, start + read[verdict.accepted])
            self._proposer.take(verdict.result, behind)
