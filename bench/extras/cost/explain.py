"""Explain a run's time and the largest possible gains of a decoder, for `bench explain`.

Only the run folder is read. A run without a second pass (`bench.measure.phases`) has speed-ups, but
no explanation. "Would help" is an upper bound: the speed-up if that part cost nothing and all else
stayed the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from bench.extras.cost.curve import Cost
from bench.extras.cost.limit import limit_lines
from bench.extras.sections import durations
from bench.extras.sections.durations import Decomposition, Split, speedup_parts, time_splits
from bench.records.plan import NO_GUARANTEE, WRONG
from bench.report.findings import Findings
from bench.report.tables.conclusion import telling
from bench.report.tables.table import guarantee_label, number, speed
from bench.stats.counters import Tally, group_by, ratio, timed, timed_steps
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.summary import ALL
from bench.text import change, counted, factor, percent

_WORDS = {
    "prefill": "the prefill",
    "draft": "drafting",
    "verify": "verifying",
    "sampling": "sampling",
    "scheduler": "the scheduler",
    "other": "the decoder's own code",
}
_MAX_BOUNDS = 2
"""Number of possible gains that are named, the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Hold facts about one decoder, with its mean number of drafts per step after the first."""

    row: SummaryRow
    split: Split | None
    parts: Decomposition | None
    drafted: float | None

    @property
    def words(self) -> Mapping[str, str]:
        """Names of phases, with "predicting" for "verifying" if the decoder verifies nothing."""
        verified = self.row.decoder == self.row.over or self.row.acceptance_rate is not None
        return _WORDS if verified else _WORDS | {"verify": "predicting"}


def print_explanation(findings: Findings, console: Console, cost: Cost | None = None) -> None:
    """Print the verdict, and an explanation of each decoder in three lines."""
    lines = "\n".join(explain(findings, cost))
    console.print(Text(lines), soft_wrap=not console.is_terminal)


def _facts(findings: Findings) -> list[_Facts]:
    splits = {split.decoder: split for split in findings.once(time_splits)}
    parts = {item.decoder: item for item in findings.once(speedup_parts)}
    answers = group_by(findings.run.records)
    return [
        _Facts(
            row=row,
            split=splits.get(row.decoder),
            parts=parts.get(row.decoder),
            drafted=ratio(tally.depth, tally.later_steps) or None,
        )
        for row in summary_rows(findings.report_summary, ALL)
        for tally in [Tally.pool(timed(answers.get(row.decoder, ())))]
    ]


def explain(findings: Findings, cost: Cost | None = None) -> list[str]:
    """Explain a run in at most three lines per decoder, the baseline first.

    `cost` is a measured curve. If it was measured on the run's model and machine, ar's share of the
    machine's limit is stated.
    """
    if findings.summary.empty:
        return ["Nothing is measured yet."]
    lines = [f"{findings.name}: {findings.verdict}, {findings.status}."]
    lines += [f"Reason: {reason}." for reason in findings.validity.reasons]
    for facts in _facts(findings):
        if facts.row.decoder == facts.row.over:
            text = (
                f"{facts.row.decoder}: {number(facts.row.time_per_token_s, '.2f', 1e3)} ms a token"
            )
            if facts.split is not None:
                calls = percent(facts.split.shares["verify"])
                rest = [
                    f"{percent(share)} {_WORDS[phase]}"
                    for phase, share in sorted(facts.split.shares.items(), key=lambda p: -p[1])
                    if share >= 0.0005 and phase not in ("verify", "draft")
                ]
                text += f": {calls} model calls after the first, {', '.join(rest)}"
            lines += [text, *(limit_lines(findings.run, cost) if cost is not None else ())]
        else:
            lines += _decoder(facts)
    legend = (
        "Step: tokens it emits, and its cost in tokens of the baseline, in the second pass (noise: "
        "the passes disagree). Help: upper bounds, the speed-up if that part cost nothing. "
        "Overhead: sampling, scheduler, a decoder's own code."
        if findings.once(time_splits)
        else "This run has no second pass (phases.json), so how a step's cost splits into draft, "
        "verify and overhead is unknown; `bench run` with --phase-limit above 0 measures it."
    )
    below = (*durations.instrument_bias_note(findings.once(time_splits)), telling(findings.summary))
    return [*lines, "", legend, *filter(None, below), findings.floor_sentence]


def _decoder(facts: _Facts) -> list[str]:
    """Return a decoder's lines: its speed-up, whether its steps pay off, and possible gains."""
    row, parts, words = facts.row, facts.parts, facts.words
    text = row.no_speedup or f"not compared with {row.over}"
    text = text if row.speedup is None else speed(row).text
    failed = f", failed on {counted(row.errors, 'answer')}" if row.errors else ""
    if row.guarantee == WRONG:
        guarantee = f"{WRONG}: it claims to be lossless and is not, so its speed is meaningless"
    elif row.guarantee != NO_GUARANTEE:
        guarantee = guarantee_label(row)
    else:
        guarantee = "lossy" if row.quality is None else f"lossy, quality {percent(row.quality)}"
    lines = [f"{row.decoder}: {text}, {guarantee}{failed}"]
    if parts is not None:
        step = (
            f"step: {parts.acceptance_length:.2f} tokens, costs {parts.cost:.2f}: "
            f"{words['verify']} {parts.verify:.2f}, {words['draft']} {parts.draft:.2f}, "
            f"overhead {parts.overhead:.2f}"
        )
        if parts.residual is not None and abs(parts.residual) > durations.MAX_RESIDUAL:
            off = f"off by {change(parts.residual)}: noise"
            step += f"; predicts {factor(parts.predicted)}, {off}"
        lines.append(f"  {step}")
    if bounds := _bounds(facts)[:_MAX_BOUNDS]:
        helps = ", ".join(f"{saving} {factor(value)}" for saving, value in bounds)
        lines.append(f"  help: {helps}")
    return lines


