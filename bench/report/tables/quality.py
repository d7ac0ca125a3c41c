"""Quality by family: scores, likelihood, repetition, agreement with ar, ceilings, and caveats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from bench.records.plan import BASELINE
from bench.records.record import SampleRecord
from bench.report.tables.table import (
    is_number,
)
from bench.stats.counters import group_by
from bench.stats.metrics import summary_rows
from bench.stats.quality import FLOOR
from bench.stats.summary import ALL, family_order
from bench.text import percent


def shortfalls(summary: pd.DataFrame) -> list[str]:
    """State what limits the quality scores: missing gold or scores, floors, unequal prompts.

    Only existing answers are scored, so a decoder that fails on hard prompts looks better.
    """
    scored: dict[str, dict[str, int]] = {}
    for row in summary_rows(summary[summary["family"] != ALL], None):
        counts = scored.setdefault(row.decoder, {})
        if is_number(row.quality):
            counts[row.family] = row.quality_prompts or 0
    families = family_order(family for counts in scored.values() for family in counts)
    baseline = scored.get(BASELINE, {})
    lines = []
    unscored = [f for f in family_order(set(summary["family"]) - {ALL}) if f not in families]
    if unscored and families:
        lines.append(f"No gold answers in {', '.join(unscored)}: see the agreement with ar.")
    floored = summary[(summary["decoder"] == BASELINE) & summary["quality_tells"].eq(False)]
    if names := ", ".join(floored.loc[floored["family"] != ALL, "family"]):
        lines.append(
            f"Scores of {names} cannot show a loss: ar's are at their floor (below "
            f"{percent(FLOOR)}, or within two standard errors of 0). They are in brackets and in "
            "no mean; see 'Likelihood lost against ar'."
        )
    for decoder, counts in scored.items():
        if missing := ", ".join(family for family in families if family not in counts):
            lines.append(
                f"{decoder} has no quality over all families: nothing scored in {missing}."
            )
        pairs = [(family, counts.get(family, 0), baseline.get(family, 0)) for family in families]
        unequal = [f"{family} {num} (ar {ars})" for family, num, ars in pairs if num != ars]
        if unequal and BASELINE in scored:
            line = f"Quality of {decoder} is from other numbers of prompts than ar's"
            lines.append(f"{line}: {', '.join(unequal)}.")
    return lines


def telling(summary: pd.DataFrame) -> str:
    """Name the families whose mean is the quality over all, unless it is that of all."""
    of_ar = summary[summary["decoder"].eq(BASELINE) & summary["family"].ne(ALL)]
    rows = [row for row in summary_rows(of_ar, None) if row.quality is not None]
    kept = [row.family for row in rows if row.quality_tells is not False]
    if len(kept) == len(rows):
        return ""
    return (
        f"Quality: {', '.join(kept) or 'no family'} only (telling_quality of summary.csv), as "
        f"{BASELINE} itself is at its floor elsewhere; summary.csv's quality is of all families."
    )


def looping(summary: pd.DataFrame) -> list[str]:
    """Name decoders whose answers loop, because loops are easy to draft."""
    lines, rows = [], summary_rows(summary, ALL)
    of_ar = next((row.repeated_trigrams for row in rows if row.decoder == BASELINE), None)
    for row in rows:
        if row.loops and row.repeated_trigrams is not None:
            line = f"{row.decoder} loops: {100 * row.repeated_trigrams:.0f} % of its 3-grams"
            aside = "" if of_ar is None else f" (ar {100 * of_ar:.0f} %)"
            line += f" repeat earlier ones of the answer{aside}; loops are easy to draft."
            lines.append(line)
    return lines


def cut_share(records: Sequence[SampleRecord]) -> float | None:
    """Return the share of answers that the limit of new tokens cut, or None without answers."""
    stops = [record.stop for record in records if record.error is None and record.stop is not None]
    return sum(stop == "length" for stop in stops) / len(stops) if stops else None


def behind_share(records: Sequence[SampleRecord]) -> float:
    """Return the share of tokens that follow an answer's end token."""
    total = sum(len(record.tokens or ()) for record in records)
    return sum(record.num_behind or 0 for record in records) / total if total else 0.0


def ends(records: Sequence[SampleRecord], decoders: Sequence[str]) -> Iterator[str]:
    """State which share of answers the limit cut, or else what follows their end tokens."""
    cells = group_by(records)
    behind = {name: behind_share(cells[name]) for name in decoders if name in cells}
    if any(behind.values()):
        yield (
            f"Behind the end: {_each(behind)} of the tokens follow an end token (--fixed-length); "
            "they are timed and counted, and not scored."
        )
        return
    shares = {name: cut_share(cells[name]) for name in decoders if name in cells}
    cut = {name: share for name, share in shares.items() if share is not None}
    if any(cut.values()):
        yield f"Cut by --max-new-tokens: {_each(cut)} of the answers."


def _each(shares: dict[str, float]) -> str:
    """Write shares by decoder, equal ones once."""
    names: dict[str, list[str]] = {}
    for name, share in shares.items():
        names.setdefault(f"{100 * share:.0f} %", []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return ", ".join(f"{share} ({', '.join(of)})" for share, of in names.items())
