"""The figures of parallel decoding: what they hold, and that they stay away without data."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from bench.extras.sections.families import entropy_figure
from bench.extras.sections.parallel import passes_figure
from bench.report.figures import canvas
from bench.report.figures.style import PAPER
from bench.report.tables.table import without_wrong

pytestmark = pytest.mark.usefixtures("saved")

ENTROPY = {"qa": 0.1, "rag": 0.2, "translation": 0.4, "mt_bench": 1.1, "summarization": 1.4}
PASSES = {"nar": 1.0, "idlm@p2": 2.0, "idlm@p4": 4.0, "idlm@p8": 8.0}


def summary() -> pd.DataFrame:
    """Decoders whose gain falls with entropy, and whose quality rises with passes."""
    rows: list[tuple[str, str, float, float | None, float | None, float]] = []
    for family, entropy in (*ENTROPY.items(), ("all", None)):
        gain = 4 - 2 * (entropy or 0.6)
        rows.append(("ar", family, 1.0, entropy, None, 0.9))
        rows.append(("ptp", family, gain, entropy, None, 0.9))
        for name, passes in PASSES.items():
            rows.append((name, family, gain / passes, entropy, passes, 0.9 - 0.4 / passes))
    columns = ["decoder", "family", "tpf", "base_entropy", "passes_per_block", "quality"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame.assign(guarantee=frame["decoder"].map({"ar": "same tokens", "ptp": "same tokens"}))


def drawn(made: canvas.Plot | None) -> canvas.Plot:
    assert made is not None
    return made


def test_gain_is_drawn_against_the_entropy_of_ars_own_answers() -> None:
    frame = summary()
    frame.loc[frame["decoder"] != "ar", "base_entropy"] = 9.0  # of theirs: not what is meant
    figure, data = drawn(entropy_figure(frame))
    assert set(data["decoder"]) == {"ptp", *PASSES}
    mine = data[data["decoder"] == "ptp"]
    assert list(mine["entropy"]) == sorted(ENTROPY.values())
    assert list(mine["tpf"]) == pytest.approx([4 - 2 * e for e in sorted(ENTROPY.values())])
    (legend,) = figure.legends
    assert {text.get_text() for text in legend.get_texts()} == {"ptp", *PASSES}
    assert canvas.render(figure, ["png"])["png"]


def test_lossy_decoders_are_rings_and_wrong_ones_are_left_out_with_a_line() -> None:
    frame = summary().fillna({"guarantee": "none"})
    frame.loc[frame["decoder"] == "ptp", "guarantee"] = "WRONG"
    figure, data = drawn(entropy_figure(without_wrong(frame)))
    canvas.annotate(figure, frame, hollow=True)
    assert set(data["decoder"]) == set(PASSES)
    assert {line.get_markerfacecolor() for line in figure.axes[0].lines[:4]} == {PAPER}
    under = [text.get_text() for text in figure.texts]
    assert "left out: ptp is WRONG: it claims to be lossless and is not" in under
    assert any(
        line.startswith("hollow: lossy, no guarantee (nar: quality 50.0 %; ") for line in under
    )


def test_families_have_no_order_that_a_line_could_follow() -> None:
    figure, _ = drawn(entropy_figure(summary()))
    points = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert len(points) == 1 + len(PASSES)
    assert {line.get_linestyle() for line in points} == {"None"}
    first = [float(np.asarray(line.get_xdata())[0]) for line in points]
    assert first == sorted(set(first))  # beside one another in each family
    assert max(map(abs, first)) < 0.5


def test_quality_is_drawn_against_passes_with_ar_as_the_line_above() -> None:
    figure, data = drawn(passes_figure(summary()))
    assert sorted(data[data["family"] == "qa"]["passes_per_block"]) == [1, 2, 4, 8]
    assert len([axes for axes in figure.axes if axes.get_visible()]) == len(ENTROPY) + 1
    lines = [np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].lines]
    assert [0.9, 0.9] in lines
    assert pytest.approx([0.5, 0.7, 0.8, 0.85]) in lines  # from nar on
    assert canvas.render(figure, ["svg"])["svg"]


def test_labels_that_differ_in_their_last_number_are_a_curve() -> None:
    frame = summary()
    names = {"idlm@p2": "idlm@a-t2", "idlm@p4": "idlm@a-t4", "idlm@p8": "idlm@a"}
    figure, _ = drawn(passes_figure(frame.replace({"decoder": names})))
    (legend,) = figure.legends
    names_above = {text.get_text() for text in legend.get_texts()}
    assert names_above == {"nar", "idlm@a-t2", "idlm@a-t4", "idlm@a"}
    lines = [np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].lines]
    assert pytest.approx([0.5, 0.7, 0.8]) in lines


def test_two_decoders_of_blocks_are_no_curve() -> None:
    frame = summary()
    assert passes_figure(frame[frame["decoder"].isin(["ar", "nar", "idlm@p2"])]) is None


def test_neither_is_drawn_without_what_it_shows() -> None:
    frame = summary().assign(base_entropy=None, passes_per_block=None)
    frame = frame.astype({"base_entropy": "float64", "passes_per_block": "float64"})
    assert entropy_figure(frame) is None
    assert passes_figure(frame) is None


def test_a_family_that_was_scored_and_not_timed_has_no_place_among_the_entropies() -> None:
    frame = summary()
    scored = frame[frame["family"] == "qa"].assign(family="math_reasoning", tpf=float("nan"))
    figure, _ = drawn(entropy_figure(pd.concat([frame, scored])))
    ticks = [text.get_text().split("\n")[0] for text in figure.axes[0].get_xticklabels()]
    assert "qa" in ticks
    assert "math reasoning" not in ticks


def test_a_figure_of_passes_without_ar_names_no_line_of_ar() -> None:
    figure, _ = drawn(passes_figure(summary()))
    assert figure.get_supxlabel() == "passes per block (grey line: ar)"
    frame = summary()
    figure, _ = drawn(passes_figure(frame[frame["decoder"] != "ar"]))
    assert figure.get_supxlabel() == "passes per block"