def draft_costs(findings: Findings) -> dict[str, float]:
    """Return the cost of a draft call in tokens of ar, by decoder, from the second pass."""
    costs = {}
    for facts in _facts(findings):
        steps = timed_steps(r for r in findings.run.records if r.decoder == facts.row.decoder)
        counts = [(sum(each.draft_calls[1:]), len(each.draft_calls) - 1) for each in steps]
        num_calls, num_steps = map(sum, zip(*counts, strict=True)) if counts else (0, 0)
        if facts.parts is not None and num_calls:
            costs[facts.row.decoder] = facts.parts.draft * num_steps / num_calls
    return costs


def _bounds(facts: _Facts) -> list[tuple[str, float]]:
    """Return possible savings with the resulting speed-ups, the largest first.

    Amdahl's law is applied to the ratio of totals: without a share s of its time, a decoder is
    1 / (1 - s) times as fast. If all drafts were accepted, fewer steps would follow the first.
    """
    row, split, parts = facts.row, facts.split, facts.parts
    if row.speedup_total is None or split is None:
        return []
    shares: dict[str, float] = {}
    prefill = split.shares["prefill"]
    length = parts.acceptance_length if parts else row.acceptance_length
    if facts.drafted and length is not None:
        shares["all drafts accepted"] = (1 - prefill) * (1 - length / (1 + facts.drafted))
    shares["free prefill"] = prefill
    shares["free drafting"] = split.shares["draft"]
    shares["no overhead"] = sum(split.shares[phase] for phase in durations.OVERHEAD)
    if parts is not None and parts.verify > 1:
        verify = f"{facts.words['verify']} as cheap as one token"
        shares[verify] = split.shares["verify"] * (1 - 1 / parts.verify)
    total = row.speedup_total
    bounds = [(name, total / (1 - share)) for name, share in shares.items() if 0.005 < share < 1]
    return sorted(bounds, key=lambda pair: -pair[1])
