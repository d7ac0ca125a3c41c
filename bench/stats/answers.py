"""Compare answers with the baseline's, and with an earlier answer of the same decoder.

An answer depends on the prompt, the options and the seed. If a decoder answers one prompt twice
with one seed (greedy: with any seed) and the same tokens, its counters are therefore equal; a
difference shows that some state survived the first answer, e.g. a module global that holds earlier
text. The speed then depends on how often a prompt was repeated, and users do not repeat prompts.

Two sources give such pairs: the repeats of a greedy run, and the instrumented second pass
(``phases.json``), which answers a timed block again with its seed. Where rounding may act, nothing
is concluded: different tokens and the second pass count only in exact precision, and if the
baseline differs from itself, the device is not deterministic and proves nothing. Answers of a
decoder that declares a memory are compared only after the same answers in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.records.plan import BASELINE, Cell, Difference, baseline_arms
from bench.records.record import SampleRecord
from bench.records.run_folder import Run
from bench.records.samples import PhasedAnswer
from bench.stats import counters
from bench.stats.counters import ratio, timed_again
from bench.text import counted

Pair = tuple[str, tuple[int, ...], tuple[int, ...], int]
"""(prompt name, answer's tokens, baseline's tokens, repeat)."""
_COUNTERS = (
    *("emitted", "drafted", "accepted", "target_calls", "target_rows", "draft_calls", "draft_rows"),
)
_ADVICE = "state survives an answer (a global, a class's attribute, or random numbers of its own?)"


def first_difference(answer: Sequence[int], expected: Sequence[int]) -> int | None:
    """Return the number of tokens before two answers first differ, or None if they are equal."""
    if tuple(answer) == tuple(expected):
        return None
    pairs = zip(answer, expected, strict=False)
    shared = min(len(answer), len(expected))
    return next((i for i, (token, other) in enumerate(pairs) if token != other), shared)


def _pairs(records: Iterable[SampleRecord], baseline: Iterable[SampleRecord]) -> tuple[Pair, ...]:
    """Return the timed answers to each prompt and repeat that the baseline also answered."""
    expected = {(r.prompt, r.repeat): r.tokens or () for r in counters.timed(baseline)}
    return tuple(
        (r.prompt, r.tokens or (), expected[r.prompt, r.repeat], r.repeat)
        for r in counters.timed(records)
        if (r.prompt, r.repeat) in expected
    )


def identical_to_ar(
    records: Iterable[SampleRecord], baseline: Iterable[SampleRecord]
) -> float | None:
    """Return the share of answers equal to the baseline's, if free of errors on both sides."""
    same = [answer == expected for _, answer, expected, _ in _pairs(records, baseline)]
    return ratio(sum(same), len(same))


def shared_with_ar(
    records: Iterable[SampleRecord], baseline: Iterable[SampleRecord]
) -> float | None:
    """Return the share of the baseline's tokens before the first difference, pooled."""
    return ratio(*_shared(_pairs(records, baseline)))


