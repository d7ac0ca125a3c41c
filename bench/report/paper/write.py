r"""`bench paper`: everything a paper takes from runs, written from their folders alone.

Figures at column width with embedded TrueType fonts and no title (the caption says it), their
numbers as CSV, a booktabs table to ``\input``, a paragraph on reproducing the runs, the facts that
the venue's checklist asks for, BibTeX entries, and a skeleton (``paper.tex``) that takes in all of
it and compiles. The same records give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.errors import UsageError, did_you_mean
from bench.records.files import write_files
from bench.report.paper.caption import caption_of
from bench.report.paper.citations import bibliography
from bench.report.paper.layout import WIDTHS, Layout
from bench.report.paper.skeleton import skeleton
from bench.report.paper.table import latex
from bench.report.paper.texts import checklist, reproducibility
from bench.report.together import NamedRun, decoders_of
from bench.report.write import csv_bytes


def write_paper(
    members: Sequence[NamedRun],
    folder: Path,
    layout: Layout,
    note: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write table, figures with their CSVs, texts, references, a skeleton; returns the files.

    `note` is told what was left out for want of room, and what has no BibTeX entry.

    Raises:
        BenchError: a label is for no decoder of the runs or the columns asked for do not fit
            (exit 2), or it cannot be written (1).
    """
    for name in layout.labels:
        if name not in (there := decoders_of(members)):
            runs = " and ".join(member.name for member in members)
            line = f"--label {name}: {runs} has no such decoder; {did_you_mean(name, there)}"
            raise UsageError(line)
    references, missing = bibliography(members)
    if missing:
        note(f"no BibTeX entry is known for {', '.join(missing)}: add yours to references.bib")

    texts = {
        "main.tex": latex(members, layout, partial(caption_of, members, layout), note),
        "reproducibility.tex": reproducibility(members, layout.venue),
        "checklist.tex": checklist(members, layout.venue),
        "references.bib": references,
    }
    figures = _figures(members, layout)
    texts["paper.tex"] = skeleton(layout.venue, figures)
    files = {name: text.encode() for name, text in texts.items()}
    return write_files(folder, figures | files)


def _figures(members: Sequence[NamedRun], layout: Layout) -> dict[str, bytes]:
    """Speed-up, tokens per step and quality, each where it is known."""
    from bench.report.figures import canvas, dots

    files: dict[str, bytes] = {}
    shown = {"speedup": dots.SPEEDUP, "tokens_per_step": dots.TOKENS, "quality": dots.QUALITY}
    for name, what in shown.items():
        drawn = dots.dots_figure(members, what, WIDTHS[layout.venue], layout.labels)
        if drawn is not None:
            figure, data = drawn
            files[f"{name}.pdf"] = canvas.render(figure)["pdf"]
            files[f"{name}.csv"] = csv_bytes(data)
    return files
