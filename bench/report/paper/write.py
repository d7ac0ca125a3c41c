r"""`bench paper`: write all parts of a paper that come from runs, from their folders only.

The parts: figures at column width with embedded TrueType fonts and no title (the caption has it),
their numbers as CSV, a booktabs table to ``\input``, a paragraph on reproducing the runs, facts for
the venue's checklist, BibTeX entries, and a skeleton (``paper.tex``) that includes all of these and
compiles. The same records give the same bytes. The texts are facts to check and to shorten, never
answers: only authors know what their paper discusses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from string import Template

from bench.errors import UsageError, did_you_mean
from bench.records.files import write_files
from bench.records.frames import csv_bytes
from bench.report.paper import facts, table
from bench.report.paper.caption import caption_of
from bench.report.paper.citations import bibliography
from bench.report.paper.facts import Members
from bench.report.paper.layout import VENUES, Layout, packaged
from bench.report.together import NamedRun, decoders_of, differences
from bench.text import latex

_OPENING = r"\providecommand{\citep}[1]{\cite{#1}}\begingroup\emergencystretch=4em"
"""Makes citations plain without natbib, which the venues' styles load; lets long names stretch."""
_WARNING = "% Made of the records of runs by `bench paper`: check it, and shorten it."


def reproducibility(members: Members, venue: str) -> str:
    """Return the paragraph: code, models, work, sampling, seeds, protocol, machine."""
    parts = (
        *(facts.code, facts.models, facts.decoders, facts.data, facts.sampling, facts.seeds),
        *(facts.protocol, facts.statistics, facts.machine, facts.software),
    )
    lines = [part(members) for part in parts]
    if len(members) > 1:
        differing = ", ".join(latex(key) for key, _ in differences(members))
        lines.append(f"The runs differ in: {differing or 'nothing that is recorded'}.")
    return "\n".join([_WARNING, _OPENING, VENUES[venue].heading, *lines, r"\par\endgroup"]) + "\n"


def checklist(members: Members, venue: str) -> str:
    """Return the facts for each question of the checklist, as a list."""
    items = [
        rf"\item[{question}] {' '.join(getattr(facts, name)(members) for name in answers)}"
        for question, answers in VENUES[venue].questions.items()
    ]
    opening = [_WARNING, f"% Facts {VENUES[venue].title}.", _OPENING, r"\begin{description}"]
    return "\n".join([*opening, *items, r"\end{description}", r"\endgroup"]) + "\n"


_FIGURES: Mapping[str, str] = {
    "speedup": r"Speed-up over autoregressive decoding, with 95\,\% intervals.",
    "tokens_per_step": r"Tokens per step after the first, with 95\,\% intervals.",
    "quality": r"Quality of the answers, with 95\,\% intervals.",
}


def write_paper(
    members: Sequence[NamedRun],
    folder: Path,
    layout: Layout,
    note: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write table, figures with their CSVs, texts, references, a skeleton; return the files.

    `note` is called with columns that do not fit, and with names without BibTeX entries.

    Raises:
        BenchError: a label names no decoder of the runs or the requested columns do not fit
            (exit 2), or the files cannot be written (1).
    """
    there = decoders_of(members)
    for name in layout.labels:
        if name not in there:
            runs = " and ".join(member.name for member in members)
            line = f"--label {name}: {runs} has no such decoder; {did_you_mean(name, there)}"
            raise UsageError(line)
    references, missing = bibliography(members)
    if missing:
        note(f"no BibTeX entry is known for {', '.join(missing)}: add yours to references.bib")
    texts = {
        "main.tex": table.latex(members, layout, partial(caption_of, members, layout), note),
        "reproducibility.tex": reproducibility(members, layout.venue),
        "checklist.tex": checklist(members, layout.venue),
        "references.bib": references,
    }
    figures = _figures(members, layout)
    texts["paper.tex"] = _skeleton(layout.venue, figures)
    return write_files(folder, figures | {name: text.encode() for name, text in texts.items()})


def _figures(members: Sequence[NamedRun], layout: Layout) -> dict[str, bytes]:
    """Draw speed-up, tokens per step and quality, each if it is known."""
    from bench.report.figures import canvas, dots  # matplotlib: only where something is drawn

    made: dict[str, bytes] = {}
    shown = {"speedup": dots.SPEEDUP, "tokens_per_step": dots.TOKENS, "quality": dots.QUALITY}
    for name, what in shown.items():
        drawn = dots.dots_figure(members, what, VENUES[layout.venue].width, layout.labels)
        if drawn is not None:
            made[f"{name}.pdf"] = canvas.render(drawn[0], ["pdf"])["pdf"]
            made[f"{name}.csv"] = csv_bytes(drawn[1])
    return made


def _skeleton(venue: str, made: Collection[str]) -> str:
    """Return a paper that compiles and includes everything, with the figures among `made`."""
    names = [name for name in _FIGURES if f"{name}.pdf" in made]
    references = ", ".join(rf"\ref{{fig:{name}}}" for name in names)
    word = "Figure" if len(names) == 1 else "Figures"
    figure = Template(packaged("figure.tex"))
    return Template(packaged("skeleton.tex")).substitute(
        venue=venue,
        options=VENUES[venue].options,
        geometry=VENUES[venue].geometry,
        figures_named=f"; see {word}~{references}" if names else "",
        figures="".join(figure.substitute(name=name, caption=_FIGURES[name]) for name in names),
    )
