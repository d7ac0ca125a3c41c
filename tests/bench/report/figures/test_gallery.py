"""The list of figures: none without data, and a line that says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from bench.records.run_folder import load_run
from bench.report.figures import canvas
from bench.report.figures.gallery import Gallery, draw_all
from bench.report.figures.style import GREY, PAPER, colours
from bench.report.findings import Findings
from tests.bench.conftest import over_spec, write_run

Write = Callable[..., Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Gallery:
    """Draw the figures of a run of two decoders once."""
    run = write_run(tmp_path_factory.mktemp("runs") / "run", {"spec": 3.0, "ptp": 4.0})
    return draw_all(Findings(load_run(run)))


def test_each_figure_is_drawn_or_listed_as_left_out_with_the_reason(made: Gallery) -> None:
    left_out = {line.split(" (")[0]: line for line in made.left_out}
    assert all("\n" not in line for line in made.left_out)
    assert set(left_out) == {"calibration", "time_split", "passes"}
    assert not set(left_out) & set(made.plots)
    assert set(made.captions) == set(made.plots)
    assert left_out["time_split"] == "time_split (there was no second pass)"


def test_a_run_without_answers_has_no_figures_and_a_reason_for_each(synthetic_run: Write) -> None:
    run = load_run(synthetic_run())
    made = draw_all(Findings(dataclasses.replace(run, records=())))
    assert made.plots == {}
    assert len(made.left_out) == 7
    assert "speedup (no decoder was timed against ar)" in made.left_out


def test_a_run_of_the_baseline_alone_has_only_the_latency_figure(synthetic_run: Write) -> None:
    made = draw_all(Findings(load_run(synthetic_run({}, conversations=6, repeats=1, quality=0))))
    assert set(made.plots) == {"latency"}


def test_both_reports_list_the_figures_that_were_left_out(reported_run: Path) -> None:
    markdown = (reported_run / "report.md").read_text(encoding="utf-8")
    (line,) = (line for line in markdown.splitlines() if line.startswith("Figures left out: "))
    assert "time_split (there was no second pass); " in line
    page = (reported_run / "report.html").read_text(encoding="utf-8")
    assert "time_split (there was no second pass)" in page
    assert not (reported_run / "figures" / "time_split.png").exists()


@pytest.mark.parametrize("several", [False, True])
def test_captions_and_labels_mention_intervals_and_bands_only_if_they_are_drawn(
    synthetic_run: Write, made: Gallery, several: bool
) -> None:
    if not several:
        made = draw_all(Findings(load_run(synthetic_run(conversations=1))))
    assert ("with 95 % intervals" in made.captions["speedup"]) == several
    assert "with 95 % intervals" in made.captions["quality_speed"]  # that of quality is there
    assert ("grey band" in made.captions["speedup"]) == several
    assert "share one quality" not in made.captions["quality_speed"]  # no two of these do
    for name in ("speedup", "quality_speed"):
        figure = made.plots[name][0]
        labels = [figure.get_supxlabel(), *(axes.get_xlabel() for axes in figure.axes)]
        assert any("95 % interval" in label for label in labels) == several, name


def test_each_figure_has_its_data_beside_it(reported_run: Path) -> None:
    figures = reported_run / "figures"
    drawn = {file.stem for file in figures.glob("*.svg")}
    assert drawn == {file.stem for file in (figures / "data").glob("*.csv")}
    data = pd.read_csv(figures / "data" / "latency.csv")
    assert set(data["decoder"]) == {"ar", "spec", "nar"}


@pytest.mark.slow
@pytest.mark.usefixtures("saved")
def test_a_decoder_has_one_colour_in_all_figures(synthetic_run: Write) -> None:
    run = load_run(synthetic_run({"spec": 3.0, "mine": 4.0, "nar": 6.0}, lossy=["nar"]))
    palette = colours(["ar", "spec", "mine", "nar"])
    for name, (figure, _) in draw_all(Findings(run)).plots.items():
        drawn = {str(line.get_color()) for axes in figure.axes for line in axes.lines}
        drawn |= {str(line.get_markeredgecolor()) for axes in figure.axes for line in axes.lines}
        other = {colour for colour in drawn if colour.startswith("#")} - set(palette.values())
        assert other <= {GREY, PAPER, "#1b1f24", "#c9ced6"}, name
        svg = canvas.render(figure, ["svg"])["svg"].decode()
        assert palette["mine"] in svg, name


def test_the_caption_of_speed_ups_names_the_baseline(synthetic_run: Write) -> None:
    findings = Findings(load_run(over_spec(synthetic_run({"spec": 3.0}))))
    assert draw_all(findings).captions["speedup"].startswith("Speed-up over spec by decoder")
