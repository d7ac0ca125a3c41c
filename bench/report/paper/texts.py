"""The texts of a paper: how to reproduce it, and the facts that its venue's checklist asks for.

Both are facts to check and to shorten, never answers: only authors know what their paper discusses.
"""

from __future__ import annotations

from bench.report.paper import facts
from bench.report.paper.facts import Members
from bench.report.paper.layout import VENUES
from bench.report.together import differences
from bench.text import latex

_OPENING = r"\providecommand{\citep}[1]{\cite{#1}}\begingroup\emergencystretch=4em"
"""Without natbib, which the venues' styles load, citations are plain; long names may stretch."""
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
    """Return the facts by question, as a list."""
    items = [
        rf"\item[{question}] {' '.join(getattr(facts, name)(members) for name in answers)}"
        for question, answers in VENUES[venue].questions.items()
    ]
    opening = [_WARNING, f"% Facts {VENUES[venue].title}.", _OPENING, r"\begin{description}"]
    return "\n".join([*opening, *items, r"\end{description}", r"\endgroup"]) + "\n"
