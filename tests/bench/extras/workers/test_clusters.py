"""The executors of other schedulers, as they really run: a local Ray cluster, submitit's jobs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench import runs as bench_run
from bench.errors import BenchError, Exit
from bench.records.run_folder import Run, load_run
from bench.settings.config import load_config
from bench.settings.setting import Kind, WorkerConfig
from bench.stats.validity import VALID
from tests.conftest import RecordedProgress
from tests.worker_tables import open_here, open_slowly

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TABLES = {"model": "t", "draft": "t", "decoders": "spec", "tasks": "qa,math_reasoning"}
SIZES = {"limit": 4, "quality_limit": 3, "repeats": 2, "max_new_tokens": 12, "threads": 1}
JOB = "submitit.core._submit"
"""What the command line of a job's process holds."""


def counted(run: Run) -> dict[Any, Any]:
    """Ids and counters by what was asked; nothing is there twice."""
    found = {}
    for r in run.records:
        steps = r.steps
        counters = steps and (steps.emitted, steps.drafted, steps.accepted, steps.target_rows)
        found[r.kind, r.decoder, r.prompt, r.repeat] = (r.tokens, r.scores, counters)
    assert len(found) == len(run.records)
    return found


class Killing(RecordedProgress):
    """Kills a process whose command line holds a word, once there are two of them.

    Unless `everywhere`, it looks among the processes that descend from this one.
    """

    def __init__(self, word: str, *, everywhere: bool = False) -> None:
        super().__init__()
        self._word = word
        self._everywhere = everywhere
        self.killed = 0

    def _processes(self) -> Iterable[psutil.Process]:
        if self._everywhere:
            return psutil.process_iter()
        return psutil.Process().children(recursive=True)

    def step(self, detail: str = "", num: int = 1) -> None:
        super().step(detail, num)
        if self.killed:
            return
        named = [p.pid for p in self._processes() if self._word in " ".join(p.cmdline())]
        if len(named) > 1:
            self.killed = named[0]
            os.kill(self.killed, signal.SIGKILL)


def spread(kind: Kind, folder: Path, cluster: str = "local") -> WorkerConfig:
    options = {"cluster": cluster, "folder": str(folder)} if kind == "submitit" else {}
    return WorkerConfig(kind=kind, workers=2, options=options)


def killed_is_that_of_one_process(two: WorkerConfig, shown: Killing, folder: Path) -> None:
    """Run twice in a folder: in this process, and on two workers, one of which `shown` kills."""
    config = load_config(None, {**TABLES, **SIZES})
    alone = bench_run.run(config, folder / "alone", RecordedProgress(), open_here, report=None)
    ended = bench_run.run(config, folder / "two", shown, open_slowly, spread=two, report=None)
    run = load_run(ended.run_dir)
    assert shown.killed
    assert ended.exit_code == Exit.DONE
    assert run.status.verdict == VALID
    assert counted(run) == counted(load_run(alone.run_dir))
    assert {r.worker for r in run.records} <= {"w0", "w1", "w2"}
    assert sum("is gone" in note for note in shown.notes) == 1


@pytest.mark.parametrize(("kind", "word"), [("ray", "ray::Worker"), ("submitit", JOB)])
def test_a_run_that_loses_one_of_two_workers_counts_the_same_as_one_process(
    kind: Kind, word: str, tmp_path: Path
) -> None:
    pytest.importorskip(kind)
    killed_is_that_of_one_process(spread(kind, tmp_path / "jobs"), Killing(word), tmp_path)


