"""Whole runs: their folder, their exit codes, and every way in which they stop and go on."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from bench import runs as bench_run
from bench.errors import BenchError, Exit, UnavailableError
from bench.plan.dry_run import dry_run
from bench.plan.select import ResolvedRun
from bench.progress import Progress
from bench.records.environment import ModelFacts
from bench.records.run_folder import load_run
from bench.records.samples import SAMPLES, SampleWriter
from bench.report.tables.setting import setting
from decoders.core.hf.graph_children import NoGraphError
from specbench_tasks.registry import load_tasks

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def reported() -> list[Path]:
    """Run folders whose report was asked for."""
    return []


@pytest.fixture
def start(
    tmp_path: Path, small: Any, opener: Any, progress: Any, reported: list[Path]
) -> Callable[..., Any]:
    """Runs a small configuration; returns how it ended and its progress."""

    def run(shown: Any = None, **values: Any) -> Any:
        shown = shown or progress()
        ended = bench_run.run(
            small(**values), tmp_path / "results", shown, opener, report=reported.append
        )
        return ended, shown

    return run


def keys(run_dir: Path) -> Counter[tuple[str, str, str, int]]:
    return Counter((r.kind, r.decoder, r.prompt, r.repeat) for r in load_run(run_dir).records)


# ---------------------------------------------------------------- a run


def test_a_run_leaves_everything_a_reader_needs(start: Any, reported: list[Path]) -> None:
    ended, shown = start()
    run = load_run(ended.run_dir)
    assert ended.exit_code == Exit.DONE
    assert {path.name for path in ended.run_dir.iterdir()} == {
        "manifest.json", "config.toml", "env.json", "prompts.jsonl", "samples.jsonl", "run.json",
        "vocab.json", "phases.json",
    }  # fmt: skip
    assert run.status.status == "complete"
    assert (run.status.verdict, run.status.reasons) == ("VALID", ())
    assert run.status.num_records == len(run.records) == 4 * 2 * 3 + 4 * 2
    assert run.env.process is not None
    assert (run.env.process.peak_rss_bytes or 0) > 0
    assert run.config["decoders"] == {
        "ar": {"cache": "true", "rows": "1"},
        "spec": {
            "k": "4",
            "row_cost": "0.02",
            "draft_cost": "0.2",
            "stop": "0.0",
            "verify": "rejection",
            "cascade": "",
            "cascade_k": "2",
        },
    }
    assert [cell.cell for cell in run.plan.cells] == ["ar", "spec"]
    assert reported == [ended.run_dir]
    assert shown.closed == 1
    assert "split" not in run.config


STEPS = (
    "check_first(", "_new_folder(", "open_with_graphs(", "_plan(", ".warm_up(",
    ".time_blocks(", ".score_quality(", "_judge(", "_report(",
)  # fmt: skip


def test_run_lists_all_steps_in_order_and_resume_lists_the_same_but_the_first_two() -> None:
    source = inspect.getsource(bench_run.run)
    assert len(source.splitlines()) <= 60
    assert re.findall("|".join(map(re.escape, STEPS)), source) == [*STEPS]
    resumed = inspect.getsource(bench_run.resume)
    assert re.findall("|".join(map(re.escape, STEPS)), resumed) == [*STEPS[2:]]


def test_a_run_without_a_report_is_complete_and_resume_writes_no_report(
    small: Any, opener: Any, progress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    monkeypatch.setattr("bench.report.write.write_report", written.append)
    ended = bench_run.run(small(limit=2), tmp_path, progress(), opener, report=None)
    assert load_run(ended.run_dir).status.reported is True
    shown = progress()
    assert bench_run.resume(ended.run_dir, shown, opener).exit_code == Exit.DONE
    assert "complete: nothing to resume" in shown.notes[0]
    assert written == []
    with_report = bench_run.run(small(limit=2), tmp_path, progress(), opener)
    assert written == [with_report.run_dir]


def test_a_split_limits_the_questions_and_is_recorded(start: Any) -> None:
    runs = {split: load_run(start(split=split)[0].run_dir) for split in ("tune", "test")}
    for split, run in runs.items():
        assert run.config["split"] == split
        assert f", split {split}, " in dict(setting(run, ["ar"]))["tasks"]
        again = load_tasks(run.config["tasks"], split=split)
        assert {r.conversation for r in run.records if r.kind == "timing"} <= {
            c.id for c in again.timing
        }
    ids = [{r.conversation for r in run.records} for run in runs.values()]
    assert not ids[0] & ids[1]


def test_a_run_folder_is_named_by_time_decoders_and_hash_and_linked_as_the_newest(
    start: Any,
) -> None:
    ended, _ = start()
    day, clock, name, digest = ended.run_dir.name.split("-")
    assert (len(day), len(clock), name, len(digest)) == (8, 6, "spec", 4)
    assert (ended.run_dir.parent / "latest").samefile(ended.run_dir)
    named, _ = start(run_name="mine")
    assert "-mine-" in named.run_dir.name


def test_the_manifest_is_there_before_the_first_measurement(
    start: Any, progress: Any, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match="bug"):
        start(progress(stop_at=1, error=RuntimeError("bug")))
    (run_dir,) = [p for p in (tmp_path / "results").iterdir() if not p.is_symlink()]
    run = load_run(run_dir)
    assert len(run.plan.blocks) == 8
    assert (run.status.status, run.status.verdict) == ("error", "INCOMPLETE")


def test_every_piece_of_an_answer_is_in_the_vocabulary(start: Any) -> None:
    ended, _ = start()
    pieces = json.loads((ended.run_dir / "vocab.json").read_text())
    for record in load_run(ended.run_dir).records:
        text = "".join(pieces[str(token)] for token in record.tokens or ())
        assert text.replace("\n", "").replace("\x01", "").strip() == record.text


def test_prompts_that_do_not_fit_are_counted_in_a_note_and_in_the_plan(
    start: Any, tmp_path: Path
) -> None:
    file = tmp_path / "q.jsonl"
    lines = [{"prompt": "short?", "answer": "1"}, {"prompt": "x" * 30, "answer": "1"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ended, shown = start(tasks=f"jsonl={file}", limit=2, max_new_tokens=240)
    assert any("1 of 2 prompts skipped" in note for note in shown.notes)
    assert len(load_run(ended.run_dir).plan.skipped) == 1


def test_a_run_whose_prompts_are_all_skipped_is_a_usage_error(start: Any, tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="no prompt is left to time: ") as caught:
        start(max_new_tokens=250)
    assert caught.value.exit_code == 2
    assert list((tmp_path / "results").iterdir()) == []


# ---------------------------------------------------------------- refusals before the plan


@pytest.mark.parametrize(
    ("values", "code", "said"),
    [
        ({"decoders": "spce"}, 2, "did you mean 'spec'"),
        ({"decoders": "spec:kk=3"}, 2, "unknown option 'kk'"),
        ({"decoders": "spec:k=x"}, 2, "it must be of type int"),
        ({"decoders": "ar@aa"}, 2, "second arm"),
        ({"draft": None}, 2, "needs a draft model; pass --draft"),
        ({"tasks": "qaa"}, 2, "did you mean 'qa'"),
        ({"tasks": "jsonl=none.jsonl"}, 2, "none.jsonl"),
        ({"decoders": "no/such.py:Mine"}, 2, "does not exist"),
    ],
)
def test_invalid_options_end_with_one_line_and_no_run_folder(
    start: Any, tmp_path: Path, values: dict[str, Any], code: int, said: str
) -> None:
    with pytest.raises(BenchError) as caught:
        start(**values)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == code
    folder = tmp_path / "results"
    assert not folder.exists() or list(folder.iterdir()) == []


def test_a_default_decoder_that_cannot_run_is_skipped_with_a_line(start: Any) -> None:
    ended, shown = start(decoders=None, draft=None)
    assert any(note.startswith("spec is skipped: it needs a draft") for note in shown.notes)
    assert "ar" in load_run(ended.run_dir).config["decoders"]
    assert "spec" not in load_run(ended.run_dir).config["decoders"]


def test_a_draft_of_another_vocabulary_is_refused(small: Any, opener: Any, tmp_path: Path) -> None:
    from bench.plan.setup import assemble
    from decoders.core.engine.models import Models
    from decoders.core.testing.table_model import TableModel

    def other(config: Any) -> Any:
        setup = opener(config)
        models = Models(target=setup.models.target, draft=TableModel(7))
        rest: Any = {"stop_ids": frozenset(), "clock": setup.clock, "facts": ModelFacts()}
        return assemble(config, models, setup.tokenizer, **rest)

    with pytest.raises(BenchError, match="vocabulary has 7 tokens") as caught:
        bench_run.run(small(), tmp_path / "results", Progress(), other, report=None)
    assert caught.value.exit_code == 2
    assert list((tmp_path / "results").iterdir()) == []


# ---------------------------------------------------------------- failures on the way

ENDINGS = {
    Exit.FAILED: "raise ValueError('no')\nyield",
    Exit.INVALID: (
        "result = yield request.target.call(request.prompt_ids)\n"
        "while True:\n"
        "    yield Emit(tokens=result.picks, drafted=0, accepted=1)\n"
        "    result = yield request.target.call(result.picks)"
    ),
    Exit.REGRESSION: (
        "result = yield request.target.call(request.prompt_ids)\n"
        "while True:\n"
        "    yield Emit(tokens=(65,))\n"
        "    result = yield request.target.call((65,))"
    ),
}
"""Bodies of decoders, by the exit code that a run of them ends with."""


def test_failing_answers_do_not_stop_the_run_which_ends_with_exit_code_1(
    start: Any, decoder_file: Any
) -> None:
    ended, shown = start(decoders=decoder_file(ENDINGS[Exit.FAILED]))
    run = load_run(ended.run_dir)
    assert ended.exit_code == Exit.FAILED
    assert run.status.status == "complete"
    assert run.status.num_errors == 4 * 2 + 4
    assert run.status.verdict == "INCOMPLETE"
    (reason,) = run.status.reasons
    assert "@mine answered none of its prompts, e.g. " in reason
    assert reason.endswith(": ValueError: no (mine.py:11)")
    assert not any("failed on" in warning for warning in run.status.warnings)
    assert any("12 answers failed; partial results kept" in note for note in shown.notes)


def test_a_broken_invariant_makes_the_run_invalid(start: Any, decoder_file: Any) -> None:
    ended, _ = start(decoders=decoder_file(ENDINGS[Exit.INVALID]))
    assert ended.exit_code == Exit.INVALID
    status = load_run(ended.run_dir).status
    assert status.verdict == "INVALID"
    assert "accepted more drafts than it made" in status.reasons[0]


REMEMBERS = """
kept, prompt = globals().setdefault("KEPT", {}), request.prompt_ids
known = kept.get(prompt, ())
result = yield request.target.call(prompt)
text = result.picks
while True:
    yield Emit(tokens=text[-len(result.picks):])
    kept[prompt] = max(known, text, key=len)
    drafts = known[len(text):len(text) + 3]
    result = yield request.target.call((text[-1], *drafts), read=range(len(drafts) + 1))
    num = next((n for n, d in enumerate(drafts) if d != result.picks[n]), len(drafts))
    result = replace(result, picks=result.picks[:num + 1])
    request.target.truncate(request.target.length - len(drafts) + num)
    text += result.picks
