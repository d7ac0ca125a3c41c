"""Describe a cost folder: the machine's rates, and the table of the curve."""

from __future__ import annotations

from bench.extras.cost.curve import Cost, break_even_rate
from bench.extras.cost.records import CostFacts
from bench.stats.intervals import LEVEL
from bench.text import percent

_BUSY = 0.5
"""Limit of cores used by other processes, above which times are noisy, as for a run."""


def machine_lines(facts: CostFacts) -> list[str]:
    """State what a call reads, the machine's rates, and other load if there was any."""
    num_bytes = facts.work.weight_bytes
    size = f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"
    lines = [
        f"{facts.name}: a call reads {size} of weights and "
        f"{facts.work.token_bytes} bytes per cached token"
    ]
    rates = (
        (facts.bandwidth, "matrix-vector products over matrices as large as the weights", "B"),
        (facts.matrix_rate, "a product of large matrices", "op"),
    )
    for rate, name, unit in rates:
        if rate is not None:
            low, high = rate.low, (rate.high or 0) / 1e9
            ends = "" if low is None else f" [{low / 1e9:.3g}, {high:.3g}]"
            lines.append(f"{name}: {rate.value / 1e9:.3g}{ends} G{unit}/s")
    if facts.other_cores is not None and facts.other_cores.value > _BUSY:
        busy = f"{facts.other_cores.value:.1f} cores"
        lines.append(f"the machine was busy: other processes took {busy}, so times are noisy")
    return lines


def curve_table(cost: Cost) -> list[list[str]]:
    """Return headings and a line per number of rows, for one sequence at the shortest context."""
    context = _first_context(cost)
    table = cost.table
    rows = table[(table["sequences"] == 1) & (table["context"] == context)]
    lines = [
        ["rows", f"ms per call [{LEVEL}]", "in one-row calls", "break-even rate", "of roofline"]
    ]
    for row in rows[rows["seconds"].notna()].sort_values("rows").to_dict("records"):
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
