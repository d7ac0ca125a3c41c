"""Sweeps: which points a file means, what is measured of them, what they say together."""

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bench.errors import BenchError, Exit
from bench.extras.sweeps.report import (
    HEADLINES,
    curve_along,
    curve_figure,
    frame,
    speedups,
    write_sweep,
)
from bench.extras.sweeps.settings import Point, Sweep, load_sweep
from bench.extras.sweeps.sweeps import POINTS, plan_lines, run_sweep
from bench.plan.select import ResolvedRun
from bench.plan.setup import Setup
from bench.records.plan import RunStatus, write_status
from bench.records.run_folder import load_run
from bench.settings.config import RunConfig
from tests.bench.conftest import over_spec
from tests.command_line import bench
from tests.conftest import RecordedProgress, open_tables

ROOT = Path(__file__).parents[4]
BASE = """
model = "tables"
draft = "tables"
decoders = ["spec:k=2"]
tasks = "qa,math_reasoning"
limit = 4
quality_limit = 0
phase_limit = 0
repeats = 2
max_new_tokens = 12
"""
GRID = BASE + "[sweep]\nbatch_size = [1, 2]\nspec.k = [2, 4]\n"


def sweep_of(folder: Path, text: str) -> Sweep:
    file = folder / "sweep.toml"
    file.write_text(text, encoding="utf-8")
    return load_sweep(file)


def runs_in(folder: Path) -> list[Path]:
    return sorted(p for p in (folder / POINTS).iterdir() if not p.is_symlink())


# ---------------------------------------------------------------- the file


def test_points_are_all_combinations_of_the_axes_with_equal_other_settings(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, GRID)
    on_axes = [(p.values["batch_size"], p.values["spec.k"]) for p in sweep.points]
    assert on_axes == [(1, "2"), (1, "4"), (2, "2"), (2, "4")]
    for point, (size, k) in zip(sweep.points, on_axes, strict=True):
        assert point.config.batch_size == size
        assert point.config.decoders == {"spec": {"k": k}}
        assert point.config.limit == 4
    assert sweep.points[1].name == "p002-batch_size-1-spec.k-4"
    assert len({point.name for point in sweep.points}) == 4
    assert sweep.describe() == "4 points: batch_size (2), spec.k (2)"


def test_each_grid_may_set_its_decoders_and_no_point_appears_twice(tmp_path: Path) -> None:
    grids = """
    [[sweep]]
    batch_size = [1, 2]
    [[sweep]]
    temperature = [0.0, 0.8]
    [[sweep]]
    decoders = ["ar@nocache:cache=false"]
    fixed_length = true
    max_new_tokens = [6, 12]
    """
    points = sweep_of(tmp_path, BASE + grids).points
    assert [(p.config.batch_size, p.config.temperature) for p in points[:3]] == [
        (1, 0.0),
        (2, 0.0),
        (1, 0.8),  # temperature 0 is the first grid's first point
    ]
    assert [(p.config.max_new_tokens, p.config.fixed_length) for p in points[3:]] == [
        (6, True),
        (12, True),
    ]
    assert list(points[3].config.decoders or {}) == ["ar@nocache"]


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ("", "no [sweep] table"),
        ("[sweep]\n", "no [sweep] table"),
        ("[sweep]\nbatchsize = [1]\n", "'batchsize' is not an axis of a sweep; did you mean"),
        ("[sweep]\nbatch_size = []\n", "'batch_size' of the sweep is empty"),
        ("[sweep]\nbatch_size = [1, 0]\n", "batch_size"),
        ("[sweep]\nspecs.k = [1]\n", "no decoder 'specs'"),
        ("[sweep]\nrun_name = ['a']\n", "'run_name' is not an axis"),
    ],
)
def test_an_invalid_sweep_file_is_a_usage_error_and_leaves_no_folder(
    tmp_path: Path, grid: str, said: str
) -> None:
    (tmp_path / "s.toml").write_text(BASE + grid, encoding="utf-8")
    ended = bench("sweep", tmp_path / "s.toml", "--progress", "none", "-o", tmp_path / "results")
    assert (ended.code, said in ended.err) == (2, True), ended.err
    assert not (tmp_path / "results").exists()


def test_an_invalid_option_of_any_point_stops_the_sweep_before_measuring(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, GRID.replace("[2, 4]", "[2, 0]"))
    with pytest.raises(BenchError, match="option 'k'") as refused:
        run_sweep(sweep, tmp_path / "out", RecordedProgress(), open_tables, report=None)
    assert refused.value.exit_code == Exit.USAGE
    assert not (tmp_path / "out").exists()


