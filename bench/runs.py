"""Carry out a run from its configuration to its report, and resume a run that stopped half-way.

Once the plan is written, all measurements are kept, whatever happens (Ctrl-C, a full disk, a kill),
and `resume` completes the rest. A block whose last line is missing is measured again as a whole. A
finished block is never repeated.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench.errors import BenchError, Exit, InvalidRunError, UsageError
from bench.machine import env as environment
from bench.machine.clock import utc_now
from bench.measure.attempt import Attempt
from bench.plan.checks import check_first, refuse_sharing
from bench.plan.code import check_code, resume_command
from bench.plan.compiling import open_with_graphs
from bench.plan.identity import check_identity
from bench.plan.make import make_plan
from bench.plan.numerics import describe_numerics
from bench.plan.select import ResolvedRun, stored_decoders
from bench.plan.setup import Opener, Setup, open_setup
from bench.progress import Progress
from bench.records.environment import Process, write_environment
from bench.records.files import only_writer, remove_scratch, write_json, write_text
from bench.records.plan import (
    BASELINE,
    MANIFEST,
    STATUS,
    Plan,
    RunStatus,
    read_status,
    select_part,
    write_plan,
    write_status,
)
from bench.records.prompts import VOCABULARY, Prompt, pieces_in, read_prompts, write_prompts
from bench.records.run_folder import (
    CONFIG,
    Run,
    create_run_dir,
    link_newest,
    load_run,
    planned,
    refuse_read_only,
)
from bench.records.samples import ERRORS
from bench.registry import extra
from bench.settings.config import RunConfig, load_config
from bench.settings.setting import ALONE, WorkerConfig
from bench.stats.validity import DAMAGED, EXIT_CODES, INCOMPLETE, VALID, judge
from bench.text import counted
from bench.verify.divergence import differences
from bench.verify.floor import measure_floor

Report = Callable[[Path], None]
"""A function that writes the report of a run folder."""
_MAX_NAME = 48
"""Maximum number of characters of a run's name; cells for which there is no room are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Hold a run's folder, and the exit code of the command that measured the run."""

    run_dir: Path
    exit_code: int


def write_report(run_dir: Path) -> None:
    """Write the report of a run folder."""
    from bench.report import write  # imports pandas, matplotlib: after measuring

    write.write_report(run_dir)


def run(
    config: RunConfig,
    parent: Path,
    progress: Progress,
    opener: Opener = open_setup,
    spread: WorkerConfig = ALONE,
    part: str | None = None,
    *,
    report: Report | None = write_report,
) -> RunResult:
    """Measure a job, or one part of it, in a new run folder, and write the report.

    All steps are called here in their order, and `Attempt` has the passes.

    Args:
        config: the job; the folder's config.toml has it with all values filled in.
        parent: the folder in which the run folder is made, itself made if missing.
        progress: shows phases and notes; closed once all is judged.
        opener: opens the models; any but `open_setup` brings its own, which are not looked for.
        spread: the workers that measure; `ALONE` stands for this process.
        part: ``I/N`` of ``--part``; None: the whole plan.
        report: writes the report if there are answers; None: no report.

    Raises:
        BenchError: any failure before the plan is written (the new folder is then removed), or a
            disk that cannot be written to.
    """
    resolved = check_first(config, progress.note, brings_models=opener is not open_setup)
    refuse_sharing(resolved, spread, part)
    resolved, attempt_by = _choose_attempt(resolved, spread, opener)
    started_utc = utc_now()
    run_dir = _new_folder(resolved, parent, started_utc, part)
    with only_writer(run_dir):
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, run_dir)
            # threads and kernels of the process; models, checked against transformers; graphs
            setup = open_with_graphs(resolved, opener, progress)
            plan, prompts = _plan(run_dir, resolved, setup, part, progress)
            undo.pop_all()
        attempt = attempt_by(run_dir, setup, plan, prompts, progress, started_utc)
        with attempt.track_status():
            with attempt.measuring(), attempt.writing():
                attempt.warm_up()
                attempt.time_blocks()  # and some blocks again at once, by phase
                attempt.score_quality()
            _judge(attempt)  # runs the target where an answer differs from the baseline's
        return _report(run_dir, attempt.status, report, progress)


def resume(
    run_dir: Path,
    progress: Progress,
    opener: Opener = open_setup,
    spread: WorkerConfig = ALONE,
    allowed: Sequence[str] = (),
    *,
    report: Report | None = write_report,
) -> RunResult:
    """Complete a run that stopped, or leave a complete run as it is.

    A run that was killed before it was planned is planned now. A run that was killed while its
    report was written gets its report.

    Args:
        run_dir: the run folder, whose config.toml is the job.
        progress: shows phases and notes; closed once all is judged.
        opener: opens the models, which must have the weights with which the run began.
        spread: the workers that measure the rest, whoever measured before.
        allowed: paths of decoders' and laws' code that may run.
        report: writes the report; None: no report.

    Raises:
        UsageError: there is no run, or the run cannot be resumed.
        InvalidRunError: the run is damaged.
        UnavailableError: another process writes to the run, or its code, models, machine or
            prompts have changed since it began.
    """
    with only_writer(run_dir):
        remove_scratch(run_dir)
        stopped = None
        refuse_read_only(run_dir)
        if (run_dir / STATUS).is_file() and not planned(run_dir):
            progress.note(f"{run_dir} was stopped before anything was planned: it begins now")
        elif result := _finished_result(stopped := load_run(run_dir), progress, report):
            return result
        resolved = stored_decoders(trusted_config(run_dir, allowed))
        refuse_sharing(resolved, spread)
        for_workers, attempt_by = _choose_attempt(resolved, spread, opener)
        resolved = for_workers if stopped is None else resolved
        open_same = opener if stopped is None else partial(_open_same, stopped, opener)
        setup = open_with_graphs(resolved, open_same, progress)
        started_utc, number = None, 0
        if stopped is None:
            plan, prompts = _plan(run_dir, resolved, setup, read_status(run_dir).part, progress)
        else:
            plan, prompts = stopped.plan, read_prompts(run_dir)
            started_utc = stopped.status.started_utc
            number = max([stopped.status.attempts or 0, *(r.attempt + 1 for r in stopped.records)])
        attempt = attempt_by(run_dir, setup, plan, prompts, progress, started_utc, number)
        with attempt.track_status():
            with attempt.measuring(), attempt.writing():
                attempt.warm_up()
                attempt.time_blocks()
                attempt.score_quality()
            _judge(attempt)
        return _report(run_dir, attempt.status, report, progress)


def _open_same(stopped: Run, opener: Opener, run: ResolvedRun) -> Setup:
    """Open the models of a stopped run, and refuse others than those with which it began."""
    prompts, setup = read_prompts(stopped.path), opener(run)
    check_identity(setup, stopped.plan, prompts, stopped.env)
    return setup


def _finished_result(stopped: Run, progress: Progress, report: Report | None) -> RunResult | None:
    """Return the result of a run with nothing to resume, or refuse one that cannot be resumed."""
    run_dir, judgement = stopped.path, judge(stopped)
    if judgement.verdict == DAMAGED:
        progress.note(f"{run_dir} is {DAMAGED}: {judgement.reasons[0]}")
    elif stopped.status.complete:
        if stopped.status.reported is False:
            progress.note(f"{run_dir} is complete but for its report, which is written now")
            return _report(run_dir, judgement, report, progress)
        progress.note(f"{run_dir} is complete: nothing to resume")
        return RunResult(run_dir=run_dir, exit_code=_exit_code(run_dir, judgement, progress))
    if stopped.status.ab:
        line = f"{run_dir} is one side of a `bench ab`, which cannot be resumed; run that again"
        raise UsageError(line)
    if stopped.plan.identity is None:
        line = f"{run_dir / MANIFEST} is damaged: it does not say what the run began with"
        raise InvalidRunError(line)
    return None


def trusted_config(folder: Path, allowed: Sequence[str]) -> RunConfig:
    """Read config.toml, refusing code that is not `allowed`: a folder is only data (exit 2)."""
    config = load_config(folder / CONFIG, {})
    check_code([config], folder, allowed, resume_command(folder, config))
    return config


def _choose_attempt(
    run: ResolvedRun, spread: WorkerConfig, opener: Opener
) -> tuple[ResolvedRun, Callable[..., Attempt]]:
    """Choose this process or workers to measure. Workers' number of threads becomes the run's."""
    if spread == ALONE:
        return run, Attempt
    return extra("bench.jobs", "workers")(run, spread, opener)  # type: ignore[no-any-return]


def _new_folder(run: ResolvedRun, parent: Path, started_utc: str, part: str | None) -> Path:
    """Make the folder, with the configuration and the status ``opening``."""
    opening = RunStatus(status="opening", started_utc=started_utc, part=part).to_json()
    files = {CONFIG: run.config.to_toml().encode(), STATUS: json.dumps(opening).encode() + b"\n"}
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{_name(run)}-{run.config.hash}"
    return create_run_dir(parent, stem, files)


def _plan(
    run_dir: Path, run: ResolvedRun, setup: Setup, part: str | None, progress: Progress
) -> tuple[Plan, dict[str, Prompt]]:
    """Plan the run and write its files. The last file, the manifest, marks the run as planned."""
    progress.note(describe_numerics(run.config, setup.config))
    plan, prompts = make_plan(setup, _name(run), progress)
    if part is not None:
        plan = select_part(plan, part)
    write_prompts(run_dir, list(prompts.values()))
    write_text(run_dir / CONFIG, setup.config.to_toml())
    write_environment(run_dir, setup.environment())
    write_plan(run_dir, plan)
    if not link_newest(run_dir):
        progress.note(f"{run_dir.parent / 'latest'} cannot be made a link to this run")
    progress.note(f"writing to {run_dir}")
    return plan, prompts


def _judge(attempt: Attempt) -> None:
    """Compare answers with the baseline's, and write the verdict on all records."""
    setup, prompts, measured = attempt.setup, attempt.prompts, load_run(attempt.run_dir)
    pieces = pieces_in(setup.tokenizer, measured.records, prompts.values())
    write_json(attempt.run_dir / VOCABULARY, pieces, indent=0)
    peak = Process(peak_rss_bytes=environment.peak_rss_bytes())
    write_environment(attempt.run_dir, replace(measured.env, process=peak))
    floor = measure_floor(setup, measured.records, prompts)
    unequal = tuple(differences(setup, measured.records, prompts, floor))
    num = len(measured.records)
    status = replace(attempt.status, differences=unequal, floor=floor, num_records=num)
    attempt.end(replace(judge(replace(measured, status=status)), reported=False))


