"""The overview holds the summary's numbers, and no panel without any."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd
import pytest

from bench.report.figures import canvas
from bench.report.figures.dots import overview_figure

pytestmark = pytest.mark.usefixtures("saved")

NAN = float("nan")


def frame(**changes: Any) -> pd.DataFrame:
    columns = {
        "decoder": ["ar", "nar", "spec"],
        "family": ["all"] * 3,
        "guarantee": ["same tokens", "none", "same tokens"],
        "speedup": [1.0, 6.0, 2.0],
        "speedup_low": [1.0, 5.0, 1.5],
        "speedup_high": [1.0, 7.0, 2.5],
        "acceptance_length": [1.0, 14.0, 4.0],
        "acceptance_length_low": [1.0, 13.0, 3.5],
        "acceptance_length_high": [1.0, 15.0, 4.5],
        "quality": [0.998, 0.5, 0.998],
        "quality_low": [0.99, 0.4, 0.99],
        "quality_high": [1.0, 0.6, 1.0],
        "identical_to_ar": [1.0, NAN, 1.0],
    }
    return pd.DataFrame(columns | changes)


def texts(figure: Any) -> list[list[str]]:
    return [[text.get_text() for text in axes.texts] for axes in figure.axes]


def test_a_row_per_decoder_and_a_panel_per_number_lossy_last() -> None:
    drawn = overview_figure(frame())
    assert drawn is not None
    figure, data = drawn
    assert list(data["decoder"]) == ["ar", "spec", "nar"]
    assert list(data["speedup_high"]) == [1.0, 2.5, 7.0]
    assert texts(figure) == [
        ["1.00x", "2.00x", "6.00x"],
        ["1.00", "4.00", "14.00"],
        ["99.8 %", "99.8 %", "50.0 %"],
    ]
    assert canvas.render(figure, ["png"])["png"]


def test_identity_is_drawn_only_if_it_tells_decoders_with_a_guarantee_apart() -> None:
    drawn = overview_figure(frame(identical_to_ar=[1.0, NAN, 0.44]))
    assert drawn is not None
    assert texts(drawn[0])[3] == ["100.0 %", "44.0 %", "-"]
    lossy = overview_figure(frame(guarantee=["same tokens", "none", "none"]))
    assert lossy is not None
    assert len(lossy[0].axes) == 4, "what guarantees nothing may or may not be identical"


def test_rows_are_sorted_by_guarantee_and_speed() -> None:
    more = frame().iloc[[2]].assign(decoder="ptp", speedup=3.0)
    drawn = overview_figure(pd.concat([frame(), more], ignore_index=True))
    assert drawn is not None
    assert list(drawn[1]["decoder"]) == ["ar", "ptp", "spec", "nar"]


def test_a_panel_that_only_ar_is_in_is_left_out() -> None:
    unknown = frame(identical_to_ar=[1.0, NAN, NAN], quality=[NAN] * 3)
    drawn = overview_figure(unknown)
    assert drawn is not None
    assert len(drawn[0].axes) == 2


def test_without_speed_ups_there_is_no_overview() -> None:
    assert overview_figure(frame(speedup=[1.0, NAN, NAN])) is None


def test_numbers_stand_beside_their_own_panel() -> None:
    drawn = overview_figure(frame())
    assert drawn is not None
    figure, _ = drawn
    figure.draw_without_rendering()
    for axes, following in itertools.pairwise(figure.axes):
        ends = [axes.spines["bottom"].get_bounds()[1], following.spines["bottom"].get_bounds()[0]]
        own, other = (
            panel.transData.transform((end, 0))[0]
            for panel, end in zip((axes, following), ends, strict=True)
        )
        for box in (text.get_window_extent() for text in axes.texts):
            assert own <= box.x0
            assert box.x0 - own < other - box.x1


@pytest.mark.parametrize("num", [1, 14])
def test_numbers_stay_within_the_figure_however_many_decoders(num: int) -> None:
    base = frame().iloc[[0, 2]]
    more = [base.iloc[[1]].assign(decoder=f"a-decoder@of-long-name-{i}") for i in range(num)]
    drawn = overview_figure(pd.concat([base, *more], ignore_index=True))
    assert drawn is not None
    figure, data = drawn
    assert len(data) == num + 2
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert all(box.x0 > 0 and box.x1 <= figure.bbox.x1 + 1 for box in boxes)
        assert not any(a.overlaps(b) for a, b in itertools.pairwise(boxes))
