"""Carries out a run from its configuration to its report, and resumes a run that stopped half-way.

Once the plan is written, everything measured is kept, whatever happens (Ctrl-C, a full disk, a
kill), and `resume` completes the rest. It measures a block whose last line is missing again as a
whole, and never repeats a finished block.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench.errors import BenchError, Exit, InvalidRunError, UsageError, room_for
from bench.machine import env as environment
from bench.machine.clock import Calendar
from bench.machine.load import LoadWatch
from bench.measure.phases import SecondPass
from bench.measure.quality import ADVICE, score_quality
from bench.measure.timing import Runner
from bench.plan.checks import check_first
from bench.plan.compiling import open_with_graphs
from bench.plan.devices import computed_in
from bench.plan.identity import check_identity
from bench.plan.make import make_plan, parse_part, part_of, quality_batch_size
from bench.plan.select import ResolvedRun, stored_decoders
from bench.plan.setup import Opener, Setup, open_setup
from bench.plan.trust import check_code
from bench.progress import Progress
from bench.records.environment import Process, read_environment, write_environment
from bench.records.failures import ERRORS
from bench.records.files import (
    SAMPLES,
    SampleWriter,
    only_writer,
    remove_scratch,
    write_text,
)
from bench.records.plan import BASELINE, MANIFEST, WRONG, Plan, write_plan
from bench.records.prompts import Prompt, read_prompts, write_prompts
from bench.records.run_folder import (
    CONFIG,
    Run,
    create_run_dir,
    load_run,
    outlines,
    planned,
    point_latest,
    refuse_stored,
    refuse_summary,
)
from bench.records.status import COMPLETE, STATUS, RunStatus, write_status
from bench.records.vocabulary import write_vocabulary
from bench.settings.config import RunConfig, load_config
from bench.settings.spread import ALONE, WorkerConfig
from bench.stats.validity import DAMAGED, EXIT_CODES, INCOMPLETE, VALID, from_here, judge
from bench.text import counted
from bench.verify.divergence import differences
from bench.verify.floor import measure_floor
from bench.workers.spread import Passes, Team

Planned = tuple[Setup, Plan, dict[str, Prompt]]
Report = Callable[[Path], None]
"""Writes the report of a run folder."""
_MOST_NAME = 48
"""Most characters of a run's name; cells for which there is no room are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run's folder, and the exit code of the command that measured it."""

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
    """Measure and `report` `config`, or only its `part` (``I/N``), in a new folder under `parent`.

    Raises:
        BenchError: any failure before the plan is written (the new folder is then removed), or a
            disk that cannot be written to.
    """
    if part is not None:
        parse_part(part)
    asked = check_first(config, progress.note, brings_models=opener is not open_setup)
    team = Team(spread, opener, config.threads)
    resolved = team.shared_out(asked)
    config, calendar = resolved.config, Calendar()
    began = calendar.utc()
    opening = RunStatus(status="opening", started_utc=began, split=config.split).to_json()
    begun = {CONFIG: config.to_toml(), STATUS: json.dumps(opening) + "\n"}
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{_name(resolved)}-{config.hash}"
    run_dir = create_run_dir(parent, stem, begun)
    session = _Session(
        run_dir=run_dir, progress=progress, team=team, calendar=calendar, report=report
    )
    with only_writer(run_dir):
        try:
            planned = session.plan(resolved, part)
        except BaseException:
            shutil.rmtree(run_dir)
            raise
        return session.measure(*planned, began=began)


def resume(
    run_dir: Path,
    progress: Progress,
    opener: Opener = open_setup,
    spread: WorkerConfig = ALONE,
    allowed: Sequence[str] = (),
    *,
    report: Report | None = write_report,
) -> RunResult:
    """Complete a run that stopped, with this `spread`; leave a complete run as it is.

    A run that was killed before it was planned is planned now. A run that was killed while its
    report was written gets its report. `allowed` are the paths of decoders' code that may run.

    Raises:
        UsageError: there is no run, or the run cannot be resumed.
        InvalidRunError: the run is damaged.
        UnavailableError: another process writes to the run, or its code, models, machine or
            prompts have changed since it began.
    """
    with only_writer(run_dir):
        remove_scratch(run_dir)
        stopped = None
        refuse_stored(run_dir)
        if (run_dir / STATUS).is_file() and not planned(run_dir):
            refuse_summary(run_dir)
            progress.note(f"{run_dir} was stopped before anything was planned: it begins now")
        elif ended := _ended(stopped := load_run(run_dir), progress, report):
            return ended
        resolved = stored_decoders(trusted_config(run_dir, allowed))
        team = Team(spread, opener, resolved.config.threads)
        session = _Session(run_dir=run_dir, progress=progress, team=team, report=report)
        if stopped is None:
            return session.measure(*session.plan(team.shared_out(resolved)))
        prompts, setup = read_prompts(run_dir), opener(resolved)
        check_identity(setup, stopped.plan, prompts, stopped.env)
        attempts = [stopped.status.attempts or 0, *(r.attempt + 1 for r in stopped.records)]
        began = stopped.status.started_utc
        return session.measure(setup, stopped.plan, prompts, attempt=max(attempts), began=began)


def _ended(stopped: Run, progress: Progress, report: Report | None) -> RunResult | None:
    """Return the result of a run with nothing to resume; refuse a run that cannot be resumed."""
    run_dir, judged = stopped.path, judge(stopped)
    if judged.verdict == DAMAGED:
        progress.note(f"{run_dir} is {DAMAGED}: {from_here(judged.reasons[0], run_dir)}")
    elif stopped.status.complete:
        if stopped.status.reported is False:
            progress.note(f"{run_dir} is complete but for its report, which is written now")
            return _report(run_dir, judged, report if stopped.records else None, progress)
        progress.note(f"{run_dir} is complete: nothing to resume")
        return RunResult(run_dir=run_dir, exit_code=_exit_code(run_dir, judged, progress))
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
    check_code([config], folder, allowed, f"bench resume {shlex.quote(str(folder))}")
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """One `bench run` or `bench resume`: its run folder, its display and its workers."""

    run_dir: Path
    progress: Progress
    team: Team
    report: Report | None
    calendar: Calendar = field(default_factory=Calendar)

    def plan(self, resolved: ResolvedRun, part: str | None = None) -> Planned:
        """Open the models and write the plan; the manifest, written last, marks a planned run."""
        setup = open_with_graphs(resolved, self.team.opener, self.progress)
        self.progress.note(computed_in(resolved.config, setup.config))
        plan, prompts = make_plan(setup, _name(resolved), self.progress)
        if part is not None:
            plan = part_of(plan, part)
        write_prompts(self.run_dir, list(prompts.values()))
        write_text(self.run_dir / CONFIG, setup.config.to_toml())
        write_environment(self.run_dir, setup.environment())
        write_plan(self.run_dir, plan)
        if not point_latest(self.run_dir):
            self.progress.note(f"{self.run_dir.parent / 'latest'} is a folder: it stays as it is")
        self.progress.note(f"writing to {self.run_dir}")
        return setup, plan, prompts

    def measure(
        self,
        setup: Setup,
        plan: Plan,
        prompts: Mapping[str, Prompt],
        attempt: int = 0,
        began: str | None = None,
    ) -> RunResult:
        """Measure what is missing, then judge and report all records, also after Ctrl-C."""
        status = RunStatus(
            status="started",
            started_utc=began or self.calendar.utc(),
            attempts=attempt + 1,
            split=setup.config.split,
        )
        write_status(self.run_dir, status)
        end = "error"
        try:
            try:
                with SampleWriter(self.run_dir) as writer:
                    self._fill(setup, plan, prompts, writer, attempt)
                end = COMPLETE
            except KeyboardInterrupt:
                end = "interrupted"
            status = self._judged(setup, prompts, replace(status, status=end))
        except BaseException:  # on a full disk the status may fail too: raise the first error
            with contextlib.suppress(BenchError):
                ended = replace(status, status="error", verdict=INCOMPLETE)
                write_status(self.run_dir, self._finished(ended))
            self.progress.note(f"what was measured is kept. Go on: bench resume {self.run_dir}")
            raise
        finally:
            self.progress.close()
        report = self.report if status.num_records else None
        return _report(self.run_dir, status, report, self.progress)

    def _fill(
        self,
        setup: Setup,
        plan: Plan,
        prompts: Mapping[str, Prompt],
        writer: SampleWriter,
        attempt: int,
    ) -> None:
        """Measure each unfinished block as a whole, then answer the missing quality prompts."""
        if writer.num_cut:
            line = f"{writer.num_cut} damaged bytes at the end of {SAMPLES} were cut off"
            self.progress.note(line)
            writer.event("cut", num_bytes=writer.num_cut)
        records = outlines(self.run_dir, plan)
        finished = {record.block for record in records if record.kind == "timing"}
        left = [block for block in plan.blocks if block.block not in finished]
        for block in left if attempt else ():
            writer.event("supersede", block=block.block, before_attempt=attempt)
        for cell, graphs, seconds in setup.compiled:
            writer.event("compiled", cell=cell, graphs=graphs, seconds=seconds)
        second = SecondPass(setup, plan, prompts, self.run_dir)
        if self.team.executor is not None:
            passes = Passes(
                setup=setup,
                plan=plan,
                prompts=prompts,
                opener=self.team.opener,
                key=read_environment(self.run_dir).comparability_key,
                attempt=attempt,
                left=left,
                records=records,
                writer=writer,
                second=second,
                progress=self.progress,
            )
            passes.fill(self.team.executor, self.team.spread.workers)
            return
        watch = LoadWatch(setup.device)
        runner = Runner(
            setup,
            prompts,
            writer,
            self.progress,
            attempt=attempt,
            lap=watch.lap,
            after=second.after,
        )
        num_left = sum(block.num_answers for block in left)
        runner.run(left, num_done=plan.num_answers - num_left)
        second.complete(self.progress)
        asked = [prompts[planned.prompt] for planned in plan.in_pass("quality")]
        done = {(record.decoder, record.prompt) for record in records if record.kind == "quality"}
        score = partial(score_quality, attempt=attempt, done=done)
        with room_for(f"the quality pass, {quality_batch_size(setup)} answers at a time,", ADVICE):
            score(setup, asked, writer, self.progress)

    def _judged(self, setup: Setup, prompts: Mapping[str, Prompt], status: RunStatus) -> RunStatus:
        measured = load_run(self.run_dir)
        asked = list(prompts.values())
        write_vocabulary(self.run_dir, setup.tokenizer, measured.records, asked)
        peak = Process(peak_rss_bytes=environment.peak_rss_bytes())
        write_environment(self.run_dir, replace(measured.env, process=peak))
        floor = measure_floor(setup, measured.records, prompts)
        cells = measured.plan.cells
        unequal = tuple(differences(setup, measured.records, prompts, floor, cells))
        num = len(measured.records)
        status = replace(status, differences=unequal, floor=floor, num_records=num)
        judged = judge(replace(measured, status=status))
        status = self._finished(replace(judged, reported=False))
        write_status(self.run_dir, status)
        return status

    def _finished(self, status: RunStatus) -> RunStatus:
        """Add the end: unknown if the clock was set back between two attempts."""
        finished = replace(status, finished_utc=self.calendar.utc())
        return replace(finished, finished_utc=None) if finished.ends_early else finished


def _report(
    run_dir: Path, status: RunStatus, report: Report | None, progress: Progress
) -> RunResult:
    if report is not None:
        try:
            report(run_dir)
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
        progress.note(f"{cells}: claims to be lossless and is not")
    answered_nothing = status.verdict == INCOMPLETE and status.complete
    if status.verdict != VALID and not answered_nothing:
        return EXIT_CODES[str(status.verdict)]
    if status.num_errors:
        where = f"partial results kept, tracebacks in {run_dir / ERRORS}"
        progress.note(f"{counted(status.num_errors, 'answer')} failed; {where}")
        return Exit.FAILED
    return Exit.DONE


def _name(resolved: ResolvedRun) -> str:
    if resolved.config.run_name:
        return resolved.config.run_name
    cells = [cell for cell in resolved.decoders if cell != BASELINE] or [BASELINE]
    cells = [re.sub("[/:]", "_", cell)[-_MOST_NAME:] for cell in cells]
    while len(name := "+".join(cells)) > _MOST_NAME:
        cells.pop()
    return name
