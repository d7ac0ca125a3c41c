"""The source stays small enough to hold in mind, and a checkout small enough to carry anywhere."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.source_size import code_lines, is_extra, num_lines, source_files

MAX_LINES = 53_270
"""A ceiling to lower, to 45,000 next. It was 49,369; deleted features gave 2,300 back (ADR 0024),
what outsiders could do and were not told took 4,400 (checks of claims before a run, the run's own
rounding, scoring of expressions and other scripts, templates in a child, one gate, bounds on every
stored field), extras with files of their own 300; helpers of one use gave 700 back, formulas of all
columns moved here from docs (ADR 0036); trees that grow on the device for several sequences took
260 (ADR 0038). Memories with `suffix`, public verification rules with block verification, laws of
logits and networks of other packages took 1,040, for which merged modules gave 390. Masked targets
with `dllm`, outputs of a row, `mtp`, sequences and cascades took 1,260, calibrated lengths 400,
metrics of peers 350, `bench submit` 350; one way to run a call gave 130 (ADR 0042). Modules and
helpers of one use gave 660, sections as extras took 80, a selector of drafts 140. Captured calls
that take one upload apart took 330, padding and its measurement 150, memories in order 60; fewer
concepts and one pass of training gave 340. Kernels in Triton in place of compiled parts took 190,
chains of draft calls in one graph 170, calls that begin early, deltas by a kernel and less work of
the host beside drafts 380; what a run said twice gave 490, what it checked twice 390, fewer forms
around the forward pass 150, 200 and 210, extras that repeat numbers 590, one form of intervals and
names 300, a run taken whole 250, extras again 350; calls merged without padding took 110, drawn
trees as tensors 75. Lines are Python's: `products.cpp` has 800 more."""
MAX_CORE_LINES = 34_410
"""Those of the core, to lower to 24,000 (ADR 0035)."""
MAX_READING_LINES = 6000
ROOT = Path(__file__).parents[1]
MAX_BYTES = {"": 50 * 2**20, "zoo": 45_000_000}


def test_the_source_is_no_longer_than_its_ceiling() -> None:
    lines = {folder: sum(map(num_lines, files)) for folder, files in source_files().items()}
    assert sum(lines.values()) <= MAX_LINES
    assert sum(num for folder, num in lines.items() if not is_extra(folder)) <= MAX_CORE_LINES


def test_the_reading_order_is_short_enough_for_an_afternoon() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = page.split("<!-- reading order -->")[1].split("<!-- end of the reading order -->")[0]
    files = re.findall(r"\| `([\w/]+\.py)` \|", listed)
    assert {"bench/settings/config.py", "decoders/ptp.py", "bench/report/tables/main.py"} < {*files}
    assert not [file for file in files if is_extra(str(Path(file).parent))]
    assert sum(num_lines(ROOT / file) for file in files) <= MAX_READING_LINES


@pytest.mark.parametrize("folder", MAX_BYTES)
def test_tracked_files_stay_small(folder: str) -> None:
    """A machine with a GPU is reached with the whole tree; weights are most of it."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git and a checkout")
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--", folder or "."]
    names = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    assert len(files) > 10
    assert sum(file.stat().st_size for file in files) < MAX_BYTES[folder]


def test_code_lines_are_those_with_code(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    lines = (
        '"""A module.', "", "More of it.", '"""', "", "# a comment",
        "X = (", "    1,", ")", '"""Its docstring."""', "",
        "def f() -> str:", '    """Say it."""', '    return """two', 'lines"""  # and why',
    )  # fmt: skip
    file.write_text("\n".join(lines), encoding="utf-8")
    assert code_lines(file) == 3 + 1 + 2
