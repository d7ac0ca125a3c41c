"""Report drafts by their position in the step: acceptance, and calibration of confidences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from bench.records.plan import RunStatus
from bench.records.record import SampleRecord
from bench.report.figures.style import FAINT, GREY, Look
from bench.report.findings import Findings
from bench.report.sections import Figure, Plot, Section
from bench.report.tables.table import Columns, Table, interval, number, with_interval
from bench.stats.calibration import BINS, CONFIDENCES, NUM_BINS, count_drafts
from bench.stats.counters import group_by, ratio, timed_steps
from bench.stats.intervals import LEVEL
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.summary import ALL, decoder_order, family_order, select_family
from bench.text import name_lines

_MAX_POSITIONS = 16
_MIN_STEPS = 20
"""Minimum steps of a position, and drafts of a bin, to be drawn. The data has all."""
_PANELS = (
    ("joint", "joint: drafts\n1 to j all accepted", "share of steps"),
    ("conditional", "conditional: draft j, if\nall earlier are accepted", "share of drafts j"),
    ("decay", "change along the step\n(below 0: suffix decay)", "points above position 1"),
)


@dataclass(frozen=True, slots=True)
class PositionCount:
    """Count the outcomes of the draft at position j of a step (1 is the first).

    `steps` counts steps that drafted at least j tokens (in a tree: on the longest path). In
    `reached` of these all earlier drafts were accepted, and in `accepted` also draft j. `joint`
    is P(drafts 1..j all accepted), the product of the conditionals up to j. It cannot rise with j;
    accepted / steps can, if drafts differ in length. `conditional` is accepted / reached. `added`
    counts the steps that emitted more than j tokens, out of all `later_steps`, drafting or not;
    `unconditional` is their ratio. 1 + its sum over positions equals `Tally.acceptance_length`,
    because every step emits a token: the target's own, or the last draft if EOS or the budget cut
    the step after it.
    """

    position: int
    steps: int
    reached: int
    accepted: int
    joint: float | None
    conditional: float | None
    added: int
    later_steps: int
    unconditional: float | None


def acceptance_by_position(records: Iterable[SampleRecord]) -> list[PositionCount]:
    """Count drafts by position, up to the first position that no step passed.

    A draft cut off by EOS or the budget counts as drafted but not accepted, as in
    `Tally.acceptance_rate`. Without any drafts, the list is empty.
    """
    pairs: Counter[tuple[int, int]] = Counter()
    lengths: Counter[int] = Counter()
    for steps in timed_steps(records):
        pairs.update(zip(steps.depths, steps.accepted, strict=True))
        lengths.update(steps.emitted[1:])
    rows: list[PositionCount] = []
    joint: float | None = 1.0
    later = lengths.total()
    deepest = max((depth for depth, _ in pairs), default=0)
    for j in range(1, 1 + max(deepest, max(lengths, default=1) - 1) if deepest else 1):
        drafted = sum(n for (d, _), n in pairs.items() if d >= j)
        reached = sum(n for (d, a), n in pairs.items() if d >= j and a >= j - 1)
        accepted = sum(n for (_, a), n in pairs.items() if a >= j)
        conditional = ratio(accepted, reached)
        joint = None if joint is None or conditional is None else joint * conditional
        added = sum(n for tokens, n in lengths.items() if tokens > j)
        rates = joint, conditional, added, later, ratio(added, later)
        rows.append(PositionCount(j, drafted, reached, accepted, *rates))
        if accepted == added == 0:
            break
    beyond = sum(max(0, tokens - 1) * n for tokens, n in lengths.items())
    assert not rows or sum(row.added for row in rows) == beyond, "positions miss tokens"
    return rows


def step_lengths(records: Iterable[SampleRecord]) -> dict[int, int]:
    """Count later steps by emitted tokens (their mean is `Tally.acceptance_length`)."""
    lengths: Counter[int] = Counter()
    for steps in timed_steps(records):
        lengths.update(steps.emitted[1:])
    return dict(sorted(lengths.items()))


def acceptance_table(findings: Findings) -> pd.DataFrame:
    """Tabulate the fields of `PositionCount` per decoder, family and position."""
    cells, claimed = group_by(findings.run.records), replace(findings.run, status=RunStatus())
    rows = [
        (decoder, family, *astuple(count))
        for decoder in decoder_order(claimed)  # by their claims
        for family in [*family_order(r.family for r in cells[decoder]), ALL]
        for count in acceptance_by_position(select_family(cells[decoder], family))
    ]
    names = [field.name for field in fields(PositionCount)]
    return pd.DataFrame(rows, columns=["decoder", "family", *names])


def acceptance(table: pd.DataFrame) -> Table:
    """Make the table of three kinds of acceptance by position over all families."""
    overall = table[table["family"] == ALL].astype({"position": int})
    positions = sorted(overall["position"].unique())[:_MAX_POSITIONS]
    rows = [
        (decoder, kind, group.set_index("position"))
        for decoder, group in overall.groupby("decoder", sort=False)
        for kind in ("unconditional", "joint", "conditional")
    ]
    columns: Columns = {
        "decoder": lambda row: str(row[0]),
        "probability": lambda row: row[1],
        "n": lambda row: str(row[2].loc[1, "later_steps" if row[1][0] == "u" else "steps"]),
    }

    def probability(row: tuple[str, str, pd.DataFrame], position: int) -> str:
        return number(row[2][row[1]].get(position), ".3f")

    columns |= {str(position): partial(probability, position=position) for position in positions}
    note = (
        "Unconditional: P(a step emits more than j tokens), over all steps after the prefill; 1 + "
        "its sum is the tokens per step. Conditional: P(draft j accepted | all earlier drafts "
        "accepted), over steps that drafted at least j tokens. Joint: P(drafts 1..j all accepted), "
        "the product of the conditionals up to j, so that shorter drafts count up to their length. "
        "'-': no step reached this position. Rates depend on the number of drafts K, at "
        "position 1, too: compare only cells of equal K. n: steps at position 1; the counts of "
        "every position and family are in tables/acceptance_by_position.csv."
    )
    return Table.of("Draft acceptance by position", note, columns, rows)


def acceptance_figure(acceptance: pd.DataFrame, summary: pd.DataFrame) -> Plot | None:
    """Draw joint and conditional acceptance by position, and the conditional less position 1's.

    Joint acceptance falls with j by definition; conditional acceptance falls if drafts get worse.
    """
    from bench.report.figures import canvas  # matplotlib: only where something is drawn

    mask = acceptance["decoder"].isin(summary["decoder"]) & (acceptance["family"] == ALL)
    data = acceptance[mask].drop(columns="family").reset_index(drop=True)
    if (data["reached"] < _MIN_STEPS).all():
        return None
    first = data[data["position"] == 1].set_index("decoder")["conditional"]
    data["decay"] = data["conditional"] - data["decoder"].map(first)
    shown = data[(data["reached"] >= _MIN_STEPS) & (data["position"] <= _MAX_POSITIONS)]
    look, last = Look.of(summary), int(shown["position"].max())
    figure, grid = canvas.row_of_panels(len(_PANELS), 2.5)
    for (column, title, label), axes in zip(_PANELS, grid, strict=True):
        for decoder, rows in shown.groupby("decoder", sort=False):
            style: dict[str, Any] = {"color": look.palette[str(decoder)], "ms": 3.5, "lw": 1.3}
            axes.plot(rows["position"], rows[column], "-o", **style)
        axes.set_title(title, fontsize=9)
        axes.set_ylabel(label, fontsize=8)
        axes.grid(visible=True, axis="y")
        axes.set_xticks(range(1, last + 1) if last <= 8 else [1, *range(4, last + 1, 4)])
    for axes in grid[:2]:
        canvas.percent_ticks(axes.yaxis, 5)
        axes.set_ylim(0, 1.04)
    grid[2].axhline(0, color=GREY, lw=1)
    canvas.points(grid[2].yaxis)
    grid[2].set_ylim(min(-0.1, 1.25 * shown["decay"].min()), max(0.1, 1.25 * shown["decay"].max()))
    canvas.key(figure, list(shown["decoder"].unique()), Look(look.palette, {}))
    figure.supxlabel("position j of a draft in its step", fontsize=9)
    return figure, data


_FIGURES = (
    Figure(
        "acceptance_by_position",
        "Accepted drafts by position j in the step: drafts 1 to j all accepted (joint), draft j "
        "accepted if all earlier drafts are (conditional), and the conditional minus that of the "
        "first position. Below 0, later drafts are worse (suffix decay); above 0, they are more "
        "often accepted than the first, because only steps on easy text get that far. Positions "
        "that fewer than 20 steps reached are not drawn.",
        "no decoder drafted tokens, or in too few steps",
        lambda f, summary: acceptance_figure(f.once(acceptance_table), summary),
        6,
    ),
)
ACCEPTANCE = Section(
    "acceptance",
    lambda f: [acceptance(f.once(acceptance_table))],
    10,
    title="Draft acceptance by position",
    empty="No decoder drafted tokens.",
    figures=_FIGURES,
    data={"acceptance_by_position": acceptance_table},
)


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


def calibration(summary: pd.DataFrame, table: pd.DataFrame) -> Table:
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
        shown = rows[rows["drafts"] >= _MIN_STEPS]
        axes.plot(shown["confidence"], shown["accepted"], "-o", color=colour, ms=3, lw=1.2)
        lines = [*name_lines(decoder, 22), f"ECE {errors[decoder]:.3f}"]  # a curve may go anywhere
        axes.set_title("\n".join(lines), fontsize=9)
        axes.set(xlim=(0, 1), ylim=(0, 1.02))
        canvas.percent_ticks(axes.xaxis, 4)
        canvas.percent_ticks(axes.yaxis, 4)
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
    "than 20 drafts are not drawn. ECE: mean distance from the line, weighted by drafts.",
    "no decoder gave its drafts probabilities",
    lambda findings, summary: calibration_figure(findings.once(_calibration), summary),
    7,
)
CALIBRATION = Section(
    "calibration",
    lambda f: [calibration(f.report_summary, f.once(_calibration))],
    11,
    title="Calibration of drafts",
    empty="No decoder gave its drafts probabilities.",
    figures=(_FIGURE,),
    data={"calibration": _calibration},
)
