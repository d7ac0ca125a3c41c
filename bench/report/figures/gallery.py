"""Draw the figures of a report: speed-ups, and figures of the sections that extras register."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from bench.records.plan import WRONG
from bench.report.figures import dots
from bench.report.figures.canvas import Plot, max_end, overall, styled
from bench.report.figures.style import interval_note
from bench.report.findings import Findings
from bench.report.sections import WITH_INTERVALS, Figure, sections
from bench.report.tables.main import bases
from bench.report.tables.table import over, without_wrong
from bench.text import counted

_BAND = " The grey band is the A/A noise floor."
SPEEDUP = Figure(
    "speedup",
    f"Speed-up over {{base}} by decoder: geometric mean over prompts{WITH_INTERVALS}.{_BAND}",
    "no decoder was timed against {base}",
    lambda findings, summary: dots.speedup_figure(summary, findings.floor),
    2,
)


@dataclass(frozen=True)
class Gallery:
    """Hold figures and their data by file name, captions, and a line per figure left out."""

    plots: Mapping[str, Plot]
    captions: Mapping[str, str]
    left_out: Sequence[str]


def draw_all(findings: Findings) -> Gallery:
    """Draw every figure that has data, in the report's order.

    WRONG decoders are left out, and named in each caption.
    """
    summary = without_wrong(findings.report_summary)
    scored = overall(summary, ["quality_prompts"])["quality_prompts"].astype(float).max()
    words = {
        "base": over(summary),
        "timed": bases(summary),
        "scored": f"; quality: {counted(int(scored), 'held-out prompt')}" if scored > 0 else "",
    }
    extra_figures = (figure for section in sections() for figure in section.figures)
    figures = sorted((SPEEDUP, *extra_figures), key=lambda figure: figure.rank)
    plots: dict[str, Plot] = {}
    with styled():
        for figure in figures:
            if (plot := figure.draw(findings, summary)) is not None:
                plots[figure.name] = plot
    shown = [figure for figure in figures if figure.name in plots]
    return Gallery(
        plots=plots,
        captions={f.name: _caption(f, findings, plots[f.name][1], words) for f in shown},
        left_out=[f"{f.name} ({_fill(f.without, words)})" for f in figures if f.name not in plots],
    )


def _fill(text: str, words: Mapping[str, str]) -> str:
    """Replace ``{word}`` for every word, but keep other braces, as in decoders' names."""
    return re.sub(r"\{(\w+)\}", lambda match: words.get(match[1], match[0]), text)


def _caption(
    figure: Figure, findings: Findings, data: pd.DataFrame, words: Mapping[str, str]
) -> str:
    """Return the caption without parts that are not drawn, plus its n and decoders left out."""
    columns = [str(name).removesuffix("_low") for name in data if str(name).endswith("_low")]
    has_interval = any(interval_note(data, column, " ") for column in columns)
    text = figure.caption if isinstance(figure.caption, str) else figure.caption(data)
    text = text if has_interval else text.replace(WITH_INTERVALS, "")
    if figure.sample is not None:
        words = {**words, "sample": figure.sample(findings)}
    text = _fill(text, words)
    lines = [text if findings.floor.low is not None else text.replace(_BAND, "")]
    if any((data[f"{name}_high"] > max_end(data[name])).any() for name in columns):
        lines.append("Arrows: intervals that go on beyond three times the highest number.")
    if figure.sample is None:
        lines.append(f"{words['timed']}{words['scored'] if 'quality' in data else ''}.")
    lines += [f"Left out: {cell} is {WRONG}." for cell in findings.wrong]
    return " ".join(lines)
