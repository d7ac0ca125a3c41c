"""Figures for few and many decoders: labelled, coloured, undated, and only where there is data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox

from bench.records.run_folder import load_run
from bench.report.figures import canvas, dots, gallery
from bench.report.figures.style import GREY, colours
from bench.report.findings import Findings
from bench.stats import summary
from bench.stats.intervals import Estimate

pytestmark = pytest.mark.usefixtures("saved")

NAMES = {"speedup", "quality_speed", "acceptance_by_position", "latency"}
TWELVE = [f"spec@k{k}" for k in range(1, 8)] + ["nar", "idlm@refine", "idlm@isd", "ptp", "a-" * 20]


@pytest.mark.slow
@pytest.mark.parametrize("cells", [["spec"], TWELVE])
def test_every_figure_is_drawn_for_few_and_for_many_decoders(
    synthetic_run: Callable[..., Path], cells: list[str]
) -> None:
    means = {cell: 1.5 + 0.4 * i for i, cell in enumerate(cells)}
    run = load_run(synthetic_run(means, conversations=6, repeats=1, quality=2))
    drawn = gallery.draw_all(Findings(run)).plots
    assert set(drawn) == NAMES
    assert all(len(data) for _, data in drawn.values())
    names = [t.get_text().replace("\n", "") for t in drawn["speedup"][0].axes[0].get_yticklabels()]
    assert set(names) == set(cells)


@pytest.mark.slow
def test_rounding_noise_in_the_layout_does_not_change_the_bytes_of_a_figure(
    synthetic_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load_run(synthetic_run(conversations=6, repeats=1, quality=2))
    frame = summary.summarise(run)
    plain = ConstrainedLayoutEngine.execute
    written = []
    for noise in (0.0, 3e-13):  # what one process and the next differ by

        def execute(engine: Any, figure: Figure, noise: float = noise) -> Any:
            done = plain(engine, figure)
            for axes in figure.axes:
                left, bottom, width, height = axes.get_position().bounds
                box = Bbox.from_bounds(left + noise, bottom - noise, width, height)
                axes.set_position(box)
            return done

        monkeypatch.setattr(ConstrainedLayoutEngine, "execute", execute)
        with canvas.styled():
            drawn = dots.speedup_figure(frame, Estimate())
        assert drawn is not None
        written.append(canvas.render(drawn[0], ["svg"])["svg"])
    assert written[0] == written[1]


def test_decoders_keep_their_colours_and_share_none() -> None:
    palette = colours(["ar", *TWELVE])
    assert palette["ar"] == GREY
    assert palette["nar"] == colours(["ar", "nar", "ptp"])["nar"]
    alone = colours(["ar", "lookup"])["lookup"]
    assert alone == colours(["ar", "mine", "idlm", "idlm@isd", "spec", "lookup"])["lookup"]
    assert len(set(palette.values())) == len(palette)
    assert colours(["ar", "idlm@isd", "idlm"])["idlm"] == colours(["ar", "idlm"])["idlm"]


def test_a_speedup_of_exactly_one_has_an_axis(synthetic_run: Callable[..., Path]) -> None:
    run = load_run(synthetic_run({"spec": 1.0}, conversations=2, repeats=1, quality=0))
    frame = summary.summarise(run)
    frame.loc[frame["decoder"] == "spec", ["speedup", "speedup_low", "speedup_high"]] = 1.0
    drawn = dots.speedup_figure(frame, Estimate())
    assert drawn is not None
    low, high = drawn[0].axes[0].get_xlim()
    assert low < 1 < high
