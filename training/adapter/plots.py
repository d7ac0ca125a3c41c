"""Figures of adapters: accuracy by slot, and how training got there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from decoders.core.adapter.config import AdapterConfig
from training.growth import Growth
from training.plots import COLORS, read_evaluations


def plot_adapters(configs: Mapping[str, AdapterConfig], output: Path) -> None:
    """Draws accuracy and survival by slot of one or more adapters (PNG or SVG by the suffix)."""
    from matplotlib.ticker import MaxNLocator

    figure, (left, right) = _panels()
    for (name, config), color in zip(configs.items(), _cycle(len(configs)), strict=True):
        kinds: list[tuple[str, str, str | None]] = [("", "-", name)]
        if config.measured.get("greedy_accuracy"):
            kinds.append(("greedy_", "--", None))
        for kind, style, label in kinds:
            for axes, what in ((left, "accuracy"), (right, "survival")):
                values = config.measured[f"{kind}{what}"]
                slots = [i + 1 for i, value in enumerate(values) if value is not None]
                shown = [value for value in values if value is not None]
                axes.plot(slots, shown, style, color=color, linewidth=1.8, label=label)
    left.set_title("A slot's token is right", loc="left", fontsize=10)
    right.set_title("All slots up to here are right", loc="left", fontsize=10)
    for axes in (left, right):
        axes.set_xlabel("slot")
        axes.set_ylim(0, 1.02)
        axes.set_xlim(left=1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.set_ylabel("share of held-out windows")
    right.legend(frameon=False, fontsize=9, title="dashed: greedy", title_fontsize=9)
    _save(figure, output)


def plot_growth(grown: Sequence[Growth], output: Path) -> None:
    """Draws leading proposals that stand over tokens or slots seen, and the line ten times on."""
    figure, (axes,) = _panels(1)
    names = list(dict.fromkeys(growth.name for growth in grown))
    colors = dict(zip(names, _cycle(len(names)), strict=True))
    for growth in grown:
        color, sampled = colors[growth.name], growth.kind == "sampled"
        last = growth.seen[-1]
        ahead = [last * 10 ** (step / 20) for step in range(21)]
        line = [growth.at(seen) for seen in ahead]
        axes.plot(
            *(growth.seen, growth.values),
            *("o" if sampled else "s",),
            color=color,
            markersize=4,
            markerfacecolor="none" if sampled else color,
            label=f"{growth.name}, {growth.kind}",
        )
        fitted = [growth.at(seen)[0] for seen in growth.seen]
        axes.plot(growth.seen, fitted, "-", color=color, linewidth=1.4)
        axes.plot(ahead, [value for value, _, _ in line], ":", color=color, linewidth=1.4)
        low, high = [max(0.0, low) for _, low, _ in line], [high for _, _, high in line]
        axes.fill_between(ahead, low, high, color=color, alpha=0.12, linewidth=0)
    axes.set_xscale("log")
    axes.set_xlabel("tokens or slots seen (dotted: ten times on)")
    axes.set_ylabel("leading proposals that stand")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    _save(figure, output)


def plot_slots_over_training(log: Path, output: Path) -> None:
    """Draws each slot's share of right tokens over slots trained on, sampled and greedy."""
    reports = read_evaluations(log, "held_out")
    trained = [report["tokens"] / 1e6 for report in reports]
    figure, panels = _panels()
    for axes, kind, title in zip(panels, ("", "greedy_"), ("T = 0.7", "greedy"), strict=True):
        lines = list(zip(*(r["held_out"][f"{kind}accuracy"] for r in reports), strict=True))
        for slot, (values, color) in enumerate(zip(lines, _cycle(len(lines)), strict=True)):
            shown = [(x, y) for x, y in zip(trained, values, strict=True) if y is not None]
            if not shown:  # no held-out window was that long
                continue
            axes.plot(*zip(*shown, strict=True), "o-", color=color, markersize=3, linewidth=1.6)
            axes.annotate(
                f"slot {slot + 1}",
                shown[-1],
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=color,
            )
        axes.set_title(f"A slot's token is right, {title}", loc="left", fontsize=10)
        axes.set_xlabel("slots trained on (millions)")
        axes.set_ylim(0, 1)
        axes.set_xlim(0, 1.15 * max(trained))
    panels[0].set_ylabel("share of held-out windows")
    _save(figure, output)


def _panels(number: int = 2) -> tuple[Any, Sequence[Any]]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * number, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(1, number, place + 1) for place in range(number)]
    for axes in panels:
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def _cycle(number: int) -> list[str]:
    return [COLORS[place % len(COLORS)] for place in range(number)]


def _save(figure: Any, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=150)
