"""A run from its configuration to its report, and the resumption of one that stopped half-way.

Whatever happens after the plan is written (Ctrl-C, a full disk, a kill), everything measured stays,
and `resume` completes the rest: blocks without their last line are measured again as a whole,
finished ones never.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from bench.errors import BenchError, Exit, InvalidRunError, UsageError, room_for
from bench.machine import env as environment
from bench.machine.gpu import gpu_handle
from bench.machine.load import LoadWatch
from bench.measure.phases import SecondPass
from bench.measure.quality import ADVICE, score_quality
from bench.measure.timing import Runner
from bench.plan.compiling import make_graphs, open_compiled
from bench.plan.identity import check_identity
from bench.plan.make import batch_size, make_plan, parse_part, part_of
from bench.plan.precision import computed_in
from bench.plan.select import build_decoder, choose_decoders
from bench.plan.setup import Setup, open_setup
from bench.progress import Progress
from bench.records.environment import Environment, Process, read_environment, write_environment
from bench.records.failures import ERRORS, ErrorLog
from bench.records.files import SAMPLES, SampleWriter, only_writer, remove_scratch, write_text
from bench.records.plan import MANIFEST, WRONG, Plan, write_plan
from bench.records.prompts import Prompt, read_prompts, write_prompts
from bench.records.run_folder import (
    CONFIG,
    Run,
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
Planned = tuple[Setup, Plan, dict[str, Prompt]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run's folder, and the exit code that its end calls for."""

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
    """Measure and report `config` in a new folder under `parent`, or its `part` (``I/N``) alone.

    Raises:
        BenchError: anything that stops it before the plan is written (the folder is then removed
            again), and a disk that cannot be written to.
    """
    if part is not None:
        parse_part(part)
    config = choose_decoders(config, progress.note)
    team = Team(spread, opener, config.threads)
    config = team.shared_out(config)
    began = _utc()
    opening = RunStatus(status="opening", started_utc=began).to_json()
    begun = {CONFIG: config.to_toml(), STATUS: json.dumps(opening) + "\n"}
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{_name(config)}-{config.hash}"
    run_dir = create_run_dir(parent, stem, begun)
    session = _Session(run_dir=run_dir, progress=progress, team=team, reporter=reporter)
    with only_writer(run_dir):
        try:
            planned = session.plan(config, part)
        except BaseException:
            _remove(run_dir)
            raise
        return session.measure(*planned, began=began)


def resume(
    run_dir: Path,
    progress: Progress,
    opener: Opener = open_setup,
    reporter: Reporter = report_of,
    spread: WorkerConfig = ALONE,
) -> RunResult:
    """Complete a run that stopped, with this `spread`; leave one that is complete as it is.

    One that was killed before it was planned is planned now, one that was killed while its report
    was written has it written.

    Raises:
        UsageError: there is no run, or one that cannot be resumed.
        InvalidRunError: it is damaged.
        UnavailableError: another process writes to it, or code, models, machine or prompts are no
            longer those it began with.
    """
    with only_writer(run_dir):
        remove_scratch(run_dir)
        if (run_dir / STATUS).is_file() and not (run_dir / MANIFEST).is_file():
            refuse_reference(run_dir)
            progress.note(f"{run_dir} was stopped before anything was planned: it begins now")
            config = _stored_config(run_dir)
            team = Team(spread, opener, config.threads)
            session = _Session(run_dir=run_dir, progress=progress, team=team, reporter=reporter)
            return session.measure(*session.plan(team.shared_out(config)))
        stopped = load_run(run_dir)
        if ended := _ended(stopped, progress, reporter):
            return ended
        prompts = read_prompts(run_dir)
        config = _stored_config(run_dir)
        team = Team(spread, opener, config.threads)
        setup = opener(config)
        check_identity(setup, stopped.plan, prompts, stopped.env, _environment(setup))
        attempts = [stopped.status.attempts or 0, *(r.attempt + 1 for r in stopped.records)]
        began = stopped.status.started_utc
        session = _Session(run_dir=run_dir, progress=progress, team=team, reporter=reporter)
        return session.measure(setup, stopped.plan, prompts, attempt=max(attempts), began=began)


def _ended(stopped: Run, progress: Progress, reporter: Reporter) -> RunResult | None:
    """Return the result of a run with nothing to resume; refuse one that cannot be."""
    run_dir, validity = stopped.path, judge(stopped)
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
    return None


