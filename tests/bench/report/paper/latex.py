"""Minimal documents with the text block of each venue's style file, in Times, and LaTeX over them.

The style files cannot be shipped; class, margins, columns and fonts are as they set them.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

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


needs_latex = pytest.mark.skipif(
    bool(_missing()),
    reason=f"needs {_missing()} of LaTeX (texlive-latex-recommended, texlive-science, "
    "texlive-fonts-recommended)",
)
_BLOCKS = {
    "icml": ("twocolumn,10pt", "letterpaper,textwidth=6.75in,textheight=9in,columnsep=0.25in"),
    "acl": ("twocolumn,11pt", "a4paper,margin=2.5cm,columnsep=0.6cm"),
    "neurips": ("10pt", "letterpaper,textwidth=5.5in,textheight=9in"),
    "iclr": ("10pt", "letterpaper,textwidth=5.5in,textheight=9in"),
    "tmlr": ("10pt", "letterpaper,textwidth=6.5in,textheight=9in"),
    "arxiv": ("11pt", "letterpaper,margin=1in"),
}


def document(venue: str, figures: list[str]) -> str:
    """A paper of the venue's shape that takes in everything `bench paper` wrote."""
    options, geometry = _BLOCKS[venue]
    lines = [
        rf"\documentclass[{options}]{{article}}",
        rf"\usepackage[{geometry}]{{geometry}}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage{times,booktabs,siunitx,graphicx,natbib}",
        r"\begin{document}",
        r"\typeout{the column is \the\columnwidth}",
        r"\section{Results}",
        r"\input{main}",
        *(rf"\begin{{figure}}[t]\includegraphics{{{name}}}\end{{figure}}" for name in figures),
        r"\typeout{texts begin}",
        r"\input{reproducibility}",
        r"\bibliographystyle{plainnat}",
        r"\bibliography{references}",
        r"\appendix",
        r"\section{Checklist}",
        r"\input{checklist}",
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


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
