"""The summary of `make gpu`: shares of limits by hand, and what is read from what a step left."""

import json
from dataclasses import replace

import pytest

from bench.gpu_summary import Outcome, Status, Step, read_outcome, write_summary
from bench.records.cost import CostCell, Measured, read_facts, write_facts
from tests.made_up_cost import GRID, seconds, write_cost_folder

CELL = CostCell(sequences=1, context=10, rows=1)
LIMIT_S = (10**6 + 100 * 11) / 1e10
"""Of the made-up folder: a megabyte of weights, 11 tokens of 100 bytes, at 10 GB/s."""


def outcome(folder, *, aim=None, status=Status.PASSED, **facts):
    write_cost_folder(folder / "made")
    known = read_facts(folder / "made")
    assert known is not None
    write_facts(folder / "made", replace(known, replayed=CELL, **facts))
    (folder / "made.log").write_text("one\nthe last\n\n", encoding="utf-8")
    step = Step(name="made", kind="cost", words=("bench",), budget_s=9.0, aim=aim)
    return read_outcome(step, folder, status, 0, 3.0)


def test_a_share_is_the_limit_over_the_call_where_nothing_was_replayed(tmp_path):
    one = outcome(tmp_path).figures["one_row"]
    assert one["called_s"] == pytest.approx(seconds(CELL))
    assert one["bandwidth_limit_s"] == pytest.approx(LIMIT_S)
    assert one["share_of_limit"] == pytest.approx(LIMIT_S / seconds(CELL))
    assert (one["aim"], one["aim_met"]) == (None, None)


@pytest.mark.parametrize(("aim", "met"), [(0.5, True), (0.51, False)])
def test_an_aim_is_held_against_the_replay_where_that_is_faster(tmp_path, aim, met):
    facts = {
        "beside_replay": Measured(value=LIMIT_S * 5),
        "replay": Measured(value=LIMIT_S * 2 * (1 - 1e-9)),
    }
    one = outcome(tmp_path, aim=aim, **facts).figures["one_row"]
    assert one["share_of_limit"] == pytest.approx(0.5)
    assert one["aim_met"] is met


def test_every_cell_is_kept_with_its_time(tmp_path):
    calls = outcome(tmp_path).figures["calls"]
    assert {(c["sequences"], c["context"], c["rows"]) for c in calls} == {
        (cell.sequences, cell.context, cell.rows) for cell in GRID.cells
    }
    for call in calls:
        cell = CostCell(**{key: call[key] for key in ("sequences", "context", "rows")})
        assert call["seconds"] == pytest.approx(seconds(cell))


def test_a_step_that_ran_out_of_time_keeps_its_figures_and_says_how_it_ended(tmp_path):
    ended = outcome(tmp_path, status=Status.OUT_OF_TIME)
    assert ended.reason == "the last"
    assert not ended.well
    assert ended.figures["calls"]


def test_the_summary_names_no_folder_of_the_machine(tmp_path):
    words = ("bench", "cost", "--folder", str(tmp_path / "made"))
    ended = outcome(tmp_path)
    ended = replace(ended, step=replace(ended.step, words=words))
    left = Step(name="left", kind="run", words=("bench",), budget_s=1.0, left_out="a|b")
    write_summary(
        tmp_path,
        [ended, Outcome(step=left, status=Status.LEFT_OUT, reason="a|b")],
        rehearsal=True,
    )
    data = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert data["steps"][0]["command"] == "bench cost --folder OUT/made"
    assert data["steps"][1]["reason"] == "a|b"
    page = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert str(tmp_path) not in page + json.dumps(data)
    assert "rehearsal" in page
    rows = [line for line in page.splitlines() if line.startswith("| left")]
    assert rows == ["| left | left out | 0 | 1 | a\\|b |"]
