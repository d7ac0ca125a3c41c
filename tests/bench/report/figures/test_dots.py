"""The figure of papers and of several runs: a panel a run, one colour a decoder."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.extras.together.runs import load_members, name_runs
from bench.records.run_folder import load_run
from bench.report.figures import dots
from bench.report.figures.canvas import render
from bench.report.figures.gallery import draw_all
from bench.report.findings import Findings
from bench.stats.intervals import Estimate
from bench.stats.side import load_side

pytestmark = pytest.mark.usefixtures("saved")
Write = Callable[..., Path]


@pytest.mark.parametrize("width", [3.03, 3.25, 6.5])
@pytest.mark.parametrize("shown", [dots.SPEEDUP, dots.TOKENS, dots.QUALITY])
def test_the_numbers_in_a_column_are_not_clipped_beside_notes_on_lossy_decoders(
    synthetic_run: Write, width: float, shown: dots.Number
) -> None:
    run = synthetic_run({"spec": 3.0, "nar": 9.0}, lossy=["nar"])
    drawn = dots.dots_figure(name_runs([load_side(str(run), run)]), shown, width)
    assert drawn is not None
    figure, data = drawn
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert len(axes.texts) == len(data) == (3 if shown is dots.QUALITY else 2)
    assert list(data["decoder"])[-1] == "nar"
    assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in axes.texts)
    assert axes.bbox.width > 0.2 * figure.bbox.width  # as much as names and numbers leave


def test_an_axis_of_quality_ends_at_0_and_100_per_cent(synthetic_run: Write) -> None:
    run = synthetic_run({"spec": 3.0})
    (member,) = name_runs([load_side(str(run), run)])
    wide = member.summary.assign(quality=0.5, quality_low=0.0, quality_high=1.0)
    drawn = dots.dots_figure([replace(member, summary=wide)], dots.QUALITY, 3.25)
    assert drawn is not None
    assert drawn[0].axes[0].get_xlim() == (0, 1)


def test_a_wide_noise_floor_does_not_stretch_the_axis(synthetic_run: Write) -> None:
    run = synthetic_run({"spec": 3.0})
    (member,) = name_runs([load_side(str(run), run)])
    wide = replace(member, floor=Estimate(value=1.5, low=0.04, high=53.71))
    drawn = dots.dots_figure([wide], dots.SPEEDUP, 3.25)
    assert drawn is not None
    figure, data = drawn
    assert figure.axes[0].get_xlim()[1] == pytest.approx(3 * data["speedup"].max())


def test_a_decoder_has_one_colour_in_every_panel_and_runs_share_the_axis(
    synthetic_run: Write,
) -> None:
    one = synthetic_run({"own": 3.0, "spec": 2.0, "mine": 2.5}, name="one")
    two = synthetic_run({"mine": 3.5, "own": 2.0}, name="two")
    members = load_members([str(one), str(two)], one)
    drawn = dots.dots_figure(members, dots.SPEEDUP, 3.25)
    assert drawn is not None
    figure, data = drawn
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "two"]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
    used = []
    for axes, (_, rows) in zip(figure.axes, data.groupby("run", sort=False), strict=True):
        points = [line.get_markeredgecolor() for line in axes.lines if line.get_marker() == "o"]
        used.append(dict(zip(rows["decoder"], points, strict=True)))
    assert {len(set(each.values())) - len(each) for each in used} == {0}
    assert used[0]["own"] == used[1]["own"]
    assert used[0]["mine"] == used[1]["mine"]


@pytest.mark.parametrize("conversations", [1, 6])
def test_the_axis_label_mentions_intervals_only_if_they_are_drawn(
    synthetic_run: Write, conversations: int
) -> None:
    run = synthetic_run(conversations=conversations, quality=0)
    drawn = dots.dots_figure(name_runs([load_side(str(run), run)]), dots.SPEEDUP, 3.25)
    assert drawn is not None
    label = "speed-up over ar, 95 % interval" if conversations > 1 else "speed-up over ar"
    assert drawn[0].get_supxlabel() == label


def test_a_run_without_quality_has_no_figure_of_quality(synthetic_run: Write) -> None:
    run = synthetic_run(quality=0)
    assert dots.dots_figure(name_runs([load_side(str(run), run)]), dots.QUALITY, 3.25) is None


@pytest.mark.slow
def test_a_figure_drawn_twice_has_the_same_bytes_and_embedded_truetype_fonts(
    synthetic_run: Write,
) -> None:
    members = name_runs([load_side(str(run := synthetic_run()), run)])
    made = []
    for _ in range(2):
        drawn = dots.dots_figure(members, dots.SPEEDUP, 3.25)
        assert drawn is not None
        made.append(render(drawn[0], ["pdf"])["pdf"])
    assert made[0] == made[1]
    assert b"/Type3" not in made[0]
    assert b"/FontFile2" in made[0]


def test_an_interval_far_beyond_all_numbers_ends_in_an_arrow_and_keeps_its_text(
    synthetic_run: Write,
) -> None:
    findings = Findings(load_run(synthetic_run()))
    findings.summary.loc[findings.summary["decoder"] == "ptp", "speedup_high"] = 559.09
    made = draw_all(findings)
    overall = findings.summary[findings.summary["family"] == "all"]
    highest = overall["speedup"].max()
    for name in ("speedup", "quality_speed"):
        axes = made.plots[name][0].axes[0]
        (arrow,) = (line for line in axes.lines if line.get_marker() == ">")
        assert float(np.asarray(arrow.get_xdata())[0]) == pytest.approx(3 * highest)
        assert axes.get_xlim()[1] < 9 * highest
        assert "Arrows: intervals that go on" in made.captions[name]
        assert made.plots[name][1]["speedup_high"].max() == 559.09
    texts = [text.get_text() for text in made.plots["speedup"][0].axes[0].texts]
    assert any(text.endswith(", 559.09]") for text in texts)
    assert "Arrows" not in made.captions["acceptance_by_position"]


def test_labels_of_several_lines_do_not_overlap_the_next_row(
    synthetic_run: Write,
) -> None:
    cells = {"spec": 3.0, "examples/wrong.py:Unverified": 9.0, "nar": 8.0}
    run = synthetic_run(cells, lossy=["examples/wrong.py:Unverified", "nar"])
    plot = dots.speedup_figure(Findings(load_run(run)).summary, Estimate())
    assert plot is not None
    plot[0].draw_without_rendering()
    labels = plot[0].axes[0].get_yticklabels()
    boxes = [label.get_window_extent() for label in labels]
    assert "examples/wrong.py:\nUnverified\nlossy" in [label.get_text() for label in labels][1]
    assert all(above.y0 >= below.y1 - 1 for above, below in itertools.pairwise(boxes))
