"""What CI skips for want of a package is found again, test by test, and run once it is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skipped import lacking, main, skipped

ROOT = Path(__file__).parents[1]
FUNCTIONS = """
import pytest
@pytest.mark.parametrize("n", [1, "a.b c", 3])
def test_some(n):
    if n != 1:
        pytest.importorskip("no_such_package")
class TestInside:
    def test_it(self):
        pytest.skip("needs a GPU")
def test_runs():
    pass
"""
MODULE = 'import pytest\npytest.importorskip("other", reason="pip install other")\n'


def made(folder: Path) -> Path:
    """The report of a run of such tests."""
    (folder / "tests" / "deep").mkdir(parents=True)
    (folder / "tests" / "test_some.py").write_text(FUNCTIONS)
    (folder / "tests" / "deep" / "test_module.py").write_text(MODULE)
    run(folder, "--junitxml=r.xml")
    return folder / "r.xml"


def run(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    done = subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_skipped_tests_are_named_as_pytest_names_them(tmp_path: Path) -> None:
    found = skipped(made(tmp_path), tmp_path)
    assert list(found) == [
        "tests/deep/test_module.py",
        "tests/test_some.py::test_some[a.b c]",
        "tests/test_some.py::test_some[3]",
        "tests/test_some.py::TestInside::test_it",
    ]
    assert "4 skipped" in run(tmp_path, *found)
    assert len(list(lacking(found))) == 3, "all but the test that needs a GPU"


def test_a_report_without_skipped_tests_passes(tmp_path: Path) -> None:
    report = tmp_path / "r.xml"
    case = '<testcase classname="tests.test_skipped" name="test_nothing"/>'
    report.write_text(f"<testsuites>{case}</testsuites>")
    assert main([str(report)]) == 0, "nothing was skipped"


def test_ci_reruns_skipped_tests_after_all_packages_are_installed() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    (report,) = re.findall(r'--junitxml=([^"]+)"', script)
    steps = [script.index(step) for step in ("make check", "make docs", "-m tests.skipped")]
    assert steps == sorted(steps)
    assert f'-m tests.skipped "{report}"' in script