def test_the_example_is_a_sweep_with_every_headline_axis() -> None:
    sweep = load_sweep(ROOT / "docs" / "sweep.toml")
    assert {curve.axis for curve in HEADLINES} <= set(sweep.axes)
    assert sweep.folder_name.startswith("sweep-")


# ---------------------------------------------------------------- measuring


@pytest.mark.usefixtures("quick")
def test_a_2x2_sweep_measures_four_runs_and_repeating_it_measures_none(tmp_path: Path) -> None:
    sweep, folder, progress = sweep_of(tmp_path, GRID), tmp_path / "out", RecordedProgress()
    code, left_out = run_sweep(sweep, folder, progress, open_tables, report=None)
    assert code == 0, progress.notes
    assert progress.notes[0] == "sweep of 4 points: batch_size (2), spec.k (2)"
    assert "point 2 of 4: batch_size 1, spec.k 4" in progress.notes
    made = runs_in(folder)
    assert [load_run(each).status.verdict for each in made] == ["VALID"] * 4
    rows = pd.read_csv(folder / "summary.csv")
    of_spec = rows[rows["decoder"] == "spec"]
    assert list(zip(of_spec["batch_size"], of_spec["spec.k"], strict=True)) == [
        (1, 2),
        (1, 4),
        (2, 2),
        (2, 4),
    ]
    assert of_spec["speedup"].notna().all()
    data = pd.read_csv(folder / "figures" / "data" / "speedup_by_batch_size.csv")
    assert set(data["decoder"]) == {"spec"}
    assert (folder / "figures" / "speedup_by_spec_k.png").is_file()
    assert left_out == []
    before = {file: file.read_bytes() for each in made for file in each.rglob("*.json*")}
    assert run_sweep(sweep, folder, progress, open_tables, report=None)[0] == 0
    assert progress.notes[-1] == "sweep of 4 points: batch_size (2), spec.k (2); 4 complete already"
    assert {file: file.read_bytes() for file in before} == before
    assert runs_in(folder) == made


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_an_interrupted_sweep_resumes_with_the_missing_measurements(tmp_path: Path) -> None:
    sweep, folder = sweep_of(tmp_path, GRID), tmp_path / "out"
    # a point has 4 prompts x 2 repeats x 3 arms: stopped in the second one
    stopped = RecordedProgress(stop_at=35)
    assert run_sweep(sweep, folder, stopped, open_tables, report=None)[0] == Exit.INTERRUPTED
    first, second = runs_in(folder)
    kept = (first / "samples.jsonl").read_bytes()
    assert load_run(second).status.status == "interrupted"
    rows = pd.read_csv(folder / "summary.csv")
    assert (rows["verdict"] == "not measured").sum() == 2
    assert run_sweep(sweep, folder, RecordedProgress(), open_tables, report=None)[0] == 0
    made = runs_in(folder)
    assert made[:2] == [first, second]
    assert len(made) == 4
    assert (first / "samples.jsonl").read_bytes() == kept
    assert load_run(second).status.attempts == 2


@pytest.mark.usefixtures("quick")
def test_a_failed_point_is_named_and_the_remaining_points_are_measured(tmp_path: Path) -> None:
    sweep, folder, progress = sweep_of(tmp_path, GRID), tmp_path / "out", RecordedProgress()

    def opener(run: ResolvedRun) -> Setup:
        if run.config.batch_size == 2:
            raise BenchError("out of memory: it did not fit")
        return open_tables(run)

    assert run_sweep(sweep, folder, progress, opener, report=None)[0] == Exit.FAILED
    assert "point 3 has no result: out of memory: it did not fit" in progress.notes
    assert len(runs_in(folder)) == 2
    notes = pd.read_csv(folder / "summary.csv").set_index("point")["note"]
    assert notes[sweep.points[3].name] == "out of memory: it did not fit"
    again, _ = run_sweep(sweep, folder, progress, opener, report=None)  # they are tried once more
    assert again == Exit.FAILED
    assert progress.notes[-5].endswith("; 2 complete already")


def test_repeating_a_sweep_whose_decoder_answered_nothing_ends_as_the_sweep_did(
    tmp_path: Path, decoder_file: Callable[[str], str]
) -> None:
    mine = decoder_file('raise RuntimeError("no idea")')
    sweep = sweep_of(tmp_path, BASE.replace("spec:k=2", mine) + "[sweep]\nbatch_size = [1]\n")
    codes = [
        run_sweep(sweep, tmp_path / "out", RecordedProgress(), open_tables, [mine], report=None)[0]
        for _ in range(2)
    ]
    assert codes == [Exit.FAILED] * 2


