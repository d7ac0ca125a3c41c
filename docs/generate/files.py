"""Tables of stored files that are no runs: measurements in CSV files, logs of training, scores."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.text import UNKNOWN
from docs.generate.places import ROOT
from docs.generate.sources import num_weights, paths_of
from docs.generate.tables import code, table

_POSITIONS = 4
"""Number of positions whose accuracy a table of training shows."""


def csv_rows(name: str, columns: str, *filters: str) -> str:
    """Return rows and columns of one CSV file, or of several with the name of each.

    Args:
        name: path of the file in ``results/reference``, or a pattern with ``*``.
        columns: names of columns, with commas; ``name:heading`` sets another heading ("_": space).
        filters: ``COLUMN=VALUE,VALUE``: rows with one of these values.
    """
    paths = paths_of(name)
    shown = [column.partition(":")[::2] for column in columns.split(",")]
    kept = {key: values.split(",") for key, _, values in (each.partition("=") for each in filters)}
    rows = [
        [code(path.stem)] * (len(paths) > 1) + [_cell(row, column) for column, _ in shown]
        for path in paths
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        if all(row[key] in values for key, values in kept.items())
    ]
    heads = [(heading or column).replace("_", " ") for column, heading in shown]
    return table([*["file"] * (len(paths) > 1), *heads], rows).rstrip()


def _cell(row: Mapping[str, str], column: str) -> str:
    """Return a value with three digits."""
    try:
        value = float(row[column])
    except ValueError:
        return code(row[column]) if row[column] else UNKNOWN
    return f"{value:,.0f}" if value >= 100 or value.is_integer() else f"{value:.3g}"


def cost(folder: str) -> tuple[str, str, str]:
    """Return a folder's number of weights, tokens or slots seen and minutes, by log."""
    logs = [last for _, last in _logs(ROOT / folder)]
    seen = " + ".join(f"{last['tokens'] / 1e6:.2g} M" for last in logs)
    minutes = " + ".join(f"{last['seconds'] / 60:.0f}" for last in logs)
    (file,) = (ROOT / folder).glob("*.safetensors")
    weights = next((x["parameters"] for x in logs if "parameters" in x), None) or num_weights(file)
    return f"{weights / 1e6:.2f} M", seen or UNKNOWN, minutes or UNKNOWN


def training(*folders: str) -> str:
    """Return a row per log of training in the folders of weights: its cost, and held-out results.

    Accuracies are those of the first positions; *in a row* is the mean number of leading right
    ones.
    """
    rows = []
    for parent in folders:
        for folder in sorted(path for path in (ROOT / parent).iterdir() if path.is_dir()):
            for name, last in _logs(folder):
                held_out = last.get("held_out", {})
                sampled = held_out.get("sampled", held_out)
                greedy = held_out.get("greedy") or {
                    key.removeprefix("greedy_"): value
                    for key, value in held_out.items()
                    if key.startswith("greedy_")
                }
                rows.append(
                    (
                        code(folder.name),
                        name,
                        f"{last['step']:,}",
                        f"{last['tokens'] / 1e6:.2g} M",
                        f"{last['seconds'] / 60:.0f}",
                        f"{last['peak_bytes'] / 1e9:.1f}" if "peak_bytes" in last else UNKNOWN,
                        *_right(sampled),
                        *_right(greedy),
                    )
                )
    heads = ("weights", "log", "steps", "tokens or slots", "minutes", "peak GB")
    right = ("right at positions 1 to 4", "in a row")
    return table((*heads, *right, f"greedy: {right[0]}", right[1]), rows).rstrip()


def _right(held_out: Mapping[str, Any]) -> tuple[str, str]:
    accuracy = held_out.get("accuracy") or []
    stands = held_out.get("drafts_that_stand")
    row = held_out.get("leading") or held_out.get("leading_16") or stands
    return (
        ", ".join(f"{each:.2f}" for each in accuracy[:_POSITIONS]) or UNKNOWN,
        f"{row:.2f}" if row else UNKNOWN,
    )


def _logs(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the last evaluation of each log of a folder, the first one first."""
    files = sorted(folder.glob("*_log.jsonl"), key=lambda f: (f.stem != "training_log", f.stem))
    for file in files:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        yield file.stem.removesuffix("_log"), next(x for x in reversed(lines) if "held_out" in x)


def scores() -> str:
    """Return the scores of the zoo's models by family."""
    said = json.loads((ROOT / "zoo/scores.json").read_text(encoding="utf-8"))
    rows = []
    for family, metrics in said["target"]["scores"].items():
        metric, score = next(iter(metrics.items()))
        models = said["target"], said["draft"]
        draft = models[1]["scores"][family][metric]
        agreed = said["agreement"][family]
        losses = [f"{model['held_out_loss'][family]:.4f}" for model in models]
        rows.append(
            (code(family), metric, f"{score:.3f}", f"{draft:.3f}", *losses, f"{agreed:.2f}")
        )
    heads = ("family", "metric", "target", "draft", "target loss", "draft loss", "agreement")
    return table(heads, rows).rstrip()