def slurm_answers() -> bool:
    """Whether this machine is a node of a Slurm cluster that runs jobs."""
    if shutil.which("sinfo") is None:
        return False
    words = ["sinfo", "--noheader", "--format", "%t"]
    try:
        asked = subprocess.run(words, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0 and bool({"idle", "mix"} & set(asked.stdout.split()))


def test_a_run_that_loses_a_slurm_job_counts_the_same_as_one_process(tmp_path: Path) -> None:
    """Of jobs that Slurm began itself (docs/cluster.md says how to have a cluster of one node)."""
    pytest.importorskip("submitit")
    if not slurm_answers():
        pytest.skip("no Slurm cluster answers here")
    jobs = tmp_path / "jobs"
    two = spread("submitit", jobs, "slurm")
    killed_is_that_of_one_process(two, Killing(JOB, everywhere=True), tmp_path)
    assert len(list(jobs.glob("*_submission.sh"))) == 3


def test_counters_of_the_zoo_on_a_ray_cluster_equal_those_of_one_process(
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray")
    values = {"decoders": "ptp,spec", "tasks": "qa", "limit": 3, "repeats": 1, "threads": 1}
    config = load_config(None, {**values, "quality_limit": 2, "max_new_tokens": 24})
    alone = bench_run.run(config, tmp_path / "alone", RecordedProgress(), report=None)
    two = spread("ray", tmp_path)
    ended = bench_run.run(config, tmp_path / "two", RecordedProgress(), spread=two, report=None)
    run = load_run(ended.run_dir)
    assert counted(run) == counted(load_run(alone.run_dir))
    assert run.status.verdict == VALID
    assert run.env.comparability_key == load_run(alone.run_dir).env.comparability_key


def test_an_unknown_option_of_ray_is_a_usage_error(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    wrong = WorkerConfig(kind="ray", workers=1, options={"adress": "auto"})
    with pytest.raises(
        BenchError, match="unknown executor option 'adress'; did you mean"
    ) as raised:
        bench_run.run(
            load_config(None, {**TABLES, **SIZES}),
            tmp_path,
            RecordedProgress(),
            open_here,
            spread=wrong,
            report=None,
        )
    assert raised.value.exit_code == Exit.USAGE


class Leaving(RecordedProgress):
    """Takes a node out of a cluster once both workers have answered in a run below a folder."""

    def __init__(self, folder: Path, leave: Callable[[], None]) -> None:
        super().__init__()
        self._folder = folder
        self._leave: Callable[[], None] | None = leave

    def _both(self) -> bool:
        (file,) = self._folder.glob("2*/samples.jsonl")
        records = [line for line in file.read_text().splitlines() if '"kind":"timing"' in line]
        return all(any(f'"worker":"{w}"' in line for line in records) for w in ("w0", "w1"))

    def step(self, detail: str = "", num: int = 1) -> None:
        super().step(detail, num)
        if self._leave is not None and self._both():
            leave, self._leave = self._leave, None
            leave()


def test_a_lost_node_costs_only_its_current_block(tmp_path: Path) -> None:
    """No other node has room for a worker in its place: the one that is left does all the rest."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    config = load_config(None, {**TABLES, **SIZES, "repeats": 6})
    alone = bench_run.run(config, tmp_path / "alone", RecordedProgress(), open_here, report=None)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        other = cluster.add_node(num_cpus=1)
        options = {"address": cluster.address, "num_cpus": "1"}
        two = WorkerConfig(kind="ray", workers=2, options=options)
        shown = Leaving(tmp_path / "two", lambda: cluster.remove_node(other, allow_graceful=False))
        ended = bench_run.run(config, tmp_path / "two", shown, open_slowly, spread=two, report=None)
    finally:
        cluster.shutdown()
    run = load_run(ended.run_dir)
    assert ended.exit_code == Exit.DONE
    assert run.status.verdict == VALID
    assert counted(run) == counted(load_run(alone.run_dir))
    assert {r.worker for r in run.records} == {"w0", "w1"}
    (lost,) = [event["worker"] for event in run.events if event["event"] == "lost"]
    joined = [event["worker"] for event in run.events if event["event"] == "worker"]
    assert lost in joined
    assert sorted(joined) == ["w0", "w1"]
