"""`bench merge`: joins parts of one plan, measured by several runs, in one run folder.

If several runs have the same block or scored answer, the first run's counts. Counters are pooled.
Each record keeps the comparability key of its machine; with several machines, times and speed-ups
hold only within each of them (`bench.stats.times`). The original runs stay unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.errors import UnavailableError
from bench.records.environment import write_environment
from bench.records.files import only_writer, read_json, write_json, write_text
from bench.records.plan import (
    COMPLETE,
    Cell,
    Difference,
    Floor,
    Plan,
    PlannedPrompt,
    RunStatus,
    with_checks,
    write_plan,
    write_status,
)
from bench.records.prompts import VOCABULARY, Prompt, read_prompts, write_prompts
from bench.records.record import SampleRecord
from bench.records.run_folder import CONFIG, Run, create_run_dir, link_newest, load_run
from bench.records.samples import ERRORS, PhasedAnswer, SampleWriter, read_phases, write_phases
from bench.stats.answers import Compared, compare_with_baseline
from bench.stats.validity import judge

_FREE = ("threads", "device", "run_name")
"""Settings that may differ between parts: they decide the speed and the run's name."""


def merge(folders: Sequence[Path], parent: Path) -> tuple[Path, list[str]]:
    """Join runs in a new folder under `parent`, and return it with notes for the user.

    Raises:
        BenchError: the runs are not parts of one plan (exit 5), a folder is not a run (2) or is
            damaged (4), or the new folder cannot be written (1).
    """
    runs = [load_run(folder) for folder in folders]
    for run in runs[1:]:
        _refuse_other(runs[0], run)
    merged = _Merged.of(runs)
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-merged-{runs[0].plan.name or 'run'}"
    config = (runs[0].path / CONFIG).read_text(encoding="utf-8")
    folder = create_run_dir(parent, name, {CONFIG: config})
    with only_writer(folder):
        _write(folder, runs, merged)
    link_newest(folder)
    return folder, merged.notes


