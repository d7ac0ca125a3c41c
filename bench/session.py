"""A run from its configuration to its report, and the resumption of one that stopped half-way.

`run` and `resume` return the run folder and the exit code. Whatever happens after the plan is
written (Ctrl-C, a full disk, a kill), everything measured stays, and `resume` completes the rest:
blocks without their last line are measured again as a whole, finished ones never.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import env as environment
from bench.choice import choose_decoders
from bench.config import RunConfig, load_config
from bench.errors import BenchError, Exit
from bench.files import SampleWriter, write_json, write_text
from bench.gpu import gpu_handle
from bench.identity import check_identity
from bench.load import LoadWatch
from bench.lossless.differences import as_facts, differences
from bench.plan import Plan
from bench.planning import make_plan
from bench.progress import Progress
from bench.prompt_file import read_prompts, write_prompts
from bench.prompts import Prompt
from bench.quality import score_quality
from bench.records import SCHEMA
from bench.rundir import CONFIG, ENV, MANIFEST, STATUS, create_run_dir, load_run, point_latest
from bench.runner import Runner
from bench.validity import INVALID, judge
from bench.vocabulary import write_vocabulary
from bench.workbench import Workbench, open_workbench

Opener = Callable[[RunConfig], Workbench]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended: its folder, and the exit code it calls for."""

    run_dir: Path
    exit_code: int


def run(
    config: RunConfig, parent: Path, progress: Progress, opener: Opener = open_workbench
) -> Ended:
    """Measure what `config` asks for, in a new folder under `parent`.

    Errors: `BenchError` for anything that stops it before the plan is written (the folder is then
    removed again), and for a disk that cannot be written to.
    """
    config = choose_decoders(config, progress.note)
    run_dir = create_run_dir(parent, _stem(config))
    try:
        bench = opener(config)
        plan, prompts = make_plan(bench, _name(config), progress)
        write_prompts(run_dir, list(prompts.values()))
        write_text(run_dir / CONFIG, bench.config.to_toml())
        write_json(run_dir / ENV, _environment(bench))
        write_json(run_dir / MANIFEST, plan.to_manifest())
    except BaseException:
        _remove(run_dir)
        raise
    point_latest(run_dir)
    progress.note(f"writing to {run_dir}")
    return _measure(bench, plan, prompts, run_dir, progress, attempt=0)


def resume(run_dir: Path, progress: Progress, opener: Opener = open_workbench) -> Ended:
    """Complete a run that stopped; one that is complete says so and is left as it is.

    Errors: `BenchError` where there is no run (exit 2), or code, models, machine or prompts are no
    longer those the run began with (5).
    """
    found = load_run(run_dir)
    if found.status.get("status") == "complete":
        progress.note(f"{run_dir} is complete: nothing to resume")
        return Ended(run_dir=run_dir, exit_code=Exit.DONE)
    if found.status.get("ab"):
        line = f"{run_dir} is one side of a `bench ab`, which cannot be resumed; run that again"
        raise BenchError(line, Exit.USAGE)
    if found.manifest.get("schema") != SCHEMA:
        line = f"{run_dir} has schema {found.manifest.get('schema')}; this version writes {SCHEMA}"
        raise BenchError(line, Exit.UNAVAILABLE)
    plan = Plan.from_manifest(found.manifest)
    prompts = read_prompts(run_dir)
    config = load_config(run_dir / CONFIG, {})
    bench = opener(config)
    check_identity(bench, plan, prompts, found.env, _environment(bench))
    attempts = [int(found.status.get("attempts", 0)), *(r.attempt + 1 for r in found.records)]
    began = found.status.get("started_utc")
    return _measure(bench, plan, prompts, run_dir, progress, attempt=max(attempts), began=began)


# ---------------------------------------------------------------- measuring


def _measure(
    bench: Workbench,
    plan: Plan,
    prompts: Mapping[str, Prompt],
    run_dir: Path,
    progress: Progress,
    *,
    attempt: int,
    began: str | None = None,
) -> Ended:
    status: dict[str, Any] = {"schema": SCHEMA, "status": "started", "started_utc": began or _utc()}
    status |= {"attempts": attempt + 1, "verdict": None, "reasons": [], "warnings": []}
    write_json(run_dir / STATUS, status)
    how = "error"
    try:
        with SampleWriter(run_dir) as writer:
            _fill(bench, plan, prompts, run_dir, writer, progress, attempt)
        how = "complete"
    except KeyboardInterrupt:
        how = "interrupted"
    except BaseException:  # a full disk may refuse the status too: the first error is raised
        with contextlib.suppress(BenchError):
            write_json(run_dir / STATUS, status | {"status": how, "finished_utc": _utc()})
        progress.note(f"what was measured is kept. Go on: bench resume {run_dir}")
        raise
    finally:
        progress.close()
    return _finish(bench, prompts, run_dir, status | {"status": how}, progress)


