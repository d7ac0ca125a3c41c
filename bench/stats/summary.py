"""The summary of records: one row per decoder and family, and one row `all` per decoder.

The columns that outside readers rely on come first, in a fixed order. Unknown is null, never 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType

import pandas as pd

from bench.records.plan import BASELINE, SECOND_BASELINE, Plan, guarantee_rank
from bench.records.record import SampleRecord
from bench.stats import counters, parallel_counters, times
from bench.stats.counters import Tally
from bench.stats.estimates import acceptance_length
from bench.stats.intervals import DECODE_TIME, TIME, Estimate, paired_speedup
from bench.stats.quality import Gold, family_quality, overall_quality, scored
from bench.stats.speedups import Speedups, speedups
from bench.stats.summary_row import COLUMNS
from bench.stats.times import Unit
from specbench_tasks.task import FAMILIES

ALL = "all"
"""The pseudo-family that pools every prompt."""

Pairs = Mapping[tuple[str, str], Estimate]
"""Speed-ups of one decoder over another, by (decoder, other decoder)."""
_ACCEPTANCE_COLUMNS = (
    *("decoder", "family", "position"),
    *("steps", "reached", "accepted", "joint", "conditional"),
    *("added", "later_steps", "unconditional"),
)
_TALLIED = (
    *("tokens_per_call", "tpf", "acceptance_length", "calls_per_step"),
    *("acceptance_rate", "rows_per_token"),
)
_ONE = Estimate(value=1.0, low=1.0, high=1.0)


def decoder_order(
    plan: Plan, records: Iterable[SampleRecord], found: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Order the measured decoders by guarantee, or by what was `found`; the baseline is first.

    Decoders with the same guarantee keep the plan's order. The baseline's second arm is left out.
    """
    claims = plan.guarantees(found)
    measured = dict.fromkeys(record.decoder for record in records)
    names = dict.fromkeys([*claims, *measured])
    cells = [name for name in names if name in measured and name != SECOND_BASELINE]
    return sorted(cells, key=lambda name: (name != BASELINE, guarantee_rank(claims.get(name))))


def family_order(families: Iterable[str]) -> list[str]:
    """Order families as Spec-Bench does, then lists, then unknown families by name."""
    present = set(families)
    return [f for f in FAMILIES if f in present] + sorted(present - set(FAMILIES))


def summarise(
    records: Sequence[SampleRecord],
    plan: Plan,
    gold: Gold | None = None,
    found: Mapping[str, str] = MappingProxyType({}),
) -> pd.DataFrame:
    """Make a frame of `SummaryRow`s: one per decoder and family, then the decoder's row `all`.

    Counters and times are pooled over prompts and repeats (sum / sum); speed-ups are geometric
    means of paired ratios. An unfinished run gives the rows of its finished blocks. `gold` is used
    for corpus BLEU. Quality in `all` covers the same families for every decoder, or is unknown.
    `found` replaces guarantees, see `RunStatus.found`.
    """
    cells = counters.group_by(records)
    comparable = {cell.cell: cell.comparable_to_ar for cell in plan.cells}
    decoders = decoder_order(plan, records, found)
    promises = plan.guarantees(found)
    checked = {cell.cell: cell.checked for cell in plan.cells}
    qualities = {
        decoder: {
            family: family_quality(family, _of_family(cells[decoder], family), gold or {})
            for family in family_order(r.family for r in cells[decoder])
        }
        for decoder in decoders
    }
    known = [(f, q.estimate.value) for of in qualities.values() for f, q in of.items()]
    num_families = len({family for family, value in known if value is not None})
    of_ar = qualities.get(BASELINE, {})
    tells = {family: q.tells for family, q in of_ar.items() if q.metric is not None}
    num_told = sum(tells.values())
    tells |= {ALL: num_told > 0} if tells else {}
    units = times.units_of(records)
    baseline = cells.get(BASELINE, [])
    rows: list[dict[str, object]] = []
    for decoder in decoders:
        overall = overall_quality(list(qualities[decoder].values()), num_families)
        told = overall_quality([q for f, q in qualities[decoder].items() if tells.get(f)], num_told)
        for family, quality in [*qualities[decoder].items(), (ALL, overall)]:
            chosen = _of_family(cells[decoder], family)
            base, mine, again = (
                [unit for unit in units[cell] if family in (ALL, unit.family)]
                for cell in (BASELINE, decoder, SECOND_BASELINE)
            )
            length = acceptance_length(chosen)
            row: dict[str, object] = {
                "decoder": decoder,
                "family": family,
                "guarantee": promises.get(decoder),
                "checked": checked.get(decoder),
                **_counts(chosen),
                **_times(decoder, base, mine, again),
                "acceptance_length_low": length.low,
                "acceptance_length_high": length.high,
                **quality.estimate.columns("quality"),
                "quality_metric": quality.metric,
                **parallel_counters.columns(chosen, _of_family(baseline, family)),
                "quality_tells": tells.get(family),
                **(told.estimate if family == ALL else Estimate()).columns("telling_quality"),
            }
            if decoder == BASELINE or comparable.get(decoder, False):
                row["identical_to_ar"] = counters.identical_to_ar(chosen, baseline)
                row["shared_with_ar"] = counters.shared_with_ar(chosen, baseline)
            assert row.keys() <= COLUMNS.keys(), f"{row.keys() - COLUMNS.keys()} are no fields"
            rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def second_arm(records: Sequence[SampleRecord]) -> Speedups:
    """Return all estimators of the noise floor, over all families."""
    units = times.units_of(records)
    return speedups(units[BASELINE], units[SECOND_BASELINE])


