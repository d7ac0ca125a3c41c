"""From records to the summary: one row per decoder and family, and per decoder one for `all`.

A pure function of the records and the plan. The columns that outside readers
rely on come first, in a fixed order; unknown is null, never 0. No torch here.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

import pandas as pd

from bench.records.plan import BASELINE, SECOND_BASELINE, Plan, guarantee_rank
from bench.records.record import SampleRecord
from bench.stats import counters, estimates, parallel_counters, times
from bench.stats.counters import Tally
from bench.stats.intervals import Estimate, paired_speedup
from bench.stats.quality import Gold, Quality, family_quality, overall_quality, scored
from bench.stats.speedups import Speedups, speedups
from bench.stats.summary_row import COLUMNS
from bench.stats.times import Unit
from specbench_tasks.task import FAMILIES

ALL = "all"
"""The pseudo-family that pools every prompt."""

Pairs = Mapping[tuple[str, str], Estimate]
"""Speed-ups of one decoder over another, by (decoder, over which)."""
_ACCEPTANCE_COLUMNS = (
    *("decoder", "family", "position"),
    *("steps", "reached", "accepted", "joint", "conditional"),
)
_ONE = Estimate(value=1.0, low=1.0, high=1.0)


def decoder_order(
    plan: Plan, records: Iterable[SampleRecord], wrong: Collection[str] = ()
) -> list[str]:
    """Measured decoders, the baseline first and its second arm left out.

    They are grouped by what they guarantee (those that are `wrong` last), each group in the plan's
    order.
    """
    claims = plan.guarantees(wrong)
    measured = dict.fromkeys(record.decoder for record in records)
    names = dict.fromkeys([*claims, *measured])
    cells = [name for name in names if name in measured and name != SECOND_BASELINE]
    return sorted(cells, key=lambda name: (name != BASELINE, guarantee_rank(claims.get(name))))


def family_order(families: Iterable[str]) -> list[str]:
    """Families in the order Spec-Bench reports them, lists and unknown ones after them by name."""
    present = set(families)
    return [f for f in FAMILIES if f in present] + sorted(present - set(FAMILIES))


def summarise(
    records: Sequence[SampleRecord],
    plan: Plan,
    gold: Gold | None = None,
    wrong: Collection[str] = (),
) -> pd.DataFrame:
    """One row per decoder and family, then the decoder's row `all`: `SummaryRow`s as a frame.

    Counters are pooled over prompts and repeats (sum / sum), and so are the time columns; speed-ups
    are geometric means of paired ratios. Whatever exists is summarised: an unfinished run gives the
    rows of its finished blocks, no records give no rows. `gold` serves corpus BLEU. Quality in
    `all` is over the same families for every decoder, or unknown. `wrong` names the decoders that
    were found not to be lossless as they claim.
    """
    cells = counters.group_by(records, lambda record: record.decoder)
    comparable = {cell.cell: cell.comparable_to_ar for cell in plan.cells}
    decoders = decoder_order(plan, records, wrong)
    promises = plan.guarantees(wrong)
    qualities = {decoder: _qualities(cells[decoder], gold or {}) for decoder in decoders}
    known = [(f, q.estimate.value) for of in qualities.values() for f, q in of.items()]
    num_families = len({family for family, value in known if value is not None})
    units = {cell: times.timed_units(of) for cell, of in cells.items()}
    baseline = cells.get(BASELINE, [])
    rows: list[dict[str, object]] = []
    for decoder in decoders:
        overall = overall_quality(list(qualities[decoder].values()), num_families)
        for family, quality in [*qualities[decoder].items(), (ALL, overall)]:
            chosen = _of_family(cells[decoder], family)
            base, mine, again = (
                _units_of(units.get(cell, []), family)
                for cell in (BASELINE, decoder, SECOND_BASELINE)
            )
            row: dict[str, object] = {"decoder": decoder, "family": family}
            row["guarantee"] = promises.get(decoder)
            row |= _counts(chosen) | _counters(chosen) | _times(mine, base, decoder)
            row |= estimates.columns(decoder, chosen, base, mine, again)
            row |= _quality_columns(quality) | parallel_counters.columns(chosen)
            row["loops"] = parallel_counters.loops(
                parallel_counters.repeated_trigrams(chosen),
                parallel_counters.repeated_trigrams(_of_family(baseline, family)),
            )
            if decoder == BASELINE or comparable.get(decoder, False):
                row["identical_to_ar"] = counters.identical_to_ar(chosen, baseline)
                row["shared_with_ar"] = counters.shared_with_ar(chosen, baseline)
            rows.append(row)
    return _frame(rows)


def _qualities(records: Sequence[SampleRecord], gold: Gold) -> dict[str, Quality]:
    """One decoder's quality in every family it was asked, in the families' order."""
    families = family_order(r.family for r in records)
    return {
        family: family_quality(family, _of_family(records, family), gold) for family in families
    }


def noise_floor(records: Sequence[SampleRecord], family: str = ALL) -> Estimate:
    """The "speed-up" of the baseline's second arm over the first: what no difference looks like."""
    cells = counters.group_by(records, lambda record: record.decoder)
    return speedup(cells.get(BASELINE, []), cells.get(SECOND_BASELINE, []), family)


def second_arm(records: Sequence[SampleRecord]) -> Speedups:
    """Every estimator of the noise floor, over all families."""
    cells = counters.group_by(records, lambda record: record.decoder)
    return speedups(*(_units(cells.get(name, []), ALL) for name in (BASELINE, SECOND_BASELINE)))


