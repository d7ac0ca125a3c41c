"""Report parallel decoding: rounds, passes, losses against ar, drafters, memories, settings.

`bench.stats.parallel_counters` has the counters' formulas, `lists` and `aup` have further tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pandas as pd

from bench.extras.sections.aup import area, curves
from bench.extras.sections.families import by_family
from bench.extras.sections.lists import ceilings
from bench.records.plan import BASELINE, NO_GUARANTEE, NOT_VERIFIED, Cell
from bench.records.record import SampleRecord
from bench.report.figures.style import GREY, Look
from bench.report.findings import Findings
from bench.report.sections import WITH_INTERVALS, Figure, Plot, Section
from bench.report.tables.table import (
    Columns,
    Table,
    TableCell,
    interval,
    is_number,
    number,
    with_interval,
)
from bench.stats.counters import Tally, group_by, timed
from bench.stats.intervals import LEVEL
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.parallel_counters import LOOP_EXCESS, LOOP_SHARE
from bench.stats.summary import ALL, family_order
from bench.text import percent

_ROUNDS: Columns = {
    "decoder": lambda r: r.decoder,
    "tokens per forward": lambda r: number(r.tpf),
    "rows per token": lambda r: number(r.rows_per_token),
    "cold %": lambda r: percent(r.cold_rounds, ""),
    "all accepted %": lambda r: percent(r.accepted_rounds, ""),
    "one rejected %": lambda r: percent(r.rejected_rounds, ""),
    "overlap": lambda r: number(r.overlap, ".3f"),
    "alpha": lambda r: number(r.alpha_all, ".3f"),
    "tokens per block": lambda r: number(r.tokens_per_block, ".1f"),
    "passes per block": lambda r: number(r.passes_per_block),
    "passes p95": lambda r: number(r.passes_per_block_p95, ".0f"),
}
_FRONT = " The dashed line is the Pareto front: decoders whose quality no faster decoder equals."
_MIN_DECODERS = 3
"""Smallest number of block decoders for the figure of passes."""


def rounds(summary: pd.DataFrame) -> Table:
    """Make the table of rounds, distributions and passes, for decoders that have such counters."""
    note = (
        "Shares of steps after the prefill that verified nothing (cold), accepted all drafts, or "
        "rejected one. Overlap: mean over tested drafts of the probability mass shared by their "
        "distribution and ar's; alpha: mean over emitted tokens of min(1, ar / draft). Passes: how "
        "often a block was predicted; its tokens are those that EOS and the budget left. '-': "
        "undefined for this decoder."
    )
    rows = [
        row
        for row in summary_rows(summary, ALL)
        if is_number(row.cold_rounds) or is_number(row.passes_per_block)
    ]
    return Table.of("Rounds and passes", note, _ROUNDS, rows)


def likelihood(summary: pd.DataFrame) -> Table:
    """Make the table of likelihood lost against ar's answers, if it is known."""
    rest = summary[(summary["decoder"] != BASELINE) & summary["nll_over_ar"].notna()]
    note = (
        "Negative log-likelihood per token of the quality pass's answers under the target "
        "(teacher-forced, temperature 1) minus that of ar's answers to the same prompts, in nats; "
        f"{LEVEL} jackknife interval over conversations, bold if it excludes 0. Needs no gold "
        "answers and has no floor. Loops have a high likelihood: read it with the repetition."
    )

    def lost(row: SummaryRow) -> TableCell:
        low, high = row.nll_over_ar_low or 0.0, row.nll_over_ar_high or 0.0
        ends = interval(row.nll_over_ar_low, row.nll_over_ar_high)
        text = with_interval(number(row.nll_over_ar, "+.2f"), ends)
        return TableCell(text, bold=low > 0 or high < 0)

    return by_family(rest, "Likelihood lost against ar by family", note, lost)


