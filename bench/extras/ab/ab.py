"""`bench ab`: measures two commits together, so that only their code can make a difference.

Each side has one process, and only one process works at a time. Both sides answer a prompt with a
decoder right after each other, in seeded random order, so that drift of the machine affects both
alike. Every second repeat starts a fresh pair of processes, because the memory layout of a process
may make it slightly faster throughout. Base plans; head answers exactly the same token ids. The
result is two run folders, ``base`` and ``head``, for `bench compare`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.errors import UnavailableError
from bench.extras.ab.checkout import SideProcess, Tree, check_setup, checkout
from bench.extras.ab.request import check_defaults, side_request
from bench.machine.env import ROOT
from bench.progress import Progress
from bench.records.environment import ENV, parse_environment
from bench.records.files import parse, write_json, write_text
from bench.records.plan import (
    COMPLETE,
    MANIFEST,
    Cell,
    Difference,
    Floor,
    Plan,
    RunStatus,
    write_plan,
    write_status,
)
from bench.records.prompts import PROMPTS, VOCABULARY
from bench.records.record import SampleRecord
from bench.records.run_folder import CONFIG, create_run_dir, load_run
from bench.records.samples import SampleWriter
from bench.stats.validity import INCOMPLETE, judge

_SIDES = ("base", "head")
QUALITY_LIMIT = 8
"""Default number of prompts per family that are scored on each side."""
REPEATS = 6
"""Default number of repeats."""
_REPEATS_A_PROCESS = 2
"""Repeats per pair of processes; opening a process takes as long as a repeat."""
Lines = list[dict[str, Any]]


@dataclass
class _AbSide:
    """One side: its run folder, its current process, and the process's `report` of its setup."""

    name: str
    folder: Path
    process: SideProcess
    report: dict[str, Any]

    @property
    def cells(self) -> list[str]:
        return [cell["cell"] for cell in self.report["cells"]]


def run_ab(
    base: str,
    head: str,
    config: Mapping[str, Any],
    parent: Path,
    progress: Progress,
    repository: Path = ROOT,
) -> tuple[Path, Path]:
    """Measure two sides interleaved, and return the run folders of base and head.

    Args:
        base: A folder, or a git revision of `repository`.
        head: Likewise.
        config: The values of `RunConfig` that were set (`bench.extras.ab.request`). Each side
            resolves the other values by itself.
        parent: Where the folder of the two run folders is made.
        progress: Reports the course.
        repository: The root of a clone.

    Raises:
        BenchError: a revision does not exist (exit 2), the sides differ in more than their code
            (5), or a side reports an error. Measurements made until then are kept.
    """
    now = datetime.now(UTC)
    token = sha256(f"{now.isoformat()} {base} {head} {config}".encode()).hexdigest()[:12]
    with ExitStack() as stack:
        trees = [stack.enter_context(checkout(side, repository)) for side in (base, head)]
        pair = create_run_dir(parent, f"{now:%Y%m%d-%H%M%S}-ab-{token[:4]}")
        progress.note(f"writing to {pair}")
        folders = [pair / name for name in _SIDES]
        for folder in folders:
            folder.mkdir()
        revisions = [None if Path(side).is_dir() else side for side in (base, head)]
        by_folder = dict(zip(folders, revisions, strict=True))
        _AbRun(trees, by_folder, config, token, progress).run()
    return folders[0], folders[1]


