"""State the findings of a run: the fastest decoder, resolution, limits of the numbers.

A decoder is called the fastest if its paired interval over every other decoder excludes 1 and the
difference exceeds the A/A floor. Otherwise the decoders that cannot be told apart are named.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pandas as pd

from bench.records.plan import BASELINE, CLAIMED, NO_GUARANTEE, NOT_VERIFIED, SAME_TOKENS, WRONG
from bench.records.record import SampleRecord
from bench.report.tables.table import interval, is_number, number, over, without_wrong
from bench.stats import times
from bench.stats.counters import group_by, ratio
from bench.stats.intervals import LEVEL, Estimate, paired_speedup
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.quality import FLOOR
from bench.stats.speedups import PRECISION
from bench.stats.summary import ALL, family_order
from bench.text import UNKNOWN, counted, factor, percent

WITHIN = f"±{100 * PRECISION:.0f} %"
_DATASHEETS = {"NVIDIA H100 80GB HBM3": 3.35e12, "NVIDIA H200": 4.8e12}
"""Memory bandwidth of GPUs in bytes per second, by NVIDIA's datasheets of H100 (SXM) and H200."""
_NO_CLAIM = {
    NOT_VERIFIED: "whose tokens differ from ar's and are not verified",
    NO_GUARANTEE: "which guarantees nothing",
    WRONG: "",
}
"""Guarantees that promise nothing, and the conclusion's words for the fastest such decoder."""
Rivals = Mapping[tuple[str, str], Estimate]
"""Speed-ups of one decoder over another, by (decoder, other decoder)."""


def rivals(records: Sequence[SampleRecord], decoders: Sequence[str]) -> Rivals:
    """Estimate the speed-up of each decoder over every other decoder, over all families."""
    units = times.units_by_decoder(records)
    return {
        (name, other): paired_speedup(units[other], units[name])
        for name, other in itertools.permutations(decoders, 2)
    }


def conclusion(summary: pd.DataFrame, pairs: Rivals) -> str:
    """State the result over all families: first decoders with a guarantee, then lossy ones."""
    rows = [row for row in summary_rows(summary, ALL) if row.decoder != row.over]
    failed = [row for row in rows if row.errors]
    timed = [row for row in rows if is_number(row.speedup) and row not in failed]
    candidates = [row for row in timed if row.guarantee not in (None, *_NO_CLAIM)]
    sentences = [_leaders_sentence(candidates, pairs)] if candidates else []
    for guarantee, clause in _NO_CLAIM.items():
        if group := [row for row in timed if clause and row.guarantee == guarantee]:
            best = _fastest(group)
            text = f"{best.decoder}, {clause}, is {_times(best)}"
            if is_number(best.quality):
                text += f" at quality {percent(best.quality, '')} %"
                for row in summary_rows(summary, ALL):
                    if row.decoder == row.over and is_number(row.quality):
                        text += f" ({row.over}: {percent(row.quality, '')} %)"
            if (lost := best.nll_over_ar) is not None:
                nats = f"{abs(lost):.2f} nats {'more' if lost < 0 else 'less'}"
                less = f"on average {nats} likely than"
                likely = less if round(lost, 2) else "as likely as"
                text += f"; under the target, its tokens are {likely} {BASELINE}'s"
            sentences.append(f"{text}.")
    sentences += [
        f"{row.decoder} claims to be lossless and is not." for row in rows if row.guarantee == WRONG
    ]
    sentences = sentences or [f"Nothing was compared with {over(summary)}."]
    sentences += [
        f"{row.decoder} failed on {counted(row.errors or 0, 'answer')} and is not ranked."
        for row in failed
    ]
    return " ".join(sentences)


def _leaders_sentence(rows: Sequence[SummaryRow], pairs: Rivals) -> str:
    """Name the fastest of the decoders with a guarantee, and those not shown to be slower.

    Decoders that are shown to be faster than the baseline come before decoders with higher
    estimates for which this is not shown.
    """
    above = [row for row in rows if (row.speedup_low or 0) > 1]
    faster = [row for row in above if row.estimate("speedup").exceeds(row.floor)]
    best = _fastest(faster or rows)
    num = len(rows)
    if not faster:
        text = f"{best.decoder} measures {_times(best)}"
        if num > 1:
            text = f"the highest of {num} estimates is {best.decoder}'s, {_times(best)}"
        text = f"No decoder with a guarantee is shown to be faster than {best.over}: {text}."
        if above:
            names = ", ".join(row.decoder for row in above)
            noise = f"{best.over} against itself differs by up to {factor(best.floor.noise)}"
            text += f" An interval above 1 ({names}) is not beyond the noise: {noise}."
        return text
    same = "tokens" if best.guarantee == SAME_TOKENS else "distribution"
    only = best.guarantee != SAME_TOKENS and best.checked == CLAIMED
    claims = "claims" if only else "guarantees"
    text = f"{best.decoder} is {_times(best)} and {claims} {BASELINE}'s {same}"
    if num == 1:
        return f"{text}."
    tied = not_slower(best, [row for row in rows if row is not best], pairs, best.floor)
    if not tied:
        return f"{text}: the fastest of {num} decoders with a guarantee."
    names = ", ".join([best.decoder, *tied])
    alike = f"the best {len(tied) + 1} of {num} decoders with a guarantee"
    return f"{text}; {alike} cannot be told apart ({names})."


