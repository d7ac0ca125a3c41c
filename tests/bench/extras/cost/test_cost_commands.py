import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.cli.measure import print_conclusions
from bench.errors import InvalidRunError
from bench.extras.cost.curve import curve_table, load_cost
from bench.extras.cost.explain import draft_costs
from bench.extras.cost.figure import write_figure
from bench.extras.cost.records import CURVE, read_draft_costs, write_draft_costs
from bench.records.run_folder import load_run
from bench.records.samples import PHASES, PHASES_FILE
from bench.report.findings import Findings
from tests.bench.conftest import over_spec
from tests.command_line import bench
from tests.made_up_cost import write_cost_folder
from tests.tiny_models import fresh

SMALL = ("--rows", "2,4", "--sequences", "2", "--contexts", "8,100", "--rounds", "1")
TARGET = {"architecture": "L", "layers": 1, "hidden_size": 2, "vocab_size": 3, "parameters": 4}


@pytest.mark.slow
@pytest.mark.usefixtures("saved")
def test_bench_cost_measures_a_shape_and_refuses_to_measure_it_again(tmp_path: Path):
    fresh("llama-gqa").config.save_pretrained(tmp_path / "tiny")
    where = ("--shape", tmp_path / "tiny", "--device", "cpu", "--output", tmp_path / "results")
    command = ("cost", *where, *SMALL, "--progress", "none")
    first = bench(*command)
    assert first.code == 0, first.err
    (folder,) = (tmp_path / "results").iterdir()
    assert folder.name == "cost-tiny-float32-cpu"
    cost = load_cost(folder)
    # one row and one sequence are always measured: all else is held to them
    assert {cell.rows for cell in cost.curve.points} == {1, 2, 4}
    assert {cell.sequences for cell in cost.curve.points} == {1, 2}
    assert (folder / "figures" / "call_time.svg").is_file()
    curve = (folder / CURVE).read_bytes()
    assert bench(*command).code == 0
    assert (folder / CURVE).read_bytes() == curve
    other = bench(*command, "--rows", "8", "--folder", folder)
    assert (other.code, "another model, grid or machine" in other.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--rows", "1,x"), "--rows '1,x' is not a list"),
        (("--contexts", "0"), "--contexts '0' is not a list"),
        (("--rounds", "0"), "--rounds"),
        (("--model", "zoo", "--shape", "zoo"), "exclude each other"),
    ],
)
def test_invalid_arguments_of_bench_cost_are_refused(arguments, said):
    ended = bench("cost", *arguments)
    assert ended.code == 2
    assert said in ended.err


@pytest.mark.slow
def test_a_packed_model_has_a_folder_of_its_own_and_reads_fewer_bytes(tmp_path: Path):
    small = (
        *("cost", "--model", "zoo", "--rows", "1", "--sequences", "1", "--contexts", "16"),
        *("--rounds", "1", "--output", str(tmp_path), "--dtype", "bfloat16"),
        *("--progress", "none"),
    )
    read = {}
    for name, options in (("bfloat16", ()), ("int8", ("--quantize", "int8"))):
        ended = bench(*small, *options)
        assert ended.code == 0, ended.err
        (folder,) = tmp_path.glob(f"cost-*-{name}-cpu")
        read[name] = load_cost(folder).facts.work
    assert read["int8"].weight_bytes < 0.7 * read["bfloat16"].weight_bytes
    assert read["int8"].row_flops == read["bfloat16"].row_flops


def test_the_table_shows_the_acceptance_rate_from_which_drafts_pay(tmp_path: Path):
    head, *rows = curve_table(load_cost(write_cost_folder(tmp_path / "cost")))
    assert head[0] == "rows"
    assert [row[0] for row in rows] == ["1", "4", "16"]
    # 1.4 / 1.1 = 1.27 tokens a step; 1 + a + a^2 + a^3 is that at a = 22 %
    assert rows[1][1:4] == ["1.40 [1.40, 1.40]", "1.27", "21.6 %"]
    assert rows[0][3] == "-"
    # 1 MB and 14 tokens of 100 bytes at 10 GB/s: 0.1 ms of 1.4
    assert rows[1][4] == "7.2 %"


@pytest.mark.slow
@pytest.mark.usefixtures("saved")
def test_a_cost_folders_figure_has_the_same_bytes_again(tmp_path: Path):
    cost = load_cost(write_cost_folder(tmp_path / "cost"))
    names = ("figures/call_time.png", "figures/call_time.svg")
    written = []
    for _ in range(2):
        write_figure(cost)
        written.append([(cost.path / name).read_bytes() for name in names])
    assert written[0] == written[1]


@pytest.mark.slow
def test_reading_a_cost_folder_loads_no_torch(tmp_path, synthetic_run):
    cost = write_cost_folder(tmp_path / "cost")
    run = synthetic_run({"spec": 3.0})
    code = "import sys, cli\n"
    arguments = ["bench", "explain", str(run), "--cost", str(cost)]
    code += f"sys.argv = {arguments!r}; cli.app(standalone_mode=False)\n"
    code += "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_explain_compares_ar_with_the_limit_only_with_a_cost_folder_of_the_same_machine(
    tmp_path, synthetic_run
):
    env = {"models": {"target": TARGET}, "comparability_key": "here"}
    run = synthetic_run({"spec": 3.0}, env=env)
    here = write_cost_folder(tmp_path / "here", TARGET, "here")
    there = write_cost_folder(tmp_path / "there", TARGET, "there")
    assert "Limit / measured: " in bench("explain", run, "--cost", here).out
    assert "Limit / measured: " not in bench("explain", run).out
    assert "another machine" in bench("explain", run, "--cost", there).out


