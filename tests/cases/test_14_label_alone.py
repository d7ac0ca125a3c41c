"""A label without options, as copied from a table: it means its row there, or is refused."""

import pytest

from tests.command_line import bench

DRY = ("run", "--dry-run", "--no-compile", "--limit", 1, "--quality-limit", 0, "-d")


@pytest.mark.parametrize("decoders", ["hf@lookup", "spec@k2", "lookup@k=8", "ptp@spec", "ar@rows5"])
def test_a_label_without_a_matching_option_is_refused(decoders: str) -> None:
    done = bench(*DRY, decoders)
    assert done.code == 2
    assert "write" in done.err


@pytest.mark.slow
def test_the_label_of_a_table_row_selects_the_options_of_that_row() -> None:
    done = bench(*DRY, "idlm@isd")
    assert done.code == 0
    assert "idlm@isd: mode=isd, stride=8" in done.out
    assert "idlm@isd is idlm:mode=isd:stride=8" in done.err


@pytest.mark.slow
def test_isd_alone_reports_how_it_differs_from_the_isd_row_of_the_tables() -> None:
    assert "the tables' row idlm@isd is isd:stride=8" in bench(*DRY, "isd").err
