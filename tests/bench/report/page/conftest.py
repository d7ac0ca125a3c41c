"""A run whose report shows everything, written once."""

from pathlib import Path

import pytest

from bench.report.write import write_report
from tests.bench.report.page.runs import write_told_run
from tests.conftest import only_svg


@pytest.fixture(scope="session")
def told_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read it, do not change it."""
    path = write_told_run(tmp_path_factory.mktemp("told") / "a-run")
    with only_svg():
        write_report(path)
    return path
