"""Replace options that are `auto` by numbers from a cost folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.errors import UsageError
from bench.extras.cost.curve import Cost, load_cost
from bench.extras.cost.records import read_draft_costs


def auto_options(folder: Path) -> Callable[[str, str, int], str]:
    """Open a folder of `bench cost` for options that are `auto` (raises as `load_cost`)."""
    return partial(_auto_option, load_cost(folder))


def _auto_option(cost: Cost, cell: str, name: str, batch_size: int) -> str:
    if name == "row_cost":
        context = min(each.context for each in cost.curve.points)
        return f"{cost.curve.row_cost(context, batch_size):.4g}"
    decoder, costs = cell.split("@")[0], read_draft_costs(cost.path)
    number = costs.get(cell, costs.get(decoder))
    if number is None:
        raise UsageError(
            f"{cell}: {cost.path} has no {name} for auto; `bench cost --run RUN` finds it from "
            f"a run with {decoder}"
        )
    return f"{number:.4g}"
