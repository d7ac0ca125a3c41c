"""Waits, phases and memory: data against hand-made numbers, and none without any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from bench.extras.sections.durations import Split, latency_figure, time_split_figure
from bench.report.figures import canvas

pytestmark = pytest.mark.usefixtures("saved")

NAN = float("nan")


def summary(**columns: Any) -> pd.DataFrame:
    rows = {"decoder": ["ar", "spec", "nar"], "family": "all", "quality": [1.0, 1.0, 0.5]}
    rows["guarantee"] = ["same tokens", "same tokens", "none"]
    return pd.DataFrame(rows | columns)


def bars(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def waits(*decoders: str, of: str = "between chunks") -> pd.DataFrame:
    """Three percentiles of 1, 2 and 4 ms."""
    rows = [
        (name, of, 9, percentile, ms / 1e3)
        for name in decoders
        for percentile, ms in ((0, 1.0), (50, 2.0), (100, 4.0))
    ]
    return pd.DataFrame(rows, columns=["decoder", "wait", "n", "percentile", "seconds"])


def test_waits_are_drawn_as_cumulative_shares_with_dashed_lines_for_lossy_decoders() -> None:
    table = pd.concat([waits("spec", "nar", "gone"), waits("spec", of="first token")])
    drawn = latency_figure(table, summary())
    assert drawn is not None
    figure, data = drawn
    assert set(data["decoder"]) == {"spec", "nar"}
    between, first = figure.axes
    assert [axes.get_title("left") or axes.get_title() for axes in figure.axes] == [
        "time between chunks",
        "time to first token",
    ]
    spec, nar = between.lines
    assert np.asarray(spec.get_xdata()).tolist() == pytest.approx([1.0, 2.0, 4.0])
    assert np.asarray(spec.get_ydata()).tolist() == [0.0, 0.5, 1.0]
    assert (spec.get_linestyle(), nar.get_linestyle()) == ("-", "--")
    assert len(first.lines) == 1
    assert canvas.render(figure, ["png"])["png"]


def test_without_step_times_the_figure_has_one_panel_and_without_waits_there_is_no_figure() -> None:
    drawn = latency_figure(waits("spec", of="first token"), summary())
    assert drawn is not None
    assert len(drawn[0].axes) == 1
    assert latency_figure(waits(), summary()) is None


def split(decoder: str, each_s: float, **shares: float) -> Split:
    return Split(
        decoder=decoder, prompts=6, time_per_token_s=each_s, shares=shares, against_timed=1.0
    )


def test_time_is_split_into_shares_and_milliseconds() -> None:
    parts = [
        split("ar", 0.004, prefill=0.25, draft=0.0, verify=0.75),
        split("spec", 0.002, prefill=0.2, draft=0.3, verify=0.5),
        split("gone", 1.0, prefill=0.2, draft=0.3, verify=0.5),
    ]
    drawn = time_split_figure(parts, summary())
    assert drawn is not None
    figure, data = drawn
    assert list(data["decoder"]) == ["ar"] * 3 + ["spec"] * 3
    assert list(data["ms_per_token"]) == pytest.approx([1.0, 0.0, 3.0, 0.4, 0.6, 1.0])
    shares, each = figure.axes
    ends = [bar.get_x() + bar.get_width() for bar in bars(shares)]
    assert ends == pytest.approx([0.25, 0.2, 0.25, 0.5, 1.0, 1.0])  # phase by phase
    assert [text.get_text() for text in each.texts] == ["4.00", "2.00"]
    assert canvas.render(figure, ["png"])["png"]


def test_without_a_second_pass_time_is_not_split() -> None:
    assert time_split_figure([], summary()) is None
