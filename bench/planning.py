"""From an open workbench to the plan: tasks chosen, prompts tokenised, blocks ordered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from bench.adapters import training_warnings
from bench.errors import BenchError, Exit
from bench.identity import identity_of
from bench.plan import Plan, PlannedPrompt, order_blocks
from bench.progress import Progress
from bench.prompts import Prompt, Skipped, build_prompts, count_lines
from bench.protocol import vicuna
from bench.quality import baseline_answers
from bench.shortage import room_for
from bench.tasks import tasks_of
from bench.workbench import Workbench
from specbench_tasks.task import OTHER, Conversation


def make_plan(bench: Workbench, name: str, progress: Progress) -> tuple[Plan, dict[str, Prompt]]:
    """The plan of a run and its prompts by name.

    Errors: `BenchError` for unknown tasks (exit 2), data that cannot be had (5), no prompt left, or
    too little memory for the baseline's first turns (1).
    """
    config = bench.config
    tasks = tasks_of(
        config.tasks,
        limit=config.limit,
        seed=config.seed,
        quality_limit=config.quality_limit,
        columns=config.columns,
    )
    prompts, skipped = tokenise(bench, [*tasks.timing, *tasks.quality])
    strayed = training_warnings(config.model_dump(), bench.facts)
    for line in (*strayed, *count_lines(prompts, skipped), *_unscored(prompts)):
        progress.note(line)
    timed = {conversation.id for conversation in tasks.timing}
    scored = {conversation.id for conversation in tasks.quality}
    by_name = {prompt.name: prompt for prompt in prompts}
    names = [prompt.name for prompt in prompts if prompt.conversation in timed]
    if not names:
        raise BenchError("no prompt is left to measure: all were skipped", Exit.USAGE)
    plan = Plan(
        name=name,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        cells=tuple(arm.cell for arm in bench.arms.values()),
        order_seed=config.seed,
        prompts=tuple(_planned(prompt, timed, scored) for prompt in prompts),
        blocks=order_blocks(
            names,
            list(bench.arms),
            repeats=config.repeats,
            batch_size=config.batch_size,
            seed=config.seed,
        ),
        skipped=tuple(skipped),
        identity=identity_of(bench),
    )
    return plan, by_name


def tokenise(
    bench: Workbench, conversations: Sequence[Conversation]
) -> tuple[list[Prompt], list[Skipped]]:
    """Every turn once, later turns after the baseline's own answers (errors as `make_plan`)."""
    config, context = bench.config, bench.models.target.max_length
    if config.max_new_tokens >= context:
        raise BenchError(
            f"the model's context is {context} tokens, and answers of {config.max_new_tokens} "
            f"leave none for a prompt: lower --max-new-tokens, to {context - 1} at most",
            Exit.USAGE,
        )
    distinct = list({conversation.id: conversation for conversation in conversations}.values())

    def answer(prompts: Sequence[Prompt]) -> list[str | None]:
        with room_for("the baseline's first turns, answered in batches"):
            return baseline_answers(bench, prompts)

    try:
        return build_prompts(
            distinct,
            bench.tokenizer,
            max_prompt_tokens=context - config.max_new_tokens,
            overlong=config.overlong,
            answer_turn1=answer,
            template=vicuna if config.protocol == "specbench" else None,
        )
    except ValueError as error:
        raise BenchError(str(error), Exit.USAGE) from error


def _unscored(prompts: Sequence[Prompt]) -> list[str]:
    """What is said of references that nothing reads, in one line; empty where there is none."""
    num = sum(prompt.family == OTHER and prompt.reference is not None for prompt in prompts)
    told = f"{num} of {len(prompts)} prompts have a reference and no family, so they are not scored"
    return [f"{told}: name the family, in a column or in [columns] of the config file"] * (num > 0)


def describe(plan: Plan) -> list[str]:
    """The plan in words, for ``--dry-run``."""
    timing, quality = plan.in_pass("timing"), plan.in_pass("quality")
    lines = [f"{cell.cell}: {_options(cell.options)}" for cell in plan.cells]
    lines += [f"{len(timing)} prompts timed ({_per_family(timing)})"]
    lines += [f"{len(quality)} prompts scored ({_per_family(quality)})"] if quality else []
    lines += [f"{len(plan.blocks)} blocks, {plan.num_answers} timed answers (ar twice)"]
    return lines + ([f"{len(plan.skipped)} prompts skipped"] if plan.skipped else [])


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
