"""Options that are `auto`: the numbers that a cost folder has for them."""

from __future__ import annotations

from pathlib import Path

from bench.errors import UsageError
from bench.extras.cost.curve import load_cost
from bench.extras.cost.records import read_choices


def auto_option(cell: str, name: str, folder: Path, batch_size: int) -> str:
    """Return the text of an option of a cell that is `auto`.

    Args:
        cell: the decoder, NAME or NAME@LABEL.
        name: the option.
        folder: a folder of `bench cost`.
        batch_size: sequences at once.

    Raises:
        UsageError: the folder is none, or has no number for the option.
    """
    cost = load_cost(folder)
    if name == "row_cost":
        context = min(each.context for each in cost.curve.points)
        return f"{cost.curve.row_cost(context, batch_size):.4g}"
    decoder, chosen = cell.split("@")[0], read_choices(cost.path)
    number = chosen.get(cell, chosen.get(decoder))
    if number is None:
        raise UsageError(
            f"{cell}: {cost.path} has no {name} for auto; `bench cost --run RUN` finds it from "
            f"a run with {decoder}"
        )
    return str(number)
