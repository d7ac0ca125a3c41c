"""Parts of one plan become one run: every answer once, times within a machine."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import runs as bench_run
from bench.errors import BenchError, Exit
from bench.extras.workers.merge import merge, pool_differences, pool_floors
from bench.records.environment import write_environment
from bench.records.plan import (
    REFUTED,
    Cell,
    Difference,
    Floor,
    RunStatus,
    write_plan,
    write_status,
)
from bench.records.prompts import VOCABULARY, read_prompts
from bench.records.run_folder import Run, load_run
from bench.records.samples import ERRORS, SampleWriter, read_phases
from bench.report.findings import Findings
from bench.stats.metrics import summary_rows
from bench.stats.validity import INCOMPLETE, VALID, judge
from tests.bench.conftest import tables_of

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
        return bench_run.run(
            config, tmp_path / "runs", shown, opener, part=part, report=None
        ).run_dir

    return measure


def answers(run: Run) -> dict[Any, Any]:
    found = {
        (r.kind, r.decoder, r.prompt, r.repeat): (r.tokens, r.scores, r.block, r.order)
        for r in run.records
    }
    assert len(found) == len(run.records)
    return found


@pytest.mark.slow
def test_parts_are_disjoint_and_merge_into_the_whole_run(measured: Any, tmp_path: Path) -> None:
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
    assert [table.title for table in tables_of(Findings(merged))["part"]] == ["By worker"]


def test_parts_of_different_machines_have_pooled_counters_and_times_by_machine(
    measured: Any, tmp_path: Path
) -> None:
    parts = [measured("1/2", "slow"), measured("2/2", "fast")]
    keys = {load_run(part).env.comparability_key for part in parts}
    folder, notes = merge(parts, tmp_path / "merged")
    merged = load_run(folder)
    assert any("different machines" in note for note in notes)
    assert {record.machine for record in merged.records} == keys
    assert merged.env.comparability_key is None
    assert (merged.env.machine.cpu, merged.env.process) == (None, None), "not of one of them"
    findings = Findings(merged)
    (row,) = [row for row in summary_rows(findings.summary, "all") if row.decoder == "spec"]
    assert row.tokens_per_call is not None
    assert row.tokens_per_call > 1
    assert (row.speedup, row.time_per_token_s, row.ttft_s) == (None, None, None)
    assert "not measured" not in findings.floor_sentence
    by_machine = tables_of(findings)["part"][0]
    assert by_machine.title == "By machine"
    assert {line[0].text for line in by_machine.rows} == keys
    assert all("x" in line[-1].text for line in by_machine.rows)
    assert not (folder / "phases.json").exists()


def test_overlapping_and_missing_parts_are_refused(measured: Any, tmp_path: Path) -> None:
    one, other = measured("1/3"), measured("2/3")
    again = tmp_path / "again"
    shutil.copytree(one, again)
    for folders in ([one, other, again], [other, measured(None)]):
        with pytest.raises(BenchError, match=r"both have block .*name each part.* once") as refused:
            merge(folders, tmp_path / "merged")
        assert refused.value.exit_code == Exit.USAGE
    with pytest.raises(BenchError, match="parts 3/3 are missing") as refused:
        merge([one, other], tmp_path / "merged")
    assert refused.value.exit_code == Exit.USAGE
    assert not (tmp_path / "merged").exists()
    plan, scored = load_run(other).plan, load_run(one).plan.in_pass("quality")[0]
    write_plan(other, replace(plan, prompts=(*plan.prompts, scored)))
    with pytest.raises(BenchError, match=f"both have {scored.prompt}"):
        merge([one, other], tmp_path / "merged")


def test_a_part_that_was_stopped_leaves_the_merged_run_incomplete(
    measured: Any, progress: Any, tmp_path: Path
) -> None:
    parts = [measured("1/2"), measured("2/2", shown=progress(stop_at=16))]
    folder, _ = merge(parts, tmp_path / "merged")
    assert judge(load_run(folder)).verdict == INCOMPLETE


WRONG_AT_TIMES = """
result = yield request.target.call(request.prompt_ids)
while True:
    if sum(request.prompt_ids) % 2 and len(result.picks) == 1:
        result = type(result)(picks=((result.picks[0] + 1) % 5,))
    yield Emit(tokens=result.picks)
    result = yield request.target.call(result.picks)