def agreement(summary: pd.DataFrame) -> Table | None:
    """Make the table of agreement with ar's answers, unless all agree."""
    rest = summary[(summary["decoder"] != BASELINE) & summary["shared_with_ar"].notna()]
    if (rest["shared_with_ar"] == 1).all():
        return None
    note = (
        "Timed answers: % of ar's tokens before the first difference / % of answers identical to "
        "ar's. Needs no gold answers. '-': the decoder samples independently of ar (temperature "
        "above 0, not coupled)."
    )
    return by_family(
        rest,
        "Agreement with ar by family",
        note,
        lambda r: f"{percent(r.shared_with_ar, '')} / {percent(r.identical_to_ar, '')}",
    )


def repetition(summary: pd.DataFrame) -> Table:
    """Make the table of repeated 3-grams, with loops in red, if they were counted."""
    counted = summary[summary["repeated_trigrams"].notna()]
    note = (
        "% of 3-grams that already occurred in the same answer. Loops: above "
        f"{100 * LOOP_SHARE:.0f} %, or more than {100 * LOOP_EXCESS:.0f} points above ar's."
    )

    def share(row: SummaryRow) -> TableCell:
        text = percent(row.repeated_trigrams, "")
        return TableCell(f"{text} (loops)", bad=True) if row.loops else TableCell(text)

    return by_family(counted, "Repetition by family", note, share)


def accepted_by_drafter(records: Iterable[SampleRecord]) -> dict[str, int]:
    """Count accepted drafts by drafter, if there were several drafters."""
    counts: Counter[str] = Counter()
    for record in timed(records):
        for indices in record.steps.source if record.steps is not None else ():
            counts.update(record.drafters[index] for index in indices)
    return dict(counts)


def by_drafter(records: Sequence[SampleRecord]) -> Table:
    """Make the table of accepted drafts per step, for decoders with several drafters."""
    columns: Columns = {
        "decoder": lambda row: row[0],
        "drafter": lambda row: row[1],
        "accepted per step": lambda row: number(row[2]),
    }
    rows = [
        (decoder, drafter, num / Tally.pool(timed(group)).later_steps)
        for decoder, group in group_by(records).items()
        for drafter, num in sorted(accepted_by_drafter(group).items())
    ]
    note = "Accepted drafts / steps after the prefill. The target adds one token to each step."
    return Table.of("Accepted drafts by drafter", note, columns, rows)


