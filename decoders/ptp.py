"""Parallel Token Prediction (Draxler, Will et al. 2025, arXiv 2512.21323).

Every output position has its uniform u before anything is generated, and sampling is a function of
the text and u: ``token = pick(law, u)``. An adapter has learned that function for many positions at
once, so one call over slots that carry the next us proposes the next tokens together. A proposal
stands if it is the target's own pick for that u: the output is AR's for the same seed, token for
token. At temperature 0 slots carry no u and propose the greedy continuation.

* `sequential`: one call proposes, one verifies.
* `pqd` (Partial Quadratic Decoding): one call verifies the last proposals and makes the next ones,
  from every place where verification may stop; slots are shared out over those branches.

Letters: n drafts being verified, m of them that stand, p the last committed position.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from decoders.core import masks
from decoders.core.allocation import Survival, allocate, branch_chances
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.sampling import verify_picks
from decoders.core.types import BLANK, Call, Emit, Slots

NOT_GREEDY = 0.5
"""What slots carry at temperature 0 if the adapter was never trained on greedy text."""

NOT_CALIBRATED = (1.0, 0.0)


@register("ptp")
@dataclass(frozen=True, kw_only=True)
class ParallelTokenPrediction(Decoder):
    """Predict many tokens at once from their uniforms, verify them exactly. Lossless, coupled.

    Args:
        mode: `sequential` (propose, then verify) or `pqd` (both in one call).
        slots: most slots of a proposal; 0 is as many as the adapter was trained with.
        budget: most slots of one `pqd` call, over all branches.
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
        """`ValueError` on an option out of range."""
        _demand(self.slots >= 0, "slots", self.slots, "0 (the adapter's) or above")
        _demand(self.budget >= 1, "budget", self.budget, "1 or above")
        _demand(self.row_cost >= 0, "row_cost", self.row_cost, "0 or above")

    @property
    def coupled(self) -> bool:
        """Every token is the target's own pick for its uniform."""
        return True

    def steps(self, request: Request) -> Steps:
        """Prefill with the first proposal, then rounds of the chosen mode."""
        run = _Run(self, request)
        prompt = request.prompt_ids
        slots = run.slots(run.left - 1, prompt[-1])
        result = yield request.target.call(
            prompt, slots=slots, positions=run.positions(len(prompt), slots)
        )
        run.commit(result.picks)
        run.propose(result.slot_picks, result.slot_confidences)
        yield Emit(tokens=result.picks)
        yield from self._sequential(run) if self.mode == "sequential" else self._quadratic(run)

    def _sequential(self, run: _Run) -> Steps:
        """Verify the proposal in one call; make the next in another, which also gives a token."""
        first: tuple[int, ...] = ()
        while True:
            drafts = run.drafts[: run.worthwhile()]
            result = yield run.target.call((run.last, *drafts), read=range(len(drafts) + 1))
            verdict = verify_picks(result.picks, drafts)
            emitted = (*drafts[: verdict.accepted], verdict.token)
            run.commit(emitted)
            yield Emit(tokens=(*first, *emitted), drafted=len(drafts), accepted=verdict.accepted)
            slots = run.slots(run.left - 1, run.last)
            result = yield run.target.call(
                (run.last,), slots=slots, positions=run.positions(1, slots)
            )
            first = result.picks
            run.commit(first)
            run.propose(result.slot_picks, result.slot_confidences)
            if run.ended(first[0]):
                yield Emit(tokens=first)

    def _quadratic(self, run: _Run) -> Steps:
        """Verify n drafts and propose from all n + 1 places where verification may stop."""
        while True:
            drafts = run.drafts[: run.left - 1]
            sizes = self._allocate(run, len(drafts))
            result = yield run.verify_and_propose(drafts, sizes)
            verdict = verify_picks(result.picks, drafts)
            run.commit((*drafts[: verdict.accepted], verdict.token))
            read = [max(0, size - run.lead) for size in sizes]
            start = sum(read[: verdict.accepted])
            branch = slice(start, start + read[verdict.accepted])
            run.propose(result.slot_picks[branch], result.slot_confidences[branch])
            emitted = (*drafts[: verdict.accepted], verdict.token)
            yield Emit(tokens=emitted, drafted=len(drafts), accepted=verdict.accepted)

    def _allocate(self, run: _Run, num_drafts: int) -> list[int]:
        """Slots of every branch; none where the answer will have ended."""
        sizes = allocate(
            branch_chances(run.chances[:num_drafts]),
            run.survival,
            budget=self.budget,
            longest=run.longest,
            lead=run.lead,
            row_cost=self.row_cost,
        )
        # branch m starts when m + 1 more tokens are out, and its last token may be the last of all
        rooms = [run.left - m - 2 + run.lead for m in range(len(sizes))]
        return [min(size, max(0, room)) for size, room in zip(sizes, rooms, strict=True)]