"""
"""The body of a decoder that drafts what it answered before: a module global holds the answers."""


@pytest.mark.parametrize("values", [{}, {"repeats": 1, "phase_limit": 4}])
def test_state_that_survives_an_answer_makes_the_run_invalid(
    start: Any, decoder_file: Any, values: dict[str, Any]
) -> None:
    spec = decoder_file(REMEMBERS)
    file = Path(spec.partition(":")[0])
    file.write_text("from dataclasses import replace\n" + file.read_text())
    ended, _ = start(decoders=spec, **values)
    assert ended.exit_code == Exit.INVALID
    status = load_run(ended.run_dir).status
    assert status.verdict == "INVALID"
    assert "state survives an answer" in status.reasons[0]


def test_a_step_that_accepts_more_than_it_drafted_or_emitted_makes_the_run_invalid(
    start: Any, decoder_file: Any
) -> None:
    for claim in ("drafted=1, accepted=2", "drafted=3, accepted=2"):
        body = ENDINGS[Exit.INVALID].replace("drafted=0, accepted=1", claim)
        ended, _ = start(decoders=decoder_file(body))
        assert load_run(ended.run_dir).status.verdict == "INVALID"
        assert ended.exit_code == Exit.INVALID


def test_a_run_folder_is_named_by_the_first_decoders_that_fit_in_its_name(start: Any) -> None:
    long = ",".join(f"spec@{number}{'o' * 20}" for number in range(3))
    ended, _ = start(decoders=f"spec@first,{long}", limit=1, repeats=1, quality_limit=0)
    assert f"-spec@first+spec@0{'o' * 20}-" in ended.run_dir.name


def test_a_decoder_that_falsely_claims_to_be_lossless_ends_the_run_with_exit_code_3(
    start: Any, decoder_file: Any
) -> None:
    ended, _ = start(decoders=decoder_file(ENDINGS[Exit.REGRESSION]))
    assert ended.exit_code == Exit.REGRESSION
    status = load_run(ended.run_dir).status
    assert status.differences is not None
    assert status.differences[0].num_wrong == 8
    assert status.verdict == "WRONG"
    said = "mine is WRONG: it claims to be lossless and gave other tokens than ar on 8 of 8 answers"
    assert f"{said}, 8 of them beyond rounding, e.g. " in status.reasons[0]
    assert not any("claims to be lossless" in line for line in status.warnings)


def test_a_full_disk_keeps_the_measurements_and_a_note_names_the_resuming_command(
    start: Any, progress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opener: Any
) -> None:
    whole = SampleWriter._append

    def fills_up(self: SampleWriter, line: str) -> None:
        with monkeypatch.context() as patch:
            if self._size > 9_000:
                patch.setattr(os, "write", lambda _fd, _data: 3)
            whole(self, line)

    monkeypatch.setattr(SampleWriter, "_append", fills_up)
    shown = progress()
    with pytest.raises(BenchError, match="No space left on device") as caught:
        start(shown)
    assert caught.value.exit_code == Exit.FAILED
    (run_dir,) = [p for p in (tmp_path / "results").iterdir() if not p.is_symlink()]
    assert shown.notes[-1] == f"all measurements are kept. Continue: bench resume {run_dir}"
    before = keys(run_dir)
    assert before
    monkeypatch.setattr(SampleWriter, "_append", whole)
    ended = bench_run.resume(run_dir, progress(), opener, report=None)
    assert ended.exit_code == Exit.DONE
    assert set(keys(run_dir).values()) == {1}
    assert len(keys(run_dir)) == 32


def test_a_cache_that_does_not_fit_is_one_line_that_names_the_options_to_lower(
    progress: Any, small: Any, opener: Any, tmp_path: Path
) -> None:
    def full(config: Any) -> Any:
        setup = opener(config)

        def reserve(num_rows: int, capacity: int) -> None:
            raise RuntimeError(f"CUDA out of memory. Tried to allocate {num_rows}.00 GiB.")

        setup.models.target.reserve = reserve
        return setup

    shown = progress()
    with pytest.raises(BenchError) as caught:
        bench_run.run(small(batch_size=4), tmp_path / "results", shown, full, report=None)
    assert caught.value.exit_code == Exit.FAILED
    assert re.match(
        r"out of memory: the KV cache of 4 x \d+ tokens did not fit \(tried to allocate 4.00 GiB\)"
        "; lower --batch-size or --max-new-tokens",
        caught.value.message,
    )
    (run_dir,) = [p for p in (tmp_path / "results").iterdir() if not p.is_symlink()]
    assert load_run(run_dir).status.status == "error"
    assert shown.notes[-1] == f"all measurements are kept. Continue: bench resume {run_dir}"


def test_the_error_of_a_quality_pass_that_does_not_fit_names_the_option_that_skips_it(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("bench.measure.attempt.score_quality", full)
    with pytest.raises(BenchError, match="the quality pass, 8 answers at a time, did not fit") as e:
        start()
    assert "--quality-limit 0" in e.value.message


@pytest.mark.parametrize("reason", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_results_folder_that_cannot_be_written_ends_the_run_with_the_reason(
    start: Any, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(BenchError, match=os.strerror(reason)) as caught:
        start()
    assert caught.value.exit_code == Exit.FAILED


# ---------------------------------------------------------------- stopping and going on


def test_ctrl_c_before_the_warm_up_leaves_an_interrupted_run_that_can_be_resumed(
    start: Any, progress: Any, opener: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bench.measure.attempt.load_records", interrupt)
        ended, _ = start(progress())
    assert ended.exit_code == Exit.INTERRUPTED
    assert load_run(ended.run_dir).status.status == "interrupted"
    again = bench_run.resume(ended.run_dir, progress(), opener, report=None)
    assert again.exit_code == Exit.DONE


def test_a_compiled_run_is_not_resumed_where_no_graph_can_be_made(
    start: Any, progress: Any, opener: Any
) -> None:
    def open_without_compiler(run: ResolvedRun) -> Any:
        if run.config.compile:
            raise NoGraphError("no C++ compiler is found")
        return opener(run)

    ended, _ = start(progress(stop_at=9), compile=True)
    lines = (ended.run_dir / SAMPLES).read_text()
    with pytest.raises(UnavailableError, match=r"no C\+\+ compiler is found; use --no-compile"):
        bench_run.resume(ended.run_dir, progress(), open_without_compiler, report=None)
    assert (ended.run_dir / SAMPLES).read_text() == lines


@pytest.mark.parametrize("stop_at", [5, 17, 30])
def test_ctrl_c_keeps_all_measurements_and_resume_completes_the_run(
    start: Any, progress: Any, opener: Any, stop_at: int, reported: list[Path]
) -> None:
    shown = progress(stop_at=stop_at)
    ended, _ = start(shown)
    assert ended.exit_code == Exit.INTERRUPTED
    status = load_run(ended.run_dir).status
    assert (status.status, status.verdict) == ("interrupted", "INCOMPLETE")
    assert any(f"bench resume {ended.run_dir}" in note for note in shown.notes)
    before = keys(ended.run_dir)
    lines = (ended.run_dir / SAMPLES).read_text().splitlines()

    again = bench_run.resume(ended.run_dir, progress(), opener, report=reported.append)
    run = load_run(ended.run_dir)
    assert again.exit_code == Exit.DONE
    assert (run.status.status, run.status.attempts) == ("complete", 2)
    assert set(keys(ended.run_dir).values()) == {1}
    assert len(keys(ended.run_dir)) == 32
    assert not before - keys(ended.run_dir), "what was finished stays"
    assert (ended.run_dir / SAMPLES).read_text().splitlines()[: len(lines)] == lines
    kept = {r.block for r in run.records if r.attempt == 0 and r.kind == "timing"}
    assert len(kept) == len({k for k in before if k[0] == "timing"}) // 3, "only whole blocks"
    assert reported[-1:] == [ended.run_dir]


def test_a_block_cut_short_is_measured_again_as_a_whole(
    start: Any, progress: Any, opener: Any
) -> None:
    ended, _ = start(progress(stop_at=9))  # warm-up takes 2; 7 answers: two blocks and one answer
    bench_run.resume(ended.run_dir, progress(), opener, report=None)
    records = [r for r in load_run(ended.run_dir).records if r.kind == "timing"]
    attempts: dict[int, set[int]] = {}
    for record in records:
        attempts.setdefault(record.block, set()).add(record.attempt)
    assert all(len(found) == 1 for found in attempts.values())


def test_resuming_a_complete_run_reports_it_as_complete_and_changes_no_file(
    start: Any, progress: Any, opener: Any
) -> None:
    ended, _ = start()
    before = {path: path.read_bytes() for path in ended.run_dir.iterdir()}
    shown = progress()
    again = bench_run.resume(ended.run_dir, shown, opener, report=None)
    assert again.exit_code == Exit.DONE
    assert "complete: nothing to resume" in shown.notes[0]
    assert {path: path.read_bytes() for path in ended.run_dir.iterdir()} == before  # x


def test_records_lost_of_a_complete_run_are_measured_again(
    start: Any, progress: Any, opener: Any
) -> None:
    ended, _ = start()
    whole = keys(ended.run_dir)
    lines = (ended.run_dir / SAMPLES).read_text().splitlines(keepends=True)
    (ended.run_dir / SAMPLES).write_text("".join(lines[:9]))
    shown = progress()
    again = bench_run.resume(ended.run_dir, shown, opener, report=None)
    assert "is DAMAGED: samples.jsonl holds " in shown.notes[0]
    assert again.exit_code == Exit.DONE
    assert keys(ended.run_dir) == whole
    assert load_run(ended.run_dir).status.verdict == "VALID"


@pytest.mark.parametrize("code", ENDINGS)
def test_resuming_a_complete_run_ends_as_the_run_did(
    start: Any, progress: Any, opener: Any, decoder_file: Any, code: Exit
) -> None:
    ended, _ = start(decoders=decoder_file(ENDINGS[code]), repeats=1, limit=2)
    assert ended.exit_code == code
    again = bench_run.resume(ended.run_dir, progress(), opener, report=None)
    assert again.exit_code == code


@pytest.mark.parametrize("differences", [3, ["x"], [{}]])
def test_resuming_a_complete_run_with_a_damaged_status_is_refused(
    start: Any, progress: Any, opener: Any, differences: object
) -> None:
    ended, _ = start(repeats=1, limit=2)
    edit_json(ended.run_dir / "run.json", lambda status: status.update(differences=differences))
    with pytest.raises(BenchError, match="its differences cannot be read") as caught:
        bench_run.resume(ended.run_dir, progress(), opener, report=None)
    assert caught.value.exit_code == Exit.INVALID


def edit_json(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("file", "change", "said"),
    [
        ("manifest.json", lambda m: m["identity"].update(code="x"), "the code has changed"),
        ("manifest.json", lambda m: m["identity"].update(target="x"), "the target has changed"),
        ("manifest.json", lambda m: m["prompts"][0].update(hash="x"), "has changed since the run"),
        ("manifest.json", lambda m: m.update(schema=0), "has schema 0"),
        ("env.json", lambda e: e.update(comparability_key="x"), "the machine or its setup"),
    ],
)
def test_a_run_is_not_resumed_with_changed_code_models_prompts_or_machine(
    start: Any, progress: Any, opener: Any, file: str, change: Any, said: str
) -> None:
    ended, _ = start(progress(stop_at=5))
    edit_json(ended.run_dir / file, change)
    with pytest.raises(BenchError, match=said) as caught:
        bench_run.resume(ended.run_dir, progress(), opener, report=None)
    assert caught.value.exit_code == Exit.UNAVAILABLE


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ("max_new_tokens = 12", "max_new_tokens = 13", True),
        ("seed = 0", "seed = 1", True),
        ('k = "4"', 'k = "5"', True),
        ('model = "tables"', 'model = "moved/tables"', False),
        ("seed = 0", "seed = 0\ntimeout = 900", False),
    ],
)
def test_a_run_is_resumed_with_moved_models_but_not_with_changed_settings(
    start: Any, progress: Any, opener: Any, before: str, after: str, changes: bool
) -> None:
    ended, _ = start(progress(stop_at=5))
    file = ended.run_dir / "config.toml"
    text = file.read_text()
    assert f"{before}\n" in text
    file.write_text(text.replace(f"{before}\n", f"{after}\n"))
    refused = pytest.raises(BenchError, match="the configuration has changed since the run began")
    with refused if changes else nullcontext():
        resumed = bench_run.resume(ended.run_dir, progress(), opener, report=None)
        assert resumed.exit_code == Exit.DONE


def test_resuming_answers_without_a_manifest_is_refused_and_keeps_the_answers(
    start: Any, progress: Any, opener: Any
) -> None:
    ended, _ = start(progress(stop_at=5))
    (ended.run_dir / "manifest.json").unlink()
    answers = (ended.run_dir / "samples.jsonl").read_bytes()
    with pytest.raises(BenchError, match=r"manifest\.json is missing"):
        bench_run.resume(ended.run_dir, progress(), opener, report=None)
    assert (ended.run_dir / "samples.jsonl").read_bytes() == answers


def test_prompts_that_were_edited_are_refused(start: Any, progress: Any, opener: Any) -> None:
    ended, _ = start(progress(stop_at=5))
    file = ended.run_dir / "prompts.jsonl"
    file.write_text(file.read_text().replace('"ids": [1, ', '"ids": [1, 1, ', 1))
    with pytest.raises(BenchError, match="does not match its hash") as caught:
        bench_run.resume(ended.run_dir, progress(), opener, report=None)
    assert caught.value.exit_code == Exit.UNAVAILABLE


KILLED = """
import sys, time
sys.path.insert(0, {tests!r})
import conftest
from pathlib import Path
from bench import runs
from bench.settings.config import load_config

