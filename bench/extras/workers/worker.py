"""Run a worker, which opens the models once and then measures the jobs that it receives.

A worker is like the process of `bench run`, but without a run folder. Torch is imported only with
the models, so that a worker first reports its machine.
"""

from __future__ import annotations

import gc
import hashlib
import os
import platform
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.errors import BenchError, UnavailableError, room_for
from bench.extras.workers.crew import Answer, Done, Hello, Job, Opening, Request, TimeBlock
from bench.machine.env import ROOT
from bench.progress import Progress
from bench.records.record import SampleRecord
from bench.records.samples import PhasedAnswer, Sink
from bench.settings.config import load_config

if TYPE_CHECKING:
    from bench.plan.setup import Setup
    from bench.records.plan import Block
    from bench.records.prompts import Prompt

_VISIBLE = "CUDA_VISIBLE_DEVICES"


class LineCollector(Sink):
    """Collect lines and tracebacks for a `SampleWriter`, labelled with `worker` and `node`."""

    def __init__(self, worker: str | None = None, node: str | None = None) -> None:
        """Start empty."""
        self._worker, self._node = worker, node
        self._event = {} if worker is None else {"worker": worker}
        self.lines: list[str] = []
        self._traces: list[tuple[str, str]] = []

    def record(self, record: SampleRecord, outcome: object = None) -> None:
        """Keep one record, and the traceback if its `outcome` is an error."""
        super().record(replace(record, worker=self._worker, node=self._node), outcome)

    def event(self, event: str, **fields: object) -> None:
        """Keep one event."""
        super().event(event, **fields, **self._event)

    def trace(self, name: str, trace: str) -> None:
        """Keep one traceback."""
        self._traces.append((name, trace))

    def _append(self, line: str) -> None:
        self.lines.append(line)

    def take(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Return the collected lines and named tracebacks, and forget both."""
        kept = tuple(self.lines), tuple(self._traces)
        self.lines.clear()
        self._traces.clear()
        return kept


class Worker:
    """Answer requests in a process. The first two requests are None and an `Opening`."""

    def answer(self, request: Request) -> Answer:
        """Answer a request, with the error if one occurs."""
        try:
            if request is None:
                return Hello(node=node(), pid=os.getpid(), cores=cores())
            phases: Sequence[PhasedAnswer] = ()
            if isinstance(request, Opening):
                self._open(request)
            else:
                self._watch.ignore(request.peers)
                phases = self.work(request.job)
            lines, errors = self._lines.take()
            return Done(lines, errors, tuple(phases))
        except BenchError as error:
            return error
        except Exception as error:  # the run reports which worker failed, and why
            return BenchError(f"{type(error).__name__}: {error}")

    def _open(self, opening: Opening) -> None:
        """Load the models on the cores or the GPU of this worker, and warm up."""
        whole = cores()
        if opening.cores:
            os.sched_setaffinity(0, opening.cores)
        if opening.gpu is not None:  # CUDA, which starts later, reads this variable
            os.environ[_VISIBLE] = nth_gpu(opening.gpu, os.environ.get(_VISIBLE))
        from bench.plan.select import stored_decoders

        setup = opening.opener(stored_decoders(load_config(None, tomllib.loads(opening.config))))
        _refuse_other(setup, opening, len(whole))
        lines = LineCollector(worker=opening.worker, node=node())
        self.begin(setup, opening.prompts, opening.blocks, lines, opening.attempt)
        where = {"cores": list(opening.cores or whole), "gpu": opening.gpu}
        lines.event("worker", node=node(), **where, attempt=opening.attempt)

    def begin(
        self,
        setup: Setup,
        prompts: Mapping[str, Prompt],
        blocks: Sequence[Block],
        lines: LineCollector,
        attempt: int = 0,
    ) -> None:
        """Prepare to measure: reserve caches and warm up.

        Args:
            setup: the open models and arms.
            prompts: all prompts of the run, by name.
            blocks: the blocks to come, whose prompts decide the caches; none: nothing is timed.
            lines: takes the records and events.
            attempt: number of the run's attempt, 0 for the first.
        """
        from bench.machine.usage import LoadWatch
        from bench.measure.timing import Runner, frozen_garbage

        self._setup, self._prompts, self._lines, self._attempt = setup, prompts, lines, attempt
        self._failed: set[str] = set()
        self._watch = LoadWatch(setup.device)
        self._runner = Runner(
            setup,
            prompts,
            lines,
            Progress(),
            attempt=attempt,
            lap=self._watch.lap,
            after=lambda _, failed: self._failed.update(failed),
        )
        if blocks:
            self._runner.prepare(blocks)
        self._frozen = frozen_garbage()
        self._frozen.__enter__()

    def work(self, job: Job) -> Sequence[PhasedAnswer]:
        """Do a job, and return the answers by phase if the job requests them."""
        from bench.measure.phases import measure_phases
        from bench.measure.quality import ADVICE, score_quality
        from bench.plan.make import quality_batch_size

        setup, prompts = self._setup, self._prompts
        gc.collect()
        if isinstance(job, TimeBlock):
            self._failed.clear()
            self._runner.measure(job.block)
            return measure_phases(setup, prompts, job.block, self._failed) if job.phased else ()
        with room_for(f"the quality pass, {quality_batch_size(setup)} answers at a time,", ADVICE):
            where = setup, [prompts[name] for name in job.prompts], self._lines, Progress()
            score_quality(*where, attempt=self._attempt, done=job.done)
        return ()


def _refuse_other(setup: Setup, opening: Opening, num_cores: int) -> None:
    """Raise `BenchError` (exit 5) if code, models or machine are not the run's.

    The machine is compared with all its cores, because pinning a worker to a few changes nothing.
    """
    from bench.machine.env import comparability_key
    from bench.plan.identity import setup_identity

    now = setup_identity(setup)
    for name, then in opening.identity.items():
        if now.get(name) != then:
            line = f"the {name} on node {node()} differs from this run's"
            raise UnavailableError(f"{line}; use the same checkout and models on all nodes")
    env = setup.environment()
    env = replace(env, machine=replace(env.machine, affinity=num_cores))
    if opening.key is not None and comparability_key(env) != opening.key:
        line = f"node {node()} differs from the machine that planned the run"
        advice = "measure a part there (`bench run --part I/N`) and join the parts: `bench merge`"
        raise UnavailableError(f"{line}; {advice}")


def node() -> str:
    """Return eight hexadecimal digits that identify this machine without revealing its name."""
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def cores() -> tuple[int, ...]:
    """Return the cores that this process may use, or none if the system does not report them."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def python_path() -> str:
    """Return the PYTHONPATH by which workers find this code in the shared checkout."""
    return os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH")) if p)


def nth_gpu(number: int, visible: str | None) -> str:
    """Return the name of a GPU by its number among those that CUDA shows (None: all)."""
    names = (visible or str(number)).split(",")
    return names[number % len(names)]  # Ray or Slurm may show a process one GPU alone
