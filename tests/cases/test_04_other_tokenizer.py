"""A draft model of equal size with other token ids: no draft of it could ever stand."""

import pytest

from tests.cases.conftest import Case


def test_a_draft_model_with_other_token_ids_is_refused(case: Case, stories, variant):
    done = case.run(stories, "--draft", variant("permuted"), decoders="spec")
    assert done.code == 2
    assert "the draft model has another tokenizer than the target: id 3 is" in done.err
    assert not (case.folder / "out").exists()


@pytest.mark.slow
def test_a_draft_of_the_same_tokenizer_passes(case: Case, stories, variant):
    done = case.run(stories, "--draft", variant("fewer"), decoders="spec")
    assert done.code == 0, done.err
