"""LaTeX itself over what `bench paper` wrote, in the text block of every venue."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bench.report.paper.layout import USUAL, VENUES, Layout
from bench.report.paper.table import POINTS, grid, latex, width_of
from bench.report.paper.write import write_paper
from tests.bench.report.paper.latex import compiled, document, needs_latex
from tests.bench.report.paper.test_table import LABELS, stored

pytestmark = pytest.mark.usefixtures("saved")
FIGURES = ["speedup", "tokens_per_step", "quality"]


@pytest.mark.slow
@needs_latex
@pytest.mark.parametrize("venue", VENUES)
@pytest.mark.parametrize("runs", [("cpu-zoo",), ("cpu-zoo", "cpu-zoo-t07", "cpu-zoo-ptp")])
def test_latex_takes_everything_within_the_column(
    venue: str, runs: tuple[str, ...], tmp_path: Path
) -> None:
    labels = LABELS if len(runs) == 1 else {}
    write_paper(stored(*runs), tmp_path, Layout(venue=venue, labels=labels))
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


@needs_latex
def test_the_skeleton_compiles_as_it_was_written(tmp_path: Path) -> None:
    write_paper(stored(), tmp_path, Layout(venue="icml"))
    compiled(tmp_path, (tmp_path / "paper.tex").read_text(encoding="utf-8"))


@pytest.mark.slow
@needs_latex
@pytest.mark.parametrize("size", [(9.0, 6.0), (7.0, 3.0)])
def test_a_table_is_as_wide_as_it_was_computed_to_be(
    size: tuple[float, float], tmp_path: Path
) -> None:
    members, layout = stored(), Layout(venue="neurips", labels=LABELS)
    text = latex(members, layout, lambda made: "")
    tabular = text[text.index(r"\sisetup") : text.index(r"\end{table}")]
    tabular = re.sub(r"\\fontsize\{.*?\}\{.*?\}", rf"\\fontsize{{{size[0]}}}{{11}}", tabular)
    tabular = re.sub(r"tabcolsep\}\{.*?pt\}", rf"tabcolsep}}{{{size[1]}pt}}", tabular)
    tabular = tabular.replace("\n", "%\n")  # the end of a line is a space in a box
    said = compiled(
        tmp_path,
        "\\documentclass{article}\n\\usepackage{times,booktabs,siunitx}\n\\newsavebox{\\made}\n"
        f"\\begin{{document}}\n\\savebox{{\\made}}{{{tabular}}}\n"
        "\\typeout{it is \\the\\wd\\made\\space wide}\n\\end{document}\n",
    )
    measured = re.search(r"it is ([\d.]+)pt wide", said)
    assert measured is not None, said
    computed = width_of(grid(members, layout, USUAL), *size)
    assert float(measured[1]) == pytest.approx(computed, rel=0.005)


@pytest.mark.slow
@needs_latex
def test_without_natbib_citations_are_plain(tmp_path: Path) -> None:
    write_paper(stored(), tmp_path, Layout(venue="arxiv"))
    text = document("arxiv", []).replace(",natbib", "").replace("plainnat", "plain")
    compiled(tmp_path, text)
