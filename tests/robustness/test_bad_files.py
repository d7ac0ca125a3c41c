"""Run folders that were cut, damaged or written by strangers: read, resumed, or one line."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench import runs as bench_run
from bench.errors import BenchError, Exit
from bench.records.files import only_writer
from bench.records.invariants import broken_invariants
from bench.records.record import SampleRecord
from bench.records.run_folder import create_run_dir, find_run, load_run
from bench.records.samples import SAMPLES
from tests.bench.conftest import make_record, write_run
from tests.lines import read_lines

pytestmark = pytest.mark.usefixtures("quick")
NUM_BLOCKS, CELLS = 4, ["ar", "spec", "ar@aa"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run folder, its records whole."""
    made = write_run(
        tmp_path_factory.mktemp("bad") / "run", {"spec": 3.0}, conversations=2, quality=1
    )
    assert load_run(made).records
    return made


def read_all(folder: Path) -> str:
    """What reading a folder comes to: ``read``, or the exit code of its one line."""
    try:
        load_run(folder)
    except BenchError as error:
        return str(error.exit_code) if "\n" not in error.message else "several lines"
    return "read"


# ---------------------------------------------------------------- the end of samples.jsonl

JUNK = (
    b"", b"{", b'{"kind":"tim', b"\0" * 512, b"\xff\xfe\xfd", b"null\n", b"12\n", b"[]\n", b"\n\n",
    b"\0" * 99 + b"\n" + b"\xc3\x28\n", b'{"a":1', b"[" * 50_000 + b"\n", b"{]}\n{\n", b"9" * 5000,
)  # fmt: skip


def test_a_file_cut_at_any_byte_keeps_every_whole_line(folder: Path, tmp_path: Path) -> None:
    whole = (folder / SAMPLES).read_bytes()[:6000]
    lines = [json.loads(line) for line in whole.split(b"\n")[:-1]]
    file = tmp_path / SAMPLES
    num_tried = 0
    for cut in range(0, len(whole), 7):
        for junk in JUNK if cut % 700 == 0 else JUNK[:2]:
            kept = whole[:cut]
            file.write_bytes(kept + junk)
            found, length = read_lines(file)
            # a record that lacks its newline alone is whole once junk begins with one
            ended_by_junk = whole[cut : cut + 1] == b"\n" and junk.startswith(b"\n")
            assert found == lines[: kept.count(b"\n") + ended_by_junk]
            assert length == (cut + 1 if ended_by_junk else kept.rfind(b"\n") + 1)
            num_tried += 1
    assert num_tried > 1500


SLOW_MACHINE = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow)


@settings(max_examples=150, deadline=None, suppress_health_check=SLOW_MACHINE)
@given(cut=st.integers(0, 6000), junk=st.binary(max_size=80))
def test_any_bytes_after_a_cut_never_cost_a_whole_line(
    folder: Path, tmp_path: Path, cut: int, junk: bytes
) -> None:
    kept = (folder / SAMPLES).read_bytes()[:cut]
    (tmp_path / SAMPLES).write_bytes(kept + junk)
    try:
        found, length = read_lines(tmp_path / SAMPLES)
    except BenchError:  # junk that ends in a line of JSON below one that is none
        assert junk.rstrip(b"\n").count(b"\n")
        return
    assert len(found) >= kept.count(b"\n")
    assert (kept + junk)[:length].count(b"\n") == len(found)


@pytest.mark.parametrize("junk", JUNK)
def test_a_resumed_run_cuts_off_a_damaged_end_reports_the_cut_and_completes(
    junk: bytes, small: Any, opener: Any, progress: Any, tmp_path: Path
) -> None:
    values = {"repeats": 1, "limit": 2, "quality_limit": 1}
    ended = bench_run.run(small(**values), tmp_path, progress(stop_at=5), opener, report=None)
    before = (ended.run_dir / SAMPLES).read_bytes()
    (ended.run_dir / SAMPLES).write_bytes(before + junk)
    shown = progress()
    assert bench_run.resume(ended.run_dir, shown, opener, report=None).exit_code == Exit.DONE
    run = load_run(ended.run_dir)
    keys = Counter((r.kind, r.decoder, r.prompt, r.repeat) for r in run.records)
    assert set(keys.values()) == {1}
    assert len(keys) == 3 * 2 + 2 * 2
    assert (ended.run_dir / SAMPLES).read_bytes().startswith(before)
    said = f"{len(junk)} damaged bytes at the end"
    assert any(note.startswith(said) for note in shown.notes) == bool(junk)


# ---------------------------------------------------------------- anything in any file

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)
LINE = json.loads(make_record("spec", (1, 3), drafted=(0, 3), accepted=(0, 2)).to_json())


@pytest.mark.parametrize("name", LINE)
def test_no_field_of_a_record_takes_a_value_of_another_type(name: str) -> None:
    with pytest.raises(ValueError, match=r"schema|a record's "):
        SampleRecord.from_dict({**LINE, name: {"a": "b"}})


