"""Parts of one plan become one run: every answer once, times within a machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, Exit
from bench.records.run_folder import Run, load_run
from bench.report.findings import Findings
from bench.report.merge import merge
from bench.stats.summary_row import rows_of
from bench.stats.validity import INCOMPLETE, VALID, judge
from tests import unreported as bench_run

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def measured(
    small: Any, opener: Any, progress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Measures a part (None: the whole) on a machine of a name."""

    def measure(part: str | None, machine: str = "one", shown: Any = None, **values: Any) -> Path:
        monkeypatch.setattr("bench.machine.env._cpu_model", lambda: machine)
        shown = shown or progress()
        config = small(limit=6, **values)
        return bench_run.run(config, tmp_path / "runs", shown, opener, part=part).run_dir

    return measure


def answers(run: Run) -> dict[Any, Any]:
    found = {
        (r.kind, r.decoder, r.prompt, r.repeat): (r.tokens, r.scores, r.block, r.order)
        for r in run.records
    }
    assert len(found) == len(run.records)
    return found


def test_parts_are_disjoint_and_merged_are_the_whole_run(measured: Any, tmp_path: Path) -> None:
    whole = load_run(measured(None))
    parts = [measured(f"{number}/3") for number in (1, 2, 3)]
    runs = [load_run(part) for part in parts]
    assert all(run.status.verdict == VALID for run in runs)
    assert sum(len(run.records) for run in runs) == len(whole.records)
    folder, notes = merge(parts, tmp_path / "merged")
    merged = load_run(folder)
    assert answers(merged) == answers(whole)
    assert merged.plan.blocks == whole.plan.blocks
    assert notes == []
    assert merged.status.verdict == judge(merged).verdict == VALID
    assert merged.env.comparability_key == whole.env.comparability_key
    mine, theirs = (
        Findings(run).summary.set_index(["decoder", "family"]) for run in (merged, whole)
    )
    for column in ("tokens_per_call", "acceptance_rate", "quality", "identical_to_ar", "speedup"):
        assert mine[column].to_dict() == pytest.approx(theirs[column].to_dict(), nan_ok=True)
    assert mine["speedup"].notna().any()
    assert [table.title for table in Findings(merged).part_tables] == ["By worker"]


def test_of_unlike_machines_counters_pool_and_times_stand_apart(
    measured: Any, tmp_path: Path
) -> None:
    parts = [measured("1/2", "slow"), measured("2/2", "fast")]
    keys = {load_run(part).env.comparability_key for part in parts}
    folder, notes = merge(parts, tmp_path / "merged")
    merged = load_run(folder)
    assert any("different machines" in note for note in notes)
    assert {record.machine for record in merged.records} == keys
    assert merged.env.comparability_key is None
    findings = Findings(merged)
    (row,) = [row for row in rows_of(findings.summary, "all") if row.decoder == "spec"]
    assert row.tokens_per_call is not None
    assert row.tokens_per_call > 1
    assert (row.speedup, row.time_per_token_s, row.ttft_s) == (None, None, None)
    by_machine = findings.part_tables[0]
    assert by_machine.title == "By machine"
    assert {line[0].text for line in by_machine.rows} == keys
    assert all("x" in line[-1].text for line in by_machine.rows)
    assert not (folder / "phases.json").exists()


def test_what_two_runs_have_counts_once_and_what_is_missing_is_said(
    measured: Any, tmp_path: Path
) -> None:
    one = measured("1/3")
    again = tmp_path / "again"
    shutil.copytree(one, again)
    folder, notes = merge([one, again], tmp_path / "merged")
    assert answers(load_run(folder)) == answers(load_run(one))
    assert any("of again are in an earlier run" in note for note in notes)
    assert any("parts 2/3, 3/3 are missing" in note for note in notes)
    assert any("parts 2/3, 3/3" in line for line in load_run(folder).status.warnings)
    assert load_run(folder).plan.parts == ("1/3",)


def test_a_part_that_was_stopped_leaves_the_merged_run_incomplete(
    measured: Any, progress: Any, tmp_path: Path
) -> None:
    parts = [measured("1/2"), measured("2/2", shown=progress(stop_at=16))]
    folder, _ = merge(parts, tmp_path / "merged")
    assert judge(load_run(folder)).verdict == INCOMPLETE


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"temperature": 0.7}, "settings differ: temperature"),
        ({"repeats": 3}, "settings differ: repeats"),
    ],
)
def test_runs_of_another_plan_are_refused_in_a_line(
    measured: Any, tmp_path: Path, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(BenchError, match=f"is of another plan than .*{says}") as raised:
        merge([measured("1/2"), measured("2/2", **values)], tmp_path / "merged")
    assert raised.value.exit_code == Exit.UNAVAILABLE
    assert not (tmp_path / "merged").exists()


def test_other_code_and_other_prompts_are_another_plan(measured: Any, tmp_path: Path) -> None:
    one, two = measured("1/2"), measured("2/2")
    manifest = two / "manifest.json"
    plan = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**plan, "whole": "0123"}))
    with pytest.raises(BenchError, match="prompts, blocks or decoders differ"):
        merge([one, two], tmp_path / "merged")
    plan["identity"]["code"] = "other"
    manifest.write_text(json.dumps(plan))
    with pytest.raises(BenchError, match="code differ"):
        merge([one, two], tmp_path / "merged")


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b", "9999/9999"])
def test_a_part_that_is_none_is_one_line(measured: Any, part: str, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="--part") as raised:
        measured(part)
    assert raised.value.exit_code == Exit.USAGE
    assert not list((tmp_path / "runs").glob("*"))
