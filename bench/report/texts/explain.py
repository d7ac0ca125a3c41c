"""`bench explain`: explain where a run's time went and what would help a decoder most.

Reads only the run folder. Without a second pass (`bench.measure.phases`), only the counters are
explained. "Would help" is an upper bound: the speed-up if that part cost nothing and all else
stayed the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from bench.records.plan import BASELINE, NO_GUARANTEE, WRONG
from bench.report.findings import Findings
from bench.report.tables.quality import telling
from bench.report.tables.speed import floor_note
from bench.report.tables.table import (
    Columns,
    Table,
    guarantee_label,
    number,
    speed,
)
from bench.report.tables.times import instrument_bias_note
from bench.report.texts.cost import cost_name, limit_lines
from bench.stats.cost_curve import Cost
from bench.stats.counters import Tally, ratio, timed
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
from bench.text import UNKNOWN, change, counted, factor, percent

_WORDS = {
    "prefill": "the prefill",
    "draft": "drafting",
    "verify": "verifying",
    "sampling": "sampling",
    "scheduler": "the scheduler",
    "other": "the decoder's own code",
}
_ALWAYS = 0.9
"""A mean above this share of the maximum counts as constant, because answers' ends cut drafts."""
_MOST_DRAFTS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Facts about one decoder; `drafted` is its mean number of drafts per step after the first."""

    row: SummaryRow
    split: Split | None
    parts: Decomposition | None
    drafted: float | None

    @property
    def words(self) -> Mapping[str, str]:
        """Names of phases; "predicting" replaces "verifying" for decoders that verify nothing."""
        verified = self.row.decoder == BASELINE or self.row.acceptance_rate is not None
        return _WORDS if verified else _WORDS | {"verify": "predicting"}

    def share(self, *phases: str) -> float | None:
        """Return the share of time in phases."""
        return None if self.split is None else sum(self.split.shares[phase] for phase in phases)


_OVERVIEW: Columns = {
    "decoder": lambda facts: facts.row.decoder,
    "speed-up": lambda facts: factor(facts.row.speedup),
    "tokens\nper step": lambda facts: number(facts.row.acceptance_length),
    "step costs\nar tokens": lambda facts: number(facts.parts and facts.parts.cost),
    "prefill\n%": lambda facts: number(facts.share("prefill"), ".0f", 100),
    "draft\n%": lambda facts: number(facts.share("draft"), ".0f", 100),
    "target\ncalls %": lambda facts: number(facts.share("verify"), ".0f", 100),
    "overhead\n%": lambda facts: number(facts.share(*OVERHEAD), ".0f", 100),
}


def print_explanation(findings: Findings, console: Console, cost: Cost | None = None) -> None:
    """Print a table of all decoders, then a paragraph about each, without wrapping in a pipe."""
    table = Table.of("", "", _OVERVIEW, _facts(findings))
    if table is not None:
        known = [
            i for i, _ in enumerate(_OVERVIEW) if {row[i].text for row in table.rows} != {UNKNOWN}
        ]
        console.print(table.to_rich({table.headings[i]: table.headings[i] for i in known}), "")
    text = Text("\n\n".join(explain(findings, cost)))
    console.print(text, soft_wrap=not console.is_terminal)


def _facts(findings: Findings) -> list[_Facts]:
    splits = {split.decoder: split for split in findings.splits}
    made = {item.decoder: item for item in findings.decompositions}
    return [
        _Facts(
            row=row,
            split=splits.get(row.decoder),
            parts=made.get(row.decoder),
            drafted=_drafted_per_step(findings, row.decoder),
        )
        for row in rows_of(findings.judged, ALL)
    ]


def explain(findings: Findings, cost: Cost | None = None) -> list[str]:
    """Explain a run in one paragraph per decoder, the baseline first.

    `cost` is a measured curve. Its shape decides the best number of drafts. If it was measured on
    the run's model and machine, ar's share of the machine's limit is stated.
    """
    if findings.summary.empty:
        return ["Nothing is measured yet."]
    lines = [f"{findings.name}: {findings.verdict}, {findings.status}."]
    lines += [
        f"Reason: {from_here(reason, findings.run.path)}." for reason in findings.validity.reasons
    ]
    for facts in _facts(findings):
        if facts.row.decoder == BASELINE:
            lines.append(_baseline(facts))
            lines += limit_lines(findings.run, cost) if cost is not None else []
        else:
            lines.append(_decoder(findings, facts, cost))
    if findings.splits:
        lines.append("A decoder's own code includes draft layers and heads that it runs itself.")
    else:
        lines.append(
            "This run has no second pass (phases.json), so how a step's cost splits into draft, "
            "verify and overhead is unknown; `bench run` with --phase-limit above 0 measures it."
        )
    below = (*instrument_bias_note(findings.splits), telling(findings.summary))
    return [*lines, *filter(None, below), findings.floor_sentence]


def _baseline(facts: _Facts) -> str:
    text = f"{BASELINE} takes {number(facts.row.time_per_token_s, '.2f', 1e3)} ms per token"
    if facts.split is None:
        return f"{text}."
    spent = {k: v for k, v in facts.split.shares.items() if k not in ("verify", "draft")}
    return (
        f"{text}: {percent(facts.share('verify'))} of its time is model calls after the first, "
        f"{_listed(spent, _WORDS)}."
    )


def _decoder(findings: Findings, facts: _Facts, cost: Cost | None) -> str:
    row, aside = facts.row, floor_note(facts.row)
    text = f"{row.decoder} was not compared with {BASELINE}."
    if row.speedup is not None:
        text = f"{row.decoder} is {speed(row).text} as fast as {BASELINE}, end to end"
        text += f" ({aside})." if aside else "."
    failed = [f"It failed on {counted(row.errors, 'answer')}."] if row.errors else []
    sentences = [text, *failed, _guarantee(row), *_step(facts)]
    if facts.split is not None:
        sentences.append(f"Its time: {_listed(facts.split.shares, facts.words)}.")
    sentences += _other_lengths(findings, facts, cost)
    if bounds := [f"{what} ({factor(value)})" for what, value in _bounds(facts)]:
        then = f", then {', '.join(bounds[1:])}" if bounds[1:] else ""
        sentences.append(
            f"What would help most (upper bounds): {bounds[0]}{then}; the ratio of totals is now "
            f"{factor(row.speedup_total)}."
        )
    elif row.speedup_total is not None:
        sentences.append("What would help most is unknown: nothing was drafted or split.")
    return " ".join(sentences)


def _guarantee(row: SummaryRow) -> str:
    if row.guarantee == WRONG:
        return f"It is {WRONG}: it claims to be lossless and is not, so its speed is meaningless."
    if row.guarantee != NO_GUARANTEE:
        return f"Its guarantee: {guarantee_label(row)}."
    lost = f", its quality is {percent(row.quality)}" if row.quality is not None else ""
    return f"It is lossy: it guarantees nothing{lost}."


def _step(facts: _Facts) -> list[str]:
    """Compare tokens per step with the cost of a step."""
    parts, words = facts.parts, facts.words
    if parts is None:
        length, decode = facts.row.acceptance_length, facts.row.speedup_decode
        if length is None or decode is None:
            return []
        return [
            f"A step after the first emits {number(length)} tokens and takes as long as "
            f"{length / decode:.2f} tokens of {BASELINE} (implied by its decode speed-up of "
            f"{factor(decode)})."
        ]
    sentences = [
        f"On the {counted(parts.prompts, 'prompt')} of the second pass, a step after the first "
        f"emits {parts.acceptance_length:.2f} tokens and takes as long as {parts.cost:.2f} tokens "
        f"of {BASELINE}: {words['verify']} {parts.verify:.2f}, {words['draft']} {parts.draft:.2f}, "
        f"overhead {parts.overhead:.2f}; this predicts {factor(parts.predicted)}. It pays off "
        f"above {parts.cost:.2f} tokens per step."
    ]
    if parts.residual is not None:
        text = f"Without instruments, {factor(parts.measured)} was measured there after the first "
        text += "token, a residual of "
        text += change(parts.residual)
        if abs(parts.residual) > MOST_RESIDUAL:
            text += ": one of the two passes was disturbed, so read the parts with care"
        sentences.append(f"{text}.")
    return sentences


def _other_lengths(findings: Findings, facts: _Facts, cost: Cost | None) -> list[str]:
    relative = None if cost is None else relative_at(cost, findings.run.records)
    found = _best_lengths(findings, facts, relative)
    if found is None or not facts.drafted:
        return []
    lengths, seen = found
    best, now = lengths.best, round(facts.drafted)
    guess = f", if drafts beyond position {seen} were accepted as often" if best > seen else ""
    costs = f"the costs measured in {cost_name(cost)}" if relative and cost else "these costs"
    return [
        f"Given its acceptance by position and {costs}, {best} drafts per step would be best"
        f"{guess}: {factor(lengths.speedups[best - 1])} after the first token, against "
        f"{factor(lengths.speedups[now - 1])} with {now} as now."
    ]


def best_drafts(findings: Findings, cost: Cost) -> dict[str, int]:
    """Return the best number of drafts for each decoder with a constant number of drafts."""
    relative = relative_at(cost, findings.run.records)
    found = {f.row.decoder: _best_lengths(findings, f, relative) for f in _facts(findings)}
    return {decoder: lengths[0].best for decoder, lengths in found.items() if lengths is not None}


def _best_lengths(
    findings: Findings, facts: _Facts, relative: Callable[[float], float] | None
) -> tuple[DraftLength, int] | None:
    """Return speed-ups with other numbers of drafts, and the number of positions measured.

    Return None if the number of drafts varies: steps with many drafts then differ from the others.
    """
    table, drafted, decoder = findings.acceptance, facts.drafted, facts.row.decoder
    mine = table[(table["family"] == ALL) & (table["decoder"] == decoder)].sort_values("position")
    joint = [float(value) for value in mine["joint"].dropna()]
    if facts.parts is None or not drafted or round(drafted) > _MOST_DRAFTS or len(joint) < 2:
        return None
    records = [r for r in timed(findings.run.records) if r.decoder == decoder]
    depths = [count for r in records if r.steps is not None for count in r.steps.depths]
    if drafted < _ALWAYS * max(depths, default=0):
        return None
    lengths = draft_length(facts.parts, joint, drafted, _MOST_DRAFTS, relative)
    return None if lengths is None else (lengths, len(joint))


def _drafted_per_step(findings: Findings, decoder: str) -> float | None:
    mine = [record for record in findings.run.records if record.decoder == decoder]
    tally = Tally.pool(timed(mine))
    return ratio(tally.depth, tally.later_steps) or None


def _bounds(facts: _Facts) -> list[tuple[str, float]]:
    """Return possible savings with the resulting speed-ups, the largest first.

    Amdahl's law is applied to the ratio of totals: without a share s of its time, a decoder is
    1 / (1 - s) times as fast. If all drafts were accepted, fewer steps would follow the first.
    """
    row, split, parts = facts.row, facts.split, facts.parts
    if row.speedup_total is None:
        return []
    shares: dict[str, float] = {}
    prefill = _prefill_share(row) if split is None else split.shares["prefill"]
    length = parts.acceptance_length if parts else row.acceptance_length
    if facts.drafted and length is not None and prefill is not None:
        saved = (1 - prefill) * (1 - length / (1 + facts.drafted))
        shares["drafts that are all accepted"] = saved
    if prefill is not None:
        shares["a free prefill"] = prefill
    if split is not None:
        shares["free drafting"] = split.shares["draft"]
        overhead = sum(split.shares[phase] for phase in OVERHEAD)
        shares["no overhead (sampling, scheduler, own code)"] = overhead
    if split is not None and parts is not None and parts.verify > 1:
        saved = split.shares["verify"] * (1 - 1 / parts.verify)
        shares[f"{facts.words['verify']} at the cost of one token"] = saved
    total = row.speedup_total
    bounds = [(what, total / (1 - share)) for what, share in shares.items() if 0.005 < share < 1]
    return sorted(bounds, key=lambda pair: -pair[1])


def _prefill_share(row: SummaryRow) -> float | None:
    """Return the first token's share of an answer's time, from the timed pass."""
    if row.ttft_s is None or row.time_per_token_s is None or row.tokens is None:
        return None
    answers = (row.prompts or 0) * (row.repeats or 0)
    return min(1.0, row.ttft_s * answers / (row.time_per_token_s * row.tokens))


def _listed(shares: Mapping[str, float], words: Mapping[str, str]) -> str:
    ranked = sorted(shares.items(), key=lambda pair: -pair[1])
    return ", ".join(
        f"{percent(share)} {words[phase]}" for phase, share in ranked if share >= 0.0005
    )