@dataclass
class _Merged:
    """The measurements of several runs without duplicates, with each run's records as a part."""

    plan: Plan
    parts: list[list[SampleRecord]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[SampleRecord]:
        return [record for part in self.parts for record in part]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> _Merged:
        merged = cls(_join_plans(runs))
        blocks: set[int] = set()
        scored: set[tuple[str, str]] = set()
        for number, run in enumerate(runs, start=1):
            timed = {r.block for r in run.records if r.kind == "timing"}
            quality = {(r.decoder, r.prompt) for r in run.records if r.kind == "quality"}
            twice = len(timed & blocks) + len(quality & scored)
            if twice:
                both = f"{len(timed & blocks)} blocks and {len(quality & scored)} scored answers"
                merged.notes.append(f"{both} of {run.path.name} repeat an earlier run: ignored")
            merged._take(run, f"p{number}", timed - blocks, quality - scored)
            blocks |= timed
            scored |= quality
        if len({r.machine for r in merged.records}) > 1:
            merged.notes.append("measured on different machines: compare times only within one")
        merged.notes += _missing_parts(merged.plan)
        return merged

    def _take(self, run: Run, prefix: str, blocks: set[int], quality: set[tuple[str, str]]) -> None:
        """Add the records that no earlier run has, and prefix the names of the run's workers."""
        part: list[SampleRecord] = []
        for r in run.records:
            new = r.block in blocks if r.kind == "timing" else (r.decoder, r.prompt) in quality
            if new:
                worker = f"{prefix}.{r.worker}" if r.worker else prefix
                machine = r.machine or run.env.comparability_key
                copy = replace(r, worker=worker, machine=machine)
                copy.pack()
                part.append(copy)
        self.parts.append(part)
        attempts = {r.block: r.attempt for r in run.records if r.kind == "timing"}
        counts = {(block, attempts[block]) for block in blocks}
        for event in run.events:
            if event["event"] == "load" and (event["block"], event["attempt"]) in counts:
                self.events.append(dict(event))


def _refuse_other(first: Run, run: Run) -> None:
    identity, other = first.plan.identity or {}, run.plan.identity or {}
    config, other_config = (
        {key: value for key, value in each.config.items() if key not in _FREE}
        for each in (first, run)
    )
    if not identity or identity != other:
        keys = [key for key, value in identity.items() if other.get(key) != value]
        why = f"{', '.join(keys) or 'what it began with'} differ"
    elif config != other_config:
        keys = [k for k in {**config, **other_config} if config.get(k) != other_config.get(k)]
        why = f"settings differ: {', '.join(sorted(keys))}"
    elif first.plan.digest != run.plan.digest:
        why = "prompts, blocks or decoders differ"
    elif first.env.dtype != run.env.dtype:
        why = f"dtypes are {first.env.dtype} and {run.env.dtype}"
    else:
        return
    line = f"{run.path.name} has another plan than {first.path.name} ({why})"
    advice = "merge joins parts of one plan: `bench run --part I/N` of the same command"
    raise UnavailableError(f"{line}; {advice}")


def _join_plans(runs: Sequence[Run]) -> Plan:
    first = runs[0].plan
    blocks = {block.block: block for run in runs for block in run.plan.blocks}
    prompts: dict[str, PlannedPrompt] = {}
    for planned in (planned for run in runs for planned in run.plan.prompts):
        before = prompts.get(planned.prompt, planned)
        passes = dict.fromkeys([*before.passes, *planned.passes])
        prompts[planned.prompt] = replace(planned, passes=tuple(passes))
    whole = any(not run.plan.parts for run in runs)
    parts = () if whole else tuple(dict.fromkeys(p for run in runs for p in run.plan.parts))
    joined = replace(
        first,
        blocks=tuple(blocks[number] for number in sorted(blocks)),
        prompts=tuple(prompts.values()),
        parts=parts,
    )
    return replace(joined, parts=()) if parts and not _missing_parts(joined) else joined


def _missing_parts(plan: Plan) -> list[str]:
    if not plan.parts:
        return []
    num_parts = int(plan.parts[0].partition("/")[2])
    all_parts = [f"{number}/{num_parts}" for number in range(1, num_parts + 1)]
    missing = [part for part in all_parts if part not in plan.parts]
    return [f"parts {', '.join(missing)} are missing: this run is also a part"] if missing else []


def _write(folder: Path, runs: Sequence[Run], merged: _Merged) -> None:
    prompts: dict[str, Prompt] = {}
    pieces: dict[str, str] = {}
    for run in runs:
        prompts |= read_prompts(run.path)
        pieces |= read_json(run.path / VOCABULARY) or {}
    write_prompts(folder, list(prompts.values()))
    ordered = dict(sorted(pieces.items(), key=lambda item: int(item[0])))
    write_json(folder / VOCABULARY, ordered, indent=0)
    keys = {record.machine for record in merged.records}
    key = keys.pop() if len(keys) == 1 else None
    write_environment(folder, replace(runs[0].env, comparability_key=key))
    with SampleWriter(folder) as writer:
        for record in merged.records:
            writer.record(record)
        for event in merged.events:
            writer.event(**event)
    if key is not None:
        _write_phases(folder, runs)
    errors = [run.path / ERRORS for run in runs if (run.path / ERRORS).is_file()]
    if errors:
        texts = [file.read_text(encoding="utf-8", errors="replace") for file in errors]
        write_text(folder / ERRORS, "".join(texts))
    write_plan(folder, merged.plan)
    write_status(folder, _status(folder, runs, merged))


def _write_phases(folder: Path, runs: Sequence[Run]) -> None:
    """Write the answers to each block, the first run's if several runs have the block."""
    answers: list[PhasedAnswer] = []
    for run in runs:
        blocks = {(answer.prompts, answer.repeat) for answer in answers}
        answers += [a for a in read_phases(run.path) if (a.prompts, a.repeat) not in blocks]
    if answers:
        write_phases(folder, answers)


def _status(folder: Path, runs: Sequence[Run], merged: _Merged) -> RunStatus:
    complete = all(run.status.complete for run in runs)
    status = RunStatus(
        status=COMPLETE if complete else "interrupted",
        started_utc=min(filter(None, (run.status.started_utc for run in runs)), default=None),
        finished_utc=max(filter(None, (run.status.finished_utc for run in runs)), default=None),
        attempts=max((run.status.attempts or 1 for run in runs), default=1),
        differences=pool_differences(merged.plan.cells, [run.status for run in runs], merged.parts),
        floor=pool_floors([run.status.floor for run in runs if run.status.floor is not None]),
        num_records=len(merged.records),
        reported=True,
    )
    write_status(folder, status)
    judgement = judge(load_run(folder))
    return replace(judgement, warnings=(*judgement.warnings, *_missing_parts(merged.plan)))


def pool_differences(
    cells: Iterable[Cell], statuses: Sequence[RunStatus], parts: Sequence[Iterable[SampleRecord]]
) -> tuple[Difference, ...] | None:
    """Pool the differences of several runs, or return None if a run was not checked.

    A run stores the number of its wrong answers, but not which they are. If `parts` cover only some
    unequal answers, up to that many of them count as wrong.

    Args:
        cells: the cells of all runs.
        statuses: the status of each run.
        parts: the records used of each run.
    """
    if any(status.differences is None for status in statuses):
        return None
    compared = [{each.cell: each for each in compare_with_baseline(cells, part)} for part in parts]
    by_run = [{d.cell: d for d in status.differences or ()} for status in statuses]
    totals = []
    for cell in compared[0]:
        of_runs = [by_cell[cell] for by_cell in compared]
        whole = Compared(cell=cell, pairs=tuple(pair for each in of_runs for pair in each.pairs))
        if not whole.unequal:
            continue
        gaps: tuple[int | float, ...] = ()
        farthest: list[int | float] = []
        num: int | None = 0
        for of_run, each in zip(by_run, of_runs, strict=True):
            difference = of_run.get(cell)
            if not each.unequal or difference is None:
                continue
            gaps += tuple(difference.gaps)
            farthest += [] if difference.places_off is None else [difference.places_off]
            if num is None or difference.num_wrong is None:
                num = None
            else:
                num += min(difference.num_wrong, len(each.unequal))
        total = whole.difference(num, gaps)
        totals.append(replace(total, places_off=max(farthest, default=None)))
    failed = {d.cell: d.check for status in statuses for d in status.differences or () if d.check}
    return tuple(with_checks(totals, failed))


def pool_floors(floors: Sequence[Floor]) -> Floor | None:
    """Pool the floors of a run's parts, if there are any, with the rows of the first."""
    if not floors:
        return None
    counts = ("num_answers", "num_same", "num_tokens", "num_flips")
    sums = {name: sum(getattr(floor, name) for floor in floors) for name in counts}
    return Floor(rows=floors[0].rows, moved=max(floor.moved for floor in floors), **sums)
