"""The figure of zoo training: how exact the answers of each family are, over tokens seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specbench_tasks.task import FAMILIES

COLORS = ("#4477AA", "#EE6677", "#228833", "#B8860B", "#66CCEE", "#AA3377")
"""Paul Tol's bright scheme (its yellow darkened), told apart with colour-blind eyes too."""


def read_evaluations(log: Path, key: str) -> list[dict[str, Any]]:
    """The records of a training log that have `key`; a resumed run's replace those they repeat."""
    by_step: dict[int, dict[str, Any]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if key in record:
            by_step = {step: old for step, old in by_step.items() if step < record["step"]}
            by_step[record["step"]] = record
    return [by_step[step] for step in sorted(by_step)]


def _read_scores(log: Path) -> tuple[list[float], dict[str, list[float]]]:
    """Millions of tokens seen and, per family, the share at each evaluation in a training log."""
    records = read_evaluations(log, "scores")
    shares = {
        family: [r["scores"][family].get("exact", r["scores"][family]["score"]) for r in records]
        for family in FAMILIES
    }
    return [record["tokens"] / 1e6 for record in records], shares


def plot_exactness(log: Path, output: Path) -> None:
    """Draws the log's evaluations to `output` (PNG or SVG by its suffix)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tokens, shares = _read_scores(log)
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for family, color in zip(FAMILIES, COLORS, strict=True):
        what = "constraints met" if family == "mt_bench" else "exact answers"
        axes.plot(
            tokens,
            shares[family],
            color=color,
            marker="o",
            markersize=4,
            linewidth=1.8,
            label=f"{family} ({what})",
        )
    for record in read_evaluations(log, "scores"):
        if "note" in record:  # measured under other conditions than the points before it
            axes.axvline(record["tokens"] / 1e6, color="0.6", linewidth=1, linestyle=":")
            figure.supxlabel(f"dotted line: {record['note']}", x=0.01, ha="left", fontsize=8)
    axes.set_xlabel("training tokens (millions)")
    axes.set_ylabel("share on held-out prompts")
    axes.set_title("Zoo target: whole answers word for word, by family", loc="left")
    axes.set_ylim(0, 1.02)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
