"""The figure of the zoo's training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specbench_tasks.task import FAMILIES


def read_evaluations(log: Path, key: str) -> list[dict[str, Any]]:
    """Return a log's records that have `key`, the latest of steps that a resumed run repeated."""
    by_step: dict[int, dict[str, Any]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if key in record:
            by_step = {step: old for step, old in by_step.items() if step < record["step"]}
            by_step[record["step"]] = record
    return list(by_step.values())


COLORS = ("#4477AA", "#EE6677", "#228833", "#B8860B", "#66CCEE", "#AA3377")
"""Paul Tol's bright scheme (its yellow darkened), which colour-blind readers can tell apart."""


def plot_exactness(log: Path, output: Path) -> None:
    """Draw the zoo target's share of exact answers by family, over the tokens trained on."""
    records = read_evaluations(log, "scores")
    tokens = [record["tokens"] / 1e6 for record in records]
    figure, axes = _panel((8, 4.6))
    for family, color in zip(FAMILIES, COLORS, strict=True):
        label = "constraints met" if family == "mt_bench" else "exact answers"
        rows = [record["scores"][family] for record in records]
        shares = [row.get("exact", row["score"]) for row in rows]
        style = {"color": color, "markersize": 4, "linewidth": 1.8}
        axes.plot(tokens, shares, "o-", label=f"{family} ({label})", **style)
    for record in records:
        if "note" in record:  # the measuring conditions changed here
            axes.axvline(record["tokens"] / 1e6, color="0.6", linewidth=1, linestyle=":")
            figure.supxlabel(f"dotted line: {record['note']}", x=0.01, ha="left", fontsize=8)
    axes.set_title("Zoo target: whole answers word for word, by family", loc="left")
    axes.set(
        xlabel="training tokens (millions)", ylabel="share on held-out prompts", ylim=(0, 1.02)
    )
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)


def _panel(size: tuple[float, float]) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes
