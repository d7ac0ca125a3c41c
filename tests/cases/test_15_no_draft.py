"""Case 15: a decoder that drafts nothing says so."""

from __future__ import annotations

import pytest

from bench.records.run_folder import load_run
from tests.cases.conftest import Case


@pytest.mark.slow
def test_a_drafter_that_never_proposes_is_told(case: Case, stories):
    done = case.run(stories, "--quality-limit", 0, decoders="lookup:n=16:shortest=16")
    warnings = load_run(case.latest()).status.warnings
    assert done.code == 0
    assert any(line.startswith("lookup drafted nothing in ") for line in warnings)
    assert "lookup drafted nothing in " in case.report()