@settings(max_examples=300, deadline=None, suppress_health_check=SLOW_MACHINE)
@given(
    changes=st.dictionaries(st.sampled_from([*LINE, "event", "x"]), ANYTHING, max_size=3),
    steps=st.none() | st.dictionaries(st.sampled_from([*LINE["steps"], "x"]), ANYTHING, max_size=2),
    left_out=st.sets(st.sampled_from([*LINE]), max_size=1),
)
def test_a_line_with_arbitrary_values_is_a_sound_record_or_a_value_error(
    changes: dict[str, Any], steps: dict[str, Any] | None, left_out: set[str]
) -> None:
    line = {k: v for k, v in {**LINE, **changes}.items() if k not in left_out}
    if steps is not None and isinstance(line.get("steps"), dict):
        line["steps"] = {**line["steps"], **steps}
    try:
        record = SampleRecord.from_dict(line)
    except ValueError:
        return
    broken_invariants(record, 256)  # reads every field it needs without an error
    assert SampleRecord.from_dict(json.loads(record.to_json())).prompt == record.prompt


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW_MACHINE)
@given(
    name=st.sampled_from(["manifest.json", "run.json", "env.json", "config.toml", SAMPLES]),
    content=st.binary(max_size=60) | ANYTHING.map(lambda data: json.dumps(data).encode() + b"\n"),
)
def test_a_run_with_arbitrary_bytes_in_any_file_is_read_or_refused(
    folder: Path, tmp_path: Path, name: str, content: bytes
) -> None:
    for file in ("manifest.json", "run.json", "env.json", "config.toml", SAMPLES):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    (tmp_path / name).write_bytes(content)
    assert read_all(tmp_path) in ("read", "2", "4", "5")


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("manifest.json", "[]", 4),
        ("manifest.json", '{"schema": 1, "blocks": [3]}', 4),
        ("manifest.json", '{"schema": 1, "blocks": []}', 4),
        ("run.json", "[1]", 4),
        ("run.json", '{"attempts": "many"}', 4),
        ("prompts.jsonl", "[]\n", 5),
        ("prompts.jsonl", "", 5),
        ("env.json", "{}", 5),
    ],
)
def test_a_run_whose_files_were_replaced_is_not_resumed(
    name: str, text: str, code: int, small: Any, opener: Any, progress: Any, tmp_path: Path
) -> None:
    ended = bench_run.run(
        small(repeats=1, limit=2), tmp_path, progress(stop_at=5), opener, report=None
    )
    (ended.run_dir / name).write_text(text)
    before = (ended.run_dir / SAMPLES).read_bytes()
    with pytest.raises(BenchError) as caught:
        bench_run.resume(ended.run_dir, progress(), opener, report=None)
    assert caught.value.exit_code == code
    assert (ended.run_dir / SAMPLES).read_bytes() == before


