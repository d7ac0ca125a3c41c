"""Compute the accuracy under parallelism (AUP) of decoders with several settings (d3LLM)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable

import pandas as pd

from bench.extras.sections.families import from_cells
from bench.records.plan import BASELINE, WRONG
from bench.report.tables.table import Table, over
from bench.stats.counters import group_by
from bench.stats.metrics import summary_rows
from bench.text import UNKNOWN

AUP_STEEPNESS = 3.0
AUP_LARGEST_DROP = 5.0
AUP_MIN_POINTS = 2


def accuracy_under_parallelism(
    points: Iterable[tuple[float, float]], best: float, baseline: float
) -> tuple[float, int] | None:
    """Return the AUP of a curve, and the number of points left out (None below two points).

    d3LLM, arXiv 2601.07568: with points (rho, y) sorted by rho and
    W(y) = min(exp(-3 (1 - y / best)), 1),

        rho_1 y_1 + sum over i > 1 of (rho_i - rho_(i-1)) (y_i W(y_i) + y_(i-1) W(y_(i-1))) / 2

    d3LLM excludes settings that lose more than 5 points of accuracy against the method's own
    slowest setting, however bad that is. Here the reference is the baseline.

    Args:
        points: tokens per forward and accuracy in per cent, one pair per setting.
        best: highest accuracy of any method on the task, in per cent.
        baseline: accuracy of the baseline, in per cent.
    """
    ordered = sorted(points)
    curve = [(rho, y) for rho, y in ordered if round(baseline - y, 9) <= AUP_LARGEST_DROP]
    if len(curve) < AUP_MIN_POINTS or best <= 0:
        return None

    def weighed(y: float) -> float:
        return y * min(math.exp(-AUP_STEEPNESS * (1 - y / best)), 1.0)

    area = curve[0][0] * curve[0][1]
    for (rho, y), (next_rho, next_y) in itertools.pairwise(curve):
        area += (next_rho - rho) * (weighed(y) + weighed(next_y)) / 2
    return area, len(ordered) - len(curve)


def curves(cells: Iterable[str]) -> dict[str, list[str]]:
    """Group cells whose names differ only in a final number: the settings of one method.

    ``idlm@t2`` and ``idlm@t4`` are settings of ``idlm@t…``; ``idlm`` and ``idlm@isd`` are two
    methods of one setting each.
    """
    stems = group_by(cells, lambda cell: re.sub(r"(?<=\D)\d+$", "…", cell))
    return {stem if len(names) > 1 else names[0]: names for stem, names in stems.items()}


def area(summary: pd.DataFrame) -> Table | None:
    """Make the table of accuracy by method and family, if a method has several settings."""
    scored = summary[summary["quality"].notna() & summary["tpf"].notna()]
    scored = scored[(scored["guarantee"] != WRONG) & scored["quality_tells"].fillna(True)]
    methods = curves(str(cell) for cell in scored["decoder"].unique())
    if all(len(cells) == 1 for cells in methods.values()):
        return None
    base = BASELINE if (summary["decoder"] == BASELINE).any() else over(summary)
    texts: dict[tuple[str, str], str] = {}
    for family in scored["family"].unique():
        rows = {row.decoder: row for row in summary_rows(scored, str(family))}
        accuracy = {name: 100 * (row.quality or 0.0) for name, row in rows.items()}
        for method, cells in methods.items():
            points = [(rows[cell].tpf or 0.0, accuracy[cell]) for cell in cells if cell in rows]
            texts[method, str(family)] = UNKNOWN
            if base in accuracy:
                best = max(accuracy.values())
                aup = accuracy_under_parallelism(points, best, accuracy[base])
                if aup is not None:
                    texts[method, str(family)] = f"{aup[0]:.1f}{'*' * bool(aup[1])}"
    note = (
        "AUP (d3LLM, arXiv 2601.07568): area under the curve of quality (per cent) over tokens per "
        "forward, through a method's settings; quality below the run's best is discounted by "
        "exp(-3 (1 - quality / best)). Settings are cells whose names differ in their final "
        f"number. Those that lose over 5 points of {base}'s quality are left out (*); d3LLM "
        "compares with the slowest setting. '-': fewer than two settings are left."
    )
    return from_cells(texts, "Accuracy under parallelism", note)
