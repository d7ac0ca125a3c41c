"""How writing, resuming and reporting grow with the records: seconds and peak memory of each stage.

    python -m tests.benchmarks.records_at_scale [FOLDER] [REPEATS]

The run is that of `tests.benchmarks.big_report` with more repeats, made up and seeded; every stage
is a process of its own, whose peak counts. A *step row* is one step of one answer.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks import big_report

STAGES = ("write", "open", "resume", "judge", "parquet", "report")


def stage(name: str, folder: Path) -> None:
    """One stage, in this process."""
    from bench.records.record import SampleRecord
    from bench.records.run_folder import load_records, load_run
    from bench.records.samples import SAMPLES, SampleWriter, intact_lines

    if name == "write":
        copy = folder.with_name("copy")
        copy.mkdir(exist_ok=True)
        (copy / SAMPLES).unlink(missing_ok=True)
        with SampleWriter(copy) as writer:
            for line, _ in intact_lines(folder / SAMPLES):
                writer.record(SampleRecord.from_dict(line))
    elif name == "open":
        SampleWriter(folder).close()
    elif name == "resume":
        load_records(folder)
    elif name == "judge":
        from bench.stats.validity import judge

        judge(load_run(folder))
    elif name == "parquet":
        from bench.records.files import replacing
        from bench.records.frames import write_samples

        with replacing(folder / "samples.parquet") as file:
            write_samples(file, load_run(folder).records)
    else:
        from bench.report.write import write_report

        write_report(folder)


def measured(name: str, folder: Path) -> tuple[float, float]:
    """Seconds and peak memory in bytes of a stage in a process of its own."""
    before = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os.execv(
            sys.executable, [sys.executable, "-m", __spec__.name, "--stage", name, str(folder)]
        )
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{name} failed")
    return time.perf_counter() - before, usage.ru_maxrss * 1024


def main(folder: Path, repeats: int) -> None:
    """Write the run where it is not there yet, and take every stage once."""
    big_report.REPEATS = repeats
    if not (folder / "samples.jsonl").is_file():
        big_report.write(folder)
    from bench.records.samples import intact_lines

    num = rows = 0
    for line, _ in intact_lines(folder / "samples.jsonl"):
        num, rows = num + 1, rows + len(line["steps"]["emitted"])
    size = (folder / "samples.jsonl").stat().st_size
    print(
        f"{num:,} answers, {rows:,} step rows, {size / 1e6:.0f} MB; "
        f"this process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:.0f} MB"
    )
    for name in STAGES:
        seconds, peak = measured(name, folder)
        print(f"{name:8} {seconds:7.1f} s  {peak / 1e6:7.0f} MB", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--stage"]:
        stage(sys.argv[2], Path(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as made:
            where = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(made) / "run"
            main(where, int(sys.argv[2]) if len(sys.argv) > 2 else 3)
