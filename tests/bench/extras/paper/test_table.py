"""The table of `bench paper`: numbers aligned at their points, with their intervals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

import pandas as pd
import pytest

from bench.errors import BenchError, Exit
from bench.extras.paper.table import VENUES, PaperLayout, fill_grid, latex, parse_layout
from bench.extras.paper.write import write_caption
from bench.extras.together.runs import NamedRun, load_members
from bench.report.tables.conclusion import Rivals
from bench.stats.intervals import Estimate
from bench.stats.side import RunSnapshot, load_side
from bench.text import percent

ROOT = Path(__file__).parents[4]
REFERENCES = ROOT / "results" / "reference"
Write = Callable[..., Path]
LABELS = {"ptp": "PTP (ours)", "idlm@isd": "I-DLM, strided"}


@cache
def stored(*names: str) -> list[NamedRun]:
    return load_members([str(REFERENCES / name) for name in names or ("cpu-zoo",)], ROOT)


@cache
def a_side() -> RunSnapshot:
    return load_side(str(REFERENCES / "cpu-zoo"), ROOT)


def made_up(summary: pd.DataFrame, pairs: Rivals = MappingProxyType({})) -> list[NamedRun]:
    side = a_side()
    floor = Estimate(value=1.0, low=0.98, high=1.02)
    return [NamedRun(side=side, name="run", label="run", summary=summary, floor=floor, pairs=pairs)]


def table(layout: PaperLayout, *names: str) -> str:
    members = stored(*names)
    return latex(members, layout, partial(write_caption, members, layout))


def test_a_table_spans_both_columns_of_a_page_and_stands_below_its_caption() -> None:
    for venue, facts in VENUES.items():
        text = table(PaperLayout(venue=venue, labels=LABELS))
        assert text.index(r"\caption{") < text.index(r"\begin{tabular}")
        assert (r"\begin{table*}" in text) == facts.two_columns
        assert "ms/tok." in text


def test_numbers_stand_in_siunitx_columns_with_their_intervals_beside_them() -> None:
    rows = pd.read_csv(REFERENCES / "cpu-zoo" / "summary.csv").to_dict("records")
    (spec,) = (row for row in rows if (row["decoder"], row["family"]) == ("spec", "all"))
    text = table(parse_layout("neurips", [], "speedup,quality,ttft_s", "none"))
    whole = max(row["quality"] for row in rows if row["family"] == "all")
    digits = percent(whole).index(".")
    assert f"S[table-format=1.2]@{{~}}lS[table-format={digits}.1]@{{~}}l" in text
    ends = f"[{spec['speedup_low']:.2f}, {spec['speedup_high']:.2f}]"
    quality = f"{percent(spec['quality'], '')} & [{percent(spec['quality_low'], '')}, "
    assert f"\nspec & {spec['speedup']:.2f} & {ends} & {quality}" in text
    assert "\nar & 1.00 &  & " in text  # the baseline against itself has no interval


def test_an_unknown_value_is_a_dash_that_siunitx_does_not_read_as_a_number() -> None:
    assert "& {--} &" in table(PaperLayout(venue="neurips"), "cpu-zoo", "cpu-zoo-ptp")


def test_several_runs_are_groups_of_rows_without_a_column_of_times() -> None:
    text = table(PaperLayout(venue="neurips"), "cpu-zoo", "cpu-zoo-t07")
    first, second = (text.index(rf"\emph{{{name}}}") for name in ("cpu-zoo", "cpu-zoo-t07"))
    assert text.count("\nptp & ") == 2
    assert first < text.index("\nptp & ") < second
    assert text.count(r"\midrule") == 2
    assert "ms/tok." not in text
    assert "Bold: the best of each run among decoders with a guarantee" in text
    assert "ms/tok." in table(
        parse_layout("neurips", [], "time_per_token_s", "best"), "cpu-zoo", "cpu-zoo-t07"
    )


def test_columns_labels_and_bold_follow_the_options() -> None:
    layout = parse_layout("neurips", ["ptp=PTP (ours)"], "tokens_per_call,quality,ttft_s", "best")
    text = table(layout)
    assert r"Decoder & {Tok./call} & \multicolumn{2}{c}{Quality} & {TTFT} \\" in text
    assert "\nPTP (ours) & 3.85 & " in text
    assert "Speed-up" not in text
    assert r"\bfseries" in text
    assert r"\bfseries" not in table(parse_layout("neurips", [], "tokens_per_call", "none"))


def test_a_usual_column_that_is_unknown_in_every_row_is_left_out(synthetic_run: Write) -> None:
    members, layout = load_members([str(synthetic_run(quality=0))], ROOT), PaperLayout(venue="icml")
    text = latex(members, layout, partial(write_caption, members, layout))
    assert "quality" not in text.lower().replace("qualities", "")
    layout = replace(layout, columns=("quality",))
    assert "{Quality}" in latex(members, layout, partial(write_caption, members, layout))


@pytest.mark.parametrize("name", ["[ours]", "*PTP*", "a_b & 5 % #1"])
def test_a_label_is_text_and_no_argument_of_the_line_before(name: str) -> None:
    text = table(PaperLayout(venue="neurips", labels={"ptp": name}))
    (row,) = (line for line in text.splitlines() if " & 3.85 & " in line)
    assert row.startswith(("{}[ours] &", "{}*PTP* &", r"a\_b \& 5 \% \#1 &"))


def of_four(**columns: list[float]) -> pd.DataFrame:
    guarantees = ["same tokens", "same tokens", "same distribution", "none"]
    names = {"decoder": ["ar", "a", "b", "nar"], "family": "all", "guarantee": guarantees}
    return pd.DataFrame(names | columns)


def over(low: float, high: float) -> Estimate:
    return Estimate(value=(low * high) ** 0.5, low=low, high=high)


SHOWN: Rivals = {("b", "ar"): over(1.9, 2.1), ("b", "a"): over(1.4, 1.6)}


def bold_of(
    members: list[NamedRun], names: tuple[str, ...], layout: PaperLayout
) -> set[tuple[str, int]]:
    ((_, rows),) = fill_grid(members, layout, names).groups
    return {(row[0].text, i) for row in rows for i, entry in enumerate(row) if entry.bold}


def test_the_best_of_a_column_is_bold_and_lossy_decoders_do_not_compete() -> None:
    summary = of_four(
        tokens_per_call=[1.0, 3.0, 2.0, 9.0],
        time_per_token_s=[4e-3, 3e-3, 2e-3, 1e-3],
        quality=[0.9, 0.9, 0.9, 0.5],
    )
    names = ("tokens_per_call", "time_per_token_s", "quality")
    assert bold_of(made_up(summary, SHOWN), names, PaperLayout(venue="icml")) == {
        ("a", 1),
        ("b", 2),
    }
    assert not bold_of(made_up(summary, SHOWN), names, PaperLayout(venue="icml", bold="none"))


@pytest.mark.parametrize("pair", [over(0.97, 1.3), over(1.001, 1.02), Estimate()])
def test_a_time_is_bold_only_where_its_decoder_is_shown_to_be_the_fastest(
    pair: Estimate,
) -> None:
    names, layout = ("speedup", "time_per_token_s"), PaperLayout(venue="icml")
    summary = of_four(speedup=[1.0, 1.8, 2.0, 4.0], time_per_token_s=[4e-3, 2.2e-3, 2e-3, 1e-3])
    assert bold_of(made_up(summary, SHOWN), names, layout) == {("b", 1), ("b", 2)}
    unsure = made_up(summary, {**SHOWN, ("b", "a"): pair})
    assert not bold_of(unsure, names, layout)


def test_tokens_per_step_are_bold_only_among_decoders_with_as_many_calls() -> None:
    names, layout = ("acceptance_length", "calls_per_step"), PaperLayout(venue="icml")
    columns = {"acceptance_length": [1.0, 7.49, 3.94, 13.0]}
    unlike = of_four(**columns, calls_per_step=[1.0, 2.0, 1.0, 1.0])
    assert not bold_of(made_up(unlike), names, layout)
    alike = of_four(**columns, calls_per_step=[1.0, 1.0, 1.0, 1.0])
    assert bold_of(made_up(alike), names, layout) == {("a", 1)}
    caption = write_caption(made_up(unlike), layout, fill_grid(made_up(unlike), layout, names))
    assert "tokens per step only among decoders with as many calls per step" in caption


def test_tokens_per_step_that_nothing_verifies_are_in_brackets() -> None:
    text = table(parse_layout("neurips", [], "acceptance_length", "best"))
    assert "S[table-format={(}2.2{)}]@{~}l" in text
    assert re.search(r"^nar & \{\(\}13\.\d\d\{\)\} & \[", text, re.MULTILINE)
    assert re.search(r"^spec & \d\.\d\d & \[", text, re.MULTILINE)
    assert "with its 95\\,\\% interval (in brackets if nothing verifies them); target" in text
    alone = of_four(acceptance_length=[1.0, 3.0, 2.0, 9.0], acceptance_rate=[0, 0.1, 0.1, 0.1])
    members, layout = made_up(alone), PaperLayout(venue="icml")
    assert "brackets" not in latex(members, layout, partial(write_caption, members, layout))


def test_calls_per_step_stand_beside_tokens_per_step() -> None:
    assert "{Calls/step}" in table(PaperLayout(venue="icml"))
    chosen = parse_layout("neurips", [], "acceptance_length,quality", "best")
    assert r"{Tok./step} & {Calls/step}" in re.sub(r"\\multicolumn\{2\}\{c\}", "", table(chosen))


def test_a_quality_is_bold_only_above_every_other_interval() -> None:
    names, layout = ("quality",), PaperLayout(venue="icml")
    ends = {"quality_low": [0.8, 0.7, 0.85, 0.9], "quality_high": [0.84, 0.75, 0.95, 0.95]}
    shown = of_four(quality=[0.82, 0.72, 0.9, 0.92], **ends)
    assert bold_of(made_up(shown), names, layout) == {("b", 1)}
    ends["quality_high"][0] = 0.86
    assert not bold_of(made_up(of_four(quality=[0.82, 0.72, 0.9, 0.92], **ends)), names, layout)


@pytest.mark.parametrize(
    ("labels", "columns", "said"),
    [
        (["ptp"], None, "--label ptp: write NAME=TEXT"),
        (["=x"], None, "write NAME=TEXT"),
        ([], "speedup,speed", "no column 'speed'; did you mean 'speedup'"),
    ],
)
def test_an_invalid_label_or_column_is_a_usage_error(
    labels: list[str], columns: str | None, said: str
) -> None:
    with pytest.raises(BenchError, match=re.escape(said)) as refused:
        parse_layout("icml", labels, columns, "best")
    assert refused.value.exit_code == Exit.USAGE