def _stored_config(run_dir: Path) -> RunConfig:
    """Read config.toml; a run folder holds data, so code of a decoder in it is not run (exit 2)."""
    config = load_config(run_dir / CONFIG, {})
    for cell, options in (config.decoders or {}).items():
        path, is_file, _ = spec_of(cell, options).name.rpartition(":")
        for file in [path] if is_file else build_decoder(cell, options).sources:
            if Path(file).resolve().is_relative_to(run_dir.resolve()):
                line = f"{run_dir} names code inside of itself ({file}), which is not run"
                raise UsageError(line)
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """A command that writes to a run folder, its team, its display and its reporter."""

    run_dir: Path
    progress: Progress
    team: Team
    reporter: Reporter

    def plan(self, config: RunConfig, part: str | None = None) -> Planned:
        """Open the models and write the plan: the manifest last, with which the run is planned."""
        ready = partial(make_graphs, progress=self.progress)
        setup = open_compiled(config, self.team.opener, ready, self.progress.note)
        self.progress.note(computed_in(config, setup.config))
        plan, prompts = make_plan(setup, _name(config), self.progress)
        if part is not None:
            plan = part_of(plan, part)
        write_prompts(self.run_dir, list(prompts.values()))
        write_text(self.run_dir / CONFIG, setup.config.to_toml())
        write_environment(self.run_dir, _environment(setup))
        write_plan(self.run_dir, plan)
        point_latest(self.run_dir)
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
        """Measure what is missing, judge and report all that is there, also after Ctrl-C."""
        status = RunStatus(status="started", started_utc=began or _utc(), attempts=attempt + 1)
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
        except BaseException:  # a full disk may refuse the status too: the first error is raised
            with contextlib.suppress(BenchError):
                ended = replace(status, status="error", verdict=INCOMPLETE, finished_utc=_utc())
                write_status(self.run_dir, ended)
            self.progress.note(f"what was measured is kept. Go on: bench resume {self.run_dir}")
            raise
        finally:
            self.progress.close()
        measured = bool(status.num_records)
        return _report(self.run_dir, status, measured, self.progress, self.reporter)

    def _fill(
        self,
        setup: Setup,
        plan: Plan,
        prompts: Mapping[str, Prompt],
        writer: SampleWriter,
        attempt: int,
    ) -> None:
        """Measure unfinished blocks as a whole, then unanswered quality prompts."""
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
        errors, second = ErrorLog(self.run_dir), SecondPass(setup, plan, prompts, self.run_dir)
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
                errors=errors,
                second=second,
                progress=self.progress,
            )
            passes.fill(self.team.executor, self.team.spread.workers)
            return
        watch = LoadWatch(gpu_handle(str(setup.models.target.device)))
        runner = Runner(
            setup,
            prompts,
            writer,
            self.progress,
            attempt=attempt,
            lap=watch.lap,
            errors=errors,
            after=second.after,
        )
        num_left = sum(len(block.prompts) * len(block.order) for block in left)
        runner.run(left, num_done=plan.num_answers - num_left)
        second.complete(self.progress)
        asked = [prompts[planned.prompt] for planned in plan.in_pass("quality")]
        done = {(record.decoder, record.prompt) for record in records if record.kind == "quality"}
        score = partial(score_quality, attempt=attempt, done=done, errors=errors)
        with room_for(f"the quality pass, {batch_size(setup)} answers at a time,", ADVICE):
            score(setup, asked, writer, self.progress)

    def _judged(self, setup: Setup, prompts: Mapping[str, Prompt], status: RunStatus) -> RunStatus:
        measured = load_run(self.run_dir)
        asked = list(prompts.values())
        write_vocabulary(self.run_dir, setup.tokenizer, measured.records, asked)
        peak = Process(peak_rss_bytes=environment.peak_rss_bytes())
        write_environment(self.run_dir, replace(measured.env, process=peak))
        unequal = tuple(differences(setup, measured.records, prompts))
        status = replace(status, differences=unequal, num_records=len(measured.records))
        validity = judge(replace(measured, status=status))
        status = replace(status, **asdict(validity), finished_utc=_utc(), reported=False)
        write_status(self.run_dir, status)
        return status


def _report(
    run_dir: Path, status: RunStatus, measured: bool, progress: Progress, reporter: Reporter
) -> RunResult:
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


def _name(config: RunConfig) -> str:
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
    for file in run_dir.iterdir():
        file.unlink(missing_ok=True)
    run_dir.rmdir()
