"""The texts of a paper: how to reproduce it, and the facts that its venue's checklist asks for.

Both are facts to check and to shorten, never answers: whether something is discussed in a paper
only its authors know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench.report.paper import facts
from bench.report.together import NamedRun, differences
from bench.text import latex

_Fact = Callable[[Sequence[NamedRun]], str]


class _Question(NamedTuple):
    """A question of a checklist by its number and name, and what is known to answer it with."""

    name: str
    facts: tuple[_Fact, ...]


_HOW = (facts.decoders, facts.sampling, facts.seeds, facts.protocol)
_GENERAL = (
    _Question("Code", (facts.code,)),
    _Question("Models", (facts.models,)),
    _Question("Data", (facts.data,)),
    _Question("Settings", _HOW),
    _Question("Error bars", (facts.statistics,)),
    _Question("Compute", (facts.compute, facts.software)),
    _Question("Licences", (facts.licences,)),
    _Question("Limitations", (facts.limits,)),
)
CHECKLISTS: Mapping[str, tuple[str, tuple[_Question, ...]]] = {
    "neurips": (
        "for the NeurIPS paper checklist",
        (
            _Question("2. Limitations", (facts.limits,)),
            _Question(
                "4. Experimental result reproducibility", (facts.code, facts.models, facts.seeds)
            ),
            _Question("5. Open access to data and code", (facts.code, facts.data)),
            _Question("6. Experimental setting/details", (facts.data, *_HOW)),
            _Question("7. Experiment statistical significance", (facts.statistics, facts.limits)),
            _Question("8. Experiments compute resources", (facts.compute,)),
            _Question("12. Licenses for existing assets", (facts.licences,)),
        ),
    ),
    "acl": (
        "for the Responsible NLP Research checklist",
        (
            _Question("A1. Limitations", (facts.limits,)),
            _Question("B1. Citing creators of artifacts", (facts.decoders, facts.data)),
            _Question("B2. Licences of artifacts", (facts.licences,)),
            _Question("B6. Statistics of the data", (facts.data,)),
            _Question("C1. Parameters, budget, infrastructure", (facts.models, facts.compute)),
            _Question("C2. Experimental setup", _HOW),
            _Question("C3. Descriptive statistics", (facts.statistics,)),
            _Question("C4. Packages", (facts.software,)),
        ),
    ),
    "icml": ("for a form: ICML asks for none within the paper", _GENERAL),
    "iclr": ("for an appendix: ICLR asks for no checklist", _GENERAL),
    "tmlr": ("for an appendix: TMLR asks for no checklist", _GENERAL),
    "arxiv": ("for an appendix: arXiv asks for no checklist", _GENERAL),
}
_HEADINGS = {"iclr": r"\subsubsection*{Reproducibility statement}" + "\n"}
"""ICLR has a section of that name between text and references."""


def reproducibility(members: Sequence[NamedRun], venue: str) -> str:
    """The paragraph: code, models, work, sampling, seeds, how it was measured, on what."""
    parts = (
        *(facts.code, facts.models, facts.decoders, facts.data, facts.sampling, facts.seeds),
        *(facts.protocol, facts.statistics, facts.machine, facts.software),
    )
    opening = _HEADINGS.get(venue, r"\paragraph{Reproducibility.}" + "\n")
    lines = [part(members) for part in parts]
    if len(members) > 1:
        differing = ", ".join(latex(key) for key, _ in differences(members))
        lines.append(f"The runs differ in: {differing or 'nothing that is recorded'}.")
    return (
        "\n".join(
            [
                _WARNING,
                _OPENING,
                opening + lines[0],
                *lines[1:],
                r"\par\endgroup",
            ]
        )
        + "\n"
    )


def checklist(members: Sequence[NamedRun], venue: str) -> str:
    """The facts by question, as a list."""
    title, questions = CHECKLISTS[venue]
    lines = [f"% Facts {title}.", _OPENING, r"\begin{description}"]
    for question in questions:
        answer = " ".join(fact(members) for fact in question.facts)
        lines.append(rf"\item[{question.name}] {answer}")
    return "\n".join([_WARNING, *lines, r"\end{description}", r"\endgroup"]) + "\n"


_OPENING = r"\providecommand{\citep}[1]{\cite{#1}}\begingroup\emergencystretch=4em"
"""Without natbib, which the venues' styles load, citations are plain; long names may stretch."""
_WARNING = "% Made of the records of runs by `bench paper`: check it, and shorten it."
