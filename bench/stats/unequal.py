"""Comparison of answers with the baseline's, for cells that guarantee the same tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.records.plan import BASELINE, Cell, Difference, RunStatus, with_checks
from bench.records.record import SampleRecord
from bench.stats.counters import first_difference

Pair = tuple[str, tuple[int, ...], tuple[int, ...], int]
"""(prompt name, answer's tokens, baseline's tokens, repeat)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A cell's answers to prompts and repeats that the baseline answered too, in measured order."""

    cell: str
    pairs: tuple[Pair, ...]

    @property
    def unequal(self) -> tuple[Pair, ...]:
        """Pairs whose tokens differ."""
        return tuple(pair for pair in self.pairs if pair[1] != pair[2])

    def difference(self, num_wrong: int | None, gaps: tuple[int | float, ...]) -> Difference:
        """Summarise the pairs, at least one of which differs, as a `Difference`."""
        unequal = self.unequal
        parted = [first_difference(answer, expected) or 0 for _, answer, expected, _ in unequal]
        num_tokens = sum(len(expected) for _, _, expected, _ in self.pairs)
        lost = sum(len(pair[2]) - index for pair, index in zip(unequal, parted, strict=True))
        return Difference(
            cell=self.cell,
            num_answers=len(unequal),
            num_compared=len(self.pairs),
            num_wrong=num_wrong,
            example=unequal[0][0],
            num_tokens=num_tokens,
            num_equal=num_tokens - lost,
            places=tuple(parted),
            gaps=gaps,
        )


def compare_with_baseline(cells: Iterable[Cell], records: Iterable[SampleRecord]) -> list[Compared]:
    """Compare the timed answers of the cells that guarantee exactly the baseline's tokens."""
    timed = [r for r in records if r.kind == "timing" and r.error is None and r.tokens is not None]
    baseline = {(r.prompt, r.repeat): r.tokens or () for r in timed if r.decoder == BASELINE}
    compared = []
    for cell in cells:
        if cell.cell == BASELINE or not (cell.lossless and cell.comparable_to_ar):
            continue
        pairs = tuple(
            (r.prompt, r.tokens or (), baseline[r.prompt, r.repeat], r.repeat)
            for r in timed
            if r.decoder == cell.cell and (r.prompt, r.repeat) in baseline
        )
        compared.append(Compared(cell=cell.cell, pairs=pairs))
    return compared


def pooled(
    cells: Iterable[Cell], statuses: Sequence[RunStatus], parts: Sequence[Iterable[SampleRecord]]
) -> tuple[Difference, ...] | None:
    """Pool the differences of several runs, or return None if a run was not checked.

    A run stores the number of its wrong answers, but not which they are. If `parts` cover only some
    unequal answers, up to that many of them count as wrong.

    Args:
        cells: the cells of all runs.
        statuses: the status of each run.
        parts: the records used of each run.
    """
    if any(status.differences is None for status in statuses):
        return None
    compared = [{each.cell: each for each in compare_with_baseline(cells, part)} for part in parts]
    by_run = [{d.cell: d for d in status.differences or ()} for status in statuses]
    totals = []
    for cell in compared[0]:
        of_runs = [by_cell[cell] for by_cell in compared]
        whole = Compared(cell=cell, pairs=tuple(pair for each in of_runs for pair in each.pairs))
        if not whole.unequal:
            continue
        gaps: tuple[int | float, ...] = ()
        farthest: list[int | float] = []
        num: int | None = 0
        for of_run, each in zip(by_run, of_runs, strict=True):
            difference = of_run.get(cell)
            if not each.unequal or difference is None:
                continue
            gaps += tuple(difference.gaps)
            farthest += [] if difference.places_off is None else [difference.places_off]
            if num is None or difference.num_wrong is None:
                num = None
            else:
                num += min(difference.num_wrong, len(each.unequal))
        total = whole.difference(num, gaps)
        totals.append(replace(total, places_off=max(farthest, default=None)))
    failed = {d.cell: d.check for status in statuses for d in status.differences or () if d.check}
    return tuple(with_checks(totals, failed))
