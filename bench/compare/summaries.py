"""Counters of a stored reference and of another side, from their summaries.

Counters are per repeat, and what a summary does not hold is None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from bench.compare.comparable import RunPair
from bench.compare.joined import QUALITY, HardMeasures, Values
from bench.records.plan import BASELINE, Cell, Plan
from bench.stats import counters
from bench.stats.side import RunSnapshot
from bench.stats.summary import ALL, summarise
from bench.stats.summary_row import SummaryRow, rows_of

_FAILED = "answers failed: the counters are sums over other answers, and are not judged"
_NOT_SCORED = "quality is not judged: it was not scored on the same number of prompts"


def counted_in_summaries(cell: str, pair: RunPair) -> HardMeasures | None:
    """Return the hard measures of a summary; None where the sides asked unequally many prompts.

    Where more answers failed on one side, the errors are judged and no counters.
    """
    held = pair.held_to_ar - {BASELINE}
    rows = {name: _rows(side, cell, held) for name, side in pair.sides.items()}
    if not all(ALL in by_family for by_family in rows.values()):
        return None
    asked = [_num_asked(side, cell, rows[name]) for name, side in pair.sides.items()]
    if None not in asked and asked[0] != asked[1]:
        return None
    values: dict[str, Values] = {}
    for name, by_family in rows.items():
        for measure, value in _from_rows(by_family).items():
            values.setdefault(measure, {})[name] = value
    notes = []
    if not _equal(values["errors"]):
        values = {k: v for k, v in values.items() if k == "errors" or _is_quality(k)}
        notes.append(_FAILED)
    scored: Values = {name: by_family[ALL].quality_prompts for name, by_family in rows.items()}
    if not _equal(scored):
        values = {k: v for k, v in values.items() if not _is_quality(k)}
        notes.append(_NOT_SCORED)
    if cell not in held:
        values.pop("identical_to_ar", None)
    families = {f: row.quality_prompts for f, row in rows["base"].items() if f != ALL}
    return HardMeasures(
        values=values,
        num_scored={family: num for family, num in families.items() if num},
        notes=tuple(notes),
    )


def _rows(side: RunSnapshot, cell: str, held: frozenset[str]) -> dict[str, SummaryRow]:
    frame = side.summary
    if frame is None:
        cells = tuple(Cell(cell=c, comparable_to_ar=c in held) for c in side.cells)
        frame = summarise(side.records or (), Plan(cells=cells), side.gold)
    return {row.family: row for row in rows_of(frame, None) if row.decoder == cell}


def _num_asked(side: RunSnapshot, cell: str, rows: Mapping[str, SummaryRow]) -> float | None:
    """Count prompts timed, failed ones included (a summary with errors does not say)."""
    if side.records is not None:
        mine = [r for r in side.records if r.decoder == cell and r.kind == "timing"]
        return len({record.prompt for record in mine})
    return None if rows[ALL].errors else rows[ALL].prompts


def _from_rows(rows: Mapping[str, SummaryRow]) -> Values:
    """Return quality by family, and the counters per repeat, from the ratios over all."""
    row = rows[ALL]
    repeats, tokens = row.repeats, row.tokens
    per_call, per_token = row.tokens_per_call, row.rows_per_token
    emitted = tokens / repeats if tokens and repeats else None
    failed = row.errors or 0
    answered = (row.prompts or 0) * (repeats or 0)
    return {f"{QUALITY}.{f}": rows[f].quality for f in rows if f != ALL} | {
        "calls": emitted / per_call if emitted and per_call else None,
        "rows": emitted * per_token if emitted and per_token is not None else None,
        "emitted": emitted,
        "tokens_per_step": row.acceptance_length,
        "identical_to_ar": row.identical_to_ar,
        QUALITY: row.quality,
        "errors": counters.ratio(failed, answered + failed),
    }


def _is_quality(measure: str) -> bool:
    return measure.partition(".")[0] == QUALITY


def _equal(pair: Values) -> bool:
    one, other = pair["base"], pair["head"]
    if one is None or other is None:
        return one is other
    return math.isclose(one, other)
