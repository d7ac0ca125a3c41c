"""Parallel Token Prediction (Draxler, Will et al. 2025, arXiv 2512.21323).

Every output position has its uniform u before anything is generated, and sampling is a function of
the text and u: ``token = pick(distribution, u)``. An adapter has learned that function for many
positions at once, so one call over slots that carry the next uniforms proposes the next tokens
together. A proposal stands if it is the target's own pick for that u: the output is AR's for the
same seed, token for token. At temperature 0 slots carry no u and propose the greedy continuation.

* `sequential`: one call proposes, one verifies.
* `pqd` (Partial Quadratic Decoding): one call verifies the last proposals and makes the next ones,
  from every place where verification may stop; slots are shared out over those branches.

Letters: n drafts being verified, m of them that stand, p the last committed position.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Literal

from decoders.core import masks
from decoders.core.adapter.config import Variant
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.allocation import allocate, branch_chances
from decoders.core.drafting.proposer import Proposer
from decoders.core.registry import register
from decoders.core.sampling import verify_picks
from decoders.core.types import Call, CallResult, Emit


@register("ptp")
@dataclass(frozen=True, kw_only=True)
class ParallelTokenPrediction(Decoder):
    """Predict many tokens at once from their uniforms, verify them exactly. Lossless, coupled.

    Args:
        mode: `sequential` (propose, then verify) or `pqd` (both in one call).
        slots: most slots of a proposal; 0 is as many as the adapter was trained with.
        budget: most slots of one `pqd` round, over all branches (the prefill has one branch, of
            `slots`).
        row_cost: what one more row adds to a call, in calls of one row; 0 spends the budget.
        adapter: name of the adapter, see ``--adapter``.
    """

    mode: Literal["sequential", "pqd"] = "sequential"
    slots: int = 0
    budget: int = 32
    row_cost: float = 0.02
    adapter: str = "ptp"

    needs = ("adapter",)

    def __post_init__(self) -> None:
        """`ValueError` on an option out of range, or one that the mode does not read."""
        self.demand(self.slots >= 0, "slots", "0 (the adapter's) or above")
        self.demand(self.budget >= 1, "budget", "1 or above")
        self.demand(self.row_cost >= 0, "row_cost", "0 or above")
        self.demand_read("mode", {"pqd": ("budget",)})

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Slots that carry uniforms."""
        return ("o-ptp", "c-ptp")

    @property
    def coupled(self) -> bool:
        """Every token is the target's own pick for its uniform."""
        return True

    def steps(self, request: Request) -> Steps:
        """Prefill with the first proposal, then rounds of the chosen mode."""
        run = _Answer(self, request)
        if run.proposer.standalone:  # its slots must not see the prompt's last token
            call: Call | None = run.target.call(request.prompt_ids)
        else:
            call = run.propose(request.prompt_ids)
        assert call is not None
        result = yield call
        run.commit(result.picks)
        run.proposer.take(result)
        yield Emit(tokens=result.picks)
        yield from self._quadratic(run) if self.mode == "pqd" else self._sequential(run)

    def _sequential(self, run: _Answer) -> Steps:
        """Verify the proposal in one call; make the next in another, which may give a token too."""
        if run.proposer.standalone:  # the prefill proposed nothing
            yield from self._propose(run)
        first: tuple[int, ...] = ()
        while True:
            drafts = run.proposer.worthwhile(run.left - 1, self.row_cost)
            result = yield run.target.call((run.last, *drafts), read=range(len(drafts) + 1))
            yield run.verified(result, drafts, first)
            first = yield from self._propose(run)
            if first and run.ended(first[0]):
                yield Emit(tokens=first)

    def _propose(self, run: _Answer) -> Generator[Call | Emit, CallResult, tuple[int, ...]]:
        """Make the next proposal; the token that the call gave itself, if it had a base row."""
        call = run.propose(() if run.proposer.standalone else (run.last,))
        result = CallResult() if call is None else (yield call)
        if result.picks:
            run.commit(result.picks)
        run.proposer.take(result)
        return result.picks

    def _quadratic(self, run: _Answer) -> Steps:
        """Verify n drafts and propose from all n + 1 places where verification may stop."""
        proposer = run.proposer
        while True:
            drafts = proposer.drafts[: run.left - 1]
            sizes = self._allocate(run, len(drafts))
            result = yield run.verify_and_propose(drafts, sizes)
            emit = run.verified(result, drafts)
            read = [max(0, size - proposer.lead) for size in sizes]
            start = sum(read[: emit.accepted])
            proposer.take(result, slice(start, start + read[emit.accepted]))
            yield emit

    def _allocate(self, run: _Answer, num_drafts: int) -> list[int]:
        """Slots of every branch; none where the answer will have ended."""
        proposer = run.proposer
        sizes = allocate(
            branch_chances(proposer.chances[:num_drafts]),
            proposer.survival,
            budget=min(self.budget, run.target.room - 1 - num_drafts),
            longest=proposer.longest,
            lead=proposer.lead,
            row_cost=self.row_cost,
        )
        # m + 1 tokens come out before branch m is verified, and that call adds one itself
        rooms = [run.left - m - 2 for m in range(len(sizes))]
        return [
            min(size, room + proposer.lead) if room > 0 else 0
            for size, room in zip(sizes, rooms, strict=True)
        ]


