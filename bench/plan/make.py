"""Make the plan of an open setup: choose tasks, tokenise, order blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from bench.errors import UsageError, as_error, room_for
from bench.plan.contract import check_cells
from bench.plan.identity import setup_identity
from bench.plan.setup import Setup
from bench.plan.tokenise import PromptEncoder, count_lines, max_prompt_tokens, read_tasks, to_length
from bench.progress import Progress
from bench.records.plan import BASELINE, SECOND, Block, Plan, PlannedPrompt
from bench.records.prompts import Prompt, SkippedTurn
from bench.settings.protocol import vicuna
from bench.stats.adapter_fit import model_warnings
from bench.stats.counters import group_by
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.types import Generation
from specbench_tasks.task import OTHER, Conversation

_GROUPS_PER_BATCH = 4
"""Prompts per block in units of the batch size, so that the scheduler can refill ended rows."""
_BATCH_ON_CPU, _BATCH_ON_GPU, _BATCH_OF_SMALL = 8, 32, 32
_SMALL = 50_000_000
"""Maximum weights of a small model: its CPU calls are mostly overhead, 32 caches are small."""


def make_plan(setup: Setup, name: str, progress: Progress) -> tuple[Plan, dict[str, Prompt]]:
    """Return the plan of a run and its prompts by name.

    Raises:
        UsageError: the tasks are unknown, or no prompt is left.
        UnavailableError: data are missing.
        BenchError: too little memory for the baseline's first turns.
    """
    config = setup.config
    tasks = read_tasks(config)
    prompts, skipped = tokenise(setup, [*tasks.timing, *tasks.quality])
    lengths = [len(prompt.ids) for prompt in prompts]
    warnings = model_warnings(config.model_dump(), setup.facts, lengths)
    counts = count_lines(prompts, skipped)
    for line in (*tasks.notes, *warnings, *counts):
        progress.note(line)
    if num := sum(each.family == OTHER and each.reference is not None for each in prompts):
        line = f"{num} of {len(prompts)} prompts have a reference but no family, so they are not"
        advice = "name the family, in a column or in [columns] of the config file"
        progress.note(f"{line} scored: {advice}")
    timed = {conversation.id for conversation in tasks.timing}
    scored = {conversation.id for conversation in tasks.quality}
    by_name = {prompt.name: prompt for prompt in prompts}
    names = [prompt.name for prompt in prompts if prompt.conversation in timed]
    if not names:
        raise UsageError(f"no prompt is left to time: {'; '.join(counts)}")
    plan = Plan(
        name=name,
        cells=check_cells(setup, progress),
        order_seed=(order_seed := config.seed + (config.session or 1) - 1),
        prompts=tuple(_planned(prompt, timed, scored) for prompt in prompts),
        blocks=order_blocks(
            names,
            list(setup.arms),
            repeats=config.repeats,
            batch_size=config.batch_size,
            seed=order_seed,
            group_seed=config.seed,
            same_order=any(arm.decoder.remembers for arm in setup.arms.values()),
        ),
        skipped=tuple(skipped),
        identity=setup_identity(setup),
    )
    return plan, by_name


def tokenise(
    setup: Setup, conversations: Sequence[Conversation]
) -> tuple[list[Prompt], list[SkippedTurn]]:
    """Tokenise every turn once, later turns with the baseline's answers (raises as `make_plan`)."""
    config = setup.config
    distinct = list({conversation.id: conversation for conversation in conversations}.values())
    with as_error(UsageError):
        prompts, skipped = PromptEncoder(
            setup.tokenizer,
            max_prompt_tokens(config, setup.models.target.max_length),
            "truncate" if config.prompt_tokens is not None else config.overlong,
            template=vicuna if config.protocol == "specbench" else None,
            vocab_size=setup.models.target.vocab_size,
            chat=setup.template,
        ).prompts(distinct, partial(baseline_answers, setup))
    if config.prompt_tokens is not None:
        prompts = to_length(prompts, config.prompt_tokens, setup.tokenizer.bos_token_id)
    return prompts, skipped


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
    prompts: Sequence[str],
    cells: Sequence[str],
    *,
    repeats: int,
    batch_size: int,
    seed: int,
    group_seed: int = 0,
    same_order: bool = False,
) -> tuple[Block, ...]:
    """Return the blocks in measuring order, which depends only on the arguments.

    The first answer of a block finds cold caches, so every arm comes first, second and so on once
    in as many blocks as there are arms: their orders are the rotations of a new random order.

    Args:
        prompts: names of the timed prompts.
        cells: the cells, first the baseline, whose second arm is added to every block.
        repeats: blocks per prompt.
        batch_size: 1, or the size whose multiple of prompts forms a block: whole conversations,
            drawn at random, so that the last one may exceed it.
        seed: decides the order.
        group_seed: decides the groups, which all sessions of a job share.
        same_order: all repeats have one order of prompts, because a decoder remembers. Turns of a
            conversation ascend, because a later prompt contains the earlier answers.
    """
    shuffler = random.Random(seed)
    groups: list[tuple[str, ...]] = [(prompt,) for prompt in prompts]
    conversations = group_by(prompts, _conversation)
    if batch_size > 1:  # fixed groups, drawn from all families
        groups = []
        drawing = shuffler if seed == group_seed else random.Random(group_seed)
        for name in drawing.sample(list(conversations), len(conversations)):
            if not groups or len(groups[-1]) >= _GROUPS_PER_BATCH * batch_size:
                groups.append(())
            groups[-1] += tuple(conversations[name])
    arms = [*cells, cells[0] + SECOND]
    blocks: list[Block] = []
    orders: list[list[str]] = []
    for repeat in range(repeats):
        if not (same_order and repeat):
            turns = shuffler.sample(groups, len(groups))
        if same_order and batch_size == 1:  # each place takes the next turn of its conversation
            following = {name: iter(turns) for name, turns in conversations.items()}
            turns = [(next(following[_conversation(prompt)]),) for (prompt,) in turns]
        for group in turns:
            if not orders:
                mixed = shuffler.sample(arms, len(arms))
                orders = [mixed[start:] + mixed[:start] for start in range(len(arms))]
                shuffler.shuffle(orders)
            order = tuple(orders.pop())
            blocks.append(Block(block=len(blocks), repeat=repeat, prompts=group, order=order))
    return tuple(blocks)


