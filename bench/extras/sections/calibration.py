"""Confidences of drafters against the acceptance of their drafts, by position and bin."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from bench.records.record import SampleRecord
from bench.report.figures.style import FAINT, GREY, Look
from bench.report.findings import Findings
from bench.report.sections import Figure, Plot, Section
from bench.report.tables.table import Columns, Table, interval, number, with_interval
from bench.stats.calibration import BINS, CONFIDENCES, NUM_BINS, count_drafts
from bench.stats.counters import group_by, ratio
from bench.stats.intervals import LEVEL
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.summary import ALL

_MAX_POSITIONS = 16
_MIN_DRAFTS = 20
"""Drafts that a bin must have to be drawn; the data has all bins."""


def calibration_table(records: Sequence[SampleRecord], decoders: Sequence[str]) -> pd.DataFrame:
    """Tabulate tested drafts by decoder, position in the step and bin of confidence."""
    groups, columns = group_by(records), ["drafts", "accepted", "confidence"]
    rows = []
    for decoder in decoders:
        for position, counts in count_drafts(groups.get(decoder, ())).items():
            parts = (counts.sum(0), counts[1], counts.sum(0) * CONFIDENCES)
            sums = np.stack([np.bincount(BINS, part) for part in parts], 1)
            rows += [
                (decoder, position, bin_ + 1, *map(float, each))
                for bin_, each in enumerate(sums)
                if each[0]
            ]
    frame = pd.DataFrame(rows, columns=["decoder", "position", "bin", *columns])
    return frame.astype({"drafts": int, "accepted": int})


def calibration(summary: pd.DataFrame, table: pd.DataFrame) -> Table | None:
    """Make the table of confidences against acceptance, for decoders that have confidences."""
    groups = dict(list(table.groupby("decoder")))
    rows = [
        (row, kind, groups[row.decoder])
        for row in summary_rows(summary, ALL)
        for kind in ("confidence", "accepted")
        if row.decoder in groups
    ]

    def mean(row: tuple[SummaryRow, str, pd.DataFrame], position: int | None = None) -> str:
        _, kind, some = row
        some = some if position is None else some[some["position"] == position]
        return number(ratio(float(some[kind].sum()), float(some["drafts"].sum())), ".3f")

    def estimate(row: tuple[SummaryRow, str, pd.DataFrame], column: str) -> str:
        value = row[0].estimate(column)
        ends = interval(value.low, value.high, ".3f")
        return with_interval(number(value.value, ".3f"), ends) if row[1] == "confidence" else ""

    columns: Columns = {
        "decoder": lambda row: row[0].decoder,
        "n": lambda row: f"{row[2]['drafts'].sum():,}",
        "ECE": partial(estimate, column="ece"),
        "Brier score": partial(estimate, column="brier"),
        "mean": lambda row: row[1],
        "all": mean,
    }
    positions = sorted(table["position"].unique())[:_MAX_POSITIONS]
    columns |= {str(position): partial(mean, position=position) for position in positions}
    note = (
        "n: tested drafts, whose parents were all accepted. Confidence: the drafter's probability "
        "of a draft, given its parents. Accepted: share of accepted drafts; both over all tested "
        "drafts and by position in the step. ECE: mean gap between confidence and accepted share "
        f"over {NUM_BINS} bins, weighted by drafts. Brier score: mean squared error; 0.25 is that "
        f"of a constant 0.5. {LEVEL} jackknife intervals over conversations. Drawn drafts that "
        "rejection sampling verifies are accepted more often than their probability says."
    )
    return Table.of("Calibration of drafts", note, columns, rows)


def calibration_figure(table: pd.DataFrame, summary: pd.DataFrame) -> Plot | None:
    """Draw the accepted share of drafts against their confidence, a panel per decoder."""
    from bench.report.figures import canvas  # matplotlib: only where something is drawn

    data = table[table["decoder"].isin(summary["decoder"])]
    data = data.groupby(["decoder", "bin"], sort=False)[["drafts", "accepted", "confidence"]].sum()
    data = data.reset_index().sort_values("bin", kind="stable")
    data[["accepted", "confidence"]] = data[["accepted", "confidence"]].div(data["drafts"], axis=0)
    decoders = [name for name in summary["decoder"].unique() if name in set(data["decoder"])]
    if not decoders:
        return None
    look, errors = Look.of(summary), canvas.overall(summary, ["ece"]).set_index("decoder")["ece"]
    figure, grid = canvas.panels(len(decoders), 1.65)
    for decoder, axes in zip(decoders, grid, strict=True):
        rows = data[data["decoder"] == decoder]
        heights, colour = rows["drafts"] / rows["drafts"].sum(), look.palette[decoder]
        axes.bar((rows["bin"] - 0.5) / NUM_BINS, heights, 0.9 / NUM_BINS, color=FAINT)
        axes.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=(0, (2, 2)))
        shown = rows[rows["drafts"] >= _MIN_DRAFTS]
        axes.plot(shown["confidence"], shown["accepted"], "-o", color=colour, ms=3, lw=1.2)
        axes.set_title("\n".join(textwrap.wrap(decoder, 22)), fontsize=9)
        canvas.annotate_point(axes, f"ECE {errors[decoder]:.3f}", (0.03, 0.94), 0, 7.5)
        axes.set(xlim=(0, 1), ylim=(0, 1.02))
        canvas.percents(axes.xaxis, 4)
        canvas.percents(axes.yaxis, 4)
        axes.set_xticks([0.25, 0.5, 0.75])  # those at the ends would touch the next panel's
    figure.supxlabel("confidence of a draft (grey bars: share of drafts)", fontsize=9)
    figure.supylabel("accepted", fontsize=9)
    return figure, data.reset_index(drop=True)


def _calibration(findings: Findings) -> pd.DataFrame:
    return calibration_table(findings.run.records, findings.decoders)


_FIGURE = Figure(
    "calibration",
    "Reliability of drafts' confidences: accepted share of tested drafts against the drafter's "
    "probability, in 15 bins. Below the dashed line a drafter is overconfident. Bins of fewer "
    "than 20 drafts are not drawn.",
    "no decoder gave its drafts probabilities",
    lambda findings, summary: calibration_figure(findings.once(_calibration), summary),
    7,
)
SECTION = Section(
    "calibration",
    lambda f: [calibration(f.report_summary, f.once(_calibration))],
    11,
    title="Calibration of drafts",
    empty="No decoder gave its drafts probabilities.",
    figures=(_FIGURE,),
    data={"calibration": lambda f: f.once(_calibration)},
)
