"""Options that are ``auto``: numbers read off a cost folder before anything is opened.

`row_cost` is what a row adds to a call by the folder's curve, at the run's batch size and the
shortest context measured. `k` is the best number of drafts that ``bench cost --run RUN`` found for
a decoder of that name (`bench.report.texts.explain.best_drafts`). The number is what the run's
stored configuration says: it decodes with that, whatever becomes of the folder. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import UsageError
from bench.records.cost import read_choices
from bench.settings.config import RunConfig

if TYPE_CHECKING:
    from bench.stats.cost_curve import Cost

AUTO = "auto"
_MEASURED = ("row_cost", "k")


def resolved(config: RunConfig, note: Callable[[str], None]) -> RunConfig:
    """The configuration with numbers in place of ``auto``; `note` is told which.

    Raises:
        BenchError: exit 2 where there is no cost folder, or it does not know; 4 where it is
            damaged.
    """
    cost = None
    if config.cost is not None:
        from bench.stats.cost_curve import load_cost

        cost = load_cost(Path(config.cost))
    cells = {cell: dict(options) for cell, options in (config.decoders or {}).items()}
    for cell, options in cells.items():
        for name in _MEASURED:
            if options.get(name) == AUTO:
                options[name] = _number(cell, name, cost, config.batch_size)
                note(f"{cell}: {name}=auto is {options[name]}")
    return config.with_values(decoders=cells) if cells else config


def _number(cell: str, name: str, cost: Cost | None, batch_size: int) -> str:
    if cost is None:
        line = f"{cell}: {name}=auto needs a measured curve; give --cost a folder of `bench cost`"
        raise UsageError(line)
    if name == "row_cost":
        context = min(each.context for each in cost.curve.points)
        return f"{cost.curve.row_cost(context, batch_size):.4g}"
    decoder = cell.split("@")[0]
    chosen = read_choices(cost.path)
    number = chosen.get(cell, chosen.get(decoder))
    if number is None:
        line = (
            f"{cell}: {name}=auto is not known in {cost.path}; `bench cost --run RUN` finds it of "
            f"a run with {decoder} in it"
        )
        raise UsageError(line)
    return str(number)
