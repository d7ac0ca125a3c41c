"""The figures of parallel decoding: what they hold, and that they stay away without data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bench.extras.sections.parallel import passes_figure
from bench.report.figures import canvas
from bench.report.figures.style import PAPER
from bench.report.tables.table import without_wrong

pytestmark = pytest.mark.usefixtures("saved")

FAMILIES = ("qa", "rag", "translation", "mt_bench", "summarization")
PASSES = {"nar": 1.0, "idlm@p2": 2.0, "idlm@p4": 4.0, "idlm@p8": 8.0}


def summary() -> pd.DataFrame:
    """Decoders whose quality rises with passes."""
    rows: list[tuple[str, str, float | None, float]] = []
    for family in (*FAMILIES, "all"):
        rows += [("ar", family, None, 0.9), ("ptp", family, None, 0.9)]
        rows += [(name, family, num, 0.9 - 0.4 / num) for name, num in PASSES.items()]
    frame = pd.DataFrame(rows, columns=["decoder", "family", "passes_per_block", "quality"])
    return frame.assign(guarantee=frame["decoder"].map({"ar": "same tokens", "ptp": "same tokens"}))


def drawn(made: canvas.Plot | None) -> canvas.Plot:
    assert made is not None
    return made


def test_quality_is_drawn_against_passes_with_ar_as_a_horizontal_line() -> None:
    figure, data = drawn(passes_figure(summary()))
    assert sorted(data[data["family"] == "qa"]["passes_per_block"]) == [1, 2, 4, 8]
    assert len([axes for axes in figure.axes if axes.get_visible()]) == len(FAMILIES) + 1
    lines = [np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].lines]
    assert [0.9, 0.9] in lines
    assert pytest.approx([0.5, 0.7, 0.8, 0.85]) in lines  # from nar on
    assert canvas.render(figure, ["svg"])["svg"]


def test_lossy_decoders_are_rings_and_wrong_ones_are_left_out() -> None:
    frame = summary().fillna({"guarantee": "none"})
    frame.loc[frame["decoder"] == "idlm@p8", "guarantee"] = "WRONG"
    figure, data = drawn(passes_figure(without_wrong(frame)))
    assert set(data["decoder"]) == set(PASSES) - {"idlm@p8"}
    points = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert len(points) == 3
    assert {line.get_markerfacecolor() for line in points} == {PAPER}
    (legend,) = figure.legends
    assert "nar (lossy)" in {text.get_text() for text in legend.get_texts()}


def test_labels_that_differ_in_their_last_number_are_a_curve() -> None:
    frame = summary()
    names = {"idlm@p2": "idlm@a-t2", "idlm@p4": "idlm@a-t4", "idlm@p8": "idlm@a"}
    figure, _ = drawn(passes_figure(frame.replace({"decoder": names})))
    (legend,) = figure.legends
    names_above = {text.get_text() for text in legend.get_texts()}
    assert names_above == {"nar", "idlm@a-t2", "idlm@a-t4", "idlm@a"}
    lines = [np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].lines]
    assert pytest.approx([0.5, 0.7, 0.8]) in lines


def test_two_block_decoders_are_too_few_for_a_figure() -> None:
    frame = summary()
    assert passes_figure(frame[frame["decoder"].isin(["ar", "nar", "idlm@p2"])]) is None


def test_quality_is_not_drawn_without_passes() -> None:
    frame = summary().assign(passes_per_block=None).astype({"passes_per_block": "float64"})
    assert passes_figure(frame) is None


def test_the_axis_does_not_mention_the_line_of_ar_in_a_run_without_ar() -> None:
    figure, _ = drawn(passes_figure(summary()))
    assert figure.get_supxlabel() == "passes per block (grey line: ar)"
    frame = summary()
    figure, _ = drawn(passes_figure(frame[frame["decoder"] != "ar"]))
    assert figure.get_supxlabel() == "passes per block"
