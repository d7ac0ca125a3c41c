"""The list of a report's figures: name, caption, and the reason if a run has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from bench.records.plan import WRONG
from bench.report.figures.canvas import Plot, annotate, overall, reach, styled
from bench.report.figures.charts import (
    acceptance_figure,
    acceptance_length_figure,
    calibration_figure,
    entropy_figure,
    latency_figure,
    memory_figure,
    passes_figure,
    time_split_figure,
    tokens_per_call_figure,
)
from bench.report.figures.dots import overview_figure, speedup_figure
from bench.report.figures.pareto import quality_speed_figure
from bench.report.figures.style import interval_note
from bench.report.findings import Findings
from bench.report.tables.main import bases
from bench.report.tables.quality import reference
from bench.report.tables.table import over, without_wrong
from bench.stats.intervals import LEVEL
from bench.text import counted


class _Entry(NamedTuple):
    """A figure: file name, caption, the reason if a run has none, and the drawing function.

    `draw` takes the findings, and the summary without WRONG decoders. `hollow` adds a footnote on
    hollow markers, for figures whose rows do not name lossy decoders.
    """

    name: str
    caption: str
    without: str
    draw: Callable[[Findings, pd.DataFrame], Plot | None]
    hollow: bool = False


_WITH = f" with {LEVEL} intervals"
_BAND = " The grey band is the A/A noise floor."
_METHODS = (
    " Thin lines join the settings of a method; AUP is their accuracy under parallelism (d3LLM, "
    "arXiv 2601.07568), over tokens per forward (*: without settings that lose over 5 points of "
    "{reference}'s quality; '-': fewer than two are left)."
)
_FRONT = " The dashed line is the Pareto front: decoders whose quality no faster decoder equals."
"""Parts of captions for figures that show intervals, a noise floor, or a Pareto front."""
_ENTRIES = (
    _Entry(
        "overview",
        f"The run at a glance: speed-up, tokens per step and quality{_WITH}. The share of answers "
        "identical to ar's is shown unless it is 100 % for every decoder with a guarantee. The "
        "thin line is {base}.",
        "no decoder was timed against {base}",
        lambda _, summary: overview_figure(summary),
        hollow=True,
    ),
    _Entry(
        "speedup",
        f"Speed-up over {{base}} by decoder: geometric mean over prompts{_WITH}.{_BAND}",
        "no decoder was timed against {base}",
        lambda findings, summary: speedup_figure(summary, findings.floor),
    ),
    _Entry(
        "quality_speed",
        f"Quality against speed-up{_WITH}: up and right is better.{_FRONT}{_METHODS} Qualities "
        "that their intervals cannot tell apart count as equal. Ticks: decoders with a guarantee "
        "that share one quality; the grey band is its interval.",
        "no decoder was both timed against {base} and scored",
        lambda _, summary: quality_speed_figure(summary),
    ),
    _Entry(
        "tokens_per_call",
        "Tokens per target call by family, prefill included.",
        "nothing was timed",
        lambda _, summary: tokens_per_call_figure(summary),
    ),
    _Entry(
        "acceptance_length",
        "How many tokens a step emits; the dashed line is the mean.",
        "no decoder but ar was timed",
        lambda findings, summary: acceptance_length_figure(
            findings.lengths[findings.lengths["decoder"].isin(summary["decoder"])], summary
        ),
    ),
    _Entry(
        "acceptance_by_position",
        "Accepted drafts by position j in the step: drafts 1 to j all accepted (joint), draft j "
        "accepted if all earlier drafts are (conditional), and the conditional minus that of the "
        "first position. Below 0, later drafts are worse (suffix decay); above 0, they are more "
        "often accepted than the first, because only steps on easy text get that far. Positions "
        "that fewer than 20 steps reached are not drawn.",
        "no decoder drafted tokens, or in too few steps",
        lambda findings, summary: acceptance_figure(findings.acceptance, summary),
    ),
    _Entry(
        "calibration",
        "Reliability of drafts' confidences: accepted share of tested drafts against the drafter's "
        "probability, in 15 bins. Below the dashed line a drafter is overconfident. Bins of fewer "
        "than 20 drafts are not drawn. ECE: mean distance from the line, weighted by drafts.",
        "no decoder gave its drafts probabilities",
        lambda findings, summary: calibration_figure(findings.calibration, summary),
    ),
    _Entry(
        "latency",
        "Cumulative share of waits for the first token and for the next chunk, over all answers. A "
        "chunk is the tokens of a step. Dashed: lossy.",
        "no unbatched answer with recorded steps was timed",
        lambda findings, summary: latency_figure(findings.latency, summary),
    ),
    _Entry(
        "time_split",
        "Time of a token by phase, from the instrumented second pass over {second}. Draft layers "
        "and heads that a decoder runs itself are in the grey part.",
        "there was no second pass",
        lambda findings, summary: time_split_figure(findings.splits, summary),
    ),
    _Entry(
        "memory",
        "Peak memory of an answer: weights, adapter and caches that the decoder uses (on CUDA all "
        "allocated memory).",
        "no memory was measured",
        lambda _, summary: memory_figure(summary),
    ),
    _Entry(
        "entropy",
        "Tokens per forward by family, against the mean entropy of ar's next token.",
        "fewer than three families have the entropy of ar's tokens from the quality pass",
        lambda _, summary: entropy_figure(summary),
    ),
    _Entry(
        "passes",
        "Quality against predictions (passes) per block.",
        "fewer than three decoders predict blocks and were scored",
        lambda _, summary: passes_figure(summary),
    ),
)


@dataclass(frozen=True)
class Gallery:
    """Figures with their data by file name, their captions, and a line per figure left out."""

    plots: Mapping[str, Plot]
    captions: Mapping[str, str]
    left_out: Sequence[str]


def draw_all(findings: Findings) -> Gallery:
    """Draw every figure that has data, in the report's order.

    WRONG decoders are left out, as a line under each figure says.
    """
    summary = without_wrong(findings.report_summary)
    words = _words(findings, summary)
    plots: dict[str, Plot] = {}
    with styled():
        for entry in _ENTRIES:
            if (plot := entry.draw(findings, summary)) is not None:
                annotate(plot[0], findings.report_summary, hollow=entry.hollow)
                plots[entry.name] = plot
    entries = [entry for entry in _ENTRIES if entry.name in plots]
    rest = [entry for entry in _ENTRIES if entry.name not in plots]
    return Gallery(
        plots=plots,
        captions={e.name: _caption(e, findings, plots[e.name][1], words) for e in entries},
        left_out=[f"{e.name} ({e.without.format_map(words)})" for e in rest],
    )


def _words(findings: Findings, summary: pd.DataFrame) -> dict[str, str]:
    """Return what captions name: baseline, reference of quality, and the samples of all passes."""
    scored = overall(summary, ["quality_prompts"])["quality_prompts"].astype(float).max()
    return {
        "base": over(summary),
        "reference": reference(summary),
        "timed": bases(summary),
        "scored": f"; quality: {counted(int(scored), 'held-out prompt')}" if scored > 0 else "",
        "second": counted(max((s.prompts for s in findings.splits), default=0), "prompt"),
    }


def _caption(entry: _Entry, findings: Findings, data: pd.DataFrame, words: dict[str, str]) -> str:
    """Return the caption without parts that are not drawn, plus its n and decoders left out."""
    columns = [str(name).removesuffix("_low") for name in data if str(name).endswith("_low")]
    has_interval = any(interval_note(data, column, " ") for column in columns)
    text = entry.caption if has_interval else entry.caption.replace(_WITH, "")
    if "method" in data and not any(data["method"]):
        text = text.replace(_METHODS, "")
    text = text.format_map(words)
    if "front" in data and data["front"].sum() < 2:
        alone = ", ".join(data.loc[data["front"], "decoder"])
        front = f"is {alone} alone" if alone else "is not drawn: a loss of quality would not show"
        text = text.replace(_FRONT, f" The Pareto front {front}.")
    lines = [text if findings.floor.low is not None else text.replace(_BAND, "")]
    if any((data[f"{name}_high"] > reach(data[name])).any() for name in columns):
        lines.append("Arrows: intervals that go on beyond three times the highest number.")
    if "{second}" not in entry.caption:
        lines.append(f"{words['timed']}{words['scored'] if 'quality' in data else ''}.")
    lines += [f"Left out: {cell} is {WRONG}." for cell in findings.wrong]
    return " ".join(lines)
