"""Describe a plan and estimate its time without measuring: `bench run --dry-run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.machine.clock import Stopwatch
from bench.plan.checks import check_first, refuse_sharing
from bench.plan.compiling import open_compiled
from bench.plan.make import make_plan, quality_batch_size
from bench.plan.numerics import describe_numerics
from bench.plan.setup import Opener, Setup, open_setup
from bench.progress import Progress, duration
from bench.records.plan import Plan, PlannedPrompt, select_part
from bench.records.prompts import Prompt
from bench.settings.config import RunConfig
from bench.settings.setting import ALONE, WorkerConfig
from bench.text import counted, printable, shortened
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.graph_children import side_by_side
from decoders.core.types import Generation

_NUM_PROBES = 4


def dry_run(
    config: RunConfig,
    progress: Progress,
    opener: Opener = open_setup,
    spread: WorkerConfig = ALONE,
    part: str | None = None,
) -> list[str]:
    """Return lines about a plan and its duration without writing (raises as `bench.runs.run`).

    Args:
        config: the job.
        progress: shows phases and notes.
        opener: opens the models; any but `open_setup` brings its own.
        spread: the workers that would measure.
        part: ``I/N`` of ``--part``; None: the whole plan.
    """
    run = check_first(config, progress.note, brings_models=opener is not open_setup)
    refuse_sharing(run, spread, part)
    with side_by_side(compiles=False) as children:  # compiling would take longer than the estimate
        setup = open_compiled(run, opener, progress.note)
        plan, prompts = make_plan(setup, config.run_name or "dry-run", progress)
        if part is not None:
            plan = select_part(plan, part)
        timed = [prompts[planned.prompt] for planned in plan.in_pass("timing")]
        seconds, basis = estimate(setup, plan, timed)
    about = f"about {duration(seconds)}, if every decoder were as fast as {plan.baseline}"
    lines = [f"{about} ({basis})"]
    if setup.config.compile:
        line = "compiling is not in this time: graphs that are not on disk yet take minutes, once"
        eager = f"; {plan.baseline} ran eagerly here, and compiled it may be several times as fast"
        lines.append(line + eager * bool(children.missing))
    prompt = timed[0]
    text = shortened(str(setup.tokenizer.decode(list(prompt.ids))))
    head = f"the first prompt, {prompt.name} ({prompt.family}, {len(prompt.ids)} tokens):"
    return [
        *describe(plan),
        head,
        *(f"  {printable(row)}" for row in text.splitlines()),
        describe_numerics(config, setup.config),
        *lines,
    ]


def describe(plan: Plan) -> list[str]:
    """Describe the plan in words, for ``--dry-run``."""
    names, quality = {n for block in plan.blocks for n in block.prompts}, plan.in_pass("quality")
    timing = [each for each in plan.in_pass("timing") if each.prompt in names]  # a part has few
    lines = []
    for cell in plan.cells:
        options = ", ".join(f"{k}={v}" for k, v in cell.options.items() if v != "")
        lines.append(f"{cell.cell}: {options or 'no options'}")
    lines.append(f"{counted(len(timing), 'prompt')} timed ({_per_family(timing)})")
    if quality:
        lines.append(f"{counted(len(quality), 'prompt')} scored ({_per_family(quality)})")
    blocks = counted(len(plan.blocks), "block")
    lines.append(f"{blocks}, {plan.num_answers} timed answers ({plan.baseline} twice)")
    return lines + ([f"{counted(len(plan.skipped), 'prompt')} skipped"] if plan.skipped else [])


def _per_family(prompts: Sequence[PlannedPrompt]) -> str:
    counts = Counter(prompt.family for prompt in prompts)
    return ", ".join(f"{family} {num}" for family, num in counts.items())


def estimate(setup: Setup, plan: Plan, timed: list[Prompt]) -> tuple[float, str]:
    """Estimate the seconds of a plan at the baseline's speed, and describe the basis.

    The basis is the baseline's speed on a few prompts. A batched answer of the quality pass
    is assumed to cost a quarter of a single answer.
    """
    arm = setup.arm(setup.baseline)
    probes = timed[:: max(1, len(timed) // _NUM_PROBES)][:_NUM_PROBES]
    scheduler = Scheduler(arm.decoder, arm.models, setup.sampling)
    scheduler.run([probes[0].ids])  # the first call of a process is slow
    with Stopwatch(setup.clock) as watch:
        outcomes = scheduler.run([prompt.ids for prompt in probes])
    num_tokens = sum(len(o.tokens) for o in outcomes if isinstance(o, Generation))
    answer_s = watch.total_s / len(probes)
    num_scored = len(plan.in_pass("quality")) * len(plan.cells)
    timing_s = plan.num_answers * answer_s / min(setup.config.batch_size, 4)
    quality_s = num_scored * answer_s / min(quality_batch_size(setup), 4)
    basis = (
        f"{num_tokens / watch.total_s:.0f} tokens/s, {num_tokens / len(probes):.0f} tokens per "
        f"answer on {len(probes)} prompts"
    )
    return timing_s + quality_s, basis
