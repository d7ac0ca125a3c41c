"""What a cost folder says: its figure and its text, and the text of a projection.

Written from the folder alone. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.records.cost import CostFacts, Measured
from bench.records.files import write_files
from bench.records.phases import read_phases
from bench.records.run_folder import Run
from bench.report.figures.canvas import render
from bench.report.figures.curves import cost_figure
from bench.report.findings import Findings
from bench.report.texts.explain import best_lengths, drafted_per_step
from bench.stats import summary as sums
from bench.stats.cost_curve import Cost, break_even_rate, limits
from bench.stats.intervals import LEVEL
from bench.stats.limit import OperatingPoint, mismatch, operating_points, relative_at
from bench.text import markdown, percent

Rows = Sequence[Sequence[str]]
_BUSY = 0.5
"""Cores of other processes, as for the validity of a run."""
_FIGURE = "figures/call_time"


def write_cost(cost: Cost, points: Sequence[OperatingPoint] = ()) -> None:
    """Write the figure and cost.md of a cost folder.

    Raises:
        BenchError: it cannot be written (exit 1).
    """
    figure, _ = cost_figure(cost, points)
    images = {f"{_FIGURE}.{kind}": data for kind, data in render(figure).items()}
    head, *rows = curve_table(cost)
    lines = [
        f"# What a call of {markdown(cost.facts.name)} costs",
        "",
        *(f"* {markdown(line)}" for line in machine_lines(cost.facts)),
        "",
        f"![Call time by rows]({_FIGURE}.png)",
        "",
        f"One sequence after {_first_context(cost)} tokens. Drafts pay once a step emits more "
        "tokens than its call costs in calls of one row; the rate beside it is that acceptance of "
        "each draft, drafting being free.",
        "",
        *_markdown(head, rows),
        "",
        *(f"* left out: {each.cell}: {markdown(each.reason)}" for each in cost.left_out),
    ]
    write_files(cost.path, images | {"cost.md": "\n".join(lines).rstrip().encode() + b"\n"})


def points_of(run: Run, cost: Cost) -> tuple[list[OperatingPoint], str | None]:
    """A run's own operating points, or why they do not belong on the curve."""
    why = mismatch(cost, run.env)
    if why is not None:
        return [], f"the calls of {run.path.name} are not drawn: {why}"
    decoders = sums.decoder_order(run.plan, run.records, run.status.wrong)
    points = operating_points(read_phases(run.path), run.records, decoders)
    return points, None if points else f"{run.path.name} has no second pass of single answers"


def best_drafts(findings: Findings, cost: Cost) -> dict[str, int]:
    """The best number of drafts of every decoder that always drafts as many, by its cell."""
    parts = {item.decoder: item for item in findings.decompositions}
    relative = relative_at(cost, findings.run.records)
    found = {
        decoder: best_lengths(
            findings, decoder, parts.get(decoder), drafted_per_step(findings, decoder), relative
        )
        for decoder in findings.decoders
    }
    return {decoder: each[0].best for decoder, each in found.items() if each is not None}


def machine_lines(facts: CostFacts) -> list[str]:
    """What the machine can do, and both limits of the smallest call."""
    lines = [
        f"{facts.name}: a call reads {_size(facts.work.weight_bytes)} of weights and "
        f"{facts.work.token_bytes} bytes a token in the cache"
    ]
    rates = (
        (facts.bandwidth, "matrix-vector products over matrices as large as the weights", "B"),
        (facts.memory_bandwidth, "the same beyond every cache", "B"),
        (facts.copy_bandwidth, "a plain copy, read and written", "B"),
        (facts.matrix_rate, "a product of large matrices", "op"),
    )
    lines += [f"{what}: {_rate(rate, unit)}" for rate, what, unit in rates if rate is not None]
    if facts.replay is not None and facts.beside_replay is not None and facts.replayed is not None:
        share = facts.replay.value / facts.beside_replay.value
        bound = limits(facts, facts.replayed).roofline_s
        text = (
            f"{facts.replayed}: {_ms(facts.beside_replay)} a call, {_ms(facts.replay)} replayed by "
            f"{facts.replay_by} ({percent(share)})"
        )
        lines.append(text + (f", {1e3 * bound:.3g} ms by the roofline" if bound else ""))
    elif facts.no_replay is not None:
        lines.append(f"no replay: {facts.no_replay}")
    if facts.other_cores is not None and facts.other_cores.value > _BUSY:
        busy = f"{facts.other_cores.value:.1f} cores"
        lines.append(f"the machine was busy: other processes took {busy}, so times are noisy")
    return lines


def curve_table(cost: Cost) -> list[list[str]]:
    """Headings, then a line for every number of rows of one sequence at the shortest context."""
    context = _first_context(cost)
    table = cost.table
    chosen = table[(table["sequences"] == 1) & (table["context"] == context)]
    lines = [
        ["rows", f"ms a call [{LEVEL}]", "in calls of one row", "break-even rate", "of roofline"]
    ]
    for row in chosen[chosen["seconds"].notna()].sort_values("rows").to_dict("records"):
        seconds, relative, num = row["seconds"], row["relative"], int(row["rows"])
        roof = max(row["memory_s"], row["compute_s"])
        interval = ""
        if row["low"] == row["low"]:  # not NaN
            interval = f" [{1e3 * row['low']:.2f}, {1e3 * row['high']:.2f}]"
        rate = break_even_rate(relative, num - 1) if num > 1 else None
        lines.append(
            [
                str(num),
                f"{1e3 * seconds:.2f}{interval}",
                f"{relative:.2f}",
                "-" if num == 1 else "never" if rate is None else percent(rate),
                percent(roof / seconds),
            ]
        )
    return lines


def _first_context(cost: Cost) -> int:
    return min(cell.context for cell in cost.curve.points if cell.sequences == 1)


def _markdown(head: Sequence[str], rows: Rows) -> list[str]:
    lines = [head, ["---:"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _rate(rate: Measured, unit: str) -> str:
    ends = "" if rate.low is None else f" [{rate.low / 1e9:.3g}, {(rate.high or 0) / 1e9:.3g}]"
    return f"{rate.value / 1e9:.3g}{ends} G{unit}/s"


def _ms(seconds: Measured) -> str:
    return f"{1e3 * seconds.value:.3g} ms"
