"""Make one attempt at a planned run: open files, find the rest to measure, keep the status.

`bench.runs` calls the passes of the attempt. An extra has a subclass whose workers do the passes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.errors import BenchError, room_for
from bench.machine.clock import utc_now
from bench.machine.usage import LoadWatch
from bench.measure.phases import chosen_blocks, measure_phases
from bench.measure.quality import ADVICE, score_quality
from bench.measure.timing import Runner
from bench.plan.code import resume_command
from bench.plan.make import quality_batch_size
from bench.plan.setup import Setup
from bench.progress import Progress
from bench.records.plan import COMPLETE, Block, Plan, RunStatus, write_status
from bench.records.prompts import Prompt
from bench.records.run_folder import load_records
from bench.records.samples import SAMPLES, PhasedAnswer, SampleWriter, read_phases, write_phases
from bench.stats.validity import INCOMPLETE


@dataclass
class Attempt:
    """Measure the blocks that earlier attempts left, and repeat blocks without a last line."""

    run_dir: Path
    setup: Setup
    plan: Plan
    prompts: Mapping[str, Prompt]
    progress: Progress
    started_utc: str | None = None
    number: int = 0
    status: RunStatus = field(init=False)

    @contextmanager
    def track_status(self) -> Iterator[None]:
        """Write the status ``started``, and ``error`` if anything fails inside."""
        started_utc = self.started_utc or utc_now()
        self.status = RunStatus(status="started", started_utc=started_utc, attempts=self.number + 1)
        write_status(self.run_dir, self.status)
        try:
            yield
        except BaseException:  # on a full disk the status may fail, too: raise the first error
            with suppress(BenchError):
                self.end(replace(self.status, status="error", verdict=INCOMPLETE))
            command = resume_command(self.run_dir, self.setup.config)
            self.progress.note(f"all measurements are kept. Continue: {command}")
            raise
        finally:
            self.progress.close()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Catch a Ctrl-C inside, so that the answers are judged."""
        end = COMPLETE
        try:
            yield
        except KeyboardInterrupt:
            end = "interrupted"
        self.status = replace(self.status, status=end)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Open the file of answers, find the rest to measure, write events."""
        with SampleWriter(self.run_dir) as self.writer:
            if num := self.writer.num_cut:
                self.progress.note(f"{num} damaged bytes at the end of {SAMPLES} were cut off")
            self.records = load_records(self.run_dir)
            remembers = any(cell.remembers for cell in self.plan.cells)
            self.setup.past.load(self.records if remembers else (), self.prompts)
            finished = {record.block for record in self.records if record.kind == "timing"}
            self.left = [block for block in self.plan.blocks if block.block not in finished]
            for block in self.left if self.number else ():
                self.writer.event("supersede", block=block.block, before_attempt=self.number)
            for cell, graphs, seconds in self.setup.compiled:
                self.writer.event("compiled", cell=cell, graphs=graphs, seconds=seconds)
            self._phased = list(read_phases(self.run_dir))
            have = {(answer.prompts, answer.repeat) for answer in self._phased}
            blocks = chosen_blocks(self.plan, self.setup.config.phase_limit)
            self.unphased = {b.block for b in blocks if (b.prompts, b.repeat) not in have}
            yield

    def warm_up(self) -> None:
        """Reserve caches for the blocks, then run every cell, unmeasured."""
        watch = LoadWatch(self.setup.device)
        where = self.setup, self.prompts, self.writer, self.progress
        self._runner = Runner(*where, attempt=self.number, lap=watch.lap, after=self._split)
        self._runner.prepare(self.left)

    def time_blocks(self) -> None:
        """Time the blocks, and split the time of a chosen block by phase directly afterwards."""
        self._runner.run(self.left, num_done=self.num_done)

    def _split(self, block: Block, failed: Collection[str]) -> None:
        """Split the time of a chosen block by phase, for the cells that did not fail."""
        if block.block in self.unphased:
            self.keep_phases(block, measure_phases(self.setup, self.prompts, block, failed))

    def keep_phases(self, block: Block, answers: Iterable[PhasedAnswer]) -> None:
        """Write the answers to a block by phase, measured here or by a worker."""
        self.unphased.remove(block.block)
        self._phased += answers
        write_phases(self.run_dir, self._phased)

    def score_quality(self) -> None:
        """Answer the held-out prompts, untimed, and score the answers."""
        prompts = [self.prompts[planned.prompt] for planned in self.plan.in_pass("quality")]
        where = self.setup, prompts, self.writer, self.progress
        size = quality_batch_size(self.setup)
        with room_for(f"the quality pass, {size} answers at a time,", ADVICE):
            score_quality(*where, attempt=self.number, done=self.scored)

    def end(self, status: RunStatus) -> None:
        """Write a status with its end, never before the start even if the clock was set back."""
        self.status = replace(status, finished_utc=max(utc_now(), status.started_utc or ""))
        write_status(self.run_dir, self.status)

    @property
    def num_done(self) -> int:
        """Return the number of timed answers that exist."""
        return self.plan.num_answers - sum(block.num_answers for block in self.left)

    @property
    def scored(self) -> set[tuple[str, str]]:
        """Return the (cell, prompt) pairs whose answers are scored."""
        return {(r.decoder, r.prompt) for r in self.records if r.kind == "quality"}
