"""A run from its configuration to its report, and the resumption of one that stopped half-way.

`run` and `resume` return the run folder and the exit code. Whatever happens after the plan is
written (Ctrl-C, a full disk, a kill), everything measured stays, and `resume` completes the rest:
blocks without their last line are measured again as a whole, finished ones never.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from bench.errors import BenchError, Exit, InvalidRunError, UsageError, room_for
from bench.machine import env as environment
from bench.machine.gpu import gpu_handle
from bench.machine.load import LoadWatch
from bench.measure.phases import SecondPass
from bench.measure.quality import ADVICE, score_quality
from bench.measure.timing import Runner
from bench.plan.identity import check_identity
from bench.plan.make import batch_size, make_plan
from bench.plan.part import parse_part, part_of
from bench.plan.precision import computed_in
from bench.plan.select import build_decoder, choose_decoders
from bench.plan.setup import Setup, open_setup
from bench.progress import Progress
from bench.records.environment import Environment, Process, read_environment, write_environment
from bench.records.failures import ERRORS, ErrorLog
from bench.records.files import (
    SAMPLES,
    SampleWriter,
    only_writer,
    remove_scratch,
    write_text,
)
from bench.records.plan import MANIFEST, WRONG, Plan, write_plan
from bench.records.prompts import Prompt, read_prompts, write_prompts
from bench.records.run_folder import (
    CONFIG,
    create_run_dir,
    load_run,
    outlines,
    point_latest,
    refuse_reference,
)
from bench.records.status import COMPLETE, STATUS, RunStatus, write_status
from bench.records.vocabulary import write_vocabulary
from bench.settings.config import RunConfig, load_config, spec_of
from bench.settings.spread import ALONE, WorkerConfig
from bench.stats.validity import DAMAGED, EXIT_CODES, INCOMPLETE, VALID, from_here, judge
from bench.text import counted
from bench.verify.differences import differences
from bench.workers.spread import Passes, Team

Opener = Callable[[RunConfig], Setup]
Reporter = Callable[[Path], None]
"""Writes the report of a run folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended: its folder, and the exit code it calls for."""

    run_dir: Path
    exit_code: int


def report_of(run_dir: Path) -> None:
    """Write the report of a run folder."""
    from bench.report.write import write_report  # pandas, matplotlib: only once all is measured

    write_report(run_dir)


def run(
    config: RunConfig,
    parent: Path,
    progress: Progress,
    opener: Opener = open_setup,
    reporter: Reporter = report_of,
    spread: WorkerConfig = ALONE,
    part: str | None = None,
) -> RunResult:
    """Measure what `config` asks for, in a new folder under `parent`, and have it reported.

    `spread` says how many workers measure it; by default this process does. `part` (``I/N``) is
    measured of it alone.

    Raises:
        BenchError: for anything that stops it before the plan is written (the folder is then
            removed again), and for a disk that cannot be written to.
    """
    if part is not None:
        parse_part(part)
    config = choose_decoders(config, progress.note)
    team = Team(spread, opener, config.threads)
    config = team.shared_out(config)
    began = _utc()
    opening = RunStatus(status="opening", started_utc=began).to_json()
    begun = {CONFIG: config.to_toml(), STATUS: json.dumps(opening) + "\n"}
    run_dir = create_run_dir(parent, _stem(config), begun)
    with only_writer(run_dir):
        try:
            planned = _plan(config, run_dir, progress, opener, part)
        except BaseException:
            _remove(run_dir)
            raise
        status = _measure(*planned, run_dir, progress, team, attempt=0, began=began)
        return _report(run_dir, status, bool(status.num_records), progress, reporter)


def resume(
    run_dir: Path,
    progress: Progress,
    opener: Opener = open_setup,
    reporter: Reporter = report_of,
    spread: WorkerConfig = ALONE,
) -> RunResult:
    """Complete a run that stopped; one that is complete says so and is left as it is.

    It may go on with another executor, and another number of workers. The exit code is that of the
    run as it then stands, whoever measured what of it.

    One that was killed before it was planned is planned now, one that was killed while its report
    was written has it written.

    Raises:
        BenchError: where there is no run (exit 2), it is damaged (4), another process is
            writing to it, or code, models, machine or prompts are no longer those the run began
            with (5).
    """
    with only_writer(run_dir):
        remove_scratch(run_dir)
        return _resume(run_dir, progress, opener, reporter, spread)


def _resume(
    run_dir: Path, progress: Progress, opener: Opener, reporter: Reporter, spread: WorkerConfig
) -> RunResult:
    if (run_dir / STATUS).is_file() and not (run_dir / MANIFEST).is_file():
        refuse_reference(run_dir)
        progress.note(f"{run_dir} was stopped before anything was planned: it begins now")
        config = load_config(run_dir / CONFIG, {})
        _refuse_code_of(run_dir, config)
        team = Team(spread, opener, config.threads)
        planned = _plan(team.shared_out(config), run_dir, progress, opener)
        status = _measure(*planned, run_dir, progress, team, attempt=0)
        return _report(run_dir, status, bool(status.num_records), progress, reporter)
    stopped = load_run(run_dir)
    validity = judge(stopped)
    if validity.verdict == DAMAGED:
        progress.note(f"{run_dir} is {DAMAGED}: {from_here(validity.reasons[0], run_dir)}")
    elif stopped.status.complete:
        status = replace(stopped.status, **asdict(validity))
        if stopped.status.reported is False:
            progress.note(f"{run_dir} is complete but for its report, which is written now")
            return _report(run_dir, status, bool(stopped.records), progress, reporter)
        progress.note(f"{run_dir} is complete: nothing to resume")
        return RunResult(run_dir=run_dir, exit_code=_exit_code(run_dir, status, progress))
    if stopped.status.ab:
        line = f"{run_dir} is one side of a `bench ab`, which cannot be resumed; run that again"
        raise UsageError(line)
    if stopped.plan.identity is None:
        line = f"{run_dir / MANIFEST} is damaged: it does not say what the run began with"
        raise InvalidRunError(line)
    prompts = read_prompts(run_dir)
    config = load_config(run_dir / CONFIG, {})
    _refuse_code_of(run_dir, config)
    team = Team(spread, opener, config.threads)
    setup = opener(config)
    check_identity(setup, stopped.plan, prompts, stopped.env, _environment(setup))
    attempts = [stopped.status.attempts or 0, *(r.attempt + 1 for r in stopped.records)]
    began = stopped.status.started_utc
    status = _measure(
        setup, stopped.plan, prompts, run_dir, progress, team, attempt=max(attempts), began=began
    )
    return _report(run_dir, status, bool(status.num_records), progress, reporter)


def _refuse_code_of(run_dir: Path, config: RunConfig) -> None:
    """A run folder holds data: a decoder's or loop's file inside of it is not run (exit 2)."""
    for cell, options in (config.decoders or {}).items():
        path, is_file, _ = spec_of(cell, options).name.rpartition(":")
        named = [path] if is_file else build_decoder(cell, options).sources
        for file in named:
            if Path(file).resolve().is_relative_to(run_dir.resolve()):
                line = f"{run_dir} names code inside of itself ({file}), which is not run"
                raise UsageError(line)


def _plan(
    config: RunConfig,
    run_dir: Path,
    progress: Progress,
    opener: Opener,
    part: str | None = None,
) -> tuple[Setup, Plan, dict[str, Prompt]]:
    """Open the models and write the plan: the manifest last, with which the run is planned."""
    setup = opener(config)
    progress.note(computed_in(config, setup.config))
    plan, prompts = make_plan(setup, _name(config), progress)
    if part is not None:
        plan = part_of(plan, part)
    write_prompts(run_dir, list(prompts.values()))
    write_text(run_dir / CONFIG, setup.config.to_toml())
    write_environment(run_dir, _environment(setup))
    write_plan(run_dir, plan)
    point_latest(run_dir)
    progress.note(f"writing to {run_dir}")
    return setup, plan, prompts


# ---------------------------------------------------------------- measuring


def _measure(
    setup: Setup,
    plan: Plan,
    prompts: Mapping[str, Prompt],
    run_dir: Path,
    progress: Progress,
    team: Team,
    *,
    attempt: int,
    began: str | None = None,
) -> RunStatus:
    """Measure what is missing, and judge all that is there."""
    status = RunStatus(status="started", started_utc=began or _utc(), attempts=attempt + 1)
    write_status(run_dir, status)
    how = "error"
    try:
        try:
            with SampleWriter(run_dir) as writer:
                _fill(setup, plan, prompts, run_dir, writer, progress, team, attempt)
            how = COMPLETE
        except KeyboardInterrupt:
            how = "interrupted"
        return _judged(setup, prompts, run_dir, replace(status, status=how))
    except BaseException:  # a full disk may refuse the status too: the first error is raised
        with contextlib.suppress(BenchError):
            ended = replace(status, status="error", verdict=INCOMPLETE, finished_utc=_utc())
            write_status(run_dir, ended)
        progress.note(f"what was measured is kept. Go on: bench resume {run_dir}")
        raise
    finally:
        progress.close()


def _fill(
    setup: Setup,
    plan: Plan,
    prompts: Mapping[str, Prompt],
    run_dir: Path,
    writer: SampleWriter,
    progress: Progress,
    team: Team,
    attempt: int,
) -> None:
    """Measure what is missing: unfinished blocks as a whole, then unanswered quality prompts."""
    if writer.num_cut:
        progress.note(f"{writer.num_cut} damaged bytes at the end of {SAMPLES} were cut off")
        writer.event("cut", num_bytes=writer.num_cut)
    records = outlines(run_dir, plan)
    finished = {record.block for record in records if record.kind == "timing"}
    left = [block for block in plan.blocks if block.block not in finished]
    if attempt:
        for block in left:
            writer.event("supersede", block=block.block, before_attempt=attempt)
    errors, second = ErrorLog(run_dir), SecondPass(setup, plan, prompts, run_dir)
    if team.executor is not None:
        passes = Passes(
            setup=setup,
            plan=plan,
            prompts=prompts,
            opener=team.opener,
            key=read_environment(run_dir).comparability_key,
            attempt=attempt,
            left=left,
            records=records,
            writer=writer,
            errors=errors,
            second=second,
            progress=progress,
        )
        passes.fill(team.executor, team.spread.workers)
        return
    watch = LoadWatch(gpu_handle(str(setup.models.target.device)))
    runner = Runner(
        setup,
        prompts,
        writer,
        progress,
        attempt=attempt,
        lap=watch.lap,
        errors=errors,
        after=second.after,
    )
    num_left = sum(len(block.prompts) * len(block.order) for block in left)
    runner.run(left, num_done=plan.num_answers - num_left)
    second.complete(progress)
    asked = [prompts[planned.prompt] for planned in plan.in_pass("quality")]
    done = {(record.decoder, record.prompt) for record in records if record.kind == "quality"}
    with room_for(f"the quality pass, {batch_size(setup)} answers at a time,", ADVICE):
        score_quality(setup, asked, writer, progress, attempt=attempt, done=done, errors=errors)


def _judged(
    setup: Setup, prompts: Mapping[str, Prompt], run_dir: Path, status: RunStatus
) -> RunStatus:
    """Judge and describe what is there, also after Ctrl-C, where it is a part."""
    measured = load_run(run_dir)
    write_vocabulary(run_dir, setup.tokenizer, measured.records, list(prompts.values()))
    peak = Process(peak_rss_bytes=environment.peak_rss_bytes())
    write_environment(run_dir, replace(measured.env, process=peak))
    unequal = tuple(differences(setup, measured.records, prompts))
    status = replace(status, differences=unequal, num_records=len(measured.records))
    validity = judge(replace(measured, status=status))
    status = replace(status, **asdict(validity), finished_utc=_utc(), reported=False)
    write_status(run_dir, status)
    return status


def _report(
    run_dir: Path, status: RunStatus, measured: bool, progress: Progress, reporter: Reporter
) -> RunResult:
    """Write the report of a run that ended, and say how it ended."""
    if measured:
        try:
            reporter(run_dir)
        except BenchError:
            progress.note(f"all records are kept. Write the report: bench report {run_dir}")
            raise
    write_status(run_dir, replace(status, reported=True))
    return RunResult(run_dir=run_dir, exit_code=_exit_code(run_dir, status, progress))


def _exit_code(run_dir: Path, status: RunStatus, progress: Progress) -> Exit:
    if status.status == "interrupted":
        progress.note(f"interrupted; all finished answers are kept. Go on: bench resume {run_dir}")
        return Exit.INTERRUPTED
    if status.verdict == WRONG:
        cells = ", ".join(status.wrong)
        progress.note(f"{cells}: claims to be lossless and left ar's tokens without a near-tie")
    if status.verdict != VALID:
        return EXIT_CODES[str(status.verdict)]
    if status.num_errors:
        where = f"partial results kept, tracebacks in {run_dir / ERRORS}"
        progress.note(f"{counted(status.num_errors, 'answer')} failed; {where}")
        return Exit.FAILED
    return Exit.DONE


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
    name = "+".join(cells).replace("/", "_").replace(":", "_")
    return name[-48:]


def _utc() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _environment(setup: Setup) -> Environment:
    device = str(setup.models.target.device)
    return environment.capture(
        device=device,
        dtype=setup.config.dtype or "float32",
        models=setup.facts,
        gpu=gpu_handle(device),
    )


def _remove(run_dir: Path) -> None:
    """Take back a folder in which nothing was planned yet."""
    for file in run_dir.iterdir():
        file.unlink(missing_ok=True)
    run_dir.rmdir()