"""


def test_a_merged_run_has_the_phases_of_all_parts(measured: Any, tmp_path: Path) -> None:
    one, other = measured("1/2"), measured("2/2")
    folder, _ = merge([one, other], tmp_path / "merged")
    assert read_phases(one)
    assert read_phases(folder) == (*read_phases(one), *read_phases(other))


@pytest.mark.slow
def test_merged_differences_equal_the_differences_of_the_whole_run(
    measured: Any, decoder_file: Any, tmp_path: Path
) -> None:
    """A decoder that is wrong on some prompts."""
    decoders = decoder_file(WRONG_AT_TIMES)
    whole = load_run(measured(None, decoders=decoders))
    (expected,) = whole.status.differences or ()
    assert 0 < (expected.num_wrong or 0) < (expected.num_compared or 0)
    parts = [measured(f"{number}/3", decoders=decoders) for number in (1, 2, 3)]
    folder, _ = merge(parts, tmp_path / "merged")
    (found,) = load_run(folder).status.differences or ()
    assert set(found.gaps) == set(expected.gaps)  # each part looks at its own repeats
    assert replace(found, example=expected.example, gaps=expected.gaps) == expected


def test_wrong_answers_are_unknown_in_the_merged_run_if_one_part_did_not_count_them(
    measured: Any, decoder_file: Any, tmp_path: Path
) -> None:
    decoders = decoder_file(WRONG_AT_TIMES)
    parts = [measured(f"{number}/2", decoders=decoders) for number in (1, 2)]
    status = load_run(parts[1]).status
    unjudged = [replace(each, num_wrong=None) for each in status.differences or ()]
    assert unjudged
    write_status(parts[1], replace(status, differences=tuple(unjudged)))
    (found,) = load_run(merge(parts, tmp_path / "merged")[0]).status.differences or ()
    assert found.num_answers
    assert found.num_wrong is None
    write_status(parts[1], replace(status, differences=None))
    assert load_run(merge(parts, tmp_path / "merged")[0]).status.differences is None


def test_names_of_workers_are_prefixed_with_their_part(measured: Any, tmp_path: Path) -> None:
    parts = [measured("1/2"), measured("2/2")]
    lines = (parts[1] / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) | {"worker": "w0"} for line in lines]
    text = "".join(json.dumps(each) + "\n" for each in records)
    (parts[1] / "samples.jsonl").write_text(text, encoding="utf-8")
    merged = load_run(merge(parts, tmp_path / "merged")[0])
    assert {record.worker for record in merged.records} == {"p1", "p2.w0"}


def test_a_merged_run_keeps_the_load_of_each_block_from_the_attempt_that_counts(
    measured: Any, tmp_path: Path
) -> None:
    """Of what a run says of its blocks only the load goes along, of those that count."""
    one, other = measured("1/2"), measured("2/2")
    blocks = {folder: load_run(folder).plan.blocks[0].block for folder in (one, other)}
    for number, (folder, block) in enumerate(blocks.items()):
        with SampleWriter(folder) as writer:
            for attempt in (0, 1):
                writer.event("load", block=block, attempt=attempt, other_cores=number + 1000.0)
            writer.event("lost", worker="w", block=block, attempt=0)
    merged = load_run(merge([one, other], tmp_path / "merged")[0])
    told = [e for e in merged.events if e["event"] == "load" and e["other_cores"] >= 1000]
    assert [(e["block"], e["attempt"], e["other_cores"]) for e in told] == [
        (blocks[one], 0, 1000.0), (blocks[other], 0, 1001.0),
    ]  # fmt: skip
    assert {e["event"] for e in merged.events} == {"load"}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"temperature": 0.7}, "temperature differ"),
        ({"repeats": 3}, "prompts, blocks or decoders, repeats differ"),
    ],
)
def test_parts_of_different_plans_are_refused(
    measured: Any, tmp_path: Path, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(BenchError, match=f"has another plan than .*{says}") as raised:
        merge([measured("1/2"), measured("2/2", **values)], tmp_path / "merged")
    assert raised.value.exit_code == Exit.UNAVAILABLE
    assert not (tmp_path / "merged").exists()


def test_parts_with_different_code_or_prompts_are_refused(measured: Any, tmp_path: Path) -> None:
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
    for folder in (one, two):
        plan = json.loads((folder / "manifest.json").read_text())
        (folder / "manifest.json").write_text(json.dumps({**plan, "identity": None}))
    with pytest.raises(BenchError, match="what it began with differ"):
        merge([one, two], tmp_path / "merged")


def test_parts_with_different_precision_are_refused(measured: Any, tmp_path: Path) -> None:
    one, two = measured("1/2"), measured("2/2")
    write_environment(two, replace(load_run(two).env, dtype="bfloat16"))
    with pytest.raises(BenchError, match="dtype differ"):
        merge([one, two], tmp_path / "merged")


def test_merging_all_parts_gives_a_complete_run(measured: Any, tmp_path: Path) -> None:
    parts = [measured("1/2"), measured("2/2")]
    for number, part in enumerate(parts):
        (part / ERRORS).write_text(f"a failure of part {number}\n", encoding="utf-8")
        times: dict[str, Any] = {
            f"{end}_utc": f"2026-11-2{number}T10:00:00+00:00" for end in ("started", "finished")
        }
        write_status(part, replace(load_run(part).status, **times))
    folder, notes = merge(parts[::-1], tmp_path / "merged")
    merged = load_run(folder)
    assert [block.block for block in merged.plan.blocks] == [*range(len(merged.plan.blocks))]
    assert (merged.status.started_utc or "").startswith("2026-11-20")
    assert (merged.status.finished_utc or "").startswith("2026-11-21")
    for number, part in enumerate(parts):
        assert f"a failure of part {number}\n" in (folder / ERRORS).read_text(encoding="utf-8")
        pieces = json.loads((part / VOCABULARY).read_text(encoding="utf-8"))
        assert read_prompts(folder) == read_prompts(part)
        assert pieces.items() <= json.loads((folder / VOCABULARY).read_text("utf-8")).items()
    assert merged.plan.parts == ()
    assert not any("missing" in note for note in notes)
    assert merged.status.num_records == len(merged.records)
    ids = [int(token) for token in json.loads((folder / VOCABULARY).read_text(encoding="utf-8"))]
    assert ids == sorted(ids)
    assert len(ids) > 10


def test_a_resumed_part_keeps_its_attempts_and_their_load(
    measured: Any, opener: Any, progress: Any, tmp_path: Path
) -> None:
    one, other = measured("1/2", shown=progress(stop_at=16)), measured("2/2")
    bench_run.resume(one, progress(), opener, report=None)
    merged = load_run(merge([one, other], tmp_path / "merged")[0])
    assert merged.status.attempts == 2
    answered = {(r.block, r.attempt) for r in merged.records if r.kind == "timing"}
    assert {attempt for _, attempt in answered} == {0, 1}
    told = [(e["block"], e["attempt"]) for e in merged.events if e["event"] == "load"]
    assert len(set(told)) == len(told) >= len(answered) - 1  # it was stopped before one was told
    assert set(told) <= answered
    assert {attempt for _, attempt in told} == {0, 1}
    asked = {prompt.prompt for prompt in merged.plan.prompts}
    assert set(read_prompts(merged.path)) == asked


def test_a_merged_prompt_has_the_passes_of_all_parts(measured: Any, tmp_path: Path) -> None:
    parts = [measured("1/2"), measured("2/2")]
    plan, other = (load_run(part).plan for part in parts)
    timed = plan.in_pass("timing")[0]
    scored = replace(timed, passes=("quality",))
    write_plan(parts[1], replace(other, prompts=(*other.prompts, scored)))
    merged = load_run(merge(parts, tmp_path / "merged")[0]).plan
    (found,) = [each for each in merged.prompts if each.prompt == timed.prompt]
    assert found.passes == ("timing", "quality")


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b", "9999/9999"])
def test_an_invalid_part_is_a_usage_error_and_leaves_no_folder(
    measured: Any, part: str, tmp_path: Path
) -> None:
    with pytest.raises(BenchError, match="--part") as raised:
        measured(part)
    assert raised.value.exit_code == Exit.USAGE
    assert not list((tmp_path / "runs").glob("*"))


def test_a_check_that_failed_in_one_part_is_kept_in_the_merged_run(
    measured: Any, tmp_path: Path
) -> None:
    parts = [measured("1/2"), measured("2/2")]
    plan = load_run(parts[1]).plan
    cells = {cell.cell: cell for cell in plan.cells}
    cells["spec"] = replace(cells["spec"], checked=REFUTED, check_note="fails")
    write_plan(parts[1], replace(plan, cells=tuple(cells.values())))
    merged = load_run(merge(parts, tmp_path / "merged")[0])
    assert merged.status.wrong == ["spec"]
    assert {c.cell: c.checked for c in merged.plan.cells}["spec"] == REFUTED


def test_pooled_differences_keep_every_distance_and_the_largest_offset_of_their_parts(
    record: Any,
) -> None:
    cells = [Cell(cell="spec", lossless=True, comparable_to_ar=True)]
    records = [
        record(cell, (1,), conversation=name, tokens=(token,))
        for name in ("c0", "c1")
        for token, cell in enumerate(("ar", "spec"))
    ]
    part = Difference(cell="spec", num_answers=1, num_compared=1, num_wrong=0)
    statuses = [
        RunStatus(differences=(replace(part, gaps=(gap,), places_off=places),), num_records=2)
        for gap, places in ((0.1, 2.0), (0.2, 5.0), (0.3, 1.0))
    ]
    (whole,) = pool_differences(cells, statuses, records) or ()
    assert (whole.gaps, whole.places_off) == ((0.1, 0.2, 0.3), 5.0)
    assert (whole.num_answers, whole.num_wrong) == (2, 0)


def test_floors_of_parts_are_pooled() -> None:
    quiet = Floor(rows=5, num_answers=12, num_same=12, num_tokens=1000, num_flips=0, moved=0.5)
    other = replace(quiet, num_answers=3, num_same=1, num_flips=4, moved=0.7)
    whole = Floor(rows=5, num_answers=15, num_same=13, num_tokens=2000, num_flips=4, moved=0.7)
    assert pool_floors([quiet, other]) == whole
    assert pool_floors([]) is None
