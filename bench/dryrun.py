"""``bench run --dry-run``: what would be measured, and about how long it would take."""

from __future__ import annotations

from collections.abc import Callable

from bench.choice import choose_decoders
from bench.clock import Stopwatch
from bench.config import RunConfig
from bench.plan import BASELINE, Plan
from bench.planning import describe, make_plan
from bench.progress import Progress, duration
from bench.prompts import Prompt
from bench.quality import batch_size
from bench.workbench import Workbench, open_workbench
from decoders.core.scheduler import Scheduler
from decoders.core.types import Generation

NUM_PROBES = 4


def dry_run(
    config: RunConfig,
    progress: Progress,
    opener: Callable[[RunConfig], Workbench] = open_workbench,
) -> list[str]:
    """The plan and its estimate in lines; nothing is written (errors as `bench.session.run`)."""
    config = choose_decoders(config, progress.note)
    bench = opener(config)
    plan, prompts = make_plan(bench, config.run_name or "dry-run", progress)
    timed = [prompts[planned.prompt] for planned in plan.in_pass("timing")]
    return [*describe(plan), estimate(bench, plan, timed)]


def estimate(bench: Workbench, plan: Plan, timed: list[Prompt]) -> str:
    """The time the plan takes if every decoder is as fast as the baseline, from a short probe.

    The probe is the baseline alone on a few of the prompts; in the quality pass, batched, an
    answer is taken to cost a quarter of one alone.
    """
    arm = bench.arms[BASELINE]
    probes = timed[:: max(1, len(timed) // NUM_PROBES)][:NUM_PROBES]
    scheduler = Scheduler(arm.decoder, arm.models, bench.sampling)
    scheduler.run([probes[0].ids])  # the first call of a process is slow
    with Stopwatch(bench.clock) as watch:
        outcomes = scheduler.run([prompt.ids for prompt in probes])
    num_tokens = sum(len(o.tokens) for o in outcomes if isinstance(o, Generation))
    answer_s = watch.total_s / len(probes)
    num_scored = len(plan.in_pass("quality")) * len(plan.cells)
    at_once = bench.config.batch_size
    timing_s = plan.num_answers * answer_s / min(at_once, 4)
    quality_s = num_scored * answer_s / min(batch_size(bench), 4)
    return (
        f"about {duration(timing_s + quality_s)}, were every decoder as fast as ar "
        f"({num_tokens / watch.total_s:.0f} tokens/s, {num_tokens / len(probes):.0f} tokens an "
        f"answer on {len(probes)} prompts)"
    )
