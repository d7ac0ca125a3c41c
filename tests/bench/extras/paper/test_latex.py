"""LaTeX itself over what `bench paper` wrote, at the widths of every venue."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.extras.paper.table import VENUES, PaperLayout
from bench.extras.paper.write import write_paper
from bench.extras.sessions.pooled import load_pool, write_pool
from tests.bench.extras.paper.latex import compiled, document, needs_latex
from tests.bench.extras.paper.test_table import LABELS, REFERENCES, stored

pytestmark = pytest.mark.usefixtures("saved")
FIGURES = ["speedup", "tokens_per_step", "quality"]
POINTS = 72.27
"""TeX's points in an inch."""


@pytest.mark.slow
@needs_latex
@pytest.mark.parametrize("venue", VENUES)
@pytest.mark.parametrize("runs", [("cpu-zoo",), ("cpu-zoo", "cpu-zoo-t07", "cpu-zoo-ptp")])
def test_latex_sets_every_table_and_figure_within_the_column_width(
    venue: str, runs: tuple[str, ...], tmp_path: Path
) -> None:
    labels = LABELS if len(runs) == 1 else {}
    write_paper(stored(*runs), tmp_path, PaperLayout(venue=venue, labels=labels))
    said = compiled(tmp_path, document(venue, FIGURES))
    assert "Overfull" not in said, said
    column = re.search(r"the column is ([\d.]+)pt", said)
    assert column is not None
    assert float(column[1]) == pytest.approx(VENUES[venue].width * POINTS, abs=0.4)
    if shutil.which("pdffonts") is not None:
        fonts = subprocess.run(
            ["pdffonts", "paper.pdf"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        assert "TrueType" in fonts
        assert "Type 3" not in fonts


@pytest.mark.slow
@needs_latex
@pytest.mark.parametrize("venue", VENUES)
def test_latex_sets_the_table_of_a_pool_within_the_column_width(venue: str, tmp_path: Path) -> None:
    folder = REFERENCES / "cpu-zoo-pool"
    write_pool(load_pool([str(folder)], folder), tmp_path)
    text, *_ = document(venue, []).replace("{main}", "{pool}").partition(r"\bibliographystyle")
    assert "Overfull" not in compiled(tmp_path, text + r"\end{document}")
