"""Weights of a file that the architecture does not take are told where a reader looks."""

from __future__ import annotations

import pytest

from bench.records.run_folder import load_run
from tests.cases.conftest import Case


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weight"), [("biased", "q_proj.bias"), ("fewer", "layers.3.")])
def test_weights_that_the_architecture_has_no_place_for_are_reported(
    case: Case, variant, name, weight
):
    done = case.run(variant(name), "--quality-limit", 0)
    assert done.code == 0
    notes = case.env()["models"]["target"]["notes"]
    (note,) = [each for each in notes if "the architecture has no place for" in each]
    assert weight in note
    assert any(note in line for line in load_run(case.latest()).status.warnings)
    assert note in case.report()


@pytest.mark.slow
def test_a_text_under_several_names_is_one_cluster(case: Case, stories):
    tasks = case.write([{"id": str(n), "prompt": "Once upon a time"} for n in range(4)])
    case.run(stories, "--quality-limit", 0, tasks=tasks)
    assert "3 of 4 conversations ask a text that another one asks" in case.report()
    assert "in 1 cluster" in case.report()