def _fill(
    bench: Workbench,
    plan: Plan,
    prompts: Mapping[str, Prompt],
    run_dir: Path,
    writer: SampleWriter,
    progress: Progress,
    attempt: int,
) -> None:
    """Measure what is missing: unfinished blocks as a whole, then unanswered quality prompts."""
    records = load_run(run_dir).records
    finished = {record.block for record in records if record.kind == "timing"}
    left = [block for block in plan.blocks if block.block not in finished]
    if attempt:
        for block in left:
            writer.event("supersede", block=block.block, before_attempt=attempt)
    watch = LoadWatch(gpu_handle(str(bench.models.target.device)))
    runner = Runner(bench, prompts, writer, progress, attempt=attempt, lap=watch.lap)
    num_left = sum(len(block.prompts) * len(block.order) for block in left)
    runner.run(left, num_done=plan.num_answers - num_left)
    asked = [prompts[planned.prompt] for planned in plan.in_pass("quality")]
    done = {(record.decoder, record.prompt) for record in records if record.kind == "quality"}
    score_quality(bench, asked, writer, progress, attempt=attempt, done=done)


def _finish(
    bench: Workbench,
    prompts: Mapping[str, Prompt],
    run_dir: Path,
    status: Mapping[str, Any],
    progress: Progress,
) -> Ended:
    """Judge, describe and report what is there; also after Ctrl-C, where it is a part."""
    measured = load_run(run_dir)
    validity = judge(measured)
    write_vocabulary(run_dir, bench.tokenizer, measured.records, list(prompts.values()))
    peak = {"process": {"peak_rss_bytes": environment.peak_rss_bytes()}}
    write_json(run_dir / ENV, {**measured.env, **peak})
    unequal = differences(bench, measured.records, prompts)
    facts = dataclasses.asdict(validity)
    facts["warnings"] = [*validity.warnings, *map(str, unequal)]
    facts["differences"] = as_facts(unequal)
    done = {"finished_utc": _utc(), "num_records": len(measured.records)}
    write_json(run_dir / STATUS, {**status, **facts, **done})
    if measured.records:
        from bench.report import write_report  # pandas, matplotlib: only once all is measured

        try:
            write_report(run_dir)
        except BenchError:
            progress.note(f"all records are kept. Write the report: bench report {run_dir}")
            raise
    if status["status"] == "interrupted":
        progress.note(f"interrupted; all finished answers are kept. Go on: bench resume {run_dir}")
        return Ended(run_dir=run_dir, exit_code=Exit.INTERRUPTED)
    if validity.verdict == INVALID:
        return Ended(run_dir=run_dir, exit_code=Exit.INVALID)
    if any(difference.num_wrong for difference in unequal):
        progress.note("a lossless decoder is wrong: it left ar's tokens without a near-tie")
        return Ended(run_dir=run_dir, exit_code=Exit.REGRESSION)
    if validity.num_errors:
        progress.note(f"{validity.num_errors} answers failed; partial results kept")
        return Ended(run_dir=run_dir, exit_code=Exit.FAILED)
    return Ended(run_dir=run_dir, exit_code=Exit.DONE)


# ---------------------------------------------------------------- names


def _stem(config: RunConfig) -> str:
    """``<utc>-<name>-<hash>``, known before anything is loaded."""
    now = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    return f"{now}-{_name(config)}-{config.hash}"


def _name(config: RunConfig) -> str:
    """The run's name: as given, or the decoders compared."""
    if config.run_name:
        return config.run_name
    cells = [cell for cell in (config.decoders or {}) if cell != "ar"] or ["ar"]
    kept = "+".join(cells).replace("/", "_").replace(":", "_")
    return kept[-48:]


def _utc() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _environment(bench: Workbench) -> dict[str, Any]:
    device = str(bench.models.target.device)
    return environment.capture(
        device=device,
        dtype=bench.config.dtype or "float32",
        models=bench.facts,
        gpu=gpu_handle(device),
    )


def _remove(run_dir: Path) -> None:
    """Take back a folder in which nothing was planned yet."""
    for file in run_dir.iterdir():
        file.unlink(missing_ok=True)
    run_dir.rmdir()
