"""A paper to begin with: it compiles as it is, and takes in everything that was written beside it.

The venues' style files cannot be shipped; class, margins, columns and fonts are as they set them,
so that table and figures fit there too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

_BLOCKS: Mapping[str, tuple[str, str]] = {
    "icml": ("twocolumn,10pt", "letterpaper,textwidth=6.75in,textheight=9in,columnsep=0.25in"),
    "acl": ("twocolumn,11pt", "a4paper,margin=2.5cm,columnsep=0.6cm"),
    "neurips": ("10pt", "letterpaper,textwidth=5.5in,textheight=9in"),
    "iclr": ("10pt", "letterpaper,textwidth=5.5in,textheight=9in"),
    "tmlr": ("10pt", "letterpaper,textwidth=6.5in,textheight=9in"),
    "arxiv": ("11pt", "letterpaper,margin=1in"),
}
"""Options of the class and of geometry, by venue."""
_FIGURES: Mapping[str, str] = {
    "speedup": r"Speed-up over autoregressive decoding, with 95\,\% intervals.",
    "tokens_per_step": r"Tokens per step after the first, with 95\,\% intervals.",
    "quality": r"Quality of the answers, with 95\,\% intervals.",
}


def skeleton(venue: str, files: Collection[str]) -> str:
    """The paper as LaTeX; of the figures those whose PDF is among `files`."""
    options, geometry = _BLOCKS[venue]
    figures = [name for name in _FIGURES if f"{name}.pdf" in files]
    lines = [
        "% A paper to begin with. `bench paper` writes it anew: work on a copy.",
        "% pdflatex paper; bibtex paper; pdflatex paper; pdflatex paper",
        f"% Class and geometry give the text block of {venue}: put its style file in their place.",
        rf"\documentclass[{options}]{{article}}",
        rf"\usepackage[{geometry}]{{geometry}}",
        r"\usepackage[T1]{fontenc}",
        r"\usepackage{times,booktabs,siunitx,graphicx,natbib}",
        r"\title{Title}",
        r"\author{Authors}",
        r"\date{}",
        r"\begin{document}",
        r"\maketitle",
        r"\section{Results}",
        rf"Table~\ref{{tab:decoders}} compares the decoders{_named(figures)}.",
        r"\input{main}",
        *(_figure(name) for name in figures),
        r"\input{reproducibility}",
        r"\bibliographystyle{plainnat}",
        r"\bibliography{references}",
        r"\appendix",
        r"\section{Checklist}",
        r"\input{checklist}",
        r"\end{document}",
    ]
    return "\n".join(lines) + "\n"


def _named(figures: Collection[str]) -> str:
    if not figures:
        return ""
    word = "Figure" if len(figures) == 1 else "Figures"
    numbers = ", ".join(rf"\ref{{fig:{name}}}" for name in figures)
    return f"; see {word}~{numbers}"


def _figure(name: str) -> str:
    return "\n".join(
        [
            r"\begin{figure}[t]",
            r"\centering",
            rf"\includegraphics{{{name}}}",
            rf"\caption{{{_FIGURES[name]}}}",
            rf"\label{{fig:{name}}}",
            r"\end{figure}",
        ]
    )
