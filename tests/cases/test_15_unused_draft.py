"""A draft model that nobody uses is refused, as an adapter that nobody uses is."""

from tests.cases.conftest import Case


def test_a_draft_model_that_no_decoder_uses_is_refused(case: Case, stories):
    done = case.run(stories, "--draft", "/nonexistent", decoders="lookup")
    assert done.code == 2
    assert "--draft /nonexistent: none of ar, lookup uses a draft model" in done.err