def not_slower(
    best: SummaryRow, rest: Iterable[SummaryRow], pairs: Rivals, floor: Estimate
) -> list[str]:
    """Return the decoders that are not shown to be slower than the best.

    Args:
        best: the decoder that leads.
        rest: the decoders to compare with it.
        pairs: the speed-ups of `best` over each of them; one that is missing shows nothing.
        floor: the A/A noise floor, which a difference must exceed.
    """
    over = {other: pairs.get((best.decoder, other.decoder), Estimate()) for other in rest}
    return [
        other.decoder
        for other, pair in over.items()
        if not (pair.exceeds(floor) and (pair.low or 0) > 1)
    ]


def _fastest(rows: Sequence[SummaryRow]) -> SummaryRow:
    return max(rows, key=lambda row: row.speedup or 0.0)


def _times(row: SummaryRow) -> str:
    """Format ``2.52 times as fast as ar (95 % interval [2.14, 2.97], 28 prompts)``."""
    aside = counted(row.pairs or 0, "prompt" if row.batch_size in (None, 1) else "group")
    if (ends := interval(row.speedup_low, row.speedup_high)) != UNKNOWN:
        aside = f"{LEVEL} interval {ends}, {aside}"
    return f"{number(row.speedup)} times as fast as {row.over} ({aside})"


def primary_sentence(summary: pd.DataFrame, primary: str | None) -> str:
    """Name the run's primary comparison, and count the exploratory comparisons."""
    rows = [r for r in summary_rows(summary, None) if r.decoder != r.over and r.speedup is not None]
    if len({row.family for row in rows} - {ALL}) == 1:  # it has the same numbers as all families
        rows = [row for row in rows if row.family == ALL]
    there = any(row.decoder == primary and row.family == ALL for row in rows)
    num = len(rows) - there
    named = "No primary comparison was named"
    if there:
        named = f"Primary comparison: {primary} over {over(summary)}, all families"
    elif primary not in (None, "none"):
        named = f"The primary comparison, {primary} over {over(summary)}, could not be made"
    if not num:
        return f"{named}."
    rest = f"{counted(num, 'comparison')} by decoder and family {'is' if num == 1 else 'are'}"
    return f"{named}; {rest} exploratory, not adjusted for their number."


def resolution(summary: pd.DataFrame) -> str:
    """State the smallest differences from ar that the intervals can show, if there are intervals.

    A speed-up's interval [low, high] is symmetric in logarithms: its half-width is the factor
    ``sqrt(high / low)``: around a smaller speed-up, an interval of this width contains 1. For a
    quality, the smallest difference is the half-width of the interval, in points.
    """
    rows = summary_rows(without_wrong(summary), ALL)
    speeds, qualities = dict[SummaryRow, float](), dict[SummaryRow, float]()
    for row in rows:
        speed, quality = row.estimate("speedup"), row.estimate("quality")
        if row.decoder != row.over and speed.low and speed.high and speed.low > 0:
            speeds[row] = math.sqrt(speed.high / speed.low)
        if quality.low is not None and quality.high is not None and quality.low != quality.high:
            qualities[row] = (quality.high - quality.low) / 2
    units = "prompts" if all(row.batch_size in (None, 1) for row in rows) else "groups of prompts"
    parts = []
    if speeds:
        num = _range([row.pairs for row in speeds])
        widths = _widths(speeds, factor)
        parts.append(f"in speed below {widths} cannot be detected with {num} {units}")
    if qualities:
        num = _range([row.quality_prompts for row in qualities])
        widths = _widths(qualities, lambda width: f"{percent(width, '')} points")
        parts.append(f"in quality below {widths} cannot be detected with {num} held-out prompts")
    return f"Resolution: differences from {over(summary)} {'; '.join(parts)}." if parts else ""


def _widths(widths: Mapping[SummaryRow, float], text: Callable[[float], str]) -> str:
    """Format ``1.08x (spec) to 1.26x (idlm)``, or one width if all are equal."""
    low, high = min(widths, key=widths.__getitem__), max(widths, key=widths.__getitem__)
    first, last = text(widths[low]), text(widths[high])
    return first if first == last else f"{first} ({low.decoder}) to {last} ({high.decoder})"


def _range(counts: Sequence[int | None]) -> str:
    numbers = [count for count in counts if count is not None] or [0]
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def no_speedups(summary: pd.DataFrame) -> Iterable[str]:
    """Name the decoders that have no speed-up of their own, with the reason and the families."""
    families: dict[tuple[str, str], list[str]] = {}
    for row in summary_rows(summary, None):
        if row.no_speedup:
            families.setdefault((row.decoder, row.no_speedup), []).append(row.family)
    for (decoder, reason), where in families.items():
        yield f"{decoder} has no speed-up (-) in {', '.join(where)}: {reason}."


