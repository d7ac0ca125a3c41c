"""From an open setup to the plan: tasks chosen, prompts tokenised, blocks ordered."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from bench.errors import UsageError, room_for
from bench.machine.env import models_of
from bench.plan.identity import identity_of
from bench.plan.setup import Setup
from bench.plan.tokenise import build_prompts, count_lines, tasks_of, to_length
from bench.progress import Progress
from bench.records.plan import BASELINE, SECOND_BASELINE, Block, Plan, PlannedPrompt
from bench.records.prompts import Prompt, SkippedTurn
from bench.settings.protocol import vicuna
from bench.stats.adapter_fit import training_warnings
from bench.text import counted
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.types import Generation
from specbench_tasks.task import OTHER, Conversation

_GROUPS_PER_BATCH = 4
"""Prompts of a block at batch size B, in units of B: the scheduler refills while it drains."""
_BATCH_ON_CPU = 8
_BATCH_ON_GPU = 32
_BATCH_OF_SMALL = 32
"""On a CPU, of a model so small that what a call costs is its overhead."""
_SMALL = 50_000_000
"""Weights of such a model at most: 32 caches of it are small, too."""


def make_plan(setup: Setup, name: str, progress: Progress) -> tuple[Plan, dict[str, Prompt]]:
    """The plan of a run and its prompts by name.

    Raises:
        BenchError: for unknown tasks (exit 2), data that cannot be had (5), no prompt left, or
            too little memory for the baseline's first turns (1).
    """
    config = setup.config
    tasks = tasks_of(
        config.tasks,
        limit=config.limit,
        seed=config.seed,
        quality_limit=config.quality_limit,
        columns=config.columns,
    )
    prompts, skipped = tokenise(setup, [*tasks.timing, *tasks.quality])
    models = models_of(setup.facts)
    strayed = training_warnings(config.model_dump(), models)
    notes = (*tasks.notes, *models.notes, *strayed)
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
        cells=tuple(arm.cell for arm in setup.arms.values()),
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
    """Every turn once, later turns after the baseline's own answers (raises as `make_plan`)."""
    config, context = setup.config, setup.models.target.max_length
    if config.max_new_tokens >= context:
        raise UsageError(
            f"the model's context is {context} tokens, and answers of {config.max_new_tokens} "
            f"leave none for a prompt: lower --max-new-tokens, to {context - 1} at most",
        )
    distinct = list({conversation.id: conversation for conversation in conversations}.values())

    def answer(prompts: Sequence[Prompt]) -> list[str | None]:
        with room_for("the baseline's first turns, answered in batches"):
            return baseline_answers(setup, prompts)

    longest = context - config.max_new_tokens
    if config.prompt_tokens is not None and not 1 < config.prompt_tokens <= longest:
        raise UsageError(
            f"--prompt-tokens {config.prompt_tokens}: with answers of {config.max_new_tokens} "
            f"tokens the model's context of {context} takes 2 to {longest}",
        )
    try:
        prompts, skipped = build_prompts(
            distinct,
            setup.tokenizer,
            max_prompt_tokens=longest,
            overlong=config.overlong,
            answer_turn1=answer,
            template=vicuna if config.protocol == "specbench" else None,
            vocab_size=setup.models.target.vocab_size,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    if config.prompt_tokens is not None:
        bos = setup.tokenizer.bos_token_id
        prompts = to_length(prompts, config.prompt_tokens, bos)
    return prompts, skipped


def _unscored(prompts: Sequence[Prompt]) -> list[str]:
    """What is said of references that nothing reads, in one line; empty where there is none."""
    num = sum(prompt.family == OTHER and prompt.reference is not None for prompt in prompts)
    what = f"{num} of {len(prompts)} prompts have a reference and no family, so they are not scored"
    return [f"{what}: name the family, in a column or in [columns] of the config file"] * (num > 0)


def describe(plan: Plan) -> list[str]:
    """The plan in words, for ``--dry-run``."""
    timing, quality = plan.in_pass("timing"), plan.in_pass("quality")
    lines = [f"{cell.cell}: {_options(cell.options)}" for cell in plan.cells]
    lines += [f"{counted(len(timing), 'prompt')} timed ({_per_family(timing)})"]
    lines += (
        [f"{counted(len(quality), 'prompt')} scored ({_per_family(quality)})"] if quality else []
    )
    lines += [f"{counted(len(plan.blocks), 'block')}, {plan.num_answers} timed answers (ar twice)"]
    return lines + ([f"{counted(len(plan.skipped), 'prompt')} skipped"] if plan.skipped else [])


def _per_family(prompts: Sequence[PlannedPrompt]) -> str:
    counts = Counter(prompt.family for prompt in prompts)
    return ", ".join(f"{family} {num}" for family, num in counts.items())


def _options(options: Mapping[str, object]) -> str:
    return ", ".join(f"{key}={value}" for key, value in options.items()) or "no options"


def _planned(prompt: Prompt, timed: set[str], scored: set[str]) -> PlannedPrompt:
    passes = [
        name
        for name, chosen in (("timing", timed), ("quality", scored))
        if prompt.conversation in chosen
    ]
    if prompt.reference is None and "quality" in passes:
        passes.remove("quality")
    return PlannedPrompt(
        prompt=prompt.name,
        conversation=prompt.conversation,
        turn=prompt.turn,
        family=prompt.family,
        hash=prompt.hash,
        num_tokens=len(prompt.ids),
        passes=tuple(passes),
        reference=None if prompt.reference is None else asdict(prompt.reference),
    )


def order_blocks(
    prompts: Sequence[str], cells: Sequence[str], *, repeats: int, batch_size: int, seed: int
) -> tuple[Block, ...]:
    """Blocks in the order they are measured; the same arguments give the same order.

    `cells` are the cells without the baseline's second arm, which is added to every block.
    """
    shuffler = random.Random(seed)
    groups = _groups(prompts, batch_size, shuffler)
    arms = [*cells, SECOND_BASELINE]
    blocks: list[Block] = []
    for repeat in range(repeats):
        for group in shuffler.sample(groups, len(groups)):
            order = tuple(shuffler.sample(arms, len(arms)))
            blocks.append(Block(block=len(blocks), repeat=repeat, prompts=group, order=order))
    return tuple(blocks)


def _groups(
    prompts: Sequence[str], batch_size: int, shuffler: random.Random
) -> list[tuple[str, ...]]:
    """Single prompts, or fixed groups of 4B of them drawn over all families."""
    if batch_size == 1:
        return [(prompt,) for prompt in prompts]
    mixed = shuffler.sample(list(prompts), len(prompts))
    size = _GROUPS_PER_BATCH * batch_size
    return [tuple(mixed[i : i + size]) for i in range(0, len(mixed), size)]


def batch_size(setup: Setup) -> int:
    """Sequences at a time in untimed passes."""
    if setup.on_gpu:
        return _BATCH_ON_GPU
    num_weights = (setup.facts.get("target") or {}).get("parameters")
    return _BATCH_ON_CPU if num_weights is None or num_weights > _SMALL else _BATCH_OF_SMALL


def baseline_answers(setup: Setup, prompts: Sequence[Prompt]) -> list[str | None]:
    """The baseline's answers, batched and untimed: the histories that later turns are given.

    None for a prompt whose answer failed: there is nothing its later turns could follow.
    """
    decoder = setup.arms[BASELINE].decoder
    models = Models(target=setup.models.target)
    scheduler = Scheduler(decoder, models, setup.sampling, batch_size(setup))
    outcomes = scheduler.run([prompt.ids for prompt in prompts])
    return [setup.text(o.tokens) if isinstance(o, Generation) else None for o in outcomes]
