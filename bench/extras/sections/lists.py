"""Compare lists that are filled in parallel with the ceiling of independent prediction.

A decoder that fills several slots in one pass draws each slot from its own distribution, given the
earlier text. The best such distributions are the task's marginals (only they minimise the loss). A
list of n items drawn from them in one pass is right with these probabilities:

    copy      1
    replace   (1 - 1/n)^(n-1)                exactly one slot takes the new item
    shuffle   sum over the other orders of the product of marginals; without "other", n! / n^n

Filling slots in groups, each of which sees the earlier groups, can be better; filling them one by
one gives 1. These are ceilings of drawing from the task's distribution at temperature 1; always
giving the same right answer may do better. The groups are our own addition to ParallelBench (arXiv
2510.04767). Items decided in one pass over a block were drawn independently. The target's own token
of a pass is drawn in the same call, so it counts with that pass. Decoders that record no passes
have no ceiling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import comb, factorial, perm
from statistics import fmean

import pandas as pd

from bench.extras.sections.families import by_family
from bench.records.prompts import read_pieces
from bench.records.record import SampleRecord
from bench.records.run_folder import Run
from bench.report.findings import Findings
from bench.report.tables.table import Table
from bench.stats.counters import group_by
from bench.stats.metrics import SummaryRow
from bench.text import percent
from specbench_tasks.generators.questions import NUM_ITEMS
from specbench_tasks.task import LISTS

_NO_CEILING = "none"
"""Text in place of a ceiling for decoders without unverified parallel predictions."""


def ceilings_hold(config: Mapping[str, object]) -> bool:
    """Return whether a run draws its tokens from unwarped distributions."""
    warp = (config.get("temperature", 0), config.get("top_p", 1), config.get("top_k", 0))
    return warp == (1, 1, 0)


def answers_to_lists(records: Iterable[SampleRecord]) -> list[SampleRecord]:
    """Return the scored answers to list tasks that were filled in passes."""
    return [
        record
        for record in records
        if record.kind == "quality"
        and record.family in LISTS
        and record.steps is not None
        and any(record.steps.passes)
        and record.steps.decided
    ]


def mean_ceiling(records: Sequence[SampleRecord], piece: Callable[[int], str]) -> float | None:
    """Return the mean ceiling of one decoder's answers in a family, or None without a full list."""
    grouped = [(record.family, groups_by_pass(record, piece)) for record in records]
    values = [ceiling(family, sizes) for family, sizes in grouped if sizes]
    return fmean(values) if values else None


def groups_by_pass(record: SampleRecord, piece: Callable[[int], str]) -> tuple[int, ...]:
    """Count the items that each pass decided, in the order of the passes.

    An item is a capital letter. It belongs to the token that contains it. The result is empty
    unless there are exactly `NUM_ITEMS` items.
    """
    steps, tokens = record.steps, record.tokens
    assert steps is not None
    if tokens is None or len(tokens) != sum(map(len, steps.decided)):
        return ()
    text, owners = "", list[int]()
    for index, token in enumerate(tokens):
        text += piece(token)
        owners += [index] * (len(text) - len(owners))
    letters = [index for index, sign in enumerate(text) if "A" <= sign <= "Z"]
    if len(letters) != NUM_ITEMS:
        return ()
    places: list[tuple[int, int]] = []  # the block and the pass of each token
    block = last = 0
    for numbers, passes in zip(steps.decided, steps.passes, strict=True):
        for number in numbers:
            # the target's own token (0) belongs to the pass after the preceding tokens' passes
            places.append((block, number or last + 1))
            last = max(last, number)
        if passes:  # the step ends its block
            block, last = block + 1, 0
    sizes = Counter(places[owners[index]] for index in letters)
    return tuple(sizes[key] for key in sorted(sizes))


def ceiling(family: str, groups: Sequence[int]) -> float:
    """Return the probability that a list filled in groups of these sizes is right."""
    sizes = tuple(groups)
    return {"copy": 1.0, "replace": _replaced(sizes), "shuffle": _reordered(sizes)}[family]


@cache
def _replaced(groups: tuple[int, ...]) -> float:
    """Return the probability of a right list if no earlier slot has the new item."""
    left = sum(groups)
    if not left:
        return 0.0
    size, rest = groups[0], groups[1:]
    none = (1 - 1 / left) ** size
    one = size / left * (1 - 1 / left) ** (size - 1)
    return one + none * _replaced(rest)  # once the new item is placed, all other items are certain


@cache
def _reordered(groups: tuple[int, ...]) -> float:
    """Return the probability of a right list if all earlier slots kept their item."""
    left = sum(groups)
    if left < 2:
        return 0.0
    size, rest = groups[0], groups[1:]
    kept = (factorial(left - 1) - 1) / (factorial(left) - 1)
    moved = (1 - kept) / (left - 1)
    total = kept**size * _reordered(rest)
    for num_kept in range(size):
        ways = comb(size, num_kept) * _without_fixed(size - num_kept, left - num_kept)
        total += ways * kept**num_kept * moved ** (size - num_kept) * _any_order(rest)
    return total


def _any_order(groups: tuple[int, ...]) -> float:
    """Return the probability of a right list if every order of the remaining items is right."""
    chance, left = 1.0, sum(groups)
    for size in groups:
        chance *= perm(left, size) / left**size
        left -= size
    return chance


def _without_fixed(slots: int, items: int) -> int:
    """Count the ways to give different items to the slots so that no slot gets its own item."""
    return sum(
        (-1) ** fixed * comb(slots, fixed) * perm(items - fixed, slots - fixed)
        for fixed in range(slots + 1)
    )


def ceilings(run: Run, summary: pd.DataFrame) -> Table | None:
    """Make the table of right lists and their ceilings, if ceilings apply."""
    filled = group_by(
        answers_to_lists(run.records), lambda record: f"{record.decoder} {record.family}"
    )
    if not filled or not ceilings_hold(run.config):
        return None
    piece = read_pieces(run.path)
    note = (
        "% of correct lists / their ceiling in %, if the items decided in one pass are drawn "
        "independently, each from the task's distribution at its position. Computed from the "
        "recorded passes of each answer that is a list. Keeping items by confidence, or revising "
        "them, may exceed the ceiling; so may a model that always gives the same correct answer. "
        f"{_NO_CEILING}: the decoder keeps only verified tokens."
    )

    def cell(row: SummaryRow) -> str:
        answers = filled.get(f"{row.decoder} {row.family}")
        ceiling = _NO_CEILING if answers is None else percent(mean_ceiling(answers, piece), "")
        return f"{percent(row.quality, '')} / {ceiling}"

    lists = summary[summary["family"].isin(LISTS)]
    table = by_family(lists, "Lists against the ceiling of independent prediction", note, cell)
    rows = tuple(row[:-1] for row in table.rows)  # ceilings exist only per family
    return replace(table, headings=table.headings[:-1], rows=rows)


def caveats(findings: Findings) -> list[str]:
    """State why a run with lists has no table of ceilings."""
    if ceilings_hold(findings.run.config) or not answers_to_lists(findings.run.records):
        return []
    return ["No ceilings of lists: they need --temperature 1, --top-p 1 and --top-k 0."]
