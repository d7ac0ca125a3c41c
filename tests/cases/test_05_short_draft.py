"""A draft model of a shorter context: its positions run out, and its drafts become poor."""

import json

import pytest

from tests.cases.conftest import Case

LINE = "the draft model's context is 48 tokens, the target's 512: texts of this run have up to "


@pytest.mark.slow
def test_texts_beyond_the_draft_models_context_are_a_warning_of_the_run_and_its_report(
    case: Case, stories, variant
):
    given = ("--draft", variant("short"), "--max-new-tokens", 40)
    done = case.run(stories, *given, decoders="spec")
    assert done.code == 0, done.err
    assert LINE in done.err
    assert LINE in case.report()
    warnings = json.loads((case.latest() / "run.json").read_text())["warnings"]
    assert [line for line in warnings if LINE in line]


@pytest.mark.slow
def test_texts_within_the_draft_models_context_cause_no_warning(case: Case, stories, variant):
    done = case.run(stories, "--draft", variant("short"), decoders="spec")
    assert LINE not in done.err
    assert LINE not in case.report()