@dataclass
class _AbRun:
    """The course of one `bench ab`, with each run folder's git revision, if any."""

    trees: Sequence[Tree]
    revisions: Mapping[Path, str | None]
    config: Mapping[str, Any]
    token: str
    progress: Progress
    plan: Plan = field(init=False)
    order: random.Random = field(default_factory=random.Random)
    lines: dict[str, Lines] = field(default_factory=lambda: {name: [] for name in _SIDES})
    started_utc: str = field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds")
    )

    def run(self) -> None:
        """Measure everything, and store how the run ended if it stopped early."""
        how = "error"
        try:
            self._run()
            how = "complete"
        except KeyboardInterrupt:
            how = "interrupted"
            raise
        finally:
            self.progress.close()
            for folder in self.revisions if how != "complete" else ():
                if (folder / MANIFEST).is_file():
                    write_status(folder, self._status(folder, how, verdict=INCOMPLETE))

    def _run(self) -> None:
        done = 0
        while not done or done < self.num_repeats:
            with self._arms() as arms:
                if not done:
                    self._write_plan(arms)
                names = list(dict.fromkeys(n for block in self.plan.blocks for n in block.prompts))
                for arm in arms:
                    arm.process.ask("warm_up", folder=str(arm.folder.resolve()), names=names)
                for repeat in range(done, min(done + _REPEATS_A_PROCESS, self.num_repeats)):
                    self._repeat(arms, repeat)
                    done = repeat + 1
                if done == self.num_repeats:
                    self._quality(arms)
                    self._finish(arms)

    @property
    def num_repeats(self) -> int:
        return 1 + max(block.repeat for block in self.plan.blocks)

    @contextmanager
    def _arms(self) -> Iterator[list[_AbSide]]:
        """Open a fresh pair of processes."""
        with ExitStack() as stack:
            arms = []
            for name, tree, folder in zip(_SIDES, self.trees, self.revisions, strict=True):
                process = stack.enter_context(SideProcess(name, tree))
                request = side_request(self.config, tree, self.trees)
                arms.append(_AbSide(name, folder, process, process.open(request)))
            check_setup(*(parse_environment(arm.report["env"], arm.name) for arm in arms))
            yield arms

    def _write_plan(self, arms: Sequence[_AbSide]) -> None:
        """Write everything except the measurements into both folders."""
        check_defaults(arms[0].report["config"], arms[1].report["config"], self.progress.note)
        planned = arms[0].process.ask("plan", name="ab")
        self.plan = parse(Plan, planned["manifest"], arms[0].name)
        self.order = random.Random(self.plan.order_seed)
        for arm in arms:
            plan = replace(
                self.plan,
                cells=parse(tuple[Cell, ...], arm.report["cells"], arm.name),
                identity=arm.report["identity"],
                blocks=tuple(replace(b, order=tuple(arm.cells)) for b in self.plan.blocks),
            )
            write_text(arm.folder / PROMPTS, "".join(f"{line}\n" for line in planned["prompts"]))
            write_text(arm.folder / CONFIG, arm.report["config"])
            write_json(arm.folder / ENV, arm.report["env"])
            write_plan(arm.folder, plan)
            write_status(arm.folder, self._status(arm.folder, "started"))

    def _repeat(self, arms: Sequence[_AbSide], repeat: int) -> None:
        blocks = [block for block in self.plan.blocks if block.repeat == repeat]
        cells = list(dict.fromkeys(cell for arm in arms for cell in arm.cells))
        turns = sum(len(arm.cells) for arm in arms)
        self.progress.start(f"repeat {repeat + 1} of {self.num_repeats}", len(blocks) * turns)
        for block in blocks:
            order = 0
            measured: dict[str, Lines] = {arm.name: [] for arm in arms}
            for cell in self.order.sample(cells, len(cells)):
                for arm in self.order.sample(list(arms), len(arms)):
                    if cell not in arm.cells:
                        continue
                    place = {key: getattr(block, key) for key in ("block", "repeat", "prompts")}
                    lines = arm.process.ask("measure", cell=cell, **place)["lines"]
                    measured[arm.name] += [
                        line if "event" in line else {**line, "order": order} for line in lines
                    ]
                    order += 1
                    self.progress.step(f"{cell} {arm.name}")
            for arm in arms:
                self._write(arm, measured[arm.name])

    def _quality(self, arms: Sequence[_AbSide]) -> None:
        names = [planned.prompt for planned in self.plan.in_pass("quality")]
        for arm in arms if names else ():
            self.progress.start(f"quality of {arm.name}", 1)
            self._write(arm, arm.process.ask("quality", names=names)["lines"])
            self.progress.step()

    def _write(self, arm: _AbSide, lines: Lines) -> None:
        """Append the lines of a side, but only one load event: that of the busiest turn."""
        records = [line for line in lines if "event" not in line]
        loads = [line for line in lines if line.get("event") == "load"]
        with SampleWriter(arm.folder) as writer:
            for line in records:
                try:
                    writer.record(SampleRecord.from_dict(line))
                except (ValueError, TypeError) as error:
                    line_ = f"{arm.name} writes other records than this version reads: {error}"
                    raise UnavailableError(line_) from error
            if loads:
                busiest = max(loads, key=lambda load: load["other_cores"] or 0.0)
                writer.event(busiest.pop("event"), **busiest)
        self.lines[arm.name] += records

    def _finish(self, arms: Sequence[_AbSide]) -> None:
        for arm in arms:
            answer = arm.process.ask("finish", lines=self.lines[arm.name])
            write_json(arm.folder / VOCABULARY, answer["pieces"], indent=0)
            run = load_run(arm.folder)
            status = self._status(
                arm.folder,
                COMPLETE,
                differences=parse(tuple[Difference, ...], answer["differences"], arm.name),
                floor=answer["floor"] and parse(Floor, answer["floor"], arm.name),
                num_records=len(run.records),
            )
            write_status(arm.folder, judge(replace(run, status=status)))

    def _status(self, folder: Path, how: str, **facts: Any) -> RunStatus:
        return RunStatus(
            status=how,
            started_utc=self.started_utc,
            attempts=1,
            ab=self.token,
            revision=self.revisions[folder],
            **facts,
        )
