"""`bench compare`: two runs held against each other, decoder by decoder.

A pure function of two folders and a gate. No model, no tokenizer, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bench import timings
from bench.metrics import BASELINE
from bench.records import SampleRecord
from bench.regress.gate import Gate
from bench.regress.joined import Joined, counted, counted_in_summaries, join
from bench.regress.sides import (
    Side,
    changes,
    interleaved,
    option_changes,
    same_machine,
    unlike,
)
from bench.regress.verdict import (
    CellVerdict,
    Comparison,
    Measure,
    Verdict,
    judge_hard,
    judge_time,
    worst,
)
from bench.stats import Estimate, paired_speedup

_STORED = (
    "a stored reference has no answers: time, accepted drafts and changed answers are not judged"
)


def compare(base: Side, head: Side, gate: Gate) -> Comparison:
    """The comparison of two loaded sides."""
    why_not = unlike(base, head)
    together = interleaved(base, head)
    stored = base.records is None or head.records is None
    margin = gate.time.margin if together else gate.time.margin_apart
    timed = same_machine(base, head) and not stored
    cells = list(dict.fromkeys([*base.cells, *head.cells]))
    judged = tuple(
        _without(cell, base, head, why_not) or _judged(cell, base, head, gate, margin)
        for cell in cells
    )
    return Comparison(
        base=base.name,
        head=head.name,
        gate=gate,
        cells=judged,
        how=_how(base, head),
        margin=margin if timed else None,
        unlike=tuple(why_not),
        changes=tuple(changes(base, head)),
        unjudged=tuple(_unjudged(base, head, stored=stored)),
        invalid=tuple(
            f"{which} is {side.status.get('verdict')}"
            for which, side in (("base", base), ("head", head))
            if side.status.get("verdict") == "INVALID"
        ),
        warnings=tuple(
            f"{which}: {line}"
            for which, side in (("base", base), ("head", head))
            for line in (side.status.get("warnings") or () if timed else ())
        ),
    )


def _how(base: Side, head: Side) -> str:
    if interleaved(base, head):
        return "measured interleaved"
    return "measured apart, " + ("one kind of machine" if same_machine(base, head) else "elsewhere")


def _unjudged(base: Side, head: Side, *, stored: bool) -> list[str]:
    lines = [_STORED] if stored else []
    if not stored and not same_machine(base, head):
        key = base.key is None or head.key is None
        lines.append(
            "time is not judged: "
            + (
                "a comparability key is unknown"
                if key
                else "the runs are of different machines or setups"
            )
        )
    return lines


def _without(cell: str, base: Side, head: Side, why_not: Sequence[str]) -> CellVerdict | None:
    """The verdict on a cell that cannot be compared; None where it can."""
    if cell not in base.cells:
        return CellVerdict(cell=cell, verdict=Verdict.new, notes=("not in base",))
    if cell not in head.cells:
        return CellVerdict(cell=cell, verdict=Verdict.not_comparable, notes=("not in head",))
    if why_not:
        return CellVerdict(cell=cell, verdict=Verdict.not_comparable)
    return None


def _judged(cell: str, base: Side, head: Side, gate: Gate, margin: float) -> CellVerdict:
    """The verdict on a cell that both sides have."""
    options = tuple(option_changes(base, head, cell))
    if base.records is None or head.records is None:
        found = counted_in_summaries(cell, base, head)
        if not found:
            return CellVerdict(
                cell=cell,
                verdict=Verdict.not_comparable,
                options=options,
                notes=("not measured on the same number of prompts",),
            )
        measures = _hard(cell, found, base, head, gate)
        return CellVerdict(
            cell=cell, verdict=worst(measures), measures=tuple(measures), options=options
        )
    joined = join(base, head, cell)
    if not joined.base or joined.coverage < gate.verdict.min_coverage:
        note = f"{len(joined.base)} of {joined.num_base} answers of base have a partner"
        return CellVerdict(
            cell=cell,
            verdict=Verdict.not_comparable,
            options=options,
            notes=(f"prompt hashes differ: {note}",),
            num_pairs=len(joined.base),
            num_base=joined.num_base,
        )
    found = counted(joined, join(base, head, BASELINE), base, head)
    if cell not in base.same_as_ar & head.same_as_ar:
        found.pop("changed_answers")  # other answers are lawful there: quality judges them
    measures = _hard(cell, found, base, head, gate)
    measures += _time(joined, base, head, gate, margin)
    notes = ["only answers to the same prompts count"] * (len(joined.base) < joined.num_base)
    if len(_batch_sizes(joined)) > 1:
        notes.append("time is not judged: the batch sizes differ")
    return CellVerdict(
        cell=cell,
        verdict=worst(measures),
        measures=tuple(measures),
        num_changed=len(joined.changed),
        options=options,
        notes=tuple(notes),
        num_pairs=len(joined.base),
        num_base=joined.num_base,
    )


def _exact(base: Side, head: Side) -> bool:
    """Whether the same work must give the same numbers: one kind of machine, float32."""
    return same_machine(base, head) and base.env.get("dtype", "float32") == "float32"


def _hard(
    cell: str,
    values: dict[str, dict[str, float | None]],
    base: Side,
    head: Side,
    gate: Gate,
) -> list[Measure]:
    exact = _exact(base, head)
    rounded = base.records is None or head.records is None
    wrong = {"base": base.num_wrong(cell), "head": head.num_wrong(cell)}
    values = values | {
        "wrong_answers": {k: None if v is None else float(v) for k, v in wrong.items()}
    }
    if not exact:
        values.pop("changed_answers", None)  # near-ties swap
    measures = []
    for name, pair in values.items():
        old, new = pair.get("base"), pair.get("head")
        if old is None or new is None:
            continue
        measure = judge_hard(name, old, new, gate, exact=exact, rounded=rounded)
        near_ties = name == "identical_to_ar" and not exact and wrong["head"] == 0
        if near_ties and measure.verdict is Verdict.regressed and head.status.get("differences"):
            measure = replace(measure, verdict=Verdict.passed, note="near-ties on head's machine")
        measures.append(measure)
    return measures


def _time(joined: Joined, base: Side, head: Side, gate: Gate, margin: float) -> list[Measure]:
    """The judgement of time per token, where machine and batch size allow one."""
    if not same_machine(base, head) or len(_batch_sizes(joined)) != 1:
        return []
    ratio = paired_time(joined.base, joined.head)
    if not ratio.num:
        return []
    seconds = [
        timings.time_per_token_s(timings.timed_units(records))
        for records in (joined.base, joined.head)
    ]
    return [judge_time(ratio, seconds[0], seconds[1], gate, margin=margin)]


def _batch_sizes(joined: Joined) -> set[int]:
    records = (*joined.base, *joined.head)
    return {record.batch_size for record in records if record.kind == "timing"}


def paired_time(base: Sequence[SampleRecord], head: Sequence[SampleRecord]) -> Estimate:
    """Base time / head time per emitted token: geometric mean over prompts, with its interval."""
    return paired_speedup(
        timings.timed_units(base), timings.timed_units(head), lambda unit: unit.time_per_token
    )
