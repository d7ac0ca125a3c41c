"""The skeleton of a paper by venue, and LaTeX over it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench.report.paper.write import _skeleton as skeleton

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
    """The skeleton that `bench paper` writes, made to print how wide its column is."""
    text = skeleton(venue, [f"{name}.pdf" for name in figures])
    told = r"\begin{document}" + "\n" + r"\typeout{the column is \the\columnwidth}"
    return text.replace(r"\begin{document}", told)


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
