"""Makes the plan of an open setup (chooses tasks, tokenises, orders blocks), and estimates time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime

from bench.errors import UsageError, room_for
from bench.machine.clock import Stopwatch
from bench.machine.env import models_of
from bench.plan.checks import check_first
from bench.plan.compiling import open_compiled
from bench.plan.contract import check_cells
from bench.plan.devices import computed_in
from bench.plan.identity import identity_of
from bench.plan.setup import Opener, Setup, open_setup
from bench.plan.tokenise import PromptEncoder, count_lines, longest_prompt, tasks_of, to_length
from bench.progress import Progress, duration
from bench.records.plan import BASELINE, SECOND_BASELINE, Block, Plan, PlannedPrompt
from bench.records.prompts import Prompt, SkippedTurn
from bench.settings.config import RunConfig
from bench.settings.protocol import vicuna
from bench.stats.adapter_fit import context_warnings, training_warnings
from bench.text import counted, printable
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.graph_children import stored_only
from decoders.core.types import Generation
from specbench_tasks.task import OTHER, Conversation

_GROUPS_PER_BATCH = 4
"""Prompts per block in units of the batch size, so that the scheduler can refill ended rows."""
_BATCH_ON_CPU, _BATCH_ON_GPU, _BATCH_OF_SMALL = 8, 32, 32
_SMALL = 50_000_000
"""Most weights of a small model: its CPU calls cost mostly overhead, 32 caches little memory."""
_NUM_PROBES = 4
_MAX_TEXT = 600
"""Most characters shown of the first prompt, half from its beginning and half from its end."""


def make_plan(setup: Setup, name: str, progress: Progress) -> tuple[Plan, dict[str, Prompt]]:
    """Return the plan of a run and its prompts by name.

    Raises:
        UsageError: the tasks are unknown, or no prompt is left.
        UnavailableError: data are missing.
        BenchError: too little memory for the baseline's first turns.
    """
    config = setup.config
    tasks = tasks_of(config)
    prompts, skipped = tokenise(setup, [*tasks.timing, *tasks.quality])
    models = models_of(setup.facts)
    values = config.model_dump()
    notes = (
        *tasks.notes,
        *models.notes,
        *training_warnings(values, models),
        *context_warnings(values, models, (len(prompt.ids) for prompt in prompts)),
    )
    for line in (*notes, *count_lines(prompts, skipped), *_unscored(prompts)):
        progress.note(line)
    timed = {conversation.id for conversation in tasks.timing}
    scored = {conversation.id for conversation in tasks.quality}
    by_name = {prompt.name: prompt for prompt in prompts}
    names = [prompt.name for prompt in prompts if prompt.conversation in timed]
    if not names:
        raise UsageError("no prompt is left to measure: all were skipped")
    plan = Plan(
        name=name,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        cells=check_cells(setup, progress),
        order_seed=config.seed,
        prompts=tuple(_planned(prompt, timed, scored) for prompt in prompts),
        blocks=order_blocks(
            names,
            list(setup.arms),
            repeats=config.repeats,
            batch_size=config.batch_size,
            seed=config.seed,
        ),
        skipped=tuple(skipped),
        identity=identity_of(setup),
    )
    return plan, by_name


def tokenise(
    setup: Setup, conversations: Sequence[Conversation]
) -> tuple[list[Prompt], list[SkippedTurn]]:
    """Tokenise every turn once, later turns with the baseline's answers (raises as `make_plan`)."""
    config, context = setup.config, setup.models.target.max_length
    longest = longest_prompt(config, context)
    distinct = list({conversation.id: conversation for conversation in conversations}.values())

    def answer(prompts: Sequence[Prompt]) -> list[str | None]:
        with room_for("the baseline's first turns, answered in batches"):
            return baseline_answers(setup, prompts)

    try:
        prompts, skipped = PromptEncoder(
            setup.tokenizer,
            longest,
            config.overlong,
            template=vicuna if config.protocol == "specbench" else None,
            vocab_size=setup.models.target.vocab_size,
            chat=setup.template,
        ).prompts(distinct, answer)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if config.prompt_tokens is not None:
        prompts = to_length(prompts, config.prompt_tokens, setup.tokenizer.bos_token_id)
    return prompts, skipped


