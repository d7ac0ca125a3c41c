"""Adapters side by side: paired intervals, and the figures that training itself printed."""

import copy
import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny_recipe import toml_of
from training.adapter.compare import leading_of, main
from training.adapter.report import SlotTally, leading
from training.adapter.train import train_adapter

SLOTS = 5


def tally_of(chance: float, num_rows: int, seed: int) -> SlotTally:
    """Rows of four windows whose every slot is right with a chance of the row's own."""
    rng = torch.Generator().manual_seed(seed)
    tally = SlotTally(SLOTS)
    for _ in range(num_rows):
        own = min(0.99, max(0.01, chance + 0.1 * float(torch.randn((), generator=rng))))
        right = torch.rand(4, SLOTS, generator=rng) < own
        before = torch.cat([torch.ones(4, 1), right[:, :-1].cumprod(1)], 1).bool()
        counts = [torch.full((SLOTS,), 4), right.sum(0), before.sum(0), (before & right).sum(0)]
        tally.by_row.append(torch.stack(counts))
    return tally


def test_the_estimate_is_the_reports_and_an_adapter_differs_from_itself_by_nothing() -> None:
    tally = tally_of(0.7, 30, seed=1)
    (own, none), (_, more) = leading_of([tally, copy.deepcopy(tally)])
    assert own.mean == pytest.approx(leading(tally.survival(), 16), abs=1e-3)
    assert own.low < own.mean < own.high
    assert none is None
    assert more is not None
    assert (more.mean, more.low, more.high) == (0, 0, 0)


def test_intervals_hold_what_they_say_about_as_often_as_they_should() -> None:
    truth = leading_of([tally_of(0.7, 6000, seed=0)])[0][0].mean
    held = 0
    for seed in range(1, 61):
        value = leading_of([tally_of(0.7, 40, seed=seed)])[0][0]
        held += value.low <= truth <= value.high
    assert 51 <= held <= 60  # 57 of 60 expected


def test_a_paired_difference_is_far_narrower_than_the_adapters_own_intervals() -> None:
    tally = tally_of(0.7, 40, seed=1)
    worse = copy.deepcopy(tally)
    for counts in worse.by_row:
        counts[3, 2] -= (counts[3, 2] > 0).long()
    (own, _), (_, more) = leading_of([tally, worse])
    assert more is not None
    assert more.high < 0
    assert more.high - more.low < 0.5 * (own.high - own.low)


def test_a_table_and_a_figure_tell_what_training_measured(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    recipe["run"] |= {"half": False, "num_steps": 4}
    trained = {"gated": {}, "ungated": {"gated": False}, "chance": {"variant": "c-ptp"}}
    for name, changes in trained.items():
        tables = copy.deepcopy(recipe)
        tables["adapter"] |= changes
        tables["run"] |= {"objective": "kl"} if name == "chance" else {}
        train_adapter(tables, tmp_path / name, progress="plain")
    (tmp_path / "recipe.toml").write_text(toml_of(recipe), encoding="utf-8")
    named = [f"{name}={tmp_path / name}" for name in trained]
    rows_ = str(recipe["run"]["eval_rows"])
    main([str(tmp_path / "out"), str(tmp_path / "recipe.toml"), *named, "--rows", rows_])
    with (tmp_path / "out" / "adapters.csv").open(encoding="utf-8") as file:
        rows = {row["adapter"]: row for row in csv.DictReader(file)}
    for name in trained:
        measured = json.loads((tmp_path / name / "adapter.json").read_text())["measured"]
        for column in ("leading_16", "greedy_leading_16"):
            assert float(rows[name][column]) == pytest.approx(measured[column], abs=0.02)
    assert rows["gated"]["leading_16_more"] == ""
    assert rows["ungated"]["leading_16_more"] != ""
    assert rows["gated"]["parameters"] == rows["ungated"]["parameters"]  # as trained
    assert int(rows["gated"]["peak_mib"]) > 100
    assert (tmp_path / "out" / "slots.png").stat().st_size > 10_000