def rivals(records: Sequence[SampleRecord], decoders: Sequence[str]) -> Pairs:
    """Estimate the speed-up of each decoder over every other decoder, over all families."""
    units = times.units_of(records)
    return {
        (name, other): paired_speedup(units[other], units[name])
        for name, other in itertools.permutations(decoders, 2)
    }


def acceptance_table(records: Sequence[SampleRecord], plan: Plan) -> pd.DataFrame:
    """Tabulate the fields and properties of `PositionCount` per decoder, family and position."""
    rows = [
        {
            "decoder": decoder,
            "family": family,
            **asdict(count),
            "conditional": count.conditional,
            "unconditional": count.unconditional,
        }
        for decoder, family, chosen in _cells(records, plan)
        for count in counters.acceptance_by_position(chosen)
    ]
    return pd.DataFrame(rows, columns=list(_ACCEPTANCE_COLUMNS))


def step_length_table(records: Sequence[SampleRecord], plan: Plan) -> pd.DataFrame:
    """Tabulate later steps by emitted tokens, per decoder over all families."""
    rows = [
        {"decoder": decoder, "tokens": tokens, "steps": steps, "share": steps / sum(num.values())}
        for decoder, family, chosen in _cells(records, plan)
        if family == ALL
        for num in [counters.step_lengths(chosen)]
        for tokens, steps in num.items()
    ]
    return pd.DataFrame(rows, columns=["decoder", "tokens", "steps", "share"])


def _cells(
    records: Sequence[SampleRecord], plan: Plan
) -> Iterator[tuple[str, str, list[SampleRecord]]]:
    cells = counters.group_by(records)
    for decoder in decoder_order(plan, records):
        for family in [*family_order(r.family for r in cells[decoder]), ALL]:
            yield decoder, family, _of_family(cells[decoder], family)


def _of_family(records: Sequence[SampleRecord], family: str) -> list[SampleRecord]:
    return [r for r in records if family in (ALL, r.family)]


def _counts(records: Sequence[SampleRecord]) -> dict[str, object]:
    timed = counters.timed(records)
    tally = Tally.pool(timed)
    return {
        "prompts": len({r.prompt for r in timed}),
        "repeats": len({r.repeat for r in timed}),
        "quality_prompts": len({r.prompt for r in scored(records)}),
        "errors": sum(r.error is not None for r in records),
        "batch_size": max((r.batch_size for r in timed), default=None),
        "peak_memory_bytes": counters.peak_memory_bytes(records),
        "energy_per_token_j": counters.energy_per_token_j(records),
        "tokens": tally.emitted,
        "ttft_s": times.ttft_s(records),
        **{name: getattr(tally, name) for name in _TALLIED},
    }


def _times(
    decoder: str, baseline: Sequence[Unit], mine: Sequence[Unit], again: Sequence[Unit]
) -> dict[str, object]:
    """Return times and speed-ups of units; the baseline's second arm `again` gives the floor."""
    each = times.time_per_token_s(mine)
    whole, decode = (paired_speedup(baseline, mine, time) for time in (TIME, DECODE_TIME))
    floor = paired_speedup(baseline, again)
    found = Speedups(geometric=whole) if decoder == BASELINE else speedups(baseline, mine)
    row: dict[str, object] = {
        "clusters": whole.clusters,
        "pairs": whole.num,
        "pairs_dropped": whole.dropped,
        "pairs_decode": decode.num,
        "time_per_token_s": each,
        "tokens_per_s": 1 / each if each else None,
        "decode_time_per_token_s": times.decode_time_per_token_s(mine),
        "aa_speedup": floor.value,
        "aa_low": floor.low,
        "aa_high": floor.high,
        **found.totals.columns("speedup_total"),
        **found.specbench.columns("specbench_compat"),
        "prompts_needed": found.needed,
    }
    if decoder == BASELINE:
        whole, decode = (_ONE if found.num else Estimate() for found in (whole, decode))
        row |= dict.fromkeys(("speedup_total", "specbench_compat"), 1.0 if mine else None)
    return row | whole.columns("speedup") | decode.columns("speedup_decode")
