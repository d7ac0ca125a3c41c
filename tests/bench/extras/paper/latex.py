"""A document around what `bench paper` writes, and LaTeX over it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench.extras.paper.table import VENUES

_FILES = ("article.cls", "geometry.sty", "times.sty", "booktabs.sty", "siunitx.sty", "graphicx.sty")


def _missing() -> str:
    """Return the first program or file of LaTeX that is not installed; empty if all are."""
    for program in ("pdflatex", "bibtex", "kpsewhich"):
        if shutil.which(program) is None:
            return program
    for file in (*_FILES, "natbib.sty", "plainnat.bst", "ptmr8t.tfm"):
        if subprocess.run(["kpsewhich", file], capture_output=True, check=False).returncode:
            return file
    return ""


_MISSING = _missing()
needs_latex = pytest.mark.skipif(
    bool(_MISSING),
    reason=f"needs {_MISSING} of LaTeX (texlive-latex-recommended, texlive-science, "
    "texlive-fonts-recommended)",
)


def document(venue: str, figures: list[str]) -> str:
    """A document as wide as the venue's pages that includes everything."""
    facts = VENUES[venue]
    width = 2 * facts.width + 0.25 if facts.two_columns else facts.width
    options = "twocolumn,10pt" if facts.two_columns else "10pt"
    drawn = "".join(
        rf"\begin{{figure}}\includegraphics{{{name}}}\caption{{}}\end{{figure}}" for name in figures
    )
    return (
        rf"\documentclass[{options}]{{article}}"
        rf"\usepackage[textwidth={width}in,textheight=9in,columnsep=0.25in]{{geometry}}"
        r"\usepackage[T1]{fontenc}\usepackage{times,booktabs,siunitx,graphicx,natbib}"
        "\n"
        r"\begin{document}\typeout{the column is \the\columnwidth}\nocite{*}\input{main}"
        f"\n{drawn}\n"
        r"\bibliographystyle{plainnat}\bibliography{references}\end{document}"
    )


def compiled(folder: Path, text: str) -> str:
    """What the last of the runs of LaTeX and BibTeX over the document printed.

    A run that fails, a warning of BibTeX or an undefined reference fails the test.
    """
    (folder / "paper.tex").write_text(text, encoding="utf-8")
    pdflatex = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper"]
    commands = [pdflatex]
    if "\\bibliography{" in text:
        commands += [["bibtex", "paper"], pdflatex, pdflatex]
    said = ""
    for command in commands:
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        said = ended.stdout
        assert ended.returncode == 0, said[-3000:]
        assert command[0] != "bibtex" or "Warning--" not in said, said
    assert "undefined" not in said, said[-3000:]
    return said