# ---------------------------------------------------------------- begun, and no further


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("killed")])
@pytest.mark.parametrize(("part", "num", "parts"), [(None, 1, ()), ("2/2", 2, ("2/2",))])
def test_a_run_that_was_killed_while_models_opened_begins_when_it_is_resumed(
    part: str | None,
    num: int,
    parts: tuple[str, ...],
    error: BaseException,
    small: Any,
    opener: Any,
    progress: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "bench.runs.shutil.rmtree", lambda *_, **__: None
    )  # a kill takes nothing back

    def killed(_: Any) -> Any:
        raise error

    config = small(repeats=1, limit=2)
    with pytest.raises(type(error)):
        bench_run.run(config, tmp_path, progress(), killed, part=part, report=None)
    (run_dir,) = tmp_path.iterdir()
    assert {file.name for file in run_dir.iterdir()} == {"config.toml", "run.json"}
    with pytest.raises(BenchError, match="bench resume") as caught:
        load_run(run_dir)
    assert caught.value.exit_code == Exit.USAGE
    assert find_run(run_dir.name, tmp_path) == run_dir
    (run_dir / ".manifest.json.99").write_text("half a fi")
    assert bench_run.resume(run_dir, progress(), opener, report=None).exit_code == Exit.DONE
    run = load_run(run_dir)
    assert (len(run.plan.blocks), run.plan.parts) == (2 // num, parts)
    assert len(run.records) > 6 // num
    assert not list(run_dir.glob(".*"))


def test_resuming_a_run_killed_while_writing_its_report_writes_the_report(
    small: Any, opener: Any, progress: Any, tmp_path: Path
) -> None:
    def killed(_: Path) -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        bench_run.run(small(repeats=1, limit=2), tmp_path, progress(), opener, report=killed)
    (run_dir,) = [path for path in tmp_path.iterdir() if not path.is_symlink()]
    written: list[Path] = []
    for _ in range(2):
        ended = bench_run.resume(run_dir, progress(), opener, report=written.append)
        assert ended.exit_code == Exit.DONE
    assert written == [run_dir]


# ---------------------------------------------------------------- two at once


def test_a_second_process_that_would_write_is_refused(
    small: Any, opener: Any, progress: Any, tmp_path: Path
) -> None:
    ended = bench_run.run(
        small(repeats=1, limit=2), tmp_path, progress(stop_at=5), opener, report=None
    )
    files = {path: path.read_bytes() for path in ended.run_dir.iterdir()}
    with only_writer(ended.run_dir):
        with pytest.raises(BenchError, match="another process is writing") as caught:
            bench_run.resume(ended.run_dir, progress(), opener, report=None)
        assert caught.value.exit_code == Exit.UNAVAILABLE
        assert {path: path.read_bytes() for path in ended.run_dir.iterdir()} == files
    assert bench_run.resume(ended.run_dir, progress(), opener, report=None).exit_code == Exit.DONE


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    pid = os.fork()
    if not pid:
        with only_writer(tmp_path):
            os._exit(0)
    os.waitpid(pid, 0)
    with only_writer(tmp_path):
        pass


def test_runs_of_one_name_started_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    children = []
    for _ in range(8):
        pid = os.fork()
        if not pid:
            try:
                create_run_dir(tmp_path / "results", "run", {"run.json": b"%d" % os.getpid()})
            finally:
                os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    found = [int((path / "run.json").read_text()) for path in (tmp_path / "results").iterdir()]
    assert sorted(found) == sorted(children)


# ---------------------------------------------------------------- disks that are full or read-only


@contextmanager
def tmpfs(at: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A disk of that size; the function changes its options. Skips where one cannot be mounted."""
    at.mkdir()

    def mount(*arguments: str) -> int:
        command = ["mount", *arguments, str(at)]
        return subprocess.run(command, check=False, capture_output=True).returncode

    if os.getuid() or mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        pytest.skip("a disk cannot be mounted here")
    try:
        yield lambda options: assert_zero(mount("-o", f"remount,{options}"))
    finally:
        subprocess.run(["umount", str(at)], check=False)


def assert_zero(code: int) -> None:
    assert code == 0


@contextmanager
def short_files(_at: Path, _size: str) -> Iterator[Callable[[str], None]]:
    """No file may grow beyond 9000 bytes, until the function is called."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9000, before[1]))
    try:
        yield lambda _: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", ["36k", "44k", "52k"])
@pytest.mark.parametrize("disk", [tmpfs, short_files])
def test_a_disk_that_fills_up_keeps_all_whole_lines_and_resume_completes_them(
    disk: Any, size: str, small: Any, opener: Any, progress: Any, tmp_path: Path
) -> None:
    with disk(tmp_path / "disk", size) as change:
        results = tmp_path / "disk" / "results"
        with pytest.raises(BenchError) as caught:
            bench_run.run(small(), results, progress(), opener, report=None)
        assert caught.value.exit_code == Exit.FAILED
        reasons = [errno.ENOSPC] if disk is tmpfs else [errno.ENOSPC, errno.EFBIG]
        assert any(os.strerror(reason) in caught.value.message for reason in reasons)
        found = [p for p in results.glob("[!.]*") if not p.is_symlink() and p.is_dir()]
        change("size=4m")
        if not found:  # full before anything was planned: nothing is left behind
            assert (
                bench_run.run(small(), results, progress(), opener, report=None).exit_code
                == Exit.DONE
            )
            return
        before, length = read_lines(found[0] / SAMPLES)
        raw = (found[0] / SAMPLES).read_bytes()[:length]
        assert bench_run.resume(found[0], progress(), opener, report=None).exit_code == Exit.DONE
        run = load_run(found[0])
        keys = Counter((r.kind, r.decoder, r.prompt, r.repeat) for r in run.records)
        assert (set(keys.values()), len(keys)) == ({1}, 32)
        assert (found[0] / SAMPLES).read_bytes().startswith(raw)
        assert before or disk is tmpfs


def test_a_read_only_disk_ends_a_run_with_one_line_and_the_run_resumes_once_writable(
    small: Any, opener: Any, progress: Any, tmp_path: Path
) -> None:
    with tmpfs(tmp_path / "disk", "4m") as change:
        results = tmp_path / "disk" / "results"
        ended = bench_run.run(small(repeats=1), results, progress(stop_at=5), opener, report=None)
        change("ro")
        for attempt in (
            lambda: bench_run.run(small(), results, progress(), opener, report=None),
            lambda: bench_run.resume(ended.run_dir, progress(), opener, report=None),
        ):
            with pytest.raises(BenchError, match="Read-only file system") as caught:
                attempt()
            assert caught.value.exit_code == Exit.FAILED
        change("rw")
        assert (
            bench_run.resume(ended.run_dir, progress(), opener, report=None).exit_code == Exit.DONE
        )
