"""`bench explain`: in words, where a run's time went and what would help a decoder most.

Reads the run folder alone. A run without a second pass (`bench.measure.phases`) is explained as far
as its counters go, and what is missing is said. "Would help" is a bound: the speed-up if that part
cost nothing, all else as it was. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.records.plan import BASELINE, NO_GUARANTEE, WRONG
from bench.report.findings import Findings
from bench.report.tables import speed as speed_tables
from bench.report.tables import table as tables
from bench.report.tables.table import number
from bench.report.tables.times import instrument_bias_note
from bench.report.texts.limits import cost_name, limit_lines
from bench.stats.cost_curve import Cost
from bench.stats.counters import Tally, group_by, ratio, timed
from bench.stats.decompose import (
    MOST_RESIDUAL,
    OVERHEAD,
    Decomposition,
    DraftLength,
    Split,
    draft_length,
)
from bench.stats.limit import relative_at
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
from bench.stats.validity import from_here
from bench.text import change, factor, percent

_WORDS = {
    "prefill": "the prefill",
    "draft": "drafting",
    "verify": "verifying",
    "sampling": "sampling",
    "scheduler": "the scheduler",
    "other": "the decoder's own code",
}
_UNVERIFIED = _WORDS | {"verify": "predicting"}
"""Of a decoder that verifies nothing."""
Row = Mapping[str, Any]
_ALWAYS = 0.9
"""A decoder drafts as many each step if their mean is this share of the most; answers' ends cut."""
_MOST_DRAFTS = 16


def explain(findings: Findings, cost: Cost | None = None) -> list[str]:
    """The explanation, a paragraph a decoder; the baseline's first.

    `cost` is a measured curve: the best number of drafts follows its shape, and ar's share of the
    machine's limit is said where it is of the run's own model and machine.
    """
    if findings.summary.empty:
        return ["Nothing is measured yet."]
    splits = {split.decoder: split for split in findings.splits}
    made = {item.decoder: item for item in findings.decompositions}
    lines = [f"{findings.name}: {findings.verdict}, {findings.status}."]
    lines += [
        f"Reason: {from_here(reason, findings.run.path)}." for reason in findings.validity.reasons
    ]
    for row in rows_of(findings.summary, ALL):
        name = row.decoder
        if name == BASELINE:
            lines.append(_baseline(row, splits.get(name)))
            lines += limit_lines(findings.run, cost) if cost is not None else []
        else:
            lines.append(_decoder(findings, row, splits.get(name), made.get(name), cost))
    if not splits:
        lines.append(
            "This run has no second pass (phases.json), so how a step's cost splits into draft, "
            "verify and overhead is unknown; `bench run` with --phase-limit above 0 measures it."
        )
    lines += [*instrument_bias_note(splits.values()), findings.floor_sentence]
    return lines


def _baseline(row: SummaryRow, split: Split | None) -> str:
    text = f"{BASELINE} takes {number(row.time_per_token_s, '.2f', 1e3)} ms per token"
    if split is None:
        return f"{text}."
    calls = split.shares["verify"]
    spent = {k: v for k, v in split.shares.items() if k not in ("verify", "draft")}
    return (
        f"{text}: {percent(calls)} of its time are calls of the model after the first, "
        f"{_listed(spent)}."
    )


def _decoder(
    findings: Findings,
    row: SummaryRow,
    split: Split | None,
    parts: Decomposition | None,
    cost: Cost | None,
) -> str:
    aside = speed_tables.floor_note(row)
    words = _WORDS if tables.kind_of_step(row) == "accepted" else _UNVERIFIED
    sentences = [
        f"{row.decoder} is {tables.speed(row).text} as fast as {BASELINE}, end to end"
        + (f" ({aside})." if aside else "."),
        _promised(row),
        *_step(row, parts, words),
    ]
    if split is not None:
        sentences.append(f"Its time: {_listed(split.shares, words)}.")
    drafted = drafted_per_step(findings, row.decoder)
    sentences += _other_lengths(findings, row.decoder, parts, drafted, cost)
    bounds = _bounds(row, split, parts, drafted, words)
    if bounds:
        first, *others = [f"{what} ({factor(speed)})" for what, speed in bounds]
        sentences.append(
            f"What would help most, at best: {first}" + _then(others) + f"; it is "
            f"{factor(row.speedup_total)} now, as a ratio of totals."
        )
    elif row.speedup_total is not None:
        sentences.append("What would help most cannot be told: nothing was drafted or split.")
    return " ".join(sentences)


def _promised(row: SummaryRow) -> str:
    """What its answers are, against ar's."""
    if row.guarantee == WRONG:
        return f"It is {WRONG}: it claims to be lossless and is not, so its speed says nothing."
    if row.guarantee != NO_GUARANTEE:
        return f"Its guarantee: {tables.guarantee_label(row)}."
    lost = f", its quality is {percent(row.quality)}" if row.quality is not None else ""
    return f"It is lossy: it guarantees nothing{lost}."