def _conversation(prompt: str) -> str:
    return prompt.rpartition("#")[0]


def batch_size(setup: Setup) -> int:
    """Return the batch size of untimed passes."""
    if setup.on_gpu:
        return _BATCH_ON_GPU
    num_weights = (setup.facts.target or {}).get("parameters")
    return _BATCH_ON_CPU if num_weights is None or num_weights > _SMALL else _BATCH_OF_SMALL


def quality_batch_size(setup: Setup) -> int:
    """Return the batch size of the quality pass.

    Compiled calls in bfloat16 on a CPU give a row the same bits in every call (ADR 0028), and only
    larger batches run eagerly. So one answer at a time keeps the timed pass's guarantees there.
    """
    target = setup.facts.target or {}
    alone = target.get("compiled") and setup.config.dtype == "bfloat16" and not setup.on_gpu
    return 1 if alone else batch_size(setup)


def baseline_answers(setup: Setup, prompts: Sequence[Prompt]) -> list[str | None]:
    """Return ar's (or the baseline's) answers as histories of later turns (None: failed)."""
    decoder = setup.arms.get(BASELINE, setup.arm(setup.baseline)).decoder
    models = Models(target=setup.models.target)
    scheduler = Scheduler(decoder, models, setup.sampling, batch_size(setup))
    room = room_for("the baseline's first turns, answered in batches")
    with room, models.uncompiled():  # large batches would compile further graphs
        outcomes = scheduler.run([prompt.ids for prompt in prompts])
    return [setup.text(o.tokens) if isinstance(o, Generation) else None for o in outcomes]
