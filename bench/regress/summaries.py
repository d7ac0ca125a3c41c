"""What a stored reference and another side counted, from their summaries.

A reference holds no answers: its counters are per repeat, and what a summary does not hold is None.
Of the side that has answers a summary is made. No torch here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bench import metrics
from bench.metrics import BASELINE
from bench.regress.joined import QUALITY, Counted, Values
from bench.regress.sides import Side, held_to_ar
from bench.summary import ALL, summarise

Row = Mapping[str, Any]
_FAILED = "answers failed: the counters are sums over other answers, and are not judged"
_NOT_SCORED = "quality is not judged: it was not scored on the same number of prompts"


def counted_in_summaries(cell: str, base: Side, head: Side) -> Counted | None:
    """The hard measures that a summary holds; None where the sides asked unequally many prompts.

    Where answers failed on one side more than on the other, the errors are judged and no counters.
    """
    held = held_to_ar(base, head) - {BASELINE}
    sides = {"base": base, "head": head}
    rows = {name: _rows(side, cell, held) for name, side in sides.items()}
    if not all(ALL in found for found in rows.values()):
        return None
    asked = [_num_asked(side, cell, rows[name]) for name, side in sides.items()]
    if None not in asked and asked[0] != asked[1]:
        return None
    values: dict[str, Values] = {}
    for name, found in rows.items():
        for measure, value in _from_rows(found).items():
            values.setdefault(measure, {})[name] = value
    notes = []
    if not _equal(values["errors"]):
        values = {k: v for k, v in values.items() if k == "errors" or _is_quality(k)}
        notes.append(_FAILED)
    scored = {name: _known(found[ALL]["quality_prompts"]) for name, found in rows.items()}
    if not _equal(scored):
        values = {k: v for k, v in values.items() if not _is_quality(k)}
        notes.append(_NOT_SCORED)
    if cell not in held:
        values.pop("identical_to_ar", None)
    families = {f: _known(row["quality_prompts"]) for f, row in rows["base"].items() if f != ALL}
    return Counted(
        values=values,
        num_scored={family: int(num) for family, num in families.items() if num},
        notes=tuple(notes),
    )


def _rows(side: Side, cell: str, held: frozenset[str]) -> dict[str, Row]:
    """A decoder's rows of a side's summary, by family."""
    frame = side.summary
    if frame is None:
        cells = [{"cell": c, "comparable_to_ar": c in held} for c in side.cells]
        frame = summarise(side.records or (), {"cells": cells}, side.gold)
    rows = frame[frame["decoder"] == cell].to_dict("records")
    return {str(row["family"]): {str(k): v for k, v in row.items()} for row in rows}


def _num_asked(side: Side, cell: str, rows: Mapping[str, Row]) -> float | None:
    """Prompts timed, those that failed included (a summary with errors does not say)."""
    if side.records is not None:
        mine = [r for r in side.records if r.decoder == cell and r.kind == "timing"]
        return len({record.prompt for record in mine})
    return None if _known(rows[ALL]["errors"]) else _known(rows[ALL]["prompts"])


def _from_rows(rows: Mapping[str, Row]) -> Values:
    """Quality by family, and of the row over all the counters per repeat, from its ratios."""
    row = rows[ALL]
    repeats, tokens = _known(row["repeats"]), _known(row["tokens"])
    per_call, per_token = _known(row["tokens_per_call"]), _known(row["rows_per_token"])
    emitted = tokens / repeats if tokens and repeats else None
    failed = _known(row["errors"]) or 0
    answered = (_known(row["prompts"]) or 0) * (repeats or 0)
    return {f"{QUALITY}.{f}": _known(rows[f]["quality"]) for f in rows if f != ALL} | {
        "calls": emitted / per_call if emitted and per_call else None,
        "rows": emitted * per_token if emitted and per_token is not None else None,
        "emitted": emitted,
        "tokens_per_step": _known(row["acceptance_length"]),
        "identical_to_ar": _known(row["identical_to_ar"]),
        QUALITY: _known(row["quality"]),
        "errors": metrics.ratio(failed, answered + failed),
    }


def _is_quality(measure: str) -> bool:
    return measure.partition(".")[0] == QUALITY


def _equal(pair: Values) -> bool:
    one, other = pair["base"], pair["head"]
    if one is None or other is None:
        return one is other
    return math.isclose(one, other)


def _known(value: object) -> float | None:
    number = math.nan if value is None else float(str(value).replace("<NA>", "nan"))
    return None if math.isnan(number) else number