def memory(cells: Sequence[Cell], records: Sequence[SampleRecord]) -> Table:
    """Make the table of tokens per step by answers seen, if a decoder remembers."""
    rows = [cell for cell in cells if cell.drafts] if any(c.remembers for c in cells) else []
    seen: defaultdict[tuple[str, int], list[SampleRecord]] = defaultdict(list)
    by_repeat = group_by(timed(records if rows else ()), lambda r: f"{r.decoder} {r.repeat}")
    for group in by_repeat.values():
        for num, record in enumerate(group):
            seen[record.decoder, (num.bit_length() + 1) // 2].append(record)
    columns: Columns = {"decoder": lambda c: c.cell, "remembers": lambda c: c.remembers or "-"}
    for size in sorted({size for _, size in seen}):
        rates = {c.cell: number(Tally.pool(seen[c.cell, size]).acceptance_length) for c in cells}
        title = f"{4 ** (size - 1)}-{4**size - 1}" if size else "0"
        columns[title] = partial(lambda rates, cell: str(rates[cell.cell]), rates)
    note = (
        "Tokens / steps after the prefill, pooled, by the number of answers before in the repeat. "
        "A column has the same prompts for every decoder: compare decoders, not columns."
    )
    return Table.of("Tokens per step by answers seen", note, columns, rows)


def passes_figure(summary: pd.DataFrame) -> Plot | None:
    """Draw quality against passes per block, a panel per family, with ar as the grey line.

    Cells of one decoder whose labels differ in the number at their end form a curve, which begins
    with a decoder of a single pass.
    """
    from bench.report.figures import canvas  # matplotlib: only where something is drawn

    data = summary[["decoder", "family", "passes_per_block", "quality"]].dropna()
    if data["decoder"].nunique() < _MIN_DECODERS:
        return None
    look = Look.of(summary)
    baseline = summary[summary["decoder"] == BASELINE].set_index("family")["quality"]
    decoders = list(data["decoder"].unique())
    first = data.loc[data["passes_per_block"] == 1, "decoder"].unique()[:1]
    families = [family for family in family_order(data["family"]) if family != ALL]
    families = [*families, ALL] if len(families) > 1 else [ALL]
    figure, grid = canvas.panels(len(families), 1.5)
    for family, axes in zip(families, grid, strict=True):
        axes.set_title(family.replace("_", " "), fontsize=9)
        rows = data[data["family"] == family].sort_values("passes_per_block", kind="stable")
        for cells in curves(decoders).values():
            if len(cells) > 1:
                line = rows[rows["decoder"].isin([*first, *cells])]
                style: dict[str, Any] = {"color": look.palette[cells[0]], "lw": 0.9, "alpha": 0.7}
                axes.plot(line["passes_per_block"], line["quality"], **style)
        for row in rows.to_dict("records"):
            axes.plot(row["passes_per_block"], row["quality"], ms=4, **look.marker(row["decoder"]))
        axes.axhline(float(baseline.get(family, float("nan"))), color=GREY, lw=1.2)
        axes.set_ylim(0, 1.04)
        canvas.percent_ticks(axes.yaxis, 4)
        canvas.whole(axes.xaxis, 4)
    canvas.key(figure, decoders, look)
    aside = "" if baseline.dropna().empty else " (grey line: ar)"
    figure.supxlabel(f"passes per block{aside}", fontsize=9)
    figure.supylabel("quality", fontsize=9)
    return figure, data.reset_index(drop=True)


def _pareto(_: Findings, summary: pd.DataFrame) -> Plot | None:
    from bench.extras.sections.pareto import quality_speed_figure  # matplotlib

    return quality_speed_figure(summary)


def _caption(data: pd.DataFrame) -> str:
    """Describe the figure of quality and speed, as far as parts are drawn."""
    front = _FRONT
    methods = " Thin lines join the settings of a method." * any(data["method"])
    if data["front"].sum() < 2:
        alone = ", ".join(data.loc[data["front"], "decoder"])
        why = f"is {alone} alone" if alone else "is not drawn: a loss of quality would not show"
        front = f" The Pareto front {why}."
    claims = data[~data["guarantee"].isin([NO_GUARANTEE, NOT_VERIFIED])]
    shared = claims[claims["quality"].round(9).duplicated(keep=False)]
    ticks = " Ticks: decoders with a guarantee that share one quality" if len(shared) else ""
    if (shared["quality_low"] < shared["quality_high"]).any():
        ticks += "; the grey band is its interval"
    return (
        f"Quality against speed-up{WITH_INTERVALS}: up and right is better.{front}{methods} "
        f"Qualities that their intervals cannot tell apart count as equal.{ticks and f'{ticks}.'}"
    )


_FIGURES = (
    Figure(
        "quality_speed",
        _caption,
        "no decoder was both timed against {base} and scored",
        _pareto,
        3,
    ),
    Figure(
        "passes",
        "Quality against predictions (passes) per block.",
        "fewer than three decoders predict blocks and were scored",
        lambda _, summary: passes_figure(summary),
        12,
    ),
)


SECTION = Section(
    "parallel",
    lambda f: [
        *(make(f.report_summary) for make in (rounds, likelihood, agreement, repetition, area)),
        by_drafter(f.run.records),
        memory(f.run.plan.cells, f.run.records),
        ceilings(f.run, f.report_summary),
    ],
    12,
    figures=_FIGURES,
)
