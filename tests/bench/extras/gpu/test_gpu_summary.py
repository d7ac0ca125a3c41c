"""The summary of `make gpu`: what is read from what a step left, whatever became of it."""

import json
from dataclasses import replace

from bench.extras.gpu_summary import Status, Step, read_figures, write_summary

MACHINE = {"machine": {"gpu": "made up", "torch": "2.11"}}
LINES = [{"context": 512, "share_of_limit": 0.5}, {"context": 4096, "share_of_limit": 0.7}]


def outcome(folder, *, status=Status.PASSED, lines=(MACHINE, *LINES), torn=""):
    text = "".join(json.dumps(line) + "\n" for line in lines) + torn
    (folder / "made.jsonl").write_text(text, encoding="utf-8")
    (folder / "made.log").write_text("one\nthe last\n\n", encoding="utf-8")
    words = ("bench.extras.cost.bare", "ar", "--output", str(folder / "made.jsonl"))
    step = Step(name="made", kind="lines", words=words, budget_s=9.0, status=status)
    return read_figures(replace(step, exit_code=0, seconds=3.0), folder)


def test_a_step_that_timed_out_keeps_its_whole_lines_and_the_last_line_of_its_log(tmp_path):
    ended = outcome(tmp_path, status=Status.OUT_OF_TIME, torn='{"context": 1')
    assert ended.reason == "the last"
    assert ended.status is Status.OUT_OF_TIME
    assert ended.figures["lines"] == LINES


def test_a_step_that_passed_without_a_result_has_failed(tmp_path):
    ended = outcome(tmp_path, lines=[MACHINE])
    assert (ended.status, ended.reason) == (Status.FAILED, "it left no result in its folder")


def test_a_run_is_read_from_its_summary(tmp_path):
    folder = tmp_path / "zoo" / "a-run"
    folder.mkdir(parents=True)
    rows = ["decoder,family,speedup,quality", "ar,qa,,", "ar,all,1.0,", "spec,all,1.5,0.25"]
    (folder / "summary.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "run.json").write_text('{"verdict": "VALID", "reasons": ["a reason"]}')
    (tmp_path / "zoo.log").write_text("")
    words = ("bench", "run")
    step = Step(name="zoo", kind="run", words=words, budget_s=9.0, status=Status.PASSED)
    found = read_figures(step, tmp_path).figures
    assert (found["verdict"], found["reasons"]) == ("VALID", ["a reason"])
    assert [(row["decoder"], row["speedup"], row["quality"]) for row in found["lines"]] == [
        ("ar", "1.0", None),
        ("spec", "1.5", "0.25"),
    ]


def test_the_summary_names_no_folder_of_the_machine(tmp_path):
    left = Step(name="left", kind="run", words=("bench",), budget_s=1.0, reason="a|b")
    ended = [outcome(tmp_path), replace(left, status=Status.LEFT_OUT)]
    write_summary(tmp_path, ended, rehearsal=True)
    data = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert data["machine"] == MACHINE["machine"]
    assert data["steps"][0]["command"] == "bench.extras.cost.bare ar --output OUT/made.jsonl"
    assert data["steps"][1]["reason"] == "a|b"
    assert data["rehearsal"]
    assert data["steps"][0]["figures"]["lines"] == LINES
    assert str(tmp_path) not in json.dumps(data)


def test_a_step_that_runs_is_in_the_summary(tmp_path):
    step = replace(outcome(tmp_path), name="begun", status=Status.RUNNING)
    write_summary(tmp_path, [step], rehearsal=False)
    data = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert [each["status"] for each in data["steps"]] == ["running"]