class Slow(conftest.RecordedProgress):
    def step(self, detail="", num=1):
        super().step(detail, num)
        print(self.num_steps, flush=True)
        time.sleep(0.02)

values = dict(model="t", draft="t", decoders="spec", tasks="qa,math_reasoning", limit=4,
              quality_limit=2, repeats=2, max_new_tokens=12)
runs.run(load_config(None, values), Path({results!r}), Slow(), conftest.open_tables)
"""


@pytest.mark.slow
def test_resuming_a_killed_run_loses_and_repeats_no_answer(
    tmp_path: Path, progress: Any, opener: Any
) -> None:
    code = KILLED.format(tests=str(ROOT / "tests"), results=str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) == 14:
            break
    time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    (run_dir,) = [p for p in tmp_path.iterdir() if not p.is_symlink()]
    assert load_run(run_dir).status.status == "started"
    before = keys(run_dir)
    assert before
    shown = progress()
    assert bench_run.resume(run_dir, shown, opener, report=None).exit_code == Exit.DONE
    after = keys(run_dir)
    assert set(after.values()) == {1}
    assert len(after) == 32
    assert not before - after
    assert ("timing", 24, len(before)) in shown.phases


LOADED = """
import sys
from pathlib import Path
from bench import runs
from bench.progress import Progress
from bench.settings.config import load_config
from tests.conftest import open_tables