@pytest.mark.usefixtures("quick")
def test_a_sweep_whose_folder_could_not_be_written_begins_once_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = sweep_of(tmp_path, GRID)

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(BenchError, match="No space left on device; free some space"):
            run_sweep(sweep, tmp_path / "out", RecordedProgress(), open_tables, report=None)
    stopped = RecordedProgress(stop_at=1)
    ended, _ = run_sweep(sweep, tmp_path / "out", stopped, open_tables, report=None)
    assert ended == Exit.INTERRUPTED


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, GRID)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "sweep.toml").write_text("limit = 3\n", encoding="utf-8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for folder, said in (("out", "another sweep"), ("other", "no folder of a sweep")):
        with pytest.raises(BenchError, match=said) as refused:
            run_sweep(sweep, tmp_path / folder, RecordedProgress(), open_tables, report=None)
        assert refused.value.exit_code == Exit.USAGE


@pytest.mark.slow
@pytest.mark.usefixtures("quick", "saved")
def test_prompt_length_is_an_axis_with_a_figure(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, BASE + "[sweep]\nprompt_tokens = [30, 90]\n")
    folder = tmp_path / "out"
    assert run_sweep(sweep, folder, RecordedProgress(), open_tables, report=None)[0] == 0
    for each, length in zip(runs_in(folder), (30, 90), strict=True):
        assert {prompt.num_tokens for prompt in load_run(each).plan.prompts} == {length}
    assert (folder / "figures" / "speedup_by_prompt_tokens.svg").is_file()
    too_long = sweep_of(tmp_path, BASE + "[sweep]\nprompt_tokens = [300]\n")
    progress = RecordedProgress()
    failed, _ = run_sweep(too_long, tmp_path / "long", progress, open_tables, report=None)
    assert failed == Exit.USAGE
    assert "has room for 2 to 244" in progress.notes[-1]


def test_the_plan_of_a_sweep_lists_its_points_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(GRID.replace('"tables"', '"zoo"'), encoding="utf-8")
    ended = bench("sweep", tmp_path / "s.toml", "--dry-run", "--folder", tmp_path / "out")
    assert ended.out.splitlines() == [
        "sweep of 4 points: batch_size (2), spec.k (2)",
        "point 1: batch_size 1, spec.k 2",
        "point 2: batch_size 1, spec.k 4",
        "point 3: batch_size 2, spec.k 2",
        "point 4: batch_size 2, spec.k 4",
    ]
    assert not (tmp_path / "out").exists()


def test_an_unknown_task_of_a_later_point_is_reported_before_any_point_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a point was measured")

    monkeypatch.setattr("bench.extras.sweeps.sweeps._measure", never)
    text = GRID.replace('"tables"', '"zoo"').replace("batch_size = [1, 2]", 'tasks = ["qa", "qq"]')
    (tmp_path / "s.toml").write_text(text.replace("spec.k = [2, 4]", ""), encoding="utf-8")
    for more in ((), ("--dry-run",)):
        ended = bench("sweep", tmp_path / "s.toml", "--folder", tmp_path / "out", *more)
        assert (ended.code, "unknown task 'qq'" in ended.err) == (2, True)
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- figures


def test_a_curve_has_a_panel_for_each_value_of_another_axis_and_leaves_out_wrong_decoders() -> None:
    numbers = {"spec": 2.0, "bad": 9.0}
    rows = pd.DataFrame(
        {
            "point": f"p{size}{warm}",
            "batch_size": size,
            "temperature": warm,
            "verdict": "WRONG",
            "decoder": decoder,
            "guarantee": "WRONG" if decoder == "bad" else "tokens",
            "family": "all",
            "quality": None,
            "speedup": speedup / size,
            "speedup_low": speedup / size - 0.1,
            "speedup_high": speedup / size + 0.1,
        }
        for size in (1, 4)
        for warm in (0.0, 0.8, 1.0)
        for decoder, speedup in numbers.items()
        if (size, warm) != (4, 1.0)  # alone at its temperature: no line
    )
    curve = HEADLINES[0]
    drawn = curve_figure(rows, curve, ("batch_size", "temperature"))
    assert drawn is not None
    figure, data = drawn
    titles = [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()]
    assert titles[:2] == ["temperature 0", "temperature 0.8"]
    assert set(data["decoder"]) == {"spec"}
    assert list(data["speedup"]) == [2.0, 0.5, 2.0, 0.5]
    assert curve_along("batch_size") == curve
    assert curve_along("spec.k").name == "speedup_by_spec_k"
    ended_early = rows.assign(verdict="INCOMPLETE")
    assert curve_figure(ended_early, curve, ("batch_size", "temperature")) is None


def test_time_by_length_shows_ar_with_and_without_its_cache(synthetic_run, tmp_path: Path) -> None:
    points, runs = [], {}
    for length in (32, 128):
        path = synthetic_run({"spec": 2.0}, name=f"run-{length}")
        values = {"batch_size": 1, "temperature": 0.0, "max_new_tokens": length}
        name = f"p{length}"
        points.append(Point(number=1, label="", config=RunConfig(run_name=name), values=values))
        runs[name] = path
    rows = frame(points, runs, {})
    nocache = rows[rows["decoder"] == "ar"].assign(decoder="ar@nocache")
    drawn = curve_figure(pd.concat([rows, nocache]), HEADLINES[2], ("max_new_tokens",))
    assert drawn is not None
    assert {"ar", "ar@nocache", "spec"} == set(drawn[1]["decoder"])
    assert sorted(set(drawn[1]["max_new_tokens"])) == [32, 128]


def test_decoders_are_drawn_side_by_side_and_the_legend_marks_lossy_decoders() -> None:
    rows = pd.DataFrame(
        {
            "point": f"p{size}",
            "batch_size": size,
            "verdict": "VALID",
            "decoder": decoder,
            "guarantee": "none" if decoder == "nar" else "same tokens",
            "family": "all",
            "quality": None,
            "speedup": 2.0,
            "time_per_token_s": 0.1,
        }
        for size in (1, 2, 4)
        for decoder in ("spec", "ptp", *(["nar"] if size < 4 else []))
    )
    drawn = curve_figure(rows, HEADLINES[0], ("batch_size",))
    assert drawn is not None
    lines = {line.get_color(): line for line in drawn[0].axes[0].get_lines()[:3]}
    starts = sorted(float(np.asarray(line.get_xdata())[0]) for line in lines.values())
    assert starts[1] == 1.0  # each beside the others, near its place
    assert starts[0] > 0.9
    assert starts[2] < 1.1
    (legend,) = drawn[0].legends
    assert {text.get_text() for text in legend.get_texts()} == {"spec", "ptp", "nar (lossy)"}


def test_a_sweep_follows_the_baseline_of_its_runs(synthetic_run, tmp_path: Path) -> None:
    points, runs = [], {}
    for size in (1, 2):
        config = RunConfig(run_name=f"p{size}")
        points.append(Point(number=size, label="", config=config, values={"batch_size": size}))
        runs[points[-1].name] = over_spec(synthetic_run({"spec": 2.0}, name=f"run-{size}"))
    rows = frame(points, runs, {})
    table = speedups(points, rows)
    assert table.headings == ("point", "verdict", "ar")
    assert table.note.startswith("Against spec of the same run")
    drawn = curve_figure(rows, HEADLINES[0], ("batch_size",))
    assert drawn is not None
    assert set(drawn[1]["decoder"]) == {"ar"}
    assert drawn[0].get_supylabel() == "speed-up over spec"
    caption = HEADLINES[0].caption.format(base="spec")
    assert caption.endswith("below the line, a decoder is slower than spec.")
    assert "(ar@LABEL:cache=false)" in HEADLINES[2].caption.format(base="spec")


def test_figures_are_drawn_only_along_numeric_axes(tmp_path: Path) -> None:
    axes = "fixed_length = [false, true]\ntasks = ['qa', 'rag']\nlimit = [1, 2]\nseed = [3]\n"
    sweep = sweep_of(tmp_path, f"{BASE}[sweep]\n{axes}")
    left_out = write_sweep(tmp_path / "out", sweep, {}, {})
    assert left_out == ["speedup_by_limit (limit: nothing was measured along it)"]


@pytest.mark.parametrize(
    ("status", "num_missing"),
    [
        (RunStatus(status="complete"), 1),
        (RunStatus(status="complete", reported=True), 1),
        (RunStatus(status="complete", reported=False), 2),
        (RunStatus(status="interrupted"), 2),
    ],
)
def test_a_point_is_complete_once_it_is_measured_and_reported(
    status: RunStatus, num_missing: int, tmp_path: Path
) -> None:
    sweep = sweep_of(tmp_path, BASE + "[sweep]\nlimit = [1, 2]\n")
    point = tmp_path / "out" / POINTS / "first"
    point.mkdir(parents=True)
    (point / "config.toml").write_text(f'run_name = "{sweep.points[0].name}"\n')
    write_status(point, status)
    head, *missing = plan_lines(sweep, tmp_path / "out", brings_models=True)
    assert len(missing) == num_missing
    assert head.endswith("1 complete already") is (num_missing == 1)