def _shared(pairs: Iterable[Pair]) -> tuple[int, int]:
    """Count the baseline's tokens before the first differences, and all of its tokens."""
    parted = [(first_difference(answer, other), len(other)) for _, answer, other, _ in pairs]
    return sum(num if at is None else at for at, num in parted), sum(num for _, num in parted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Hold a cell's answers to prompts and repeats that the baseline also answered, as measured."""

    cell: str
    pairs: tuple[Pair, ...]

    @property
    def unequal(self) -> tuple[Pair, ...]:
        """Pairs whose tokens differ."""
        return tuple(pair for pair in self.pairs if pair[1] != pair[2])

    def difference(self, num_wrong: int | None, gaps: tuple[int | float, ...]) -> Difference:
        """Summarise the pairs, at least one of which differs, as a `Difference`."""
        unequal, (num_equal, num_tokens) = self.unequal, _shared(self.pairs)
        return Difference(
            cell=self.cell,
            num_answers=len(unequal),
            num_compared=len(self.pairs),
            num_wrong=num_wrong,
            example=unequal[0][0],
            num_tokens=num_tokens,
            num_equal=num_equal,
            places=tuple(first_difference(a, b) or 0 for _, a, b, _ in unequal),
            gaps=gaps,
        )


def compare_with_baseline(cells: Iterable[Cell], records: Iterable[SampleRecord]) -> list[Compared]:
    """Compare the timed answers of the cells that guarantee exactly the baseline's tokens."""
    answers = counters.group_by(records)
    baseline = answers.get(BASELINE, ())
    return [
        Compared(cell=each.cell, pairs=_pairs(answers.get(each.cell, ()), baseline))
        for each in cells
        if each.cell != BASELINE and each.lossless and each.comparable_to_ar
    ]


def state_leaks(run: Run, phased: Iterable[PhasedAnswer]) -> tuple[str, ...]:
    """Return a line for each decoder that provably carries state between answers.

    `phased` has the second pass. Cells that are not planned count as cells with rounding.
    """
    timed, greedy = counters.timed(run.records), not run.config.get("temperature")
    exact = {cell.cell: run.is_exact(cell.cell) for cell in run.plan.cells}
    remembering = {cell.cell for cell in run.plan.cells if cell.remembers}
    if any(len(answers) > 1 for answers in baseline_answers(timed, by_repeat=not greedy)):
        return ()
    differences: defaultdict[str, list[str]] = defaultdict(list)  # "": no difference
    if greedy and len({record.repeat for record in timed}) > 1:
        first: dict[object, tuple[object, ...]] = {}
        past: defaultdict[tuple[str, int], int] = defaultdict(int)
        for record in timed:
            texts = differences[record.decoder]
            scope = record.decoder, record.repeat
            place = (record.attempt, record.worker, record.machine)
            where = (record.prompt, *place, past[scope])
            if record.decoder in remembering:
                past[scope] = hash((past[scope], record.prompt, record.tokens))
            columns = tuple(tuple(getattr(record.steps, name)) for name in _COUNTERS)
            now = (record.tokens, hash(columns), sum(columns[3]))
            before = first.setdefault((record.decoder, where), now)
            if before is now or (before[0] != now[0] and not exact.get(record.decoder)):
                continue
            calls = f"{before[2]} target calls, then {now[2]}"
            text = f"{record.prompt}: {calls if before[0] == now[0] else 'other tokens'}"
            texts.append("" if before[:2] == now[:2] else text)
    for again, answers in timed_again([a for a in phased if exact.get(a.decoder)], timed):
        emitted = sum(sum(each.emitted) for each in answers)
        num_steps = sum(len(each.emitted) - 1 for each in answers)
        is_equal = (emitted, num_steps) == (again.emitted, again.later_steps)
        text = f"{again.prompts[0]}: {num_steps} steps timed, then {again.later_steps}"
        differences[again.decoder].append("" if is_equal else text)
    return tuple(
        f"{cell}: {_ADVICE}: asked again with the same seed, it took another course for "
        f"{len(unequal)} of {counted(len(texts), 'repeated answer')}, e.g. {unequal[0]}"
        for cell, texts in differences.items()
        if (unequal := [text for text in texts if text])
    )


def baseline_answers(
    records: Sequence[SampleRecord], *, by_repeat: bool
) -> list[set[tuple[int, ...] | None]]:
    """Return the different timed answers of the baseline's two arms to each prompt (and repeat)."""
    answers: defaultdict[tuple[str, int], set[tuple[int, ...] | None]] = defaultdict(set)
    arms = baseline_arms(record.decoder for record in records)
    for record in records:
        timed = record.kind == "timing" and record.error is None
        if timed and record.decoder in arms:
            answers[record.prompt, record.repeat if by_repeat else 0].add(record.tokens)
    return list(answers.values())