class _Run:
    """One answer on its way: what is committed, what is proposed, and how calls are made."""

    def __init__(self, decoder: ParallelTokenPrediction, request: Request) -> None:
        config, sampling = request.adapter, request.sampling
        assert config is not None
        self.target, self.sampling = request.target, sampling
        self.left = sampling.max_new_tokens
        self.last = -1
        self.drafts: tuple[int, ...] = ()
        self.chances: list[float] = []
        # O-PTP: the first slot predicts the token that the row before it gives exactly
        self.lead = 1 if config.variant == "o-ptp" else 0
        self.longest = decoder.slots or config.num_slots
        kind = "greedy_" if sampling.greedy and config.greedy else ""
        self._calibration: tuple[float, float] = (
            config.measured.get(f"{kind}calibration") or NOT_CALIBRATED
        )
        self.survival = _survival(config.measured.get(f"{kind}survival"), self.lead, self.longest)
        self._greedy_u = BLANK if config.greedy else NOT_GREEDY
        self._uniforms, self._row_cost = request.uniforms, decoder.row_cost
        self._name, self._variant = decoder.adapter, config.variant
        self._sequence_length = len(request.prompt_ids)

    def commit(self, tokens: Sequence[int]) -> None:
        """Tokens of the answer are final; the cache keeps all but the last."""
        self._sequence_length += len(tokens)
        self.left -= len(tokens)
        self.last = tokens[-1]
        self.target.truncate(min(self.target.length, self._sequence_length - 1))

    def propose(self, tokens: tuple[int, ...], confidences: Sequence[float]) -> None:
        """These are the tokens that may follow, with calibrated chances."""
        self.drafts = tokens
        self.chances = [_calibrated(c, *self._calibration) for c in confidences]

    def ended(self, token: int) -> bool:
        """Whether the answer ends with `token`."""
        return self.left <= 0 or token in self.sampling.stop_ids

    def worthwhile(self) -> int:
        """How many drafts to verify: as long as one more row brings more than it costs."""
        most, stand, gain = min(len(self.drafts), self.left - 1), 1.0, 1.0
        for count in range(most):
            stand *= self.chances[count]
            if stand * (1 + self._row_cost * count) < self._row_cost * gain:
                return count
            gain += stand
        return most

    def slots(self, room: int, anchor: int) -> Slots | None:
        """Slots after `anchor`, of whose tokens `room` can still be used; None where none can."""
        count = min(self.longest, room + self.lead)
        return self._slots([count], [anchor]) if count > self.lead else None

    def positions(self, num_tokens: int, slots: Slots | None) -> tuple[int, ...] | None:
        """C-PTP slots stand one further than O-PTP's, which is where a call puts them anyway."""
        if slots is None or self.lead:
            return None
        start, end = self.target.length, self.target.length + num_tokens
        return (*range(start, end), *range(end, end + len(slots.uniforms)))

    def verify_and_propose(self, drafts: tuple[int, ...], sizes: Sequence[int]) -> Call:
        """The one call of a `pqd` round."""
        read = range(len(drafts) + 1)
        tokens = (self.last, *drafts)
        if not any(sizes):
            return self.target.call(tokens, read=read)
        start = self.target.length
        first = start + 1 - self.lead
        positions = [*range(start, start + len(tokens))]
        for m, size in enumerate(sizes):
            positions += range(first + m, first + m + size)
        return self.target.call(
            tokens,
            read=read,
            slots=self._slots(sizes, tokens),
            positions=positions,
            mask=masks.branches(sizes),
        )

    def _slots(self, sizes: Sequence[int], anchors: Sequence[int]) -> Slots:
        """Slots of branches that start one output position after another, after `anchors`."""
        sampling, out = self.sampling, self.sampling.max_new_tokens - self.left
        uniforms: list[float] = []
        read: list[int] = []
        for m, size in enumerate(sizes):
            read += range(len(uniforms) + self.lead, len(uniforms) + size)
            if sampling.greedy:
                uniforms += [self._greedy_u] * size
            else:
                uniforms += [self._uniforms.at("draw", out + m + s) for s in range(size)]
        return Slots(
            adapter=self._name,
            uniforms=tuple(uniforms),
            sizes=tuple(sizes),
            anchors=tuple(anchors),
            read=tuple(read),
            want="argmax" if self._variant == "o-ptp" else "draws",
            warp=(sampling.temperature, sampling.top_p),
        )


def _survival(measured: Sequence[float] | None, lead: int, longest: int) -> Survival:
    """Of proposals; measured of slots, of which the first `lead` always stand in decoding."""
    if not measured:
        return Survival.of([0.85**g for g in range(1, longest + 1)])
    head = measured[lead - 1] if lead else 1.0
    return Survival.of([chance / max(head, 1e-6) for chance in measured[lead:longest]])


def _calibrated(confidence: float, slope: float, offset: float) -> float:
    """sigmoid(slope * logit(confidence) + offset)."""
    c = min(max(confidence, 1e-6), 1 - 1e-6)
    return 1 / (1 + math.exp(-slope * math.log(c / (1 - c)) - offset))


def _demand(holds: bool, name: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"option {name!r} of decoder 'ptp' is {value}; it must be {allowed}")
