"""Quality against speed: the front, ticks of equal quality, and the key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bench.extras.sections.pareto import quality_speed_figure
from bench.report.figures import canvas
from bench.report.sections import sections

NAN = float("nan")
NONE = {"nar": "none"}
CROWD = {
    "ar": (1.0, 0.998),
    "lookup": (0.99, 0.9981),
    "spec": (1.4, 0.9982),
    "ptp": (1.8, 0.9983),
    "idlm@isd": (1.6, 0.9984),
}


def frame(points: dict[str, tuple[float, float]], half: float = 0.003) -> pd.DataFrame:
    """Decoders at (speed-up, quality), `half` the width of quality's interval (nan: none)."""
    rows = [
        {
            "decoder": name,
            "family": "all",
            "guarantee": "same tokens",
            "speedup": x,
            "speedup_low": 0.9 * x,
            "speedup_high": 1.1 * x,
            "quality": y,
            "quality_low": y - half,
            "quality_high": min(1.0, y + half),
            "quality_tells": True,
            "tpf": 2 * x,
            "tokens_per_s": 100 * x,
        }
        for name, (x, y) in points.items()
    ]
    return pd.DataFrame(rows)


def drawn(points: dict[str, tuple[float, float]], half: float = 0.003) -> tuple[Any, pd.DataFrame]:
    with canvas.styled():
        made = quality_speed_figure(frame(points, half))
    assert made is not None
    made[0].draw_without_rendering()
    return made


def test_the_front_holds_decoders_that_no_other_decoder_beats_in_quality_and_speed() -> None:
    points = {"ar": (1.0, 0.9), "a": (2.0, 0.9), "b": (3.0, 0.8), "c": (2.5, 0.7), "d": (2.0, 0.9)}
    _, data = drawn(points)
    assert set(data.loc[data["front"], "decoder"]) == {"a", "b", "d"}


def test_the_front_keeps_only_the_fastest_of_decoders_with_indistinguishable_quality() -> None:
    points = {
        "ar": (1.0, 0.137),
        "lookup": (1.7, 0.136),
        "idlm": (0.65, 0.138),
        "nar": (3.4, 0.004),
    }
    _, data = drawn(points, half=0.02)
    assert list(data.loc[data["front"], "decoder"]) == ["lookup", "nar"]
    _, data = drawn(points, half=0.0001)
    assert list(data["front"]) == [True] * 4
    made = quality_speed_figure(frame(points).assign(quality_low=NAN, quality_high=NAN))
    assert made is not None
    assert list(made[1]["front"]) == [True] * 4, "without intervals the estimates decide"


def test_decoders_of_one_quality_are_a_row_of_ticks_on_one_band() -> None:
    points = {"ar": (1.0, 0.99), "a": (1.5, 0.99), "b": (2.0, 0.99), "nar": (4.0, 0.6)}
    data = frame(points, half=0.02)
    data.loc[data["decoder"] == "nar", "guarantee"] = "none"
    with canvas.styled():
        made = quality_speed_figure(data)
    assert made is not None
    (axes,) = made[0].axes
    places = [(line, np.asarray(line.get_xdata(), dtype=float)) for line in axes.lines]
    assert [xs[0] for line, xs in places if line.get_marker() == "|"] == [1.0, 1.5, 2.0]
    upright = [
        xs[0]
        for line, xs in places
        if line.get_linestyle() == "-" and len(xs) > 1 and len(set(xs.tolist())) == 1
    ]
    assert upright == [4.0], "only nar has an interval of its own"
    (band,) = axes.collections
    low, high = band.get_paths()[0].get_extents().get_points()[:, 1]
    assert (low, high) == pytest.approx((0.97, 1.0))
    assert list(made[1]["front"]) == [False, False, True, True]
    figures = {figure.name: figure for section in sections() for figure in section.figures}
    describe = figures["quality_speed"].caption
    assert not isinstance(describe, str)
    assert describe(made[1]).endswith(" share one quality; the grey band is its interval.")
    bare = made[1].assign(quality_low=NAN, quality_high=NAN)
    assert describe(bare).endswith(" share one quality.")


def test_a_lossy_decoder_of_the_same_quality_is_no_tick() -> None:
    data = frame({"ar": (1.0, 0.9), "a": (2.0, 0.9)}).assign(guarantee=["same tokens", "none"])
    made = quality_speed_figure(data)
    assert made is not None
    assert not [line for axes in made[0].axes for line in axes.lines if line.get_marker() == "|"]


def test_a_key_above_names_every_decoder() -> None:
    crowd = {
        f"a-decoder-with-a-long-name@{i}": (1.5 + 0.001 * i, 0.99 - i / 1e5) for i in range(13)
    }
    for points in (crowd, CROWD | {"nar": (4.0, 0.58)}):
        figure, _ = drawn(points)
        (legend,) = figure.legends
        assert {text.get_text() for text in legend.get_texts()} == set(points)
        box = legend.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y0 >= max(axes.bbox.y1 for axes in figure.axes)


def test_a_lossy_decoder_is_not_on_the_front_even_if_its_loss_is_within_the_interval() -> None:
    points = {"ar": (1.0, 0.2), "spec": (1.5, 0.21), "nar": (3.0, 0.05)}
    wide = frame(points, half=0.2)
    lossy = wide.assign(guarantee=wide["decoder"].map(lambda name: NONE.get(name, "same tokens")))
    for data, front in ((lossy, []), (wide, ["nar"])):
        made = quality_speed_figure(data)
        assert made is not None
        assert list(made[1].loc[made[1]["front"], "decoder"]) == front


SETTINGS = {"ar": (1.0, 1.0), "idlm@t2": (2.0, 0.96), "idlm@t4": (1.5, 0.98), "spec@k4": (1.4, 1.0)}


def lines_through(axes: Any, points: Sequence[tuple[float, float]]) -> int:
    """Count the lines with exactly these points."""
    return sum([tuple(p) for p in line.get_xydata()] == list(points) for line in axes.lines)


def test_settings_of_a_method_are_joined_by_speed() -> None:
    figure, data = drawn(SETTINGS)
    assert lines_through(figure.axes[0], [(1.5, 0.98), (2.0, 0.96)]) == 1
    assert list(data["method"]) == ["", "idlm@t…", "idlm@t…", ""]
    assert list(data["tpf"]) == [2.0, 4.0, 3.0, 2.8]
    assert list(data["tokens_per_s"]) == [100.0, 200.0, 150.0, 140.0]


def test_a_single_setting_has_no_line() -> None:
    _, data = drawn({name: SETTINGS[name] for name in ("ar", "idlm@t2", "spec@k4")})
    assert not any(data["method"])


def test_the_axis_names_the_baseline() -> None:
    points = {"dllm@t90": (1.0, 0.6), "dllm@t30": (1.4, 0.5)}
    for given, name in (
        (frame(points).assign(baseline="dllm@t90"), "dllm@t90"),
        (frame(points), "ar"),
    ):
        with canvas.styled():
            made = quality_speed_figure(given)
        assert made is not None
        assert made[0].get_supxlabel().startswith(f"times as fast as {name}, end to end")