def _report(
    run_dir: Path, status: RunStatus, report: Report | None, progress: Progress
) -> RunResult:
    if status.num_records and report is not None:
        try:
            report(run_dir)
        except BenchError:
            progress.note(f"all records are kept. Write the report: bench report {run_dir}")
            raise
    write_status(run_dir, replace(status, reported=True))
    return RunResult(run_dir=run_dir, exit_code=_exit_code(run_dir, status, progress))


def _exit_code(run_dir: Path, status: RunStatus, progress: Progress) -> Exit:
    if status.status == "interrupted":
        command = resume_command(run_dir, load_config(run_dir / CONFIG, {}))
        progress.note(f"interrupted; all finished answers are kept. Continue: {command}")
        return Exit.INTERRUPTED
    if (code := exit_code(status)) == Exit.FAILED:
        where = f"partial results kept, tracebacks in {run_dir / ERRORS}"
        progress.note(f"{counted(status.num_errors or 0, 'answer')} failed; {where}")
    return code


def exit_code(status: RunStatus) -> Exit:
    """Return the exit code of a run that ended: a decoder that answered nothing has failed."""
    answered_nothing = status.verdict == INCOMPLETE and status.complete
    if status.verdict != VALID and not answered_nothing:
        return EXIT_CODES[str(status.verdict)]
    return Exit.FAILED if status.num_errors else Exit.DONE


def _name(resolved: ResolvedRun) -> str:
    if resolved.config.run_name:
        return resolved.config.run_name
    cells = [cell for cell in resolved.decoders if cell != BASELINE] or [BASELINE]
    cells = [re.sub("[/:]", "_", cell)[-_MAX_NAME:] for cell in cells]
    while len(name := "+".join(cells)) > _MAX_NAME:
        cells.pop()
    return name
