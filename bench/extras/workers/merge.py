"""Join parts of one plan, measured by several runs, in one run folder (`bench merge`).

Counters are pooled. Each record keeps the comparability key of its machine; with several machines,
times and speed-ups are valid only within each machine (`bench.stats.times`). The original runs stay
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench.errors import UnavailableError, UsageError
from bench.plan.identity import FREE
from bench.records.environment import Machine, write_environment
from bench.records.files import only_writer, read_json, write_json, write_text
from bench.records.plan import (
    COMPLETE,
    REFUTED,
    Cell,
    Difference,
    Floor,
    Plan,
    PlannedPrompt,
    RunStatus,
    write_plan,
    write_status,
)
from bench.records.prompts import VOCABULARY, read_prompts, write_prompts
from bench.records.record import SampleRecord
from bench.records.run_folder import CONFIG, Run, create_run_dir, link_newest, load_run
from bench.records.samples import ERRORS, SampleWriter, read_phases, write_phases
from bench.stats.answers import compare_with_baseline
from bench.stats.validity import judge


def merge(folders: Sequence[Path], parent: Path) -> tuple[Path, list[str]]:
    """Join all parts of a plan in a new folder under `parent`, and return it with notes.

    Raises:
        BenchError: the runs are not parts of one plan (exit 5), a part is missing or named twice,
            or a folder is not a run (2) or is damaged (4), or the new folder cannot be written (1).
    """
    runs = [load_run(folder) for folder in folders]
    _check_parts(runs)
    plan = _join_plans(runs)
    records = []
    for number, run in enumerate(runs, 1):
        for record in run.records:  # names of workers are unique among the parts
            worker = f"p{number}.{record.worker}" if record.worker else f"p{number}"
            copy = replace(record, worker=worker, machine=run.env.comparability_key)
            copy.pack()
            records.append(copy)
    machines = {record.machine for record in records}
    key = next(iter(machines)) if len(machines) == 1 else None
    name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-merged-{plan.name or 'run'}"
    config = (runs[0].path / CONFIG).read_bytes()
    folder = create_run_dir(parent, name, {CONFIG: config})
    with only_writer(folder):
        _write(folder, runs, plan, records, key)
    link_newest(folder)
    notes = ["measured on different machines: compare times only within one"]
    return folder, notes * (len(machines) > 1)


def _check_parts(runs: Sequence[Run]) -> None:
    """Refuse runs of different plans, and runs that share a block or a scored prompt."""
    facts: list[dict[str, object]] = []
    for run in runs:  # all parts of a plan share code, weights, settings, prompts and dtype
        settings = {key: value for key, value in run.config.items() if key not in FREE}
        plan = {**(run.plan.identity or {}), "prompts, blocks or decoders": run.plan.digest}
        facts.append({**settings, **plan, "dtype": run.env.dtype})
        one, two = facts[0], facts[-1]
        differing = sorted(name for name in one | two if one.get(name) != two.get(name))
        if run is not runs[0] and (differing or not runs[0].plan.identity):
            why = f"{', '.join(differing) or 'what it began with'} differ"
            line = f"{run.path.name} has another plan than {runs[0].path.name} ({why})"
            advice = "merge joins parts of one plan: `bench run --part I/N` of the same command"
            raise UnavailableError(f"{line}; {advice}")
    owners: dict[str, Run] = {}
    for run in runs:
        blocks = [f"block {block.block}" for block in run.plan.blocks]
        for unit in (*blocks, *(planned.prompt for planned in run.plan.in_pass("quality"))):
            if (first := owners.setdefault(unit, run)) is not run:
                line = f"{first.path.name} and {run.path.name} both have {unit}"
                raise UsageError(f"{line}; name each part of a plan once")


def _join_plans(runs: Sequence[Run]) -> Plan:
    parts = [part for run in runs for part in run.plan.parts]
    num_parts = int((parts or ["1/1"])[0].partition("/")[2])
    all_parts = (f"{number}/{num_parts}" for number in range(1, num_parts + 1))
    if missing := [part for part in all_parts if part not in parts]:
        raise UsageError(
            f"parts {', '.join(missing)} are missing: measure them, and name all parts"
        )
    blocks = [block for run in runs for block in run.plan.blocks]
    prompts: dict[str, PlannedPrompt] = {}
    for planned in (planned for run in runs for planned in run.plan.prompts):
        before = prompts.get(planned.prompt, planned)
        passes = dict.fromkeys([*before.passes, *planned.passes])
        prompts[planned.prompt] = replace(planned, passes=tuple(passes))
    of_parts = zip(*(run.plan.cells for run in runs), strict=True)
    return replace(
        runs[0].plan,
        cells=tuple(max(each, key=lambda cell: cell.checked == REFUTED) for each in of_parts),
        blocks=tuple(sorted(blocks, key=lambda block: block.block)),
        prompts=tuple(prompts.values()),
        parts=(),
    )


def _write(
    folder: Path, runs: Sequence[Run], plan: Plan, records: Sequence[SampleRecord], key: str | None
) -> None:
    """Write the joined run, with the comparability `key` of its machine if there is one machine."""
    pieces: dict[str, str] = {}
    for run in runs:
        pieces |= read_json(run.path / VOCABULARY) or {}
    write_prompts(folder, [*read_prompts(runs[0].path).values()])  # each part has all prompts
    ordered = dict(sorted(pieces.items(), key=lambda item: int(item[0])))
    write_json(folder / VOCABULARY, ordered, indent=0)
    env = replace(runs[0].env, comparability_key=key)
    if len({run.env.comparability_key for run in runs}) > 1:  # no machine measured all of it
        env = replace(env, machine=Machine(), gpu=None, process=None)
    write_environment(folder, env)
    attempts = {(r.block, r.attempt) for r in records if r.kind == "timing"}
    with SampleWriter(folder) as writer:
        for record in records:
            writer.record(record)
        for event in (event for run in runs for event in run.events):
            if event["event"] == "load" and (event["block"], event["attempt"]) in attempts:
                writer.event(**event)
    phases = [answer for run in runs for answer in read_phases(run.path)]
    if key is not None and phases:
        write_phases(folder, phases)
    errors = [run.path / ERRORS for run in runs if (run.path / ERRORS).is_file()]
    if errors:
        texts = [file.read_text(encoding="utf-8", errors="replace") for file in errors]
        write_text(folder / ERRORS, "".join(texts))
    write_plan(folder, plan)
    statuses = [run.status for run in runs]
    complete = all(status.complete for status in statuses)
    unequal = pool_differences(plan.cells, statuses, records)
    status = RunStatus(
        status=COMPLETE if complete else "interrupted",
        started_utc=min(filter(None, (each.started_utc for each in statuses)), default=None),
        finished_utc=max(filter(None, (each.finished_utc for each in statuses)), default=None),
        attempts=max(each.attempts or 1 for each in statuses),
        differences=unequal,
        floor=pool_floors([each.floor for each in statuses if each.floor is not None]),
        num_records=None if unequal is None else len(records),
        reported=True,
    )
    write_status(folder, status)
    write_status(folder, judge(load_run(folder)))


def pool_differences(
    cells: Iterable[Cell], statuses: Sequence[RunStatus], records: Iterable[SampleRecord]
) -> tuple[Difference, ...] | None:
    """Pool the differences of parts with these `records`, or return None if a part is unchecked."""
    if not all(status.compared for status in statuses):
        return None
    differences = [each for status in statuses for each in status.differences or ()]
    totals = []
    for compared in compare_with_baseline(cells, records):
        unequal = [d for d in differences if d.cell == compared.cell and d.num_answers]
        if compared.unequal:
            wrong = [d.num_wrong for d in unequal]
            num_wrong = None if None in wrong else sum(num or 0 for num in wrong)
            gaps = tuple(gap for d in unequal for gap in d.gaps)
            places = [d.places_off for d in unequal if d.places_off is not None]
            total = compared.difference(num_wrong, gaps)
            totals.append(replace(total, places_off=max(places, default=None)))
    return tuple(totals)


def pool_floors(floors: Sequence[Floor]) -> Floor | None:
    """Pool the floors of a run's parts, if there are any, with the rows of the first floor."""
    if not floors:
        return None
    counts = ("num_answers", "num_same", "num_tokens", "num_flips")
    sums = {name: sum(getattr(floor, name) for floor in floors) for name in counts}
    return Floor(rows=floors[0].rows, moved=max(floor.moved for floor in floors), **sums)
