"""Figures of training, and fits of how accepted proposals grow with it.

Between a few hundred thousand and a few million slots, the number of leading accepted proposals
grows nearly linearly in the logarithm of the slots seen. The fit extrapolates this growth to ten
times more. Its 95 % interval is for the next evaluation, and cannot tell when the growth ends.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import linregress, t

from specbench_tasks.task import FAMILIES

_MIN_POINTS = 4  # two define a line; more show the spread about it
_KINDS = {"greedy_leading_16": "greedy", "leading_16": "sampled", "drafts_that_stand": "greedy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Leading accepted proposals (`values`) by the number of tokens or slots trained on (`seen`).

    The slope of `line` is the gain from ten times more training; `spread` is the standard deviation
    of the evaluations about the line.
    """

    name: str
    kind: str
    seen: tuple[float, ...]
    values: tuple[float, ...]
    line: Any
    spread: float

    def at(self, seen: float) -> tuple[float, float, float]:
        """Return the line's value at `seen` and the 95 % interval of an evaluation there."""
        logs = np.log10(self.seen)
        away = (math.log10(seen) - logs.mean()) ** 2 / ((logs - logs.mean()) ** 2).sum()
        num = len(logs)
        margin = float(t.ppf(0.975, num - 2)) * self.spread * math.sqrt(1 + 1 / num + away)
        value = float(self.line.intercept + self.line.slope * math.log10(seen))
        return value, value - margin, value + margin


def read_evaluations(log: Path, key: str) -> list[dict[str, Any]]:
    """Return a log's records that have `key`; a resumed run's records replace repeated steps."""
    by_step: dict[int, dict[str, Any]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if key in record:
            by_step = {step: old for step, old in by_step.items() if step < record["step"]}
            by_step[record["step"]] = record
    return list(by_step.values())


def read_growth(log: Path, name: str) -> list[Growth]:
    """Return one fit for each kind of text in a log's evaluations.

    Raises:
        ValueError: the file is missing, or has fewer than 4 evaluations.
    """
    try:
        reports = read_evaluations(log, "held_out")
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the training log {log}: {error}") from error
    grown = [
        _fit(name, kind, reports, column)
        for column, kind in _KINDS.items()
        if reports and reports[-1]["held_out"].get(column) is not None
    ]
    if not grown:
        raise ValueError(f"{log} has no evaluations of an adapter or a draft")
    return grown


def _fit(name: str, kind: str, reports: list[dict[str, Any]], column: str) -> Growth:
    points = [
        (float(report["tokens"]), float(report["held_out"][column]))
        for report in reports
        if report["tokens"] > 0 and report["held_out"].get(column) is not None
    ]
    if len(points) < _MIN_POINTS:
        raise ValueError(f"{name} was evaluated {len(points)} times; a fit needs {_MIN_POINTS}")
    seen, values = zip(*points, strict=True)
    line = linregress(np.log10(seen), values)
    rest = np.array(values) - line.intercept - line.slope * np.log10(seen)
    spread = float(math.sqrt((rest**2).sum() / (len(points) - 2)))
    return Growth(name=name, kind=kind, seen=seen, values=values, line=line, spread=spread)


COLORS = ("#4477AA", "#EE6677", "#228833", "#B8860B", "#66CCEE", "#AA3377")
"""Paul Tol's bright scheme (its yellow darkened), which colour-blind readers can tell apart."""


def plot_exactness(log: Path, output: Path) -> None:
    """Draw the zoo target's share of exact answers by family, over the tokens trained on."""
    records = read_evaluations(log, "scores")
    tokens = [record["tokens"] / 1e6 for record in records]
    figure, axes = _panel((8, 4.6))
    for family, color in zip(FAMILIES, COLORS, strict=True):
        what = "constraints met" if family == "mt_bench" else "exact answers"
        rows = [record["scores"][family] for record in records]
        shares = [row.get("exact", row["score"]) for row in rows]
        style = {"color": color, "markersize": 4, "linewidth": 1.8}
        axes.plot(tokens, shares, "o-", label=f"{family} ({what})", **style)
    for record in records:
        if "note" in record:  # the measuring conditions changed here
            axes.axvline(record["tokens"] / 1e6, color="0.6", linewidth=1, linestyle=":")
            figure.supxlabel(f"dotted line: {record['note']}", x=0.01, ha="left", fontsize=8)
    axes.set_title("Zoo target: whole answers word for word, by family", loc="left")
    axes.set(
        xlabel="training tokens (millions)", ylabel="share on held-out prompts", ylim=(0, 1.02)
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _save(figure, output)


def plot_growth(grown: Sequence[Growth], output: Path) -> None:
    """Draw leading accepted proposals over tokens or slots seen, with the fit to ten times more."""
    figure, axes = _panel((4.2, 3.4))
    names = list(dict.fromkeys(growth.name for growth in grown))
    colors = dict(zip(names, itertools.cycle(COLORS), strict=False))
    for growth in grown:
        color, sampled = colors[growth.name], growth.kind == "sampled"
        axes.plot(
            *(growth.seen, growth.values, "o" if sampled else "s"),
            color=color,
            markersize=4,
            markerfacecolor="none" if sampled else color,
            label=f"{growth.name}, {growth.kind}",
        )
        ahead = [growth.seen[-1] * 10 ** (step / 20) for step in range(21)]
        for seen, style in ((growth.seen, "-"), (ahead, ":")):
            fitted = [growth.at(number)[0] for number in seen]
            axes.plot(seen, fitted, style, color=color, linewidth=1.4)
        low, high = zip(*(growth.at(number)[1:] for number in ahead), strict=True)
        positive = [max(0.0, value) for value in low]
        axes.fill_between(ahead, positive, high, color=color, alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    axes.set_xlabel("tokens or slots seen (dotted: extrapolated tenfold)")
    axes.set_ylabel("leading accepted proposals")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    _save(figure, output)


def _panel(size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