def test_a_folder_without_costs_of_draft_calls_has_none(tmp_path):
    assert read_draft_costs(write_cost_folder(tmp_path / "cost")) == {}


def test_costs_of_draft_calls_are_read_as_written_and_negative_costs_are_refused(tmp_path):
    write_draft_costs(tmp_path, {"spec": 0.25})
    assert read_draft_costs(tmp_path) == {"spec": 0.25}
    write_draft_costs(tmp_path, {"spec": -1.0})
    with pytest.raises(InvalidRunError, match="choices"):
        read_draft_costs(tmp_path)


def test_a_draft_call_costs_its_share_of_a_steps_drafting(tmp_path, synthetic_run):
    """Drafting takes 0.6 ms a step in which ar's token takes 1 ms, by two calls."""
    run = with_second_pass(synthetic_run({"spec": 3.0}), draft_s=0.6e-3)
    findings = Findings(load_run(run))
    assert draft_costs(findings) == {}  # this run's steps make no draft calls

    def drafting(record):
        calls = (5, *[2] * (len(record.steps.emitted) - 1))
        return replace(record, steps=replace(record.steps, draft_calls=calls))

    records = (drafting(r) if r.decoder == "spec" else r for r in findings.run.records)
    drafts = Findings(replace(findings.run, records=tuple(records)))
    assert draft_costs(drafts) == pytest.approx({"spec": 0.3})


def with_second_pass(run: Path, draft_s: float = 0.0) -> Path:
    """Phases in which a call of ar takes 1 ms, one of spec 1.4 ms and its drafting `draft_s`."""
    answers = []
    for record in load_run(run).records:
        if record.kind != "timing" or record.repeat or record.decoder == "ar@aa":
            continue
        assert record.steps is not None
        later = len(record.steps.emitted) - 1
        call_s = 1e-3 if record.decoder == "ar" else 1.4e-3
        spent = {"verify": later * call_s, "draft": later * draft_s * (record.decoder != "ar")}
        answers.append(
            {
                "decoder": record.decoder,
                "prompts": [record.prompt],
                "seconds": {**dict.fromkeys(PHASES, 0.0), **spent},
                "emitted": sum(record.steps.emitted),
                "later_emitted": sum(record.steps.emitted[1:]),
                "later_steps": later,
                "repeat": 0,
                "rows": 0,
                "padded_rows": 0,
            }
        )
    (run / PHASES_FILE).write_text(json.dumps({"answers": answers}))
    return run


@pytest.mark.parametrize(
    ("key", "why"),
    [("here", "no unbatched answer of its second pass"), ("there", "another machine")],
)
def test_a_missing_price_of_draft_calls_is_reported_with_the_reason(
    key: str, why: str, tmp_path: Path, synthetic_run: Any, monkeypatch: pytest.MonkeyPatch
):
    env = {"models": {"target": TARGET}, "comparability_key": "here"}
    run = with_second_pass(synthetic_run({"spec": 3.0}, env=env))
    folder = write_cost_folder(tmp_path / "cost", TARGET, key)
    measured = "bench.extras.cost.measure.measure_cost", "bench.extras.cost.subject.open_subject"
    for name in measured:
        monkeypatch.setattr(name, lambda *_, **__: load_cost(folder).facts)
    ended = bench("cost", "--run", run, "--folder", folder)
    assert ended.code == 0, ended.err
    assert f"draft calls of {run.name} have no price: " in ended.out
    assert why in ended.out
    assert read_draft_costs(folder) == {}


def test_a_run_with_a_cost_curve_prints_ars_share_of_the_limit(tmp_path, synthetic_run, capsys):
    env = {"models": {"target": TARGET}, "comparability_key": "here"}
    run = synthetic_run({"spec": 3.0}, env=env)
    print_conclusions(run)
    assert capsys.readouterr().out == ""
    cost = write_cost_folder(tmp_path / "cost", TARGET, "here")
    (run / "config.toml").write_text(f'model = "zoo"\ncost = "{cost}"\n')
    print_conclusions(run)
    assert "Limit / measured: " in capsys.readouterr().out
    (cost / "cost.csv").unlink()  # the run is measured, and stands without it
    print_conclusions(run)
    assert "not a cost folder" in capsys.readouterr().err


def test_a_run_with_another_baseline_prices_no_draft_call(tmp_path: Path, synthetic_run: Any):
    run = over_spec(synthetic_run({"spec": 3.0}))
    ended = bench("cost", "--model", "zoo", "--run", run, "--output", tmp_path)
    assert ended.code == 5
    assert "costs are in tokens of ar, but" in ended.err
    assert ended.err.count("\n") == 1
