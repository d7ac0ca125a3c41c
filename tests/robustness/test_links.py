"""Links in a stranger's folder lead nowhere: no verb writes through one or waits for a pipe."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import runs as bench_run
from bench.errors import BenchError, Exit
from bench.extras.external.table import ExternalAnswer, append_external
from bench.extras.index.index import write_index
from bench.extras.sweeps.settings import load_sweep
from bench.extras.sweeps.sweeps import run_sweep
from bench.records.files import append_text, write_files, write_text
from bench.report.write import write_report
from tests.bench.conftest import write_run
from tests.command_line import bench
from tests.conftest import RecordedProgress
from tests.tiny_models import fresh, slot_adapter

pytestmark = pytest.mark.usefixtures("quick")
TEXT = b"years of work\n"


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """A folder elsewhere, with a file; both must stay as they are."""
    folder = tmp_path / "victim"
    folder.mkdir()
    (folder / "work").write_bytes(TEXT)
    before = folder.stat().st_mtime_ns
    yield folder
    assert [file.name for file in folder.iterdir()] == ["work"]
    assert (folder / "work").read_bytes() == TEXT
    assert folder.stat().st_mtime_ns == before


@pytest.fixture
def stopped(small: Any, opener: Any, progress: Any, tmp_path: Path) -> Path:
    """A run that was stopped half-way."""
    config = small(repeats=1, limit=2, quality_limit=0)
    ended = bench_run.run(config, tmp_path / "r", progress(stop_at=3), opener, report=None)
    return Path(ended.run_dir)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("whole") / "run", {"spec": 3.0}, conversations=3)


def refused(act: Callable[[], object]) -> str:
    with pytest.raises(BenchError) as caught:
        act()
    assert caught.value.exit_code == Exit.FAILED
    return caught.value.message


@pytest.mark.parametrize("is_hard", [False, True])
def test_a_resumed_run_never_writes_into_another_file(
    is_hard: bool, stopped: Path, victim: Path, opener: Any, progress: Any
) -> None:
    lines = stopped / "samples.jsonl"
    lines.unlink()
    os.link(victim / "work", lines) if is_hard else lines.symlink_to(victim / "work")
    assert "samples.jsonl is a link" in refused(
        lambda: bench_run.resume(stopped, progress(), opener, report=None)
    )


def test_a_dangling_link_is_refused_and_creates_no_file(
    stopped: Path, victim: Path, opener: Any, progress: Any
) -> None:
    (stopped / "samples.jsonl").unlink()
    (stopped / "samples.jsonl").symlink_to(victim / "new")
    assert "is a link" in refused(
        lambda: bench_run.resume(stopped, progress(), opener, report=None)
    )


@pytest.mark.parametrize("name", ["run.json", "env.json", "vocab.json", "phases.json"])
def test_small_files_replace_a_link_and_leave_the_linked_file_unchanged(
    name: str, stopped: Path, victim: Path, opener: Any, progress: Any
) -> None:
    kept = (stopped / name).read_bytes() if (stopped / name).is_file() else None
    (stopped / name).unlink(missing_ok=True)
    elsewhere = victim.parent / "copy"
    if kept is not None:
        elsewhere.write_bytes(kept)
    (stopped / name).symlink_to(victim / "work" if kept is None else elsewhere)
    with contextlib.suppress(BenchError):
        bench_run.resume(stopped, progress(), opener, report=None)
    assert kept is None or elsewhere.read_bytes() == kept


def test_tracebacks_and_answers_of_other_engines_are_not_written_through_links(
    whole: Path, victim: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for name in ("errors.log", "external.jsonl"):
        (run / name).symlink_to(victim / "work")
    assert "errors.log is a link" in refused(lambda: append_text(run / "errors.log", "x"))
    answer = ExternalAnswer(
        session=0, engine="e", version="1", mode="ar", options={}, model="m", prompt="p#1",
        prompt_hash="h",
    )  # fmt: skip
    assert "external.jsonl is a link" in refused(lambda: append_external(run, answer))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tables", "figures", "figures/data"])
def test_a_report_is_not_written_through_a_linked_folder(
    name: str, whole: Path, victim: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).symlink_to(victim, target_is_directory=True)
    assert f"{run / name} is a link" in refused(lambda: write_report(run))


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("export", ("export", "--to", "csv")),
        ("export/answers.csv", ("export", "--to", "csv")),
        ("export", ("export", "--to", "acceptance")),
        ("export/acceptance", ("export", "--to", "acceptance")),
        ("export/mlflow", ("export", "--to", "mlflow")),
        ("export/mlflow/mlflow.db", ("export", "--to", "mlflow")),
        ("paper", ("paper",)),
    ],
)
def test_exports_and_papers_refuse_to_write_through_links(
    name: str, asked: tuple[str, ...], whole: Path, victim: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).symlink_to(victim if "." not in name else victim / "work")
    ended = bench(asked[0], run, *asked[1:])
    assert (ended.code, f"{run / name} is a link" in ended.err) == (Exit.FAILED, True), ended.err


def test_an_adapter_is_not_exported_through_links(victim: Path, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    slot_adapter(fresh("llama")).save(adapter)
    (adapter / "export" / "peft").mkdir(parents=True)
    link = adapter / "export" / "peft" / "adapter_config.json"
    link.symlink_to(victim / "work")
    for folder in ((), ("--folder", link.parent)):
        assert "is a link" in bench("export", adapter, "--to", "peft", *folder).err
    shutil.rmtree(adapter / "export")
    (adapter / "export").symlink_to(victim)
    assert "is a link" in bench("export", adapter, "--to", "peft").err


def test_the_index_page_of_runs_replaces_a_link_of_that_name(
    whole: Path, victim: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "results" / "run")
    (tmp_path / "results" / "index.html").symlink_to(victim / "work")
    page, _ = write_index(tmp_path / "results")
    assert not page.is_symlink()


@pytest.mark.slow
def test_a_sweep_refuses_a_points_folder_that_is_a_link(victim: Path, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text('decoders = "spec"\n[sweep]\nseed = [1]\n')
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "points").symlink_to(victim)
    sweep = load_sweep(file)
    message = refused(lambda: run_sweep(sweep, tmp_path / "made", RecordedProgress()))
    assert "points is a link" in message


def test_replacing_a_file_follows_no_link_at_the_temporary_name(
    victim: Path, tmp_path: Path
) -> None:
    (tmp_path / f".report.md.{os.getpid()}").symlink_to(victim / "work")
    write_text(tmp_path / "report.md", "new")
    assert (tmp_path / "report.md").read_text() == "new"
    assert not (tmp_path / "report.md").is_symlink()


def test_resume_removes_no_scratch_files_behind_a_link(
    stopped: Path, opener: Any, progress: Any
) -> None:
    elsewhere = stopped.parent.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / ".precious.12").write_text("kept")
    (stopped / "export").symlink_to(elsewhere)
    bench_run.resume(stopped, progress(), opener, report=None)
    assert (elsewhere / ".precious.12").read_text() == "kept"


def test_links_in_the_path_above_a_run_are_allowed(
    stopped: Path, whole: Path, opener: Any, progress: Any, tmp_path: Path
) -> None:
    (tmp_path / "disk").symlink_to(stopped.parent)
    linked = tmp_path / "disk" / stopped.name
    assert bench_run.resume(linked, progress(), opener, report=None).exit_code == Exit.DONE
    shutil.copytree(whole, tmp_path / "disk" / "whole")
    (tmp_path / "disk" / "latest").unlink()
    (tmp_path / "disk" / "latest").symlink_to("whole")
    assert bench("export", tmp_path / "disk" / "latest", "--to", "csv").code == Exit.DONE
    assert (stopped.parent / "whole" / "export" / "answers.csv").is_file()


def test_a_folder_to_write_to_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    write_files(tmp_path / "out", {"a.csv": b"1\n", "tables/b.csv": b"2\n"})
    assert (tmp_path / "disk" / "tables" / "b.csv").read_bytes() == b"2\n"


@pytest.mark.parametrize(
    "name",
    ["config.toml", "env.json", "vocab.json", "phases.json", "samples.jsonl", "prompts.jsonl"],
)
def test_neither_resume_nor_show_waits_for_a_named_pipe(
    name: str, stopped: Path, whole: Path, opener: Any, progress: Any, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    for folder in (stopped, run):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
    with contextlib.suppress(BenchError):
        bench_run.resume(stopped, progress(), opener, report=None)
    assert bench("show", run).code in (Exit.DONE, Exit.USAGE, Exit.INVALID, Exit.UNAVAILABLE)


def test_a_figure_that_is_a_link_is_not_copied_into_a_reference(
    whole: Path, victim: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    write_report(run)
    figure = run / "figures" / "speedup.png"
    figure.unlink(missing_ok=True)
    figure.symlink_to(victim / "work")
    asked = ("export", run, "--to", "reference", "--folder", tmp_path / "kept")
    ended = bench(*asked, "--figure", "speedup")
    assert ended.code == Exit.FAILED
    assert f"{figure} is a link" in ended.err
    assert not (tmp_path / "kept" / "figures" / "speedup.png").exists()