class _Answer:
    """One answer on its way: what is committed, and how calls are made."""

    def __init__(self, decoder: ParallelTokenPrediction, request: Request) -> None:
        assert request.adapter is not None
        self.target, self._sampling = request.target, request.sampling
        self.left = request.sampling.max_new_tokens
        self.last = request.prompt_ids[-1]
        self.proposer = Proposer(
            decoder.adapter,
            request.adapter,
            request.sampling,
            request.uniforms,
            decoder.slots,
            alone=decoder.mode == "sequential",
        )
        self._length = len(request.prompt_ids)
        self._row_cost = decoder.row_cost

    @property
    def output(self) -> int:
        """Output position of the next token."""
        return self._sampling.max_new_tokens - self.left

    def commit(self, tokens: Sequence[int]) -> None:
        """Tokens of the answer are final; the cache keeps all but the last."""
        self._length += len(tokens)
        self.left -= len(tokens)
        self.last = tokens[-1]
        self.target.truncate(min(self.target.length, self._length - 1))

    def ended(self, token: int) -> bool:
        """Whether the answer ends with `token`."""
        return self.left <= 0 or token in self._sampling.stop_ids

    def verified(
        self, result: CallResult, drafts: tuple[int, ...], first: tuple[int, ...] = ()
    ) -> Emit:
        """Commit the drafts that stand and the token after them; a step's end, after `first`."""
        acceptance = verify_picks(result.picks, drafts)
        emitted = (*drafts[: acceptance.accepted], acceptance.token)
        self.commit(emitted)
        self.proposer.observe(len(drafts), acceptance.accepted)
        return Emit(
            tokens=(*first, *emitted),
            drafted=len(drafts),
            accepted=acceptance.accepted,
            undrafted=len(first),
            rejected=drafts[acceptance.accepted :],
        )

    def propose(self, tokens: Sequence[int]) -> Call | None:
        """A call that gives the token after `tokens`, if any, and proposes those after that.

        None where there is nothing to run: no tokens, and no slots that pay.
        """
        # the verifying call's token, and this call's own, come on top of the proposal
        room = self.left - (2 if tokens else 1)
        slots = self.proposer.one_branch(room, self.last, self.output, self._row_cost)
        if slots is None and not tokens:
            return None
        positions = self.proposer.positions(self.target.length, len(tokens), slots)
        return self.target.call(tokens, slots=slots, positions=positions)

    def verify_and_propose(self, drafts: tuple[int, ...], sizes: Sequence[int]) -> Call:
        """The one call of a `pqd` round."""
        tokens = (self.last, *drafts)
        read = range(len(tokens))
        if not any(sizes):
            return self.target.call(tokens, read=read)
        return self.target.call(
            tokens,
            read=read,
            slots=self.proposer.branches(sizes, tokens, self.output),
            positions=self.proposer.branch_positions(self.target.length, len(tokens), sizes),
            mask=masks.branches(sizes, self.proposer.standalone),
        )