def _unscored(prompts: Sequence[Prompt]) -> list[str]:
    num = sum(prompt.family == OTHER and prompt.reference is not None for prompt in prompts)
    line = f"{num} of {len(prompts)} prompts have a reference but no family, so they are not scored"
    return [f"{line}: name the family, in a column or in [columns] of the config file"] * (num > 0)


def _planned(prompt: Prompt, timed: set[str], scored: set[str]) -> PlannedPrompt:
    passes = {
        "timing": prompt.conversation in timed,
        "quality": prompt.conversation in scored and prompt.reference is not None,
    }
    return PlannedPrompt(
        prompt=prompt.name,
        conversation=prompt.conversation,
        turn=prompt.turn,
        family=prompt.family,
        hash=prompt.hash,
        num_tokens=len(prompt.ids),
        passes=tuple(name for name, takes_part in passes.items() if takes_part),
        reference=None if prompt.reference is None else asdict(prompt.reference),
    )


def order_blocks(
    prompts: Sequence[str], cells: Sequence[str], *, repeats: int, batch_size: int, seed: int
) -> tuple[Block, ...]:
    """Return the blocks in measuring order, which depends only on the arguments.

    `cells` lack the baseline's second arm, which is added to every block.
    """
    shuffler = random.Random(seed)
    groups: list[tuple[str, ...]] = [(prompt,) for prompt in prompts]
    if batch_size > 1:  # fixed groups, drawn from all families
        mixed = shuffler.sample(list(prompts), len(prompts))
        size = _GROUPS_PER_BATCH * batch_size
        groups = [tuple(mixed[i : i + size]) for i in range(0, len(mixed), size)]
    arms = [*cells, SECOND_BASELINE]
    blocks: list[Block] = []
    for repeat in range(repeats):
        for group in shuffler.sample(groups, len(groups)):
            order = tuple(shuffler.sample(arms, len(arms)))
            blocks.append(Block(block=len(blocks), repeat=repeat, prompts=group, order=order))
    return tuple(blocks)


def parse_part(text: str) -> tuple[int, int]:
    """Parse ``I/N`` of ``--part`` into two numbers, I from 1 to N (`UsageError`)."""
    which, _, of = text.partition("/")
    if not (which.isdecimal() and of.isdecimal() and 1 <= int(which) <= int(of)):
        raise UsageError(f"--part {text!r} is not I/N with I from 1 to N, e.g. 2/4")
    return int(which), int(of)


def part_of(plan: Plan, text: str) -> Plan:
    """Return part ``I/N`` of a plan: every N-th block, and every N-th prompt of the quality pass.

    So each part has some of every repeat and family. The part keeps the whole plan's block numbers
    and prompts (`UsageError` if no block is left to time).
    """
    which, of = parse_part(text)
    mine = {planned.prompt for planned in plan.in_pass("quality")[which - 1 :: of]}
    prompts = tuple(
        each
        if each.prompt in mine
        else replace(each, passes=tuple(name for name in each.passes if name != "quality"))
        for each in plan.prompts
    )
    blocks = plan.blocks[which - 1 :: of]
    if not blocks:
        raise UsageError(f"--part {text} is empty: the plan has {len(plan.blocks)} blocks")
    parts = (f"{which}/{of}",)
    return replace(plan, blocks=blocks, prompts=prompts, parts=parts, whole=plan.digest)


def batch_size(setup: Setup) -> int:
    """Return the batch size of untimed passes."""
    if setup.on_gpu:
        return _BATCH_ON_GPU
    num_weights = (setup.facts.get("target") or {}).get("parameters")
    return _BATCH_ON_CPU if num_weights is None or num_weights > _SMALL else _BATCH_OF_SMALL


def quality_batch_size(setup: Setup) -> int:
    """Return the batch size of the quality pass.

    Compiled calls in bfloat16 on a CPU give a row the same bits in every call, if a call has one
    sequence (ADR 0028). So one answer at a time keeps the timed pass's guarantees there.
    """
    target = setup.facts.get("target") or {}
    alone = target.get("compiled") and setup.config.dtype == "bfloat16" and not setup.on_gpu
    return 1 if alone else batch_size(setup)


