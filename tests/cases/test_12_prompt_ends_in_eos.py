"""Prompts that end in a stop id, by the tokenizer or by the template, are told at load."""

import pytest

from tests.cases.conftest import Case

NOTE = "its prompts end in a stop id (</s>)"


@pytest.mark.parametrize("name", ["eos_added", "closed"])
def test_prompts_that_end_in_a_stop_id_are_reported(case: Case, variant, name: str):
    done = case.run(variant(name), "--dry-run")
    assert done.code == 0, done.err
    assert done.err.count(NOTE) == 1


def test_prompts_without_a_final_stop_id_are_not_reported(case: Case, stories, variant):
    for model in (stories, variant("say")):
        assert "stop id" not in case.run(model, "--dry-run").err
