"""`bench ab`: measure two checkouts together, so that only their code can make a difference.

One process a side, one of them working at a time. Both sides answer a prompt with a decoder right
after each other, in seeded-random order, so that drift of the machine hits both alike; every second
repeat begins with a fresh pair of processes, as the layout of one process in memory may make it a
little faster throughout. The base plans; head answers the very same token ids. The result is two
run folders, ``base`` and ``head``, for `bench compare`.
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

from bench.ab.checkout import Process, check_setup, checkout
from bench.ab.request import check_asked
from bench.errors import UnavailableError
from bench.progress import Progress
from bench.records.environment import ENV, environment_of
from bench.records.files import SampleWriter, write_json, write_text
from bench.records.json_file import parse
from bench.records.plan import MANIFEST, Cell, Plan, write_plan
from bench.records.prompts import PROMPTS
from bench.records.record import SampleRecord
from bench.records.run_folder import CONFIG, create_run_dir, load_run
from bench.records.status import COMPLETE, Difference, RunStatus, write_status
from bench.records.vocabulary import VOCABULARY
from bench.stats.validity import INCOMPLETE, judge

_SIDES = ("base", "head")
QUALITY_LIMIT = 8
"""Prompts per family scored on each side where nothing else is asked for."""
REPEATS = 6
"""Repeats where nothing else is asked for."""
_REPEATS_A_PROCESS = 2
"""Repeats until both sides start anew; opening a process takes as long as a repeat."""
Lines = list[dict[str, Any]]


@dataclass
class _AbSide:
    """One side: its process of the present repeat, its folder, and the facts of its first one."""

    name: str
    folder: Path
    process: Process
    opened: dict[str, Any]

    @property
    def cells(self) -> list[str]:
        return [cell["cell"] for cell in self.opened["cells"]]


def run_ab(
    base: str,
    head: str,
    config: Mapping[str, Any],
    parent: Path,
    progress: Progress,
) -> tuple[Path, Path]:
    """Measure two checkouts, each a folder or a git revision; return the folders of base and head.

    `config` holds the set values of `RunConfig` (`bench.ab.request`), which each side resolves for
    itself.

    Raises:
        BenchError: a revision is none (exit 2), the sides differ in more than their code (5), or a
            side reports an error. What was measured until then is kept.
    """
    now = datetime.now(UTC)
    token = sha256(f"{now.isoformat()} {base} {head} {config}".encode()).hexdigest()[:12]
    with ExitStack() as stack:
        trees = [stack.enter_context(checkout(revision)) for revision in (base, head)]
        pair = create_run_dir(parent, f"{now:%Y%m%d-%H%M%S}-ab-{token[:4]}")
        progress.note(f"writing to {pair}")
        folders = [pair / name for name in _SIDES]
        for folder in folders:
            folder.mkdir()
        revisions = [None if Path(given).is_dir() else given for given in (base, head)]
        by_folder = dict(zip(folders, revisions, strict=True))
        _AbRun(trees, by_folder, config, token, progress).run()
    return folders[0], folders[1]


@dataclass
class _AbRun:
    """The course of one `bench ab`; `revisions` are those checked out, by folder."""

    trees: Sequence[Path]
    revisions: Mapping[Path, str | None]
    config: Mapping[str, Any]
    token: str
    progress: Progress
    plan: Plan = field(init=False)
    order: random.Random = field(default_factory=random.Random)
    lines: dict[str, Lines] = field(default_factory=lambda: {name: [] for name in _SIDES})
    began: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def run(self) -> None:
        """Measure everything; an interrupted run keeps its whole blocks, and says so."""
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
                self._warm_up(arms)
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
                process = stack.enter_context(Process(name, tree))
                arms.append(_AbSide(name, folder, process, process.open(self.config)))
            check_setup(*(environment_of(arm.opened["env"], arm.name) for arm in arms))
            yield arms

    def _write_plan(self, arms: Sequence[_AbSide]) -> None:
        """Write into both folders everything but measurements."""
        check_asked(arms[0].opened["config"], arms[1].opened["config"], self.progress.note)
        planned = arms[0].process.ask("plan", name="ab")
        self.plan = parse(Plan, planned["manifest"], arms[0].name)
        self.order = random.Random(self.plan.order_seed)
        for arm in arms:
            mine = replace(
                self.plan,
                cells=parse(tuple[Cell, ...], arm.opened["cells"], arm.name),
                identity=arm.opened["identity"],
                blocks=tuple(replace(b, order=tuple(arm.cells)) for b in self.plan.blocks),
            )
            write_text(arm.folder / PROMPTS, "".join(f"{line}\n" for line in planned["prompts"]))
            write_text(arm.folder / CONFIG, arm.opened["config"])
            write_json(arm.folder / ENV, arm.opened["env"])
            write_plan(arm.folder, mine)
            write_status(arm.folder, self._status(arm.folder, "started"))

    def _warm_up(self, arms: Sequence[_AbSide]) -> None:
        names = list(dict.fromkeys(n for block in self.plan.blocks for n in block.prompts))
        for arm in arms:
            arm.process.ask("warm_up", folder=str(arm.folder.resolve()), names=names)

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
                    asked = {key: getattr(block, key) for key in ("block", "repeat", "prompts")}
                    lines = arm.process.ask("measure", cell=cell, **asked)["lines"]
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
        """Append the lines of a side, with one load event a block: that of its busiest turn."""
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
                num_records=len(run.records),
            )
            write_status(arm.folder, judge(replace(run, status=status)))

    def _status(self, folder: Path, how: str, **facts: Any) -> RunStatus:
        return RunStatus(
            status=how,
            started_utc=self.began,
            attempts=1,
            ab=self.token,
            revision=self.revisions[folder],
            **facts,
        )
