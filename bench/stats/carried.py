"""Proof that a decoder carries state from one answer to the next, from the records alone.

An answer depends on the prompt, the options and the seed. If a decoder answers one prompt twice
with one seed (greedy: with any seed) and the same tokens, its counters are therefore equal; a
difference shows that something survived the first answer, e.g. a module global that holds earlier
text. Its speed then depends on how often a prompt was repeated, which no user's prompts are.

Two sources give such pairs: the repeats of a greedy run, and the instrumented second pass
(``phases.json``), which answers a timed block again with its seed. Nothing is concluded where
rounding may act: answers with other tokens count only in exact precision, the second pass too, and
if the baseline differs from itself, the device is not deterministic and proves nothing. Answers of
a decoder that declares a memory are compared only after the same answers in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from bench.records.phases import PhasedAnswer
from bench.records.plan import BASELINE, SECOND_BASELINE
from bench.records.record import SampleRecord
from bench.stats import counters
from bench.stats.counters import timed_again
from bench.text import counted

_COUNTERS = (
    *("emitted", "drafted", "accepted", "target_calls", "target_rows", "draft_calls", "draft_rows"),
)
_ADVICE = "state survives an answer (a module global, or a mutable attribute of the class?)"


def carried(
    records: Sequence[SampleRecord],
    phased: Iterable[PhasedAnswer],
    *,
    greedy: bool,
    exact: Mapping[str, bool],
    remembering: Collection[str] = (),
) -> tuple[str, ...]:
    """Return a line for each decoder that provably carries state between answers.

    `phased` has the second pass. `exact` tells by cell whether rounding cannot change its tokens;
    missing cells are not exact. `remembering` are the cells that declare a memory.
    """
    timed = counters.timed(records)
    if any(len(answers) > 1 for answers in baseline_answers(timed, by_repeat=not greedy)):
        return ()
    differences: defaultdict[str, list[str]] = defaultdict(list)  # "" for a pair without any
    if greedy and len({record.repeat for record in timed}) > 1:
        _compare_repeats(timed, exact, differences, remembering)
    for again, steps in timed_again([a for a in phased if exact.get(a.decoder)], timed):
        before = (sum(sum(s.emitted) for s in steps), sum(len(s.emitted) - 1 for s in steps))
        is_equal = before == (again.emitted, again.later_steps)
        text = f"{again.prompts[0]}: {before[1]} steps timed, then {again.later_steps}"
        differences[again.decoder].append("" if is_equal else text)
    return tuple(
        f"{cell}: {_ADVICE}: asked again with the same seed, it took another course for "
        f"{len(unequal)} of {counted(len(texts), 'repeated answer')}, e.g. {unequal[0]}"
        for cell, texts in differences.items()
        if (unequal := [text for text in texts if text])
    )


def baseline_answers(
    records: Iterable[SampleRecord], *, by_repeat: bool
) -> list[set[tuple[int, ...] | None]]:
    """Return the different timed answers of the baseline's two arms to each prompt (and repeat)."""
    answers: defaultdict[tuple[str, int], set[tuple[int, ...] | None]] = defaultdict(set)
    for record in records:
        timed = record.kind == "timing" and record.error is None
        if timed and record.decoder in (BASELINE, SECOND_BASELINE):
            answers[record.prompt, record.repeat if by_repeat else 0].add(record.tokens)
    return list(answers.values())


def _compare_repeats(
    timed: Iterable[SampleRecord],
    exact: Mapping[str, bool],
    differences: dict[str, list[str]],
    remembering: Collection[str],
) -> None:
    first: dict[object, tuple[object, ...]] = {}
    past: defaultdict[tuple[str, int], int] = defaultdict(int)
    for record in timed:
        texts, steps = differences[record.decoder], record.steps
        scope = record.decoder, record.repeat
        place = (record.batch_size, record.attempt, record.worker, record.machine)
        where = (record.prompt, *place, past[scope])
        if record.decoder in remembering:
            past[scope] = hash((past[scope], record.prompt, record.tokens))
        counters = tuple(tuple(getattr(steps, name)) for name in _COUNTERS)
        now = (record.tokens, hash(counters), sum(counters[3]))
        before = first.setdefault((record.decoder, where), now)
        if before is now or (before[0] != now[0] and not exact.get(record.decoder)):
            continue
        calls = f"{before[2]} target calls, then {now[2]}"
        text = f"{record.prompt}: {calls if before[0] == now[0] else 'other tokens'}"
        texts.append("" if before[:2] == now[:2] else text)
