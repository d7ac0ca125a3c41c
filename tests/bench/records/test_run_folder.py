"""The run folder: what counts when it is read, and what survives when it is written."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError
from bench.records.environment import Environment
from bench.records.files import write_json, write_text
from bench.records.plan import Plan, PlannedPrompt, RunStatus, read_plan
from bench.records.record import SampleRecord, StepColumns
from bench.records.run_folder import (
    create_run_dir,
    find_run,
    link_newest,
    load_records,
    load_run,
)
from bench.records.samples import SAMPLES, SampleWriter
from decoders.core.types import Generation, StepEvent
from tests.lines import read_lines

Make = Callable[..., SampleRecord]

MANIFEST = {
    "blocks": [
        {"block": 0, "repeat": 0, "prompts": ["c0#1"], "order": ["ar", "spec", "ar@aa"]},
        {"block": 1, "repeat": 1, "prompts": ["c0#1"], "order": ["spec", "ar", "ar@aa"]},
    ]
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_json(tmp_path / "manifest.json", MANIFEST)
    return tmp_path


def fill(folder: Path, record: Make, block: int, cells: list[str], attempt: int = 0) -> None:
    with SampleWriter(folder) as writer:
        for cell in cells:
            writer.record(record(cell, block=block, repeat=block, attempt=attempt))


# ---------------------------------------------------------------- reading


def test_a_finished_block_counts(folder: Path, record: Make) -> None:
    fill(folder, record, 0, ["ar", "spec", "ar@aa"])
    assert [r.decoder for r in load_records(folder)] == ["ar", "spec", "ar@aa"]


def test_an_unfinished_block_does_not_count(folder: Path, record: Make) -> None:
    fill(folder, record, 0, ["ar", "spec", "ar@aa"])
    fill(folder, record, 1, ["ar", "spec"])
    assert {r.block for r in load_records(folder)} == {0}


def test_a_block_of_several_prompts_counts_when_all_were_answered(
    folder: Path, record: Make
) -> None:
    block = {"block": 0, "repeat": 0, "prompts": ["c0#1", "c1#1"], "order": ["ar", "spec"]}
    write_json(folder / "manifest.json", {"blocks": [block]})
    plan = read_plan(folder)
    assert plan is not None
    assert plan.num_answers == 4
    for conversation, num in (("c0", 0), ("c1", 4)):
        with SampleWriter(folder) as writer:
            for cell in ("ar", "spec"):
                writer.record(record(cell, conversation=conversation))
        assert len(load_records(folder)) == num


def test_a_changed_prompt_changes_the_digest_of_the_plan() -> None:
    prompt = PlannedPrompt(
        prompt="c0#1", conversation="c0", turn=1, family="qa", hash="a", num_tokens=3, passes=()
    )
    plans = [Plan(prompts=(replace(prompt, hash=name),)) for name in "aab"]
    assert plans[0].digest == plans[1].digest != plans[2].digest


def test_superseded_lines_are_void_and_their_rerun_counts(folder: Path, record: Make) -> None:
    fill(folder, record, 0, ["ar", "spec"])
    with SampleWriter(folder) as writer:
        writer.event("supersede", block=0, before_attempt=1)
    fill(folder, record, 0, ["ar"], attempt=1)
    assert load_records(folder) == []
    with SampleWriter(folder) as writer:
        writer.event("supersede", block=0, before_attempt=2)
    fill(folder, record, 0, ["ar", "spec", "ar@aa"], attempt=2)
    assert [(r.decoder, r.attempt) for r in load_records(folder)] == [
        ("ar", 2), ("spec", 2), ("ar@aa", 2),
    ]  # fmt: skip


def test_the_first_of_two_records_of_a_cell_prompt_and_repeat_counts(
    folder: Path, record: Make
) -> None:
    """The first line counts."""
    fill(folder, record, 0, ["ar", "spec", "ar@aa"])
    with SampleWriter(folder) as writer:
        writer.record(record("ar", block=0, text="a second answer"))
    assert len(load_records(folder)) == 3
    assert {r.text for r in load_records(folder)} == {"text"}


def test_every_turn_of_a_conversation_counts(folder: Path, record: Make) -> None:
    with SampleWriter(folder) as writer:
        for turn in (1, 2):
            writer.record(record("ar", kind="quality", block=-1, turn=turn))
    assert [r.turn for r in load_records(folder)] == [1, 2]


def test_quality_records_count_without_a_block(folder: Path, record: Make) -> None:
    with SampleWriter(folder) as writer:
        writer.record(record("ar", kind="quality", block=-1))
    assert [r.kind for r in load_records(folder)] == ["quality"]


@pytest.mark.parametrize(("undrafted", "kept"), [((0, 1), [0, 1]), ((0, 0), [])])
def test_a_record_keeps_which_tokens_of_a_step_come_before_its_drafts(
    record: Make, undrafted: tuple[int, int], kept: list[int]
) -> None:
    work: dict[str, Any] = {"target_calls": 1, "target_rows": 3, "draft_calls": 0, "draft_rows": 0}
    steps = tuple(
        StepEvent(tokens=(1, 2), drafted=2, accepted=1, num_leading=number, **work)
        for number in undrafted
    )
    answer = Generation(tokens=(1, 2, 1, 2), steps=steps, stop="length")
    line = json.loads(record(steps=StepColumns.of(answer)).to_json())
    assert line["steps"]["undrafted"] == kept
    read = SampleRecord.from_dict(line).steps
    assert read is not None
    assert read.undrafted == tuple(kept)


def test_a_torn_last_line_is_ignored_and_cut_off_by_the_next_writer(
    folder: Path, record: Make
) -> None:
    fill(folder, record, 0, ["ar", "spec", "ar@aa"])
    whole = (folder / SAMPLES).read_bytes()
    first = whole.splitlines()[0]
    for torn in (b'{"kind":"tim', first[:-9] + b"\n", first):
        (folder / SAMPLES).write_bytes(whole + torn)
        assert len(load_records(folder)) == 3
        with SampleWriter(folder) as writer:
            assert writer.num_cut == len(torn)
        assert (folder / SAMPLES).read_bytes() == whole


def test_a_damaged_line_before_the_last_line_is_an_error(folder: Path, record: Make) -> None:
    fill(folder, record, 0, ["ar", "spec", "ar@aa"])
    lines = (folder / SAMPLES).read_text().splitlines()
    (folder / SAMPLES).write_text("\n".join([lines[0][:-5], *lines[1:]]) + "\n")
    with pytest.raises(BenchError, match="line 1 is damaged") as caught:
        load_records(folder)
    assert caught.value.exit_code == 4
    damaged = [line[:-5] for line in lines[1:]]
    (folder / SAMPLES).write_text("\n".join([lines[0], *damaged, lines[0]]) + "\n")
    with pytest.raises(BenchError, match="line 2 is damaged"):
        load_records(folder)


def test_records_of_another_schema_are_refused(folder: Path) -> None:
    (folder / SAMPLES).write_text('{"schema":99}\n')
    with pytest.raises(BenchError, match="schema 99") as caught:
        load_records(folder)
    assert caught.value.exit_code == 5


def test_a_folder_without_a_manifest_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="is not a run folder") as caught:
        load_run(tmp_path)
    assert caught.value.exit_code == 2


def test_answers_without_a_manifest_are_reported_as_damage(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    for status in ("complete", "interrupted"):
        write_json(folder / "run.json", {"status": status, "verdict": "VALID"})
        (folder / SAMPLES).touch()
        with pytest.raises(
            BenchError, match=r"manifest\.json is missing.* bench run --config"
        ) as caught:
            load_run(folder)
        assert caught.value.exit_code == 4
    (folder / SAMPLES).unlink()
    with pytest.raises(BenchError, match="before anything was planned"):
        load_run(folder)


def test_missing_files_of_a_run_read_as_empty(folder: Path) -> None:
    run = load_run(folder)
    assert (run.env, run.status) == (Environment(), RunStatus())
    assert (run.config, run.records, run.events) == ({}, (), ())


@pytest.mark.parametrize("name", ["manifest.json", "config.toml"])
def test_a_damaged_file_of_a_run_is_reported_as_damaged(folder: Path, name: str) -> None:
    (folder / name).write_text("{[")
    with pytest.raises(BenchError, match="is damaged") as caught:
        load_run(folder)
    assert caught.value.exit_code == 4


def test_an_interrupted_replacement_leaves_the_file_as_it_was_and_no_scratch_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    write_text(tmp_path / "run.json", "before")
    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(tmp_path / "run.json", "after")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


# ---------------------------------------------------------------- making and finding


def test_two_runs_of_one_name_get_two_folders(tmp_path: Path) -> None:
    first, second = (create_run_dir(tmp_path / "new" / "results", "run") for _ in range(2))
    assert (first.name, second.name) == ("run", "run-2")


def test_a_file_in_place_of_the_results_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    with pytest.raises(BenchError, match=r"cannot write .*results") as caught:
        create_run_dir(tmp_path / "results", "run")
    assert caught.value.exit_code == 1


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_read_only_results_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir(mode=0o500)
    with pytest.raises(BenchError, match="Permission denied"):
        create_run_dir(tmp_path / "results", "run")


def test_a_run_is_found_by_path_by_name_and_as_latest(tmp_path: Path) -> None:
    run = create_run_dir(tmp_path, "run")
    write_json(run / "manifest.json", MANIFEST)
    link_newest(run)
    assert find_run(str(run), tmp_path) == run
    assert find_run("run", tmp_path) == run
    assert find_run("latest", tmp_path).samefile(run)
    with pytest.raises(BenchError, match="no run folder 'other'"):
        find_run("other", tmp_path)


def test_the_link_latest_follows_the_newest_run_unless_links_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [create_run_dir(tmp_path, "run") for _ in range(3)]
    for run in runs[:2]:
        write_json(run / "manifest.json", MANIFEST)
        link_newest(run)
        assert find_run("latest", tmp_path).samefile(run)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    write_json(runs[2] / "manifest.json", MANIFEST)
    assert not link_newest(runs[2])
    assert find_run("latest", tmp_path).samefile(runs[1])


def test_a_folder_called_latest_stays(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    assert not link_newest(create_run_dir(tmp_path, "run"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "run"]


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        (errno.ENOSPC, "No space left on device; free some space"),
        (errno.EDQUOT, "quota exceeded; free some space"),
        (errno.EROFS, "Read-only file system; choose a writable folder"),
    ],
)
def test_a_small_file_is_replaced_whole_or_not_at_all(
    reason: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.json"
    write_text(file, "old")

    def full(_fd: int) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BenchError, match=advice) as caught:
        write_text(file, "new")
    assert caught.value.exit_code == 1
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("fits", [0, 40])
def test_a_full_disk_leaves_only_whole_lines(
    folder: Path, record: Make, fits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(folder, record, 0, ["ar", "spec", "ar@aa"])
    before = (folder / SAMPLES).read_bytes()

    write = os.write

    def full(fd: int, data: bytes) -> int:
        write(fd, data[:fits])
        if fits:
            return fits
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with SampleWriter(folder) as writer, pytest.raises(BenchError, match="No space left"):
        writer.record(record("ar", block=1))
    assert (folder / SAMPLES).read_bytes() == before


def test_a_record_is_in_the_file_as_soon_as_it_is_written(folder: Path, record: Make) -> None:
    writer = SampleWriter(folder)
    writer.record(record("ar", text="ü\n"))
    lines, whole = read_lines(folder / SAMPLES)
    assert SampleRecord.from_dict(lines[0]) == record("ar", text="ü\n")
    assert whole == (folder / SAMPLES).stat().st_size
    writer.close()


@pytest.mark.parametrize("text", ["Größe", "答案", "\N{GRINNING FACE}", "a\u2028b"])
def test_an_answer_of_any_text_does_not_shift_the_lines_after_it(
    folder: Path, record: Make, text: str
) -> None:
    """Lines are as long as their bytes, which are more than their characters."""
    with SampleWriter(folder) as writer:
        for cell in ("ar", "spec"):
            writer.record(record(cell, text=text))
        writer.lines([record(cell, text=text).to_json() for cell in ("ar@aa", "ar@aa")])
        writer.event("load", block=0, attempt=0, machine=text)
        writer.record(record("ar", text=text, block=1, repeat=1))
    lines, whole = read_lines(folder / SAMPLES)
    assert whole == (folder / SAMPLES).stat().st_size
    assert [line.get("decoder") for line in lines] == ["ar", "spec", "ar@aa", "ar@aa", None, "ar"]
    assert {record.text for record in load_records(folder)} == {text}


def test_an_event_is_written_as_a_separate_line(folder: Path) -> None:
    with SampleWriter(folder) as writer:
        writer.event("load", block=0, attempt=0, other_cores=0.25)
    assert json.loads((folder / SAMPLES).read_text())["other_cores"] == 0.25
    assert load_run(folder).events[0]["event"] == "load"


def test_lines_are_flushed_to_the_disk_once_a_second_and_at_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, flushed = [100.0], []
    monkeypatch.setattr("bench.records.samples.time.monotonic", lambda: now[0])
    monkeypatch.setattr("bench.records.samples.os.fsync", lambda _: flushed.append(now[0]))
    with SampleWriter(folder) as writer:
        for now[0] in (100.0, 100.4, 100.9, 101.0, 101.9, 102.5, 102.6):
            writer.sync()
        assert flushed == [100.0, 101.0, 102.5]
    assert flushed == [100.0, 101.0, 102.5, 102.6]
