"""Case 15: a decoder that drafts nothing says so."""

from __future__ import annotations

import pytest

from tests.cases.conftest import Case


@pytest.mark.slow
def test_a_drafter_that_never_proposes_is_reported(case: Case, stories):
    done = case.run(stories, "--quality-limit", 0, decoders="lookup:n=16:shortest=16")
    assert done.code == 0
    assert "lookup has no speed-up (-) in " in case.report()
    assert ": it drafts nothing." in case.report()
