"""Adapters side by side on the same held-out windows: how far ahead each is right, at what cost.

``python -m training.adapter.compare OUTPUT RECIPE NAME=FOLDER …`` writes ``adapters.csv`` and
``slots.png`` into OUTPUT. RECIPE names model, text and distributions; the others are compared with
the first adapter. Intervals are percentile bootstraps over rows of text (their windows stay
together); differences are paired: both adapters see the same resampled rows.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from decoders.core.adapter.module import SlotAdapter
from training.adapter.recipe import AdapterRecipe
from training.adapter.report import SlotTally
from training.adapter.train import build_job
from training.plots import plot_adapters, read_evaluations
from training.recipe import read_recipe
from training.reporter import Reporter

_NUM_RESAMPLES = 2000
_NUM_SLOTS = 16


class Value(NamedTuple):
    """An estimate and its 95 % interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, resampled: np.ndarray) -> Value:
        """Return the first, the estimate itself, and the interval of the others."""
        low, high = np.quantile(resampled[1:], (0.025, 0.975))
        return cls(float(resampled[0]), float(low), float(high))

    def columns(self, name: str) -> dict[str, float]:
        """Return the cells of a table by column."""
        ends = ("", "_low", "_high")
        return {f"{name}{end}": round(x, 3) for end, x in zip(ends, self, strict=True)}


def leading_of(tallies: Sequence[SlotTally], seed: int = 0) -> list[tuple[Value, Value | None]]:
    """Return leading right predictions of 16 slots, and what each adapter has more than the first.

    Tallies are of the same rows of text, in the same order; `seed` is that of the resampling.
    """
    num_rows = len(tallies[0].by_row)
    assert all(len(tally.by_row) == num_rows for tally in tallies), "other rows of text"
    rng = np.random.default_rng(seed)
    draws = rng.multinomial(num_rows, np.full(num_rows, 1 / num_rows), _NUM_RESAMPLES)
    weights = np.concatenate([np.ones((1, num_rows)), draws])
    leading = []
    for tally in tallies:
        counts = torch.stack(tally.by_row).double().numpy()
        tried, stood = weights @ counts[:, 2], weights @ counts[:, 3]
        chances = np.divide(stood, tried, out=np.zeros_like(stood), where=tried > 0)
        leading.append(chances[:, :_NUM_SLOTS].cumprod(1).sum(1))
    more = [None, *(Value.of(other - leading[0]) for other in leading[1:])]
    return list(zip(map(Value.of, leading), more, strict=True))


def _tallies_of(
    tables: Mapping[str, Any], folder: Path, num_rows: int, *, greedy: bool
) -> tuple[SlotAdapter, list[SlotTally]]:
    """Return an adapter and its tallies, sampled and perhaps greedy, on a recipe's held-out rows.

    A folder with a ``draft`` model holds what an ungated adapter became: it is run on that model
    and judged by the recipe's.
    """
    recipe = AdapterRecipe.of({**tables, "run": {**tables["run"], "eval_rows": num_rows}})
    adapter = SlotAdapter.load(folder)
    if (draft := folder / "draft").is_dir():
        model = {"path": str(draft), "teacher": recipe.model.teacher or recipe.model.path}
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update=model)})
    reporter = Reporter("none", "adapter", None)
    job = build_job(recipe, folder, torch.device("cpu"), reporter, adapter=adapter)
    return adapter, [job.tally(), *([job.tally(greedy=True)] if greedy else [])]


def _cost_of(log: Path) -> dict[str, Any]:
    """Return trained parameters, minutes and MiB (of one worker at most) from a training log."""
    if not log.is_file():
        return {}
    last: dict[str, Any] = (read_evaluations(log, "held_out") or [{}])[-1]
    return {
        "parameters": last.get("parameters"),
        "steps": last.get("step"),
        "minutes": round(last["seconds"] / 60, 1) if "seconds" in last else None,
        "peak_mib": last["peak_bytes"] // 2**20 if "peak_bytes" in last else None,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare adapters, see the top of this file."""
    parser = argparse.ArgumentParser(prog="python -m training.adapter.compare", description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("adapters", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--rows", type=int, default=240, help="held-out rows of text")
    given = parser.parse_args(arguments)
    folders = {name: Path(path) for name, path in (a.split("=", 1) for a in given.adapters)}
    tables = read_recipe(given.recipe)
    greedy = bool(tables.get("sampling", {}).get("greedy"))
    judged = {
        name: _tallies_of(tables, folder, given.rows, greedy=greedy)
        for name, folder in folders.items()
    }
    configs = {name: adapter.config for name, (adapter, _) in judged.items()}
    rows: list[dict[str, Any]] = [
        {"adapter": name, "variant": config.variant} for name, config in configs.items()
    ]
    for kind, column in enumerate(("leading_16", "greedy_leading_16")[: 1 + greedy]):
        values = leading_of([tallies[kind] for _, tallies in judged.values()])
        for row, (own, more) in zip(rows, values, strict=True):
            row |= own.columns(column) | (more.columns(f"{column}_more") if more else {})
    for row, folder in zip(rows, folders.values(), strict=True):
        row |= _cost_of(folder / "training_log.jsonl")
    given.output.mkdir(parents=True, exist_ok=True)
    with (given.output / "adapters.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(k for row in rows for k in row)))
        writer.writeheader()
        writer.writerows(rows)
    plot_adapters(configs, given.output / "slots.png")


if __name__ == "__main__":
    main()
