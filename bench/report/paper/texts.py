"""The texts of a paper: how to reproduce it, and the facts that its venue's checklist asks for.

Both are facts to check and to shorten, never answers: only authors know what their paper discusses.
"""

from __future__ import annotations

from bench.report.paper import facts
from bench.report.paper.facts import Members
from bench.report.together import differences
from bench.text import latex

_HOW = (facts.decoders, facts.sampling, facts.seeds, facts.protocol)
_GENERAL = {
    "Code": (facts.code,),
    "Models": (facts.models,),
    "Data": (facts.data,),
    "Settings": _HOW,
    "Error bars": (facts.statistics,),
    "Compute": (facts.compute, facts.software),
    "Licences": (facts.licences,),
    "Limitations": (facts.limits,),
}
CHECKLISTS = {
    "neurips": (
        "for the NeurIPS paper checklist",
        {
            "2. Limitations": (facts.limits,),
            "4. Experimental result reproducibility": (facts.code, facts.models, facts.seeds),
            "5. Open access to data and code": (facts.code, facts.data),
            "6. Experimental setting/details": (facts.data, *_HOW),
            "7. Experiment statistical significance": (facts.statistics, facts.limits),
            "8. Experiments compute resources": (facts.compute,),
            "12. Licenses for existing assets": (facts.licences,),
        },
    ),
    "acl": (
        "for the Responsible NLP Research checklist",
        {
            "A1. Limitations": (facts.limits,),
            "B1. Citing creators of artifacts": (facts.decoders, facts.data),
            "B2. Licences of artifacts": (facts.licences,),
            "B6. Statistics of the data": (facts.data,),
            "C1. Parameters, budget, infrastructure": (facts.models, facts.compute),
            "C2. Experimental setup": _HOW,
            "C3. Descriptive statistics": (facts.statistics,),
            "C4. Packages": (facts.software,),
        },
    ),
    "icml": ("for a form: ICML asks for none within the paper", _GENERAL),
    "iclr": ("for an appendix: ICLR asks for no checklist", _GENERAL),
    "tmlr": ("for an appendix: TMLR asks for no checklist", _GENERAL),
    "arxiv": ("for an appendix: arXiv asks for no checklist", _GENERAL),
}
"""By venue: the title, and the facts that answer each question."""
_HEADINGS = {"iclr": r"\subsubsection*{Reproducibility statement}"}
"""ICLR has a section of that name between text and references."""
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
    heading = _HEADINGS.get(venue, r"\paragraph{Reproducibility.}")
    return "\n".join([_WARNING, _OPENING, heading, *lines, r"\par\endgroup"]) + "\n"


def checklist(members: Members, venue: str) -> str:
    """Return the facts by question, as a list."""
    title, questions = CHECKLISTS[venue]
    items = [
        rf"\item[{question}] {' '.join(fact(members) for fact in answers)}"
        for question, answers in questions.items()
    ]
    opening = [_WARNING, f"% Facts {title}.", _OPENING, r"\begin{description}"]
    return "\n".join([*opening, *items, r"\end{description}", r"\endgroup"]) + "\n"