def baseline_answers(setup: Setup, prompts: Sequence[Prompt]) -> list[str | None]:
    """Return the baseline's answers, batched and untimed, as histories of later turns.

    A failed answer is None: the later turns of its prompt have no history.
    """
    decoder = setup.arms[BASELINE].decoder
    models = Models(target=setup.models.target)
    scheduler = Scheduler(decoder, models, setup.sampling, batch_size(setup))
    with models.uncompiled():  # large batches would compile extra graphs
        outcomes = scheduler.run([prompt.ids for prompt in prompts])
    return [setup.text(o.tokens) if isinstance(o, Generation) else None for o in outcomes]


def dry_run(
    config: RunConfig, progress: Progress, opener: Opener = open_setup, part: str | None = None
) -> list[str]:
    """Return lines about the plan and its estimate; write nothing (raises as `bench.runs.run`)."""
    if part is not None:
        parse_part(part)
    run = check_first(config, progress.note, brings_models=opener is not open_setup)
    with stored_only() as missing:  # compiling takes longer than the question may
        setup = open_compiled(run, opener, progress.note)
        plan, prompts = make_plan(setup, config.run_name or "dry-run", progress)
        if part is not None:
            plan = part_of(plan, part)
        timed = [prompts[planned.prompt] for planned in plan.in_pass("timing")]
        seconds, basis = estimate(setup, plan, timed)
    lines = [f"about {duration(seconds)}, if every decoder were as fast as ar ({basis})"]
    if setup.config.compile:
        lines += _on_compiling(bool(missing))
    return [*describe(plan), *_first(setup, timed[0]), computed_in(config, setup.config), *lines]


def _on_compiling(is_missing: bool) -> list[str]:
    """Say what the estimate leaves out, and whether ar's calls ran as they will in the run."""
    line = "compiling is not in this time: graphs that are not on disk yet take minutes, once"
    if is_missing:
        return [f"{line}; ar ran eagerly here, and compiled it may be several times as fast"]
    return [line]


def describe(plan: Plan) -> list[str]:
    """Describe the plan in words, for ``--dry-run``."""
    timing, quality = plan.in_pass("timing"), plan.in_pass("quality")
    lines = [
        f"{cell.cell}: {', '.join(f'{k}={v}' for k, v in cell.options.items()) or 'no options'}"
        for cell in plan.cells
    ]
    lines.append(f"{counted(len(timing), 'prompt')} timed ({_per_family(timing)})")
    if quality:
        lines.append(f"{counted(len(quality), 'prompt')} scored ({_per_family(quality)})")
    blocks = counted(len(plan.blocks), "block")
    lines.append(f"{blocks}, {plan.num_answers} timed answers (ar twice)")
    return lines + ([f"{counted(len(plan.skipped), 'prompt')} skipped"] if plan.skipped else [])


def _per_family(prompts: Sequence[PlannedPrompt]) -> str:
    counts = Counter(prompt.family for prompt in prompts)
    return ", ".join(f"{family} {num}" for family, num in counts.items())


def _first(setup: Setup, prompt: Prompt) -> list[str]:
    """Return lines with the first prompt as the model receives it, special tokens included."""
    text = str(setup.tokenizer.decode(list(prompt.ids)))
    if len(text) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        text = f"{text[:half]} […] {text[-half:]}"
    head = f"the first prompt, {prompt.name} ({prompt.family}, {len(prompt.ids)} tokens):"
    return [head, *(f"  {printable(row)}" for row in text.splitlines())]


def estimate(setup: Setup, plan: Plan, timed: list[Prompt]) -> tuple[float, str]:
    """Return the seconds of a plan if every decoder is as fast as the baseline, and their basis.

    The basis is the baseline's speed on a few of the prompts. A batched answer of the quality pass
    is assumed to cost a quarter of a single answer.
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
    quality_s = num_scored * answer_s / min(quality_batch_size(setup), 4)
    basis = (
        f"{num_tokens / watch.total_s:.0f} tokens/s, {num_tokens / len(probes):.0f} tokens per "
        f"answer on {len(probes)} prompts"
    )
    return timing_s + quality_s, basis