def speedup(
    baseline: Sequence[SampleRecord],
    arm: Sequence[SampleRecord],
    family: str = ALL,
    *,
    decode: bool = False,
) -> Estimate:
    """Paired geometric-mean speed-up of one decoder's records in a family, end to end or decode."""
    return _speedup(_units(baseline, family), _units(arm, family), decode=decode)


def rivals(records: Sequence[SampleRecord], decoders: Sequence[str]) -> Pairs:
    """The speed-up of each decoder over each other one, by (decoder, over which), all families."""
    cells = counters.group_by(records, lambda record: record.decoder)
    units = {name: _units(cells.get(name, []), ALL) for name in decoders}
    return {
        (name, other): _speedup(units[other], units[name])
        for name, other in itertools.permutations(decoders, 2)
    }


def _speedup(baseline: Sequence[Unit], arm: Sequence[Unit], *, decode: bool = False) -> Estimate:
    return paired_speedup(
        baseline,
        arm,
        (lambda u: u.decode_time_per_token) if decode else (lambda u: u.time_per_token),
    )


def acceptance_table(records: Sequence[SampleRecord], plan: Plan) -> pd.DataFrame:
    """Draft acceptance per decoder, family and position, joint and conditional, with its counts."""
    rows = [
        {
            "decoder": decoder,
            "family": family,
            "position": count.position,
            "steps": count.steps,
            "reached": count.reached,
            "accepted": count.accepted,
            "joint": count.joint,
            "conditional": count.conditional,
        }
        for decoder, family, chosen in _cells(records, plan)
        for count in counters.acceptance_by_position(chosen)
    ]
    return pd.DataFrame(rows, columns=list(_ACCEPTANCE_COLUMNS))


def step_length_table(records: Sequence[SampleRecord], plan: Plan) -> pd.DataFrame:
    """How many later steps emitted how many tokens, per decoder over all families."""
    rows: list[dict[str, object]] = []
    for decoder, family, chosen in _cells(records, plan):
        lengths = counters.step_lengths(chosen) if family == ALL else {}
        total = sum(lengths.values())
        rows += [
            {"decoder": decoder, "tokens": tokens, "steps": steps, "share": steps / total}
            for tokens, steps in lengths.items()
        ]
    return pd.DataFrame(rows, columns=["decoder", "tokens", "steps", "share"])


def _cells(
    records: Sequence[SampleRecord], plan: Plan
) -> Iterable[tuple[str, str, list[SampleRecord]]]:
    cells = counters.group_by(records, lambda record: record.decoder)
    for decoder in decoder_order(plan, records):
        for family in [*family_order(r.family for r in cells[decoder]), ALL]:
            yield decoder, family, _of_family(cells[decoder], family)


def _of_family(records: Sequence[SampleRecord], family: str) -> list[SampleRecord]:
    return [r for r in records if family in (ALL, r.family)]


def _units(records: Sequence[SampleRecord], family: str) -> list[Unit]:
    """Timed units of a family; groups are formed first, as one may mix families."""
    return _units_of(times.timed_units(records), family)


def _units_of(units: Sequence[Unit], family: str) -> list[Unit]:
    return [unit for unit in units if family in (ALL, unit.family)]


def _counts(records: Sequence[SampleRecord]) -> dict[str, object]:
    timed = counters.timed(records)
    return {
        "prompts": len({r.prompt for r in timed}),
        "repeats": len({r.repeat for r in timed}),
        "quality_prompts": len({r.prompt for r in scored(records)}),
        "errors": sum(r.error is not None for r in records),
        "batch_size": max((r.batch_size for r in timed), default=None),
        "peak_memory_bytes": counters.peak_memory_bytes(records),
    }


def _counters(records: Sequence[SampleRecord]) -> dict[str, object]:
    tally = Tally.pool(counters.timed(records))
    return {
        "tokens": tally.emitted,
        "tokens_per_call": tally.tokens_per_call,
        "tpf": tally.tpf,
        "acceptance_length": tally.acceptance_length,
        "calls_per_step": tally.calls_per_step,
        "acceptance_rate": tally.acceptance_rate,
        "rows_per_token": tally.rows_per_token,
        "ttft_s": times.ttft_s(records),
    }


def _times(mine: Sequence[Unit], baseline: Sequence[Unit], decoder: str) -> dict[str, object]:
    each = times.time_per_token_s(mine)
    whole, decode = (_speedup(baseline, mine, decode=flag) for flag in (False, True))
    counts = {"clusters": whole.clusters, "pairs": whole.num, "pairs_dropped": whole.dropped}
    counts["pairs_decode"] = decode.num
    if decoder == BASELINE:
        whole = _ONE if whole.num else Estimate()
        decode = _ONE if decode.num else Estimate()
    return counts | {
        "time_per_token_s": each,
        "tokens_per_s": 1 / each if each else None,
        "decode_time_per_token_s": times.decode_time_per_token_s(mine),
        "speedup": whole.value,
        "speedup_low": whole.low,
        "speedup_high": whole.high,
        "speedup_decode": decode.value,
        "speedup_decode_low": decode.low,
        "speedup_decode_high": decode.high,
    }


def _quality_columns(quality: Quality) -> dict[str, object]:
    return {
        "quality": quality.estimate.value,
        "quality_low": quality.estimate.low,
        "quality_high": quality.estimate.high,
        "quality_metric": quality.metric,
    }


def _frame(rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    unknown = {key for row in rows for key in row} - COLUMNS.keys()
    assert not unknown, f"{sorted(unknown)} are no fields of SummaryRow"
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
