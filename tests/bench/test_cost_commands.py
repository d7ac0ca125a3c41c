import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.records.cost import CALLS, read_choices
from bench.report.cost import curve_table, write_cost
from bench.stats.cost_curve import load_cost
from bench.stats.limit import OperatingPoint
from tests.command_line import bench
from tests.made_up_cost import GRID, seconds, write_cost_folder
from tests.tiny_models import fresh

SMALL = ("--rows", "2,4", "--sequences", "2", "--contexts", "8,100", "--rounds", "1")
TARGET = {"architecture": "L", "layers": 1, "hidden_size": 2, "vocab_size": 3, "parameters": 4}


def test_bench_cost_measures_a_shape_and_a_second_time_nothing(tmp_path: Path):
    fresh("llama-gqa").config.save_pretrained(tmp_path / "tiny")
    where = ("--shape", tmp_path / "tiny", "--device", "cpu", "--output", tmp_path / "results")
    command = ("cost", *where, *SMALL, "--no-replay", "--progress", "none")
    first = bench(*command)
    assert first.code == 0, first.err
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name == "cost-tiny-float32-cpu"
    cost = load_cost(folder)
    # one row and one sequence are always measured: all else is held to them
    assert {cell.rows for cell in cost.curve.points} == {1, 2, 4}
    assert {cell.sequences for cell in cost.curve.points} == {1, 2}
    assert (folder / "figures" / "call_time.svg").is_file()
    assert "no replay: not asked for" in first.out
    lines = (folder / CALLS).read_bytes()
    assert bench(*command).code == 0
    assert (folder / CALLS).read_bytes() == lines
    other = bench(*command, "--rows", "8", "--folder", folder)
    assert (other.code, "another model or grid" in other.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rows", "1,x"), "--rows '1,x' is no list"),
        (("--contexts", "0"), "--contexts '0' is no list"),
        (("--rounds", "0"), "--rounds"),
        (("--model", "zoo", "--shape", "zoo"), "exclude each other"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments, said):
    ended = bench("cost", *arguments)
    assert ended.code == 2
    assert said in ended.err


def test_the_table_says_from_which_acceptance_drafts_pay(tmp_path: Path):
    head, *rows = curve_table(load_cost(write_cost_folder(tmp_path / "cost")))
    assert head[0] == "rows"
    assert [row[0] for row in rows] == ["1", "4", "16"]
    # 1.4 / 1.1 = 1.27 tokens a step; 1 + a + a^2 + a^3 is that at a = 22 %
    assert rows[1][1:4] == ["1.40 [1.40, 1.40]", "1.27", "22%"]
    assert rows[0][3] == "-"
    # 1 MB and 14 tokens of 100 bytes at 10 GB/s: 0.1 ms of 1.4
    assert rows[1][4] == "7%"


def test_a_cost_folders_files_are_the_same_bytes_again(tmp_path: Path):
    cost = load_cost(write_cost_folder(tmp_path / "cost"))
    points = [OperatingPoint(decoder="spec", rows=5, seconds=2e-3)]
    names = ("cost.md", "figures/call_time.png", "figures/call_time.svg")
    written = []
    for _ in range(2):
        write_cost(cost, points)
        written.append([(cost.path / name).read_bytes() for name in names])
    assert written[0] == written[1]
    assert b"spec" in written[0][2]


def test_bench_project_prints_speedups_and_what_they_rest_on(tmp_path, synthetic_run):
    env = {"models": {"target": TARGET}, "comparability_key": "here"}
    run = synthetic_run({"spec": 3.0}, env=env)
    same = write_cost_folder(tmp_path / "same", TARGET, "here")
    other = write_cost_folder(tmp_path / "other", TARGET, "there")
    ended = bench("project", run, "--cost", same, "--json", tmp_path / "made.json")
    assert ended.code == 0, ended.err
    assert "held against itself" in ended.out
    assert "overheads are left out" in ended.out
    made = json.loads((tmp_path / "made.json").read_text())
    ar, spec = made["decoders"]
    one, eight = (seconds(next(c for c in GRID.cells if c.rows == 1)), 1e-3 + 8e-4)
    assert ar["time_per_token_s"] == pytest.approx(one)
    assert spec["rows_per_call"] == pytest.approx(8)
    assert spec["speedup"]["value"] < 8 * one / eight
    assert spec["error"] == pytest.approx(spec["speedup"]["value"] / spec["measured"]["value"] - 1)
    assert f"{100 * spec['error']:+.1f} %" in ended.out
    away = bench("project", run, "--cost", other)
    assert "error" not in away.out.partition("\n")[0]
    against = bench("project", run, "--cost", other, "--against", run)
    assert "error" in against.out.partition("\n")[0]
    assert "another machine" in against.out


def test_reading_a_cost_folder_loads_no_torch(tmp_path, synthetic_run):
    cost = write_cost_folder(tmp_path / "cost")
    run = synthetic_run({"spec": 3.0})
    for words in (["project", run, "--cost", cost], ["explain", run, "--cost", cost]):
        arguments = ["bench", *map(str, words)]
        code = f"import sys, cli; sys.argv = {arguments!r}; cli.app(standalone_mode=False); "
        code += "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
        done = subprocess.run(
            [sys.executable, "-c", code], check=False, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_explain_says_how_near_ar_is_to_the_limit_where_the_folder_fits(tmp_path, synthetic_run):
    env = {"models": {"target": TARGET}, "comparability_key": "here"}
    run = synthetic_run({"spec": 3.0}, env=env)
    here = write_cost_folder(tmp_path / "here", TARGET, "here")
    there = write_cost_folder(tmp_path / "there", TARGET, "there")
    assert "Its share of the limit" in bench("explain", run, "--cost", here).out
    assert "Its share of the limit" not in bench("explain", run).out
    assert "another machine" in bench("explain", run, "--cost", there).out


def test_a_folder_without_choices_has_none(tmp_path):
    assert read_choices(write_cost_folder(tmp_path / "cost")) == {}
