"""Tokens per step of runs: intervals, paired differences, and how they scale. By hand:

    python tests/benchmarks/acceptance.py differences RUN   # every decoder less the first after ar
    python tests/benchmarks/acceptance.py scaling OUTPUT RUN …

`scaling` writes OUTPUT.csv and OUTPUT.png: decoders whose adapters differ in rank, decoders of one
adapter that differ in `slots`, and, of runs of different targets, the decoder named ``ptp``. Those
labelled ``shipped…`` use an adapter that was trained longer, and are a line of their own.
Counters need no idle machine. Intervals are jackknives over conversations
(bench/stats/intervals.py).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.records.plan import BASELINE, SECOND
from bench.records.record import SampleRecord
from bench.records.run_folder import Run, load_run
from bench.report.figures.style import STYLE, WIDTH
from bench.stats.counters import Tally, group_by, timed
from bench.stats.intervals import Estimate, jackknife

Records = Sequence[SampleRecord]
LONGER = "ptp@shipped"


def acceptance(records: Records) -> Estimate:
    """Tokens per step, pooled, with its interval."""
    return jackknife(group_by(records, lambda r: r.conversation), _pooled)


def difference(records: Records, other: Records) -> Estimate:
    """Tokens per step of one decoder less another's, on the same conversations."""
    pairs: dict[str, list[tuple[str, SampleRecord]]] = {}
    for side, answers in (("one", records), ("other", other)):
        for record in answers:
            pairs.setdefault(record.conversation, []).append((side, record))

    def statistic(items: list[tuple[str, SampleRecord]]) -> float:
        sides = [[r for side, r in items if side == name] for name in ("one", "other")]
        return _pooled(sides[0]) - _pooled(sides[1])

    return jackknife(pairs, statistic)


def _pooled(records: Records) -> float:
    return Tally.pool(records).acceptance_length or 0.0


def differences(path: str) -> None:
    """One line for each decoder of a run."""
    cells = cells_of(load_run(path))
    first = next(iter(cells))
    for name, records in cells.items():
        line = f"{name:24} {shown(acceptance(records))}"
        if name != first:
            line += f"   less {first}: {shown(difference(records, cells[first]))}"
        print(line)


def cells_of(run: Run) -> dict[str, list[SampleRecord]]:
    cells = group_by(timed(run.records), lambda r: r.decoder)
    return {name: cells[name] for name in cells if name not in (BASELINE, BASELINE + SECOND)}


def shown(estimate: Estimate) -> str:
    assert estimate.value is not None
    ends = "" if estimate.low is None else f" [{estimate.low:.2f}, {estimate.high:.2f}]"
    return f"{estimate.value:.2f}{ends}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One decoder of one run."""

    run: str
    decoder: str
    parameters: int
    rank: int | None
    slots: int | None
    adapter: str | None
    acceptance: Estimate


def points_of(path: str) -> list[Point]:
    """The decoders of a run that use an adapter."""
    run = load_run(path)
    adapters, options = run.env.models.adapters or {}, run.config["decoders"]
    found = []
    for name, records in cells_of(run).items():
        adapter = options[name].get("adapter")
        if adapter is not None:
            facts = adapters[adapter]
            found.append(
                Point(
                    run=run.path.name,
                    decoder=name,
                    parameters=(run.env.models.target or {})["parameters"],
                    rank=facts.rank,
                    slots=int(options[name]["slots"]) or facts.slots,
                    adapter=facts.weights_sha256,
                    acceptance=acceptance(records),
                )
            )
    return found


def scaling(output: str, *paths: str) -> None:
    """The table and the figure."""
    points = [point for path in paths for point in points_of(path)]
    with Path(f"{output}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        header = ("run", "decoder", "parameters", "rank", "slots", "acceptance_length")
        writer.writerow((*header, "acceptance_low", "acceptance_high"))
        for p in points:
            ends = [round(x or 0, 3) for x in (p.acceptance.value, p.acceptance.low)]
            row = (p.run, p.decoder, p.parameters, p.rank, p.slots, *ends)
            writer.writerow((*row, round(p.acceptance.high or 0, 3)))
    plain = {p.run: p for p in points if p.decoder == "ptp"}
    main = next(iter(plain.values()))
    ours = [p for p in points if p.run == main.run]
    adapters = dict.fromkeys(p.adapter for p in ours)
    by_adapter = [[p for p in ours if p.adapter == adapter] for adapter in adapters]
    ranks = [p for p in ours if p.slots == main.slots and not p.decoder.startswith(LONGER)]
    _draw(
        Path(f"{output}.png"),
        {
            "adapter rank": ([sorted(ranks, key=_rank)], lambda p: str(p.rank or "full")),
            "slots": (
                [sorted(of, key=lambda p: p.slots or 0) for of in by_adapter if len(of) > 1],
                lambda p: str(p.slots),
            ),
            "target parameters": (
                [sorted(plain.values(), key=lambda p: p.parameters)],
                lambda p: f"{p.parameters / 1e6:.1f}M",
            ),
        },
    )


def _rank(point: Point) -> float:
    return point.rank or float("inf")


def _draw(
    path: Path, panels: Mapping[str, tuple[Sequence[Sequence[Point]], Callable[[Point], str]]]
) -> None:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(dict(STYLE)):  # type: ignore[arg-type]
        figure = Figure(figsize=(WIDTH * 1.3, 2.9), layout="constrained")
        FigureCanvasAgg(figure)
        shared = None
        for number, (label, (lines, tick)) in enumerate(panels.items(), 1):
            axes = figure.add_subplot(1, len(panels), number, sharey=shared)
            shared = shared or axes
            ticks = list(dict.fromkeys(tick(p) for p in max(lines, key=len)))
            for points in lines:
                longer = points[0].decoder.startswith(LONGER)
                values = [p.acceptance.value or 0.0 for p in points]
                below = [v - (p.acceptance.low or v) for v, p in zip(values, points, strict=True)]
                above = [(p.acceptance.high or v) - v for v, p in zip(values, points, strict=True)]
                places = [ticks.index(tick(p)) for p in points]
                colour = "#009e73" if longer else "#d55e00"
                axes.errorbar(places, values, (below, above), fmt="o-", capsize=3, color=colour)
                if longer:
                    axes.annotate(
                        "shipped",
                        (places[-1], values[-1]),
                        xytext=(-9, 4),
                        textcoords="offset points",
                        ha="right",
                    )
            axes.set_xticks(range(len(ticks)), ticks)
            axes.set_xlabel(label)
            axes.set_xlim(-0.4, len(ticks) - 0.6)
            axes.grid(axis="y")
            if number == 1:
                axes.set_ylabel("tokens per step")
        figure.axes[0].set_ylim(bottom=1)
        figure.savefig(path, dpi=150)


COMMANDS: dict[str, Callable[..., None]] = {"differences": differences, "scaling": scaling}

if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    COMMANDS[sys.argv[1]](*sys.argv[2:])
