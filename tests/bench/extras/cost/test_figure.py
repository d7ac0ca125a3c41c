"""The figure of what a call costs: a reader can read times off it."""

from bench.extras.cost.curve import load_cost
from bench.extras.cost.figure import cost_figure
from bench.machine.env import ROOT


def test_the_axis_of_time_has_several_labels_also_over_less_than_a_decade() -> None:
    figure, table = cost_figure(load_cost(ROOT / "results" / "reference" / "costs" / "llama-1b"))
    assert table["seconds"].max() < 10 * table["seconds"].min()
    figure.canvas.draw()
    for axes in figure.axes[:1]:
        low, high = axes.get_ylim()
        shown = [
            tick.get_text()
            for place, tick in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
            if low <= place <= high and tick.get_text()
        ]
        assert len(shown) >= 3, shown