def _step(row: SummaryRow, parts: Decomposition | None, words: Mapping[str, str]) -> list[str]:
    """Tokens per step against the cost of a step."""
    if parts is None:
        length, speed = row.acceptance_length, row.speedup_decode
        if length is None or speed is None:
            return []
        cost = length / speed
        return [
            f"A step after the first emits {number(length)} tokens and is worth {cost:.2f} tokens "
            f"of {BASELINE}'s time (implied by its decode speed-up of {factor(speed)})."
        ]
    sentences = [
        f"A step after the first emits {parts.acceptance_length:.2f} tokens and costs "
        f"{parts.cost:.2f} tokens of {BASELINE}'s time: {words['verify']} {parts.verify:.2f}, "
        f"{words['draft']} {parts.draft:.2f}, overhead {parts.overhead:.2f}; that makes "
        f"{factor(parts.predicted)}. It pays from {parts.cost:.2f} tokens a step on."
    ]
    if parts.residual is not None:
        text = f"Timed without instruments it was {factor(parts.measured)}, a residual of "
        text += f"{change(parts.residual)}"
        if abs(parts.residual) > MOST_RESIDUAL:
            text += ": one of the two passes was disturbed, so read the parts with care"
        sentences.append(f"{text}.")
    return sentences


def _other_lengths(
    findings: Findings,
    decoder: str,
    parts: Decomposition | None,
    drafted: float | None,
    cost: Cost | None,
) -> list[str]:
    """How many drafts a step would be best."""
    relative = None if cost is None else relative_at(cost, findings.run.records)
    found = best_lengths(findings, decoder, parts, drafted, relative)
    if found is None or not drafted:
        return []
    lengths, seen = found
    best, now = lengths.best, round(drafted)
    guess = f", if drafts after the {seen}th were accepted as often as it is" if best > seen else ""
    costs = "these costs" if relative is None else f"the costs measured in {cost_name(cost)}"
    return [
        f"By its acceptance at each position and {costs}, {best} drafts a step would be best"
        f"{guess}: {factor(lengths.speedups[best - 1])} after the first token, with {now} as now "
        f"{factor(lengths.speedups[now - 1])}."
    ]


def best_lengths(
    findings: Findings,
    decoder: str,
    parts: Decomposition | None,
    drafted: float | None,
    relative: Callable[[float], float] | None,
) -> tuple[DraftLength, int] | None:
    """What other numbers of drafts would give, and how many positions that rests on.

    For a decoder that always drafts as many: where their number varies, the steps that draft far
    are not like the others, and nothing is said.
    """
    table = findings.acceptance
    mine = table[(table["family"] == ALL) & (table["decoder"] == decoder)].sort_values("position")
    joint = [float(value) for value in mine["joint"].dropna()]
    if parts is None or not drafted or round(drafted) > _MOST_DRAFTS or len(joint) < 2:
        return None
    if drafted < _ALWAYS * max(_draft_counts(findings, decoder), default=0):
        return None
    lengths = draft_length(parts, joint, drafted, _MOST_DRAFTS, relative)
    return None if lengths is None else (lengths, len(joint))


def _draft_counts(findings: Findings, decoder: str) -> set[int]:
    """The numbers of drafts that the steps of a decoder had."""
    records = [r for r in timed(findings.run.records) if r.decoder == decoder]
    return {count for r in records if r.steps is not None for count in r.steps.depths}


def _bounds(
    row: SummaryRow,
    split: Split | None,
    parts: Decomposition | None,
    drafted: float | None,
    words: Mapping[str, str],
) -> list[tuple[str, float]]:
    """What could be saved and the speed-up that would follow, the largest first.

    By Amdahl's law from the ratio of totals: without a share s of its time a decoder is 1
    / (1 - s) times as fast. Were all drafts accepted, the steps after the first would be fewer.
    """
    if row.speedup_total is None:
        return []
    shares: dict[str, float] = {}
    prefill = _prefill_share(row) if split is None else split.shares["prefill"]
    length = parts.acceptance_length if parts else row.acceptance_length
    if drafted and length is not None and prefill is not None:
        shares["drafts that are all accepted"] = (1 - prefill) * (1 - length / (1 + drafted))
    if prefill is not None:
        shares["a free prefill"] = prefill
    if split is not None:
        shares["free drafting"] = split.shares["draft"]
        shares["no overhead (sampling, scheduler, own code)"] = sum(
            split.shares[phase] for phase in OVERHEAD
        )
    if split is not None and parts is not None and parts.verify > 1:
        saved = split.shares["verify"] * (1 - 1 / parts.verify)
        shares[f"{words['verify']} at the cost of one token"] = saved
    speed = row.speedup_total
    bounds = [(what, speed / (1 - share)) for what, share in shares.items() if 0.005 < share < 1]
    return sorted(bounds, key=lambda pair: -pair[1])


def _prefill_share(row: SummaryRow) -> float | None:
    """The first token's share of an answer's time, from the timed pass."""
    if row.ttft_s is None or row.time_per_token_s is None or row.tokens is None:
        return None
    answers = (row.prompts or 0) * (row.repeats or 0)
    return min(1.0, row.ttft_s * answers / (row.time_per_token_s * row.tokens))


def drafted_per_step(findings: Findings, decoder: str) -> float | None:
    """Drafts in a row per step after the first; None where nothing is drafted."""
    cells = group_by(findings.run.records, lambda record: record.decoder)
    tally = Tally.pool(timed(cells.get(decoder, [])))
    return ratio(tally.depth, tally.later_steps) or None


def _listed(shares: Mapping[str, float], words: Mapping[str, str] = _WORDS) -> str:
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])
    return ", ".join(
        f"{percent(share)} {words[phase]}" for phase, share in ranked if share >= 0.0005
    )


def _then(others: list[str]) -> str:
    return f", then {', '.join(others)}" if others else ""
