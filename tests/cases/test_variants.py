"""The variants are what their names say: otherwise a case would test nothing."""

import pytest

from tests.cases.conftest import Case
from tests.cases.variants import CHANGES


@pytest.mark.slow
def test_a_run_of_the_unchanged_model_is_valid(case: Case, stories):
    done = case.run(stories)
    assert done.code == 0, done.err
    assert "VALID" in done.out + done.err
    assert {record.decoder for record in case.records()} == {"ar", "ar@aa", "lookup"}


@pytest.mark.slow
def test_a_model_with_renumbered_token_ids_gives_the_same_texts(case: Case, stories, variant):
    for output, model in (("out", stories), ("other", variant("permuted"))):
        assert case.run(model, "--quality-limit", 0, output=output).code == 0
    texts = [sorted(str(r.text) for r in case.records(output)) for output in ("out", "other")]
    tokens = [{r.tokens for r in case.records(output)} for output in ("out", "other")]
    assert texts[0] == texts[1]
    assert tokens[0].isdisjoint(tokens[1])


def test_every_change_changes_a_file(stories, variant):
    for name in CHANGES:
        held = {file.name: file.read_bytes() for file in variant(name).iterdir()}
        assert held != {file.name: file.read_bytes() for file in stories.iterdir()}, name
