"""``bench ls``: tables of what there is."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from bench.cli import listing, options
from bench.stats.folders import run_folders
from decoders.core import registry
from specbench_tasks.task import FAMILIES
from tests.command_line import bench

ROOT = Path(__file__).resolve().parents[3]
REFERENCES = ROOT / "results" / "reference"


def rendered(item: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(item)
    return console.file.getvalue()  # type: ignore[attr-defined]


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def test_every_decoder_is_listed_with_its_needs_guarantee_and_options() -> None:
    text = rendered(listing.facts_table("decoders", ROOT))
    for name in registry.names():
        assert line_of(text, name)
    spec = line_of(text, "spec")
    assert "draft" in spec
    assert "yes" in spec
    assert "k=" in spec
    assert "adapter ptp" in line_of(text, "ptp")
    assert "by options" in line_of(text, "isd")
    for name in ("lookup", "eagle", "spec"):
        assert "by options" not in line_of(text, name)
    assert " no " in line_of(text, "nar")


def test_a_decoder_that_cannot_be_imported_is_listed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise ImportError("No module named 'flux'")

    monkeypatch.setattr(registry, "names", lambda: ("theirs",))
    monkeypatch.setattr(registry, "resolve", broken)
    text = rendered(listing.facts_table("decoders", ROOT))
    assert "cannot be loaded: No module named 'flux'" in text


def test_every_task_is_listed_with_its_count_and_licence() -> None:
    text = rendered(listing.facts_table("tasks", ROOT))
    for name in ("zoo", "specbench[=PATH]", "jsonl=PATH", "hf=ID", *FAMILIES):
        assert line_of(text, name)
    assert "480" in line_of(text, "specbench")
    assert "Apache-2.0" in line_of(text, "specbench")


def test_a_piped_listing_is_neither_wrapped_nor_truncated(tmp_path: Path) -> None:
    name = f"20260101T000000Z-{'long-' * 30}1"
    (tmp_path / name).mkdir()
    (tmp_path / name / "run.json").write_text('{"status": "done"}')
    cells = [{"cell": f"spec@k{k}", "lossless": True} for k in range(30)]
    (tmp_path / name / "manifest.json").write_text(json.dumps({"cells": cells, "blocks": []}))

    def printed(**console: Any) -> str:
        out = Console(file=io.StringIO(), width=80, color_system=None, **console)
        options.print_table(listing.facts_table("runs", tmp_path), out)
        return out.file.getvalue()  # type: ignore[attr-defined]

    heading, line = printed().splitlines()
    assert heading.split()[0] == "run"
    assert line.startswith(f"{name}  done")
    assert line.rstrip().endswith("spec@k29  0")
    assert max(map(len, printed(force_terminal=True).splitlines())) <= 80


def test_runs_are_listed_with_status_verdict_and_number_of_records(tmp_path: Path) -> None:
    done, begun = tmp_path / "20260101T000000Z-a-1", tmp_path / "20260102T000000Z-b-2"
    for folder in (done, begun):
        folder.mkdir()
        cells = [{"cell": cell, "lossless": True} for cell in ("ar", "spec@k4")]
        plan = {"cells": cells, "blocks": []}
        (folder / "manifest.json").write_text(json.dumps(plan))
    (done / "run.json").write_text(json.dumps({"status": "done", "verdict": "INVALID"}))
    (done / "config.toml").write_text('model = "zoo"\ntasks = "qa"\n')
    (done / "samples.jsonl").write_text('{"decoder":"ar"}\n{"event":"load"}\n{"deco')
    (begun / "config.toml").write_text("damaged =")
    (tmp_path / "notes").mkdir()
    (tmp_path / "latest").symlink_to(begun.name)
    (killed := tmp_path / ".new-20260103T000000Z-c-3-123").mkdir()
    (killed / "run.json").write_text('{"status": "opening"}')

    assert run_folders(tmp_path) == [done, begun]
    text = rendered(listing.facts_table("runs", tmp_path))
    first = line_of(text, done.name).split()
    assert first[1:] == ["done", "INVALID", "zoo", "qa", "ar,", "spec@k4", "1"]
    assert line_of(text, begun.name).split()[1:3] == ["unfinished", "INCOMPLETE"]
    (done / "config.toml").write_text('model = "zoo"\ntasks = "qa"\nquantize = "int8"\n')
    assert "zoo (int8)" in line_of(rendered(listing.facts_table("runs", tmp_path)), done.name)


def test_a_terminal_never_breaks_the_name_of_a_run_across_lines(tmp_path: Path) -> None:
    run = tmp_path / "20260101-120000-idlm+idlm@isd+lookup+nar+ptp+spec-53e5"
    run.mkdir()
    (run / "run.json").write_text('{"status": "interrupted"}')
    (run / "config.toml").write_text('model = "zoo"\ntasks = "qa"\n')
    plan = {"cells": [{"cell": cell, "lossless": True} for cell in ("ar", "nar")], "blocks": []}
    (run / "manifest.json").write_text(json.dumps(plan))
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    options.print_table(listing.facts_table("runs", tmp_path, narrow=True), console)
    _, first, second = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert first.split() == [run.name, "interrupted", "0"]
    assert second.split() == ["zoo,", "qa:", "ar,", "nar", "INCOMPLETE"]


def test_every_list_can_be_read_by_a_program(tmp_path: Path) -> None:
    (tmp_path / "20260101-a-1").mkdir()
    (tmp_path / "20260101-a-1" / "run.json").write_text('{"verdict": "VALID"}')
    ended = bench("ls", "runs", "--json", "--output", tmp_path)
    (found,) = json.loads(ended.out)
    assert found["path"] == str(tmp_path / "20260101-a-1")
    assert (found["status"], found["verdict"], found["model"]) == ("unfinished", "INCOMPLETE", None)
    assert (found["decoders"], found["records"]) == ([], 0)

    decoders = {
        facts["decoder"]: facts for facts in json.loads(bench("ls", "decoders", "--json").out)
    }
    assert set(decoders) == set(registry.names())
    assert decoders["spec"]["needs"] == ["draft"]
    assert decoders["spec"]["options"]["verify"] == "rejection"
    tasks = {facts["task"]: facts for facts in json.loads(bench("ls", "tasks", "--json").out)}
    assert tasks["zoo"]["families"] == list(FAMILIES)
    assert tasks["jsonl=PATH"]["conversations"] is None


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ({"num_records": 1}, "VALID"),
        ({"num_records": 2028}, "DAMAGED"),
        ({"status": "interrupted"}, "INCOMPLETE"),
        ({"status": None, "verdict": None}, "INCOMPLETE"),
        ({"differences": 3}, "DAMAGED"),
        ({"differences": [{"cell": "x", "num_wrong": 2}]}, "WRONG"),
        ({"differences": [{"cell": "x", "num_wrong": 0}]}, "VALID"),
    ],
)
def test_a_listed_verdict_comes_from_the_runs_files_and_not_from_the_recorded_verdict(
    status: dict[str, object], verdict: str, tmp_path: Path
) -> None:
    written = {"status": "complete", "verdict": "VALID", **status}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(written))
    (tmp_path / "run" / "samples.jsonl").write_text("{}\n")
    (tmp_path / "run" / "manifest.json").write_text('{"cells": [], "blocks": []}')
    (found,) = listing.list_facts("runs", tmp_path)
    assert found["verdict"] == verdict
    (tmp_path / "run" / "manifest.json").unlink()
    (found,) = listing.list_facts("runs", tmp_path)
    assert found["verdict"] == "DAMAGED"


@pytest.mark.parametrize(
    ("checked", "verdict"), [("wrong", "WRONG"), ("verified", "INCOMPLETE"), (3, "DAMAGED")]
)
def test_a_listed_run_is_wrong_once_a_decoder_failed_its_checks_and_damaged_without_a_plan(
    checked: object, verdict: str, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"status": "started"}')
    cell = {"cell": "mine", "lossless": True, "checked": checked, "check_note": "fails"}
    plan = {"cells": [cell], "blocks": []}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(plan))
    (found,) = listing.list_facts("runs", tmp_path)
    assert found["verdict"] == verdict


def test_a_stored_reference_without_its_answers_is_listed_as_damaged(tmp_path: Path) -> None:
    reference = shutil.copytree(REFERENCES / "h100-zoo", tmp_path / "h100-zoo")
    status = json.loads((reference / "run.json").read_text())
    (found,) = listing.list_facts("runs", tmp_path)
    assert (found["verdict"], found["records"]) == ("VALID", status["num_records"])
    for name in ("manifest.json", "samples.parquet"):
        (reference / name).unlink()
    (found,) = listing.list_facts("runs", tmp_path)
    assert (found["verdict"], found["records"]) == ("DAMAGED", 0)


def test_a_run_with_a_damaged_line_is_listed_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text('{"status": "complete", "num_records": 3}')
    (tmp_path / "run" / "manifest.json").write_text('{"cells": [], "blocks": []}')
    for lines, num, verdict in (
        ("{}\n{}\n{}\n", 3, "VALID"),
        ("{}\n{}\n{}\n{", 3, "VALID"),  # the end of a line that was being written
        ('{}\n{"a": 1\n{}\n', 0, "DAMAGED"),
    ):
        (tmp_path / "run" / "samples.jsonl").write_text(lines)
        (found,) = listing.list_facts("runs", tmp_path)
        assert (found["records"], found["verdict"]) == (num, verdict)


def test_superseded_records_are_not_counted_and_do_not_hide_lost_records(
    synthetic_run: Callable[..., Path],
) -> None:
    run = synthetic_run()
    lines = (run / "samples.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    records = [json.loads(line) for line in lines]
    again = [json.dumps(each | {"attempt": 1}) + "\n" for each in records if each["block"] == 0]
    status = json.loads((run / "run.json").read_text(encoding="utf-8"))
    status |= {"status": "complete", "verdict": "VALID", "num_records": len(lines)}
    (run / "run.json").write_text(json.dumps(status), encoding="utf-8")
    void = '{"event":"supersede","block":0,"before_attempt":1}\n'
    for rest, num, verdict in (
        (again, len(lines), "VALID"),
        (again[:-1], len(lines) - len(again), "DAMAGED"),  # an unfinished block
    ):
        (run / "samples.jsonl").write_text("".join([*lines, void, *rest]), encoding="utf-8")
        (found,) = listing.list_facts("runs", run.parent)
        assert (found["records"], found["verdict"]) == (num, verdict)


def test_a_missing_results_folder_lists_no_runs(tmp_path: Path) -> None:
    assert listing.facts_table("runs", tmp_path / "nowhere").row_count == 0


@pytest.mark.slow
def test_tasks_and_runs_are_listed_without_torch() -> None:
    code = (
        "import sys, pathlib; from bench.records import prompts; from bench.cli import listing; "
        "results = pathlib.Path('results'); listing.facts_table('tasks', results); "
        "listing.facts_table('runs', results); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0


def test_a_folder_that_is_closed_to_the_user_is_left_out_of_lists_and_refused_by_name(
    synthetic_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, closed = synthetic_run(name="open"), synthetic_run(name="closed")
    is_file = Path.is_file

    def refuse(self: Path) -> bool:
        if self.parent == closed:
            raise PermissionError(13, "Permission denied", str(self))
        return is_file(self)

    monkeypatch.setattr(Path, "is_file", refuse)
    monkeypatch.setattr("bench.stats.folders.os.access", lambda path, mode: path != closed)
    assert run_folders(run.parent) == [run]
    ended = bench("report", closed)
    assert (ended.code, ended.err.count("\n")) == (5, 1)
    assert f"{closed}/" in ended.err
    assert "is closed to you; change its permissions" in ended.err
