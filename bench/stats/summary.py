"""Summarise records: one row per decoder and family, and one row `all` per decoder.

The columns that outside readers rely on come first, in a fixed order. Unknown is null, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from bench.records.plan import BASELINE, SECOND, guarantee_rank
from bench.records.prompts import kept_prompts
from bench.records.record import SampleRecord
from bench.records.run_folder import Run
from bench.stats import counters, times
from bench.stats.intervals import Estimate
from bench.stats.metric import CellData, compute
from bench.stats.metrics import COLUMNS, METRICS
from bench.stats.quality import family_quality, gold_answers, overall_quality
from specbench_tasks.task import FAMILIES

ALL = "all"
"""The pseudo-family that pools every prompt."""


def decoder_order(run: Run) -> list[str]:
    """Order the measured decoders by guarantee, with the baseline first.

    Decoders with the same guarantee keep the plan's order. The baseline's second arm is left out.
    """
    guarantees = run.guarantees
    measured = dict.fromkeys(record.decoder for record in run.records)
    names = dict.fromkeys([*guarantees, *measured])
    cells = [name for name in names if name in measured and not name.endswith(SECOND)]
    return sorted(cells, key=lambda c: (c != run.plan.baseline, guarantee_rank(guarantees.get(c))))


def family_order(families: Iterable[str]) -> list[str]:
    """Order families as in Spec-Bench, then lists, then unknown families by name."""
    present = set(families)
    return [f for f in FAMILIES if f in present] + sorted(present - set(FAMILIES))


def summarise(run: Run) -> pd.DataFrame:
    """Make a frame of `SummaryRow`s: one per decoder and family, then the decoder's row `all`.

    Counters and times are pooled over prompts and repeats (sum / sum); speed-ups are geometric
    means of paired ratios. An unfinished run gives the rows of its finished blocks. Quality in
    `all` covers the same families for every decoder, or is unknown.
    """
    records, plan, promises = run.records, run.plan, run.guarantees
    prompts, target = kept_prompts(run.path), run.env.models.target or {}
    cells, gold = counters.group_by(records), gold_answers(plan)
    planned = {cell.cell: cell for cell in plan.cells}
    decoders = decoder_order(run)
    qualities = {
        decoder: {
            family: family_quality(family, select_family(cells[decoder], family), gold)
            for family in family_order(r.family for r in cells[decoder])
        }
        for decoder in decoders
    }
    scores = [(f, q.estimate.value) for of in qualities.values() for f, q in of.items()]
    num_families = len({family for family, value in scores if value is not None})
    of_ar = qualities.get(BASELINE, {})
    tells = {family: q.tells for family, q in of_ar.items() if q.metric is not None}
    num_telling = sum(tells.values())
    tells |= {ALL: num_telling > 0} if tells else {}
    units = times.units_by_decoder(records)
    baseline = cells.get(BASELINE, [])
    rows: list[dict[str, object]] = []
    for decoder in decoders:
        overall = overall_quality(list(qualities[decoder].values()), num_families)
        telling = [q for f, q in qualities[decoder].items() if tells.get(f)]
        of_telling = overall_quality(telling, num_telling).estimate
        for family, quality in [*qualities[decoder].items(), (ALL, overall)]:
            base, arm, again = (
                [unit for unit in units[cell] if family in (ALL, unit.family)]
                for cell in (plan.baseline, decoder, plan.baseline + SECOND)
            )
            data = CellData(
                decoder=decoder,
                over=plan.baseline,
                family=family,
                records=select_family(cells[decoder], family),
                baseline=select_family(baseline, family),
                units=arm,
                baseline_units=base,
                second_units=again,
                quality=quality,
                telling_quality=of_telling if family == ALL else Estimate(),
                quality_tells=tells.get(family),
                guarantee=promises.get(decoder),
                cell=planned.get(decoder),
                prompts=prompts,
                read_bytes=target.get("read_bytes"),
            )
            rows.append(compute(data, METRICS))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def select_family(records: Sequence[SampleRecord], family: str) -> list[SampleRecord]:
    """Return the records of a family, or all."""
    return [r for r in records if family in (ALL, r.family)]
