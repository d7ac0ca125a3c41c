"""Answers promised to be the baseline's, and those of them that are not. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.records.plan import BASELINE, Cell
from bench.records.record import SampleRecord
from bench.records.status import Difference, RunStatus
from bench.stats.counters import first_difference

Pair = tuple[str, tuple[int, ...], tuple[int, ...], int]
"""A prompt's name, an answer's tokens, the baseline's, and the repeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The answers of a cell that were compared with the baseline's, in the order measured.

    Attributes:
        cell: its name.
        pairs: of prompts and repeats that both answered.
    """

    cell: str
    pairs: tuple[Pair, ...]

    @property
    def unequal(self) -> tuple[Pair, ...]:
        """The pairs that differ."""
        return tuple(pair for pair in self.pairs if pair[1] != pair[2])

    def difference(self, num_wrong: int | None, gaps: tuple[int | float, ...]) -> Difference:
        """Summarise pairs of which some differ; see `Difference`."""
        unequal = self.unequal
        places = [first_difference(answer, expected) or 0 for _, answer, expected, _ in unequal]
        num_tokens = sum(len(expected) for _, _, expected, _ in self.pairs)
        lost = sum(len(pair[2]) - place for pair, place in zip(unequal, places, strict=True))
        return Difference(
            cell=self.cell,
            num_answers=len(unequal),
            num_compared=len(self.pairs),
            num_wrong=num_wrong,
            example=unequal[0][0],
            num_tokens=num_tokens,
            num_equal=num_tokens - lost,
            places=tuple(places),
            gaps=gaps,
        )


def compare_with_baseline(cells: Iterable[Cell], records: Iterable[SampleRecord]) -> list[Compared]:
    """Compare the timed answers of the cells that promise the baseline's very tokens."""
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
    """Pool the differences of several runs, of each of which a part counts.

    A run stores how many of its unequal answers are wrong, not which: where only some of them
    count, up to that many of these are taken to be wrong.

    Args:
        cells: of all runs.
        statuses: of the runs.
        parts: the records of each run that count.

    Returns:
        Those of cells with any; None where a run was not asked.
    """
    if any(status.differences is None for status in statuses):
        return None
    compared = [{each.cell: each for each in compare_with_baseline(cells, part)} for part in parts]
    found = []
    for cell in compared[0]:
        of_runs = [by_cell[cell] for by_cell in compared]
        whole = Compared(cell=cell, pairs=tuple(pair for each in of_runs for pair in each.pairs))
        if whole.unequal:
            told = [
                d
                for status, each in zip(statuses, of_runs, strict=True)
                if each.unequal
                for d in status.differences or ()
                if d.cell == cell
            ]
            gaps = tuple(gap for difference in told for gap in difference.gaps)
            found.append(whole.difference(_num_wrong(statuses, of_runs), gaps))
    return tuple(found)


def _num_wrong(statuses: Sequence[RunStatus], compared: Sequence[Compared]) -> int | None:
    """How many answers of one cell are taken to be wrong; None where a run did not judge them."""
    num = 0
    for status, each in zip(statuses, compared, strict=True):
        told = {d.cell: d.num_wrong for d in status.differences or ()}.get(each.cell, 0)
        if each.unequal and told is None:
            return None
        num += min(told or 0, len(each.unequal))
    return num
