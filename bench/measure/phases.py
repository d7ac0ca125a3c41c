"""Split the time of an answer into phases, in an instrumented second pass.

It answers a few prompts once more, each right after the block that timed it, because the machine's
speed drifts over a run. It reads the clock around every call (on a GPU each reading waits for the
device), which would distort the timed pass. It writes its measurements to ``phases.json``.

=========  =========================================================================================
prefill    everything up to the first emit (at batch size > 1: target calls on an empty cache)
draft      calls of the draft model and of drafters' networks, and target calls that read no token
           rows: slots that propose
verify     all other target calls; a self-driven decoder reports itself which passes verify
sampling   from logits to the result that the decoder receives: warping, picking, verifying
scheduler  choosing and merging calls, cutting and counting emitted tokens
other      the decoder's own code; for a self-driven decoder everything except forward passes: its
           loop, its sampling and the model's head
=========  =========================================================================================

The phases add up to the whole time.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from torch import Tensor

from bench.machine.clock import Stopwatch
from bench.plan.past import later_turns
from bench.plan.setup import Arm, Setup
from bench.records.plan import Block, Plan
from bench.records.prompts import Prompt
from bench.records.samples import PHASES, PhasedAnswer
from decoders.core.decoder import Memory, SelfDriven, Steps
from decoders.core.engine.forward import draft, forward
from decoders.core.engine.readout import read_out
from decoders.core.engine.reads import Readout
from decoders.core.engine.scheduler import Scheduler
from decoders.core.model import Call, DraftCall, Model
from decoders.core.types import CallResult, Generation, Sampling


class PhaseClock:
    """Charge all time to the current phase, and count the rows of calls.

    `padded_rows` are rows that only pad merged calls to one width.
    """

    def __init__(self, now: Any) -> None:
        """Begin in the phase ``scheduler``, with the clock `now` (in seconds)."""
        self._now = now
        self.rows = self.padded_rows = 0
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._phase = "scheduler"
        self._since_s = 0.0

    def start(self) -> None:
        """Begin in the phase ``scheduler``, and discard all time before."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._phase, self._since_s = "scheduler", self._now()

    def switch(self, phase: str) -> str:
        """Charge the time since the last switch, enter `phase`, and return the previous phase."""
        now_s = self._now()
        self.seconds[self._phase] += now_s - self._since_s
        left, self._phase, self._since_s = self._phase, phase, now_s
        return left

    def emitted(self, _index: int = 0, number: int = 0) -> None:
        """End step `number`, and charge all time up to the end of step 0 to the prefill."""
        if number:
            return
        self.switch(self._phase)
        spent_s = sum(self.seconds.values())
        self.seconds = dict.fromkeys(PHASES, 0.0) | {"prefill": spent_s}

    @contextmanager
    def within(self, phase: str) -> Generator[None]:
        """Enter `phase`, and return to the previous phase at the end."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    @contextmanager
    def counting(self, calls: Sequence[Call]) -> Generator[None]:
        """Count the rows of calls that run as one forward pass inside."""
        model = calls[0].session.model
        before, fed = getattr(model, "num_padded_rows", 0), sum(c.session.rows for c in calls)
        yield
        self.rows += sum(call.session.rows for call in calls) - fed
        self.padded_rows += getattr(model, "num_padded_rows", 0) - before


def measure_phases(
    setup: Setup, prompts: Mapping[str, Prompt], block: Block, failed: Collection[str]
) -> list[PhasedAnswer]:
    """Answer a block by phase with the arms that did not fail, in a separately shuffled order.

    A decoder that runs its own loop is left out: its calls do not pass through the scheduler.

    Args:
        setup: has the arms, the clock and the past answers, to which this pass adds none.
        prompts: the run's prompts by name.
        block: a block that has just been timed.
        failed: cells that failed in it.

    Returns:
        An entry for each arm all of whose answers ended well.
    """
    driven = {c for c, arm in setup.arms.items() if isinstance(arm.decoder, SelfDriven)}
    cells = [cell for cell in setup.arms if cell not in failed and cell not in driven]
    num_rows, sampling = setup.config.batch_size, setup.repeated(block.repeat)
    group = [prompts[name] for name in block.prompts]
    ids = [prompt.ids for prompt in group]
    answers = []
    for cell in random.Random(f"phases {block.block}").sample(cells, len(cells)):
        clock = PhaseClock(setup.clock.now)
        past = setup.past.memory(cell, setup.arms[cell].decoder, block)
        where = setup.arms[cell], sampling, num_rows, clock, past, later_turns(group)
        scheduler = phased_scheduler(*where)
        if setup.config.reuse_prefix:
            scheduler.prefill_prefix(ids[0], group[0].num_kept)
        with Stopwatch(setup.clock):
            clock.start()
            outcomes = scheduler.run(ids, on_emit=clock.emitted if num_rows == 1 else None)
            clock.switch("scheduler")
        done = [outcome for outcome in outcomes if isinstance(outcome, Generation)]
        if len(done) < len(ids):
            continue
        emitted = sum(len(generation.tokens) for generation in done)
        first = sum(len(generation.steps[0].tokens) for generation in done)
        answer = PhasedAnswer(
            decoder=cell,
            prompts=block.prompts,
            repeat=block.repeat,
            seconds={phase: round(spent_s, 9) for phase, spent_s in clock.seconds.items()},
            emitted=emitted,
            later_emitted=emitted - first,
            later_steps=sum(len(generation.steps) - 1 for generation in done),
            rows=clock.rows,
            padded_rows=clock.padded_rows,
        )
        answers.append(answer)
    return answers


def chosen_blocks(plan: Plan, limit: int) -> list[Block]:
    """Choose blocks with at most `limit` prompts, from each family and from each repeat in turn.

    At least one block is chosen, unless `limit` is 0.
    """
    families = {prompt.prompt: prompt.family for prompt in plan.prompts}
    queues: dict[str, list[Sequence[Block]]] = {}
    for first in sorted(plan.blocks, key=lambda block: block.prompts):
        if first.repeat == 0:  # of a group, a part has some repeats only
            same = [block for block in plan.blocks if block.prompts == first.prompts]
            queues.setdefault(families[first.prompts[0]], []).append(same)
    turns = [repeats for row in zip_longest(*queues.values()) for repeats in row if repeats]
    selection: list[Block] = []
    for repeats in turns if limit else ():
        block = repeats[len(selection) % len(repeats)]
        if selection and sum(len(each.prompts) for each in (*selection, block)) > limit:
            break
        selection.append(block)
    return [block for block in plan.blocks if block in selection]


def phased_scheduler(
    arm: Arm,
    sampling: Sampling,
    batch_size: int,
    clock: PhaseClock,
    past: Memory | None = None,
    unremembered: Collection[int] = (),
) -> Scheduler:
    """Return a `Scheduler` of an arm that charges its work to the phases.

    Args:
        arm: the cell's decoder, and the models whose calls are charged.
        sampling: the sampling of the repeat.
        batch_size: maximum number of answers at once.
        clock: the clock to charge, which the caller starts.
        past: a memory for all answers, which they fill; None: each begins with an empty one.
        unremembered: indices of prompts whose answers are not added to `past`.
    """

    def phased_forward(calls: Sequence[Call], *reads: Any) -> Tensor:
        with clock.within(_phase(calls[0], arm.models.target)), clock.counting(calls):
            return forward(calls, *reads)

    def phased_draft(calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        with clock.within("draft"):
            return draft(calls)

    def phased_read_out(
        logits: Tensor, parts: Sequence[Readout], sampling: Sampling
    ) -> Sequence[CallResult]:
        with clock.within("sampling"):
            return read_out(logits, parts, sampling)

    return Scheduler(
        arm.decoder,
        arm.models,
        sampling,
        batch_size,
        memory=past,
        unremembered=unremembered,
        steps=lambda request: _phased_steps(arm.decoder.steps(request), clock),
        forward=phased_forward,
        draft=phased_draft,
        read_out=phased_read_out,
    )


def _phase(call: Call, target: Model) -> str:
    if call.session.model is not target:
        return "draft"
    if call.session.length == 0:
        return "prefill"
    return "verify" if call.read else "draft"


def _phased_steps(steps: Steps, clock: PhaseClock) -> Steps:
    """Run a decoder's steps, and charge the decoder's own code to ``other``."""
    try:
        with clock.within("other"):
            item = next(steps)
        while True:
            result = yield item
            with clock.within("other"):
                item = steps.send(result)
    except StopIteration:
        return
    finally:
        steps.close()
