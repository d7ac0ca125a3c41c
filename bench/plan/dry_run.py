"""``bench run --dry-run``: the plan, and an estimate of its time."""

from __future__ import annotations

from bench.machine.clock import Stopwatch
from bench.plan.devices import computed_in
from bench.plan.make import batch_size, describe, make_plan
from bench.plan.select import choose_decoders
from bench.plan.setup import Opener, Setup, open_setup
from bench.progress import Progress, duration
from bench.records.plan import BASELINE, Plan
from bench.records.prompts import Prompt
from bench.settings.config import RunConfig
from bench.text import printable
from decoders.core.engine.scheduler import Scheduler
from decoders.core.types import Generation

_NUM_PROBES = 4
_MAX_TEXT = 600
"""Characters of the first prompt that are shown: as many of its end as of its beginning."""


def dry_run(config: RunConfig, progress: Progress, opener: Opener = open_setup) -> list[str]:
    """Return the plan and its estimate in lines; write nothing (raises as `bench.runs.run`)."""
    setup = opener(choose_decoders(config, progress.note))
    plan, prompts = make_plan(setup, config.run_name or "dry-run", progress)
    timed = [prompts[planned.prompt] for planned in plan.in_pass("timing")]
    seconds, basis = estimate(setup, plan, timed)
    line = f"about {duration(seconds)}, were every decoder as fast as ar ({basis})"
    return [*describe(plan), *_first(setup, timed[0]), computed_in(config, setup.config), line]


def _first(setup: Setup, prompt: Prompt) -> list[str]:
    """Return the first prompt as the model is given it, special tokens included, in lines."""
    text = str(setup.tokenizer.decode(list(prompt.ids)))
    if len(text) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        text = f"{text[:half]} […] {text[-half:]}"
    head = f"the first prompt, {prompt.name} ({prompt.family}, {len(prompt.ids)} tokens):"
    return [head, *(f"  {printable(row)}" for row in text.splitlines())]


def estimate(setup: Setup, plan: Plan, timed: list[Prompt]) -> tuple[float, str]:
    """Return the seconds of a plan if every decoder is as fast as the baseline, and their basis.

    That is the baseline's answers to a few of the prompts. An answer of the quality pass, batched,
    is taken to cost a quarter of one alone.
    """
    arm = setup.arms[BASELINE]
    probes = timed[:: max(1, len(timed) // _NUM_PROBES)][:_NUM_PROBES]
    scheduler = Scheduler(arm.decoder, arm.models, setup.sampling)
    scheduler.run([probes[0].ids])  # the first call of a process is slow
    with Stopwatch(setup.clock) as watch:
        outcomes = scheduler.run([prompt.ids for prompt in probes])
    num_tokens = sum(len(o.tokens) for o in outcomes if isinstance(o, Generation))
    answer_s = watch.total_s / len(probes)
    num_scored = len(plan.in_pass("quality")) * len(plan.cells)
    at_once = setup.config.batch_size
    timing_s = plan.num_answers * answer_s / min(at_once, 4)
    quality_s = num_scored * answer_s / min(batch_size(setup), 4)
    basis = (
        f"{num_tokens / watch.total_s:.0f} tokens/s, {num_tokens / len(probes):.0f} tokens an "
        f"answer on {len(probes)} prompts"
    )
    return timing_s + quality_s, basis