values = dict(model="t", draft="t", decoders="ar,spec", tasks="qa", limit=1, quality_limit=1,
              repeats=1, max_new_tokens=4, self_check=False)
runs.run(load_config(None, values), Path(sys.argv[1]), Progress(), open_tables, report=None)
print(*sys.modules)
"""


def test_a_run_loads_no_unused_decoders_extras_or_reports(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOADED, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    built_in = {f"decoders.{file.stem}" for file in (ROOT / "decoders").glob("[!_]*.py")}
    assert loaded & built_in == {"decoders.ar", "decoders.spec"}
    others = ("bench.extras", "bench.report", "bench.compare", "decoders.extras", "training")
    assert [name for name in loaded if name.startswith((*others, "matplotlib"))] == []


# ---------------------------------------------------------------- the plan alone


def test_a_dry_run_prints_the_plan_and_an_estimate_and_writes_no_file(
    small: Any, opener: Any, progress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = dry_run(small(), progress(), opener)
    assert lines[0] == "ar: cache=True, rows=1"
    assert lines[1].startswith("spec: k=4, row_cost=0.02, draft_cost=0.2, stop=0.0")
    assert lines[2] == "4 prompts timed (qa 2, math_reasoning 2)"
    assert lines[4] == "8 blocks, 24 timed answers (ar twice)"
    assert re.fullmatch(r"the first prompt, zoo-qa-\d+#1 \(qa, \d+ tokens\):", lines[5])
    assert lines[6].startswith("  \N{SYMBOL FOR START OF HEADING}Which capital does"), "BOS and all"
    assert lines[-2] == "computed in float32 on cpu"
    assert lines[-1].startswith("about ")
    part = dry_run(small(), progress(), opener, part="1/8")
    assert re.fullmatch(r"1 prompt timed \((qa|math_reasoning) 1\)", part[2])
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_part_refuses_what_the_run_refuses(
    small: Any, opener: Any, progress: Any
) -> None:
    with pytest.raises(BenchError, match="'suffix' remembers answers; --part gives a process"):
        dry_run(small(decoders="suffix"), progress(), opener, part="1/2")


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_dry_run_of_compiled_calls_says_that_its_estimate_excludes_compiling(
    is_stored: bool, small: Any, opener: Any, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.plan import dry_run as module
    from decoders.core.hf import graph_children

    timed = module.estimate

    def estimate(*given: Any) -> tuple[float, str]:
        if not is_stored:  # graphs on disk are not asked for
            assert graph_children.current.have(Path("no-such-graph.pt2"), lambda: None)
        return timed(*given)

    monkeypatch.setattr(module, "estimate", estimate)
    *_, about, line = dry_run(small(compile=True), progress(), opener)
    assert about.startswith("about ")
    assert line.startswith("compiling is not in this time")
    assert ("ar ran eagerly here" in line) is not is_stored


def test_a_dry_run_of_a_file_reports_its_format_and_shows_its_first_prompt(
    small: Any, opener: Any, progress: Any, tmp_path: Path
) -> None:
    file = tmp_path / "talks.json"
    said = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    file.write_text(json.dumps([{"conversations": said, "lang": "en"}]))
    shown = progress()
    lines = dry_run(small(tasks=str(file), limit=9, quality_limit=0), shown, opener)
    assert f"{file} is read as ShareGPT: 1 conversation (other 1)" in shown.notes
    assert "fields that are not read: lang" in shown.notes
    assert "--limit 9 exceeds the source: all 1 are used" in shown.notes
    start = lines.index("the first prompt, talks-00000#1 (other, 3 tokens):")
    assert lines[start + 1].endswith("Hi")


def test_a_summary_without_plan_and_answers_is_neither_read_nor_resumed_as_a_run(
    tmp_path: Path, progress: Any, opener: Any
) -> None:
    """It has a status and no plan, as a run that was stopped early has, which resuming begins."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "run.json").write_text("{}")
    for name in ("config.toml", "env.json", "summary.csv"):
        shutil.copy(ROOT / "results" / "reference" / "h100-zoo" / name, kept)
    before = sorted(kept.rglob("*"))
    said = "is damaged: manifest.json is missing"
    with pytest.raises(BenchError, match=said) as read:
        load_run(kept)
    with pytest.raises(BenchError, match=said) as resumed:
        bench_run.resume(kept, progress, opener, report=None)
    assert read.value.exit_code == resumed.value.exit_code == Exit.INVALID
    assert sorted(kept.rglob("*")) == before
