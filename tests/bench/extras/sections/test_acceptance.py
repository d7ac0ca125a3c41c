"""Acceptance by position: the table's numbers, and how far the conditional one leaves its start."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bench.extras.sections.drafts import acceptance_figure
from bench.report.figures import canvas

pytestmark = pytest.mark.usefixtures("saved")

DECODERS = pd.DataFrame({"decoder": ["ar", "spec", "ptp"], "family": "all", "guarantee": "x"})
DECODERS["quality"] = 1.0


def table() -> pd.DataFrame:
    """spec: 100 steps of 2 drafts, of which 80 and 60 stood; ptp: 40, of which 30, then 9 of 10."""
    rows = [
        ("spec", "all", 1, 100, 100, 80, 0.8, 0.8),
        ("spec", "all", 2, 100, 80, 60, 0.6, 0.75),
        ("ptp", "all", 1, 40, 40, 30, 0.75, 0.75),
        ("ptp", "all", 2, 12, 10, 9, 0.675, 0.9),
        ("spec", "qa", 1, 50, 50, 1, 0.02, 0.02),
        ("gone", "all", 1, 50, 50, 1, 0.02, 0.02),
    ]
    columns = ["decoder", "family", "position", "steps", "reached", "accepted", "joint"]
    return pd.DataFrame(rows, columns=[*columns, "conditional"])


def test_the_data_of_the_figure_are_the_rows_of_all_families_with_the_suffix_decay() -> None:
    drawn = acceptance_figure(table(), DECODERS)
    assert drawn is not None
    figure, data = drawn
    assert list(data["decoder"]) == ["spec", "spec", "ptp", "ptp"]
    assert list(data["joint"]) == [0.8, 0.6, 0.75, 0.675]
    assert list(data["decay"]) == pytest.approx([0.0, -0.05, 0.0, 0.15])
    assert canvas.render(figure, ["png"])["png"]


def test_decoders_share_a_panel_and_positions_with_too_few_steps_are_not_drawn() -> None:
    drawn = acceptance_figure(table(), DECODERS)
    assert drawn is not None
    joint, conditional, decay = drawn[0].axes
    lines = [np.asarray(line.get_ydata()).tolist() for line in conditional.lines]
    assert lines == [[0.8, 0.75], [0.75]]  # of ptp's second position there are 10 steps only
    assert len(joint.lines) == 2
    assert len(decay.lines) == 3  # with the line at 0
    (legend,) = drawn[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["spec", "ptp"]


def test_no_drafts_or_too_few_drafts_give_no_figure() -> None:
    assert acceptance_figure(table().iloc[:0], DECODERS) is None
    assert acceptance_figure(table().assign(reached=19), DECODERS) is None