def weights_sentence(summary: pd.DataFrame, gpu: str | None) -> str:
    """State how fast ar reads weights, and its share of a GPU's published bandwidth, if known."""
    rows = (row for row in summary_rows(summary, ALL) if row.decoder == BASELINE)
    rate, peak = next((row.weights_per_s for row in rows), None), _DATASHEETS.get(gpu or "")
    if rate is None:
        return ""
    text = f"{BASELINE} reads the target's weights at {number(rate, ',.1f', 1e-9)} GB/s"
    return f"{text}{f', {percent(rate / peak)} of the datasheet of {gpu}' if peak else ''}."


def quality_limits(summary: pd.DataFrame) -> list[str]:
    """State what limits the quality scores: missing gold or scores, floors, unequal prompts."""
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
        advice = ": see the agreement with ar" * (BASELINE in scored)
        lines.append(f"No answer was scored in {', '.join(unscored)}{advice}.")
    floored = summary[(summary["decoder"] == BASELINE) & summary["quality_tells"].eq(False)]
    if names := ", ".join(floored.loc[floored["family"] != ALL, "family"]):
        lines.append(
            f"Scores of {names} cannot show a loss: ar's are at their floor (below "
            f"{percent(FLOOR)}, or within two standard errors of 0). They are in brackets and in "
            "no mean; see 'Likelihood lost against ar'."
        )
    if families and (names := ", ".join(each for each, counts in scored.items() if not counts)):
        lines.append(f"No answer scored, and so no quality: {names}.")
    for decoder, counts in scored.items():
        if missing := counts and ", ".join(each for each in families if each not in counts):
            lines.append(
                f"{decoder} has no quality over all families: nothing scored in {missing}."
            )
        pairs = [(family, counts.get(family, 0), baseline.get(family, 0)) for family in families]
        unequal = [f"{family} {num} (ar {ars})" for family, num, ars in pairs if num != ars]
        if counts and unequal and baseline:
            line = f"Quality of {decoder} is from other numbers of prompts than ar's"
            lines.append(f"{line}: {', '.join(unequal)}.")
    return lines


def telling(summary: pd.DataFrame) -> str:
    """Name the families whose mean is the overall quality, unless all families count."""
    of_ar = summary[summary["decoder"].eq(BASELINE) & summary["family"].ne(ALL)]
    rows = [row for row in summary_rows(of_ar, None) if row.quality is not None]
    kept = [row.family for row in rows if row.quality_tells is not False]
    if len(kept) == len(rows):
        return ""
    scored, rest = (f"{', '.join(kept)} only", "elsewhere") if kept else ("none", "everywhere")
    return (
        f"Quality: {scored} (telling_quality of summary.csv), as {BASELINE} itself is at its floor "
        f"{rest}; summary.csv's quality is of all families."
    )


def loop_sentences(summary: pd.DataFrame) -> list[str]:
    """Name decoders whose answers loop, because loops are easy to draft."""
    rows = [row for row in summary_rows(summary, ALL) if row.repeated_trigrams is not None]
    if not any(row.loops for row in rows):
        return []
    shown = (row for row in rows if row.loops or row.decoder == BASELINE)
    shares = ", ".join(f"{r.decoder} {percent(r.repeated_trigrams, places=0)}" for r in shown)
    line = "Some answers loop, and loops are easy to draft"
    return [f"{line}: shares of 3-grams that repeat earlier ones of the answer are {shares}."]


def ends(records: Sequence[SampleRecord], decoders: Sequence[str]) -> Iterator[str]:
    """State the share of answers that the limit cut, or the tokens behind their end tokens."""
    behind, cut = dict[str, float](), dict[str, float]()
    cells = group_by(records)
    for name in filter(cells.__contains__, decoders):
        answers = cells[name]
        num_behind = sum(record.num_behind or 0 for record in answers)
        behind[name] = ratio(num_behind, sum(len(r.tokens or ()) for r in answers)) or 0.0
        if stops := [r.stop for r in answers if r.error is None and r.stop is not None]:
            cut[name] = sum(stop == "length" for stop in stops) / len(stops)
    if any(behind.values()):
        yield (
            f"Behind the end: {_each(behind)} of the tokens follow an end token (--fixed-length); "
            "they are timed and counted, and not scored."
        )
    elif any(cut.values()):
        yield f"Cut by --max-new-tokens: {_each(cut)} of the answers."


def _each(shares: dict[str, float]) -> str:
    """Write shares by decoder, and equal shares once."""
    names = group_by(shares, lambda name: percent(shares[name], places=0))
    if len(names) == 1:
        return next(iter(names))
    return ", ".join(f"{share} ({', '.join(of)})" for share, of in names.items())
