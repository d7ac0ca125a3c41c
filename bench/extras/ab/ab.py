"""Measure two commits together (`bench ab`), so that only their code can make a difference.

Each side has one process, and only one process works at a time. Both sides answer a prompt with a
decoder directly after each other, in seeded random order, so that drift of the machine affects both
alike. Every second repeat starts a fresh pair of processes, because the memory layout may make one
process slightly faster throughout. Base makes the plan, and head answers exactly the same token
ids. The result is two run folders, ``base`` and ``head``, for `bench compare`.

The request to a side holds the values of a configuration that were set, equal for both. Unset
values are left to each side's defaults: an older side knows fewer keys, and a changed default is a
change to judge, unless it makes the sides answer different questions. The path of a decoder's file
in this checkout is relative, so that each side runs its own; any other path is absolute.
"""

from __future__ import annotations

import random
import re
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from bench.errors import UnavailableError, UsageError
from bench.extras.ab.checkout import SideProcess, Tree, check_setup, checkout
from bench.machine.clock import utc_now
from bench.machine.env import ROOT, git_state
from bench.plan.sources import is_shelf, named
from bench.progress import Progress
from bench.records.environment import ENV, parse_environment
from bench.records.files import parse, write_json, write_text
from bench.records.plan import (
    BASELINE,
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
from bench.settings.config import Options, RunConfig
from bench.stats.validity import INCOMPLETE, judge
from decoders.core.hf.checkpoint import is_local
from decoders.core.registry import parse_spec
from decoders.core.types import DecoderSpec
from specbench_tasks.task import EMBEDDED

_SIDES = ("base", "head")
QUALITY_LIMIT = 8
"""Default number of prompts per family that are scored on each side."""
REPEATS = 6
"""Default number of repeats."""
_REPEATS_A_PROCESS = 2
"""Number of repeats per pair of processes. Opening a process takes as long as a repeat."""
Lines = list[dict[str, Any]]

_ANSWERED = (
    *("temperature", "top_p", "top_k", "seed"),
    *("max_new_tokens", "fixed_length", "batch_size"),
)
"""Settings that decide how head answers, regardless of base's plan."""


@dataclass
class _AbSide:
    """Hold one side: its run folder, its current process, and the `report` of that process."""

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
        config: The values of `RunConfig` that were set (`bench.extras.ab.ab`). Each side
            resolves the other values by itself.
        parent: Where the folder of the two run folders is made.
        progress: Reports the course.
        repository: The root of a clone.

    Raises:
        BenchError: a revision does not exist (exit 2), the sides differ in more than their code
            (5), or a side reports an error. Measurements are kept; a folder without a plan is not.
    """
    now = datetime.now(UTC)
    token = sha256(f"{now.isoformat()} {base} {head} {config}".encode()).hexdigest()[:12]
    with ExitStack() as stack:
        trees = [stack.enter_context(checkout(side, repository)) for side in (base, head)]
        pair = create_run_dir(parent, f"{now:%Y%m%d-%H%M%S}-ab-{token[:4]}")
        folders = [pair / name for name in _SIDES]
        for folder in folders:
            folder.mkdir()
        revisions = [None if Path(side).is_dir() else side for side in (base, head)]
        by_folder = dict(zip(folders, revisions, strict=True))
        try:
            _AbRun(trees, by_folder, config, token, progress).run()
        finally:
            if not (folders[1] / MANIFEST).is_file():  # nothing was planned
                shutil.rmtree(pair)
    return folders[0], folders[1]


@dataclass
class _AbRun:
    """Run one `bench ab`, with each run folder's git revision, if any."""

    trees: Sequence[Tree]
    revisions: Mapping[Path, str | None]
    config: Mapping[str, Any]
    token: str
    progress: Progress
    plan: Plan = field(init=False)
    order: random.Random = field(default_factory=random.Random)
    lines: dict[str, Lines] = field(default_factory=lambda: {name: [] for name in _SIDES})
    started_utc: str = field(default_factory=utc_now)

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
        is_elsewhere = self.trees[0].folder != self.trees[0].bench
        named = [self.config.get("law"), *(arm.report["env"].get("repository") for arm in arms)]
        if is_elsewhere and self.trees[0] != self.trees[1] and not any(named):
            line = "no decoder of this repository is measured; give --decoders FILE.py:Class"
            raise UsageError(line)
        check_defaults(arms[0].report["config"], arms[1].report["config"])
        planned = arms[0].process.ask("plan", name="ab")
        self.plan = parse(Plan, planned["manifest"], arms[0].name)
        self.order = random.Random(self.plan.order_seed)
        for arm, tree in zip(arms, self.trees, strict=True):
            plan = replace(
                self.plan,
                cells=parse(tuple[Cell, ...], arm.report["cells"], arm.name),
                identity=arm.report["identity"],
                blocks=tuple(replace(b, order=tuple(arm.cells)) for b in self.plan.blocks),
            )
            write_text(arm.folder / PROMPTS, "".join(f"{line}\n" for line in planned["prompts"]))
            write_text(arm.folder / CONFIG, arm.report["config"])
            # a side without the decoders' files names no repository
            where = {"repository": asdict(git_state(tree.folder, ()))} if is_elsewhere else {}
            write_json(arm.folder / ENV, where | arm.report["env"])
            write_plan(arm.folder, plan)
            write_status(arm.folder, self._status(arm.folder, "started"))
        self.progress.note(f"writing to {arms[0].folder.parent}")

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
        """Append a side's lines, with the load of the busiest turn and any turn's slow-down."""
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
                slowed = next((load for load in loads if load.get("throttled")), busiest)
                writer.event(**busiest | {"throttled": slowed.get("throttled")})
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


def make_request(config: RunConfig, repository: Path) -> dict[str, Any]:
    """Return the values that a configuration sets, in a form that both sides understand.

    Decoders' files in `repository` are relative to its root.

    Raises:
        BenchError: two decoders are the same file (exit 2).
    """
    values = config.model_dump(exclude_unset=True, exclude_none=True)
    if "decoders" in values:
        cells: Mapping[str, Options] = values["decoders"]
        values["decoders"] = {_side_cell(name, repository): cells[name] for name in cells}
        if len(values["decoders"]) < len(cells):
            raise UsageError(f"two of {', '.join(cells)} are the same; give one a label")
    understood: dict[str, Callable[[Any], Any]] = {
        "model": _checkpoint,
        "draft": _checkpoint,
        "models": lambda names: {name: _checkpoint(path) for name, path in names.items()},
        "adapters": lambda paths: {
            name: path if is_shelf(path) else _absolute(path) for name, path in paths.items()
        },
        "tasks": lambda tasks: ",".join(map(_task, tasks.split(","))),
        "law": lambda law: _side_name(law, repository),
        "cost": _absolute,
    }
    return {k: understood[k](v) if k in understood else v for k, v in values.items()}


def side_request(config: Mapping[str, Any], tree: Tree, trees: Sequence[Tree]) -> dict[str, Any]:
    """Return a request without decoders whose class only the other side has, as they are new."""
    kept = {
        cell: options
        for cell, options in config.get("decoders", {}).items()
        if _has(tree, cell) or not any(_has(other, cell) for other in trees)
    }
    return {**config, "decoders": kept or {BASELINE: {}}} if "decoders" in config else dict(config)


def _has(tree: Tree, cell: str) -> bool:
    path, is_file, name = parse_spec(cell).name.rpartition(":")
    if not is_file:
        return True
    file = tree.folder / path
    text = file.read_text("utf-8", "replace") if file.is_file() else ""
    return bool(re.search(rf"^(class|from|import)\b.*\b({name}\b|\*$)|^\s*{name}\b", text, re.M))


def check_defaults(base: str, head: str) -> None:
    """Refuse (exit 5) two TOML configurations whose defaults make head answer differently.

    Other defaults decide the plan, which is base's for both.
    """
    values, new = tomllib.loads(base), tomllib.loads(head)
    for key in _ANSWERED:
        if key in values and key in new and values[key] != new[key]:
            line = f"the default of {key} is {values[key]} in base and {new[key]} in head"
            raise UnavailableError(f"{line}; set it, here or in --config")


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _checkpoint(name: str) -> str:
    """Make a folder's path absolute, but keep hub ids and the names of embedded models."""
    is_folder = not is_shelf(name) and named(name) is None and is_local(name)
    return _absolute(name) if is_folder else name


def _task(text: str) -> str:
    source, equals, value = text.strip().partition("=")
    if not equals and source not in EMBEDDED | {"specbench"}:  # a path alone
        source, value = "", source
    local = source in ("jsonl", "specbench") or Path(value).expanduser().exists()
    return f"{source}{equals}{_absolute(value)}" if value and local else text


def _side_cell(cell: str, root: Path) -> str:
    spec = parse_spec(cell)
    return DecoderSpec(name=_side_name(spec.name, root), label=spec.label).cell


def _side_name(name: str, root: Path) -> str:
    """Name a class or function of a file by the file's path for a side, any other as it is."""
    path, is_file, of_file = name.rpartition(":")
    file = Path(path).resolve()
    path = file.relative_to(root).as_posix() if file.is_relative_to(root) else str(file)
    return f"{path}:{of_file}" if is_file else name
