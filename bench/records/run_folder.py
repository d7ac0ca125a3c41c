"""Read and write a run folder: all files of a run, and the rules for resuming the run.

``results/<utc>-<name>-<hash>/`` holds ``manifest.json`` (the plan, written before the first
measurement), ``config.toml``, ``env.json``, ``samples.jsonl`` (append-only, see
`bench.records.files`) and ``run.json``. The folder is created with ``config.toml`` and ``run.json``
before any model is opened, so a run can be resumed from the start.

``samples.jsonl`` holds two kinds of lines: records (see `bench.records.record`) and events, as
``{"event": ...}``:

=============  ====================================================================================
supersede      ``block``, ``before_attempt``: the block's lines from earlier attempts are void
load           ``block``, ``attempt``, ``other_cores``: CPU time of other processes, in cores
compiled       ``cell``, ``graphs``, ``seconds``: graphs that a cell made before the first timing
=============  ====================================================================================

A stored run has ``samples.parquet`` instead of ``samples.jsonl`` (`bench.records.frames`) and is
read-only. A timing block counts only if complete: `load_records` returns the *effective* records,
without superseded records and records of unfinished blocks.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

from bench.errors import BenchError, InvalidRunError, UnavailableError, UsageError, as_error
from bench.records.environment import Environment, read_environment
from bench.records.files import cannot_write, parse, write_files
from bench.records.plan import (
    MANIFEST,
    STATUS,
    Plan,
    RunStatus,
    checked_status,
    read_plan,
    read_status,
)
from bench.records.record import SampleRecord
from bench.records.samples import SAMPLES, SAMPLES_TABLE, intact_lines
from bench.settings.bounds import Num, Real, Time
from bench.settings.config import INVARIANT, read_toml, stored_config

CONFIG = "config.toml"

_Event = Mapping[str, Any]
_FIELDS: Mapping[str, Sequence[Any]] = {
    "supersede": (("block", Num), ("before_attempt", Num)),
    "load": (("block", Num), ("attempt", Num), ("other_cores", Real | None, None)),
    "compiled": (("cell", str), ("graphs", Num), ("seconds", Time)),
}
_EVENTS: Mapping[str, type] = {name: make_dataclass(name, of) for name, of in _FIELDS.items()}
"""Fields of events. Any other event or field is kept but not read."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Hold a run as read from its folder, with its effective `records` and all `events`."""

    path: Path
    plan: Plan
    config: Mapping[str, Any]
    env: Environment
    status: RunStatus
    records: tuple[SampleRecord, ...]
    events: tuple[_Event, ...]

    def __post_init__(self) -> None:
        """Add the checks that cells failed to the status."""
        object.__setattr__(self, "status", checked_status(self.status, self.plan))

    @property
    def dtype(self) -> str:
        """Precision of weights and cache."""
        return self.env.dtype or "float32"

    @property
    def guarantees(self) -> dict[str, str]:
        """Guarantees by cell: the claims, unless answers refute them or leave them open."""
        return {cell.cell: cell.guarantee for cell in self.plan.cells} | self.status.guarantees

    def is_exact(self, name: str) -> bool:
        """Return whether rounding cannot change a cell's tokens: float32, or row-invariant."""
        options = next((cell.options for cell in self.plan.cells if cell.cell == name), {})
        numerics = options.get("numerics") or self.config.get("numerics")
        return self.dtype == "float32" or numerics == INVARIANT


def load_run(run_dir: Path | str, *, answers: bool = True) -> Run:
    """Read a run folder, or all but its `answers`. Fields of missing files are unknown.

    Raises:
        UsageError: the folder is not a run folder.
        InvalidRunError: a file is damaged.
        UnavailableError: a file has a schema that this version does not know.
    """
    path = Path(run_dir)
    plan = read_plan(path)
    if plan is None and planned(path):
        raise InvalidRunError(
            f"{path} is damaged: {MANIFEST} is missing, the plan that its answers are judged by; "
            f"put it back, or measure again: bench run --config {path / CONFIG}"
        )
    if plan is None and (path / STATUS).is_file():
        line = f"{path} was stopped before anything was planned; start it: bench resume {path}"
        raise UsageError(line)
    if plan is None:
        raise UsageError(f"{path} is not a run folder: it has no {MANIFEST}")
    records, events = _read_samples(path) if answers else ([], ())
    return Run(
        path=path,
        plan=plan,
        config=read_config(path),
        env=read_environment(path),
        status=read_status(path),
        records=_effective_records(records, events, plan),
        events=events,
    )


def planned(path: Path) -> bool:
    """Return whether a folder has a plan, or answers or numbers of a lost plan."""
    kept = (path / "summary.csv").is_file() and (path / STATUS).is_file()
    return kept or any((path / name).is_file() for name in (MANIFEST, SAMPLES, SAMPLES_TABLE))


def is_stored(path: Path) -> bool:
    """Return whether a folder holds answers only as a table, which makes it read-only."""
    return (path / SAMPLES_TABLE).is_file() and not (path / SAMPLES).is_file()


def refuse_read_only(path: Path) -> None:
    """Raise `UsageError` for a read-only folder, which keeps neither records nor prompts."""
    if is_stored(path):
        line = f"{path} is a stored run ({SAMPLES_TABLE} without {SAMPLES}), which is only read"
        advice = f"to measure again: bench run --config {path / CONFIG}"
        raise UsageError(f"{line} and keeps no prompts; {advice}")


def load_records(run_dir: Path | str) -> list[SampleRecord]:
    """Return the effective records of a run in measured order (raises as `load_run`)."""
    return list(load_run(run_dir).records)


def _read_samples(run_dir: Path) -> tuple[list[SampleRecord], tuple[_Event, ...]]:
    """Read all events and all records, packed."""
    records: list[SampleRecord] = []
    events: list[_Event] = []
    lines: Iterator[dict[str, Any]] = (line for line, _ in intact_lines(run_dir / SAMPLES))
    if is_stored(run_dir):
        from bench.records.frames import read_samples  # pandas, pyarrow

        lines = read_samples(run_dir / SAMPLES_TABLE)
    with as_error(UnavailableError, (ValueError, OverflowError), "cannot read the records: "):
        for line in lines:
            if "event" in line:
                if (kind := _EVENTS.get(str(line["event"]))) is not None:
                    parse(kind, line, f"{run_dir}: a line of {line['event']!r}")
                events.append(line)
            else:
                record = SampleRecord.from_dict(line)
                record.pack()
                records.append(record)
    return records, tuple(events)


def _effective_records(
    records: Iterable[SampleRecord], events: Iterable[_Event], plan: Plan
) -> tuple[SampleRecord, ...]:
    """Return records of finished blocks, without superseded records and repeated duplicates."""
    valid_from = {
        line["block"]: line["before_attempt"] for line in events if line["event"] == "supersede"
    }
    alive: dict[tuple[str, str, str, int, int], SampleRecord] = {}
    for record in records:
        key = (record.kind, record.decoder, record.conversation, record.turn, record.repeat)
        if record.kind == "quality" or record.attempt >= valid_from.get(record.block, 0):
            alive.setdefault(key, record)
    have = Counter(record.block for record in alive.values() if record.kind == "timing")
    done = {block.block for block in plan.blocks if have[block.block] >= block.num_answers}
    return tuple(r for r in alive.values() if r.kind == "quality" or r.block in done)


def read_config(run_dir: Path) -> dict[str, Any]:
    """Read the resolved configuration of a run folder (`InvalidRunError` if damaged)."""
    path = run_dir / CONFIG
    with as_error(InvalidRunError, UsageError, f"{path} is damaged: "):
        values = read_toml(path) if path.exists() else {}
    parse(stored_config(), values, path)
    return values


def law_name(config: Mapping[str, Any]) -> str:
    """Return the name of a configuration's law without folders (a file may hold several laws)."""
    return Path(config.get("law") or "none").name


def create_run_dir(parent: Path, stem: str, files: Mapping[str, bytes] | None = None) -> Path:
    """Create ``parent/stem`` (or ``stem-2``, …) with `files`, atomically (`BenchError`)."""
    hidden = parent / f".new-{stem}-{os.getpid()}"
    try:
        hidden.mkdir(parents=True)
        write_files(hidden, files or {})
        for attempt in range(1, 1000):
            path = parent / (stem if attempt == 1 else f"{stem}-{attempt}")
            if path.exists():
                continue
            try:
                return hidden.rename(path)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
    except (OSError, ValueError) as error:  # ValueError: not a valid file name
        raise cannot_write(parent, error) from error
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    raise BenchError(f"{parent} has a thousand runs called {stem}; remove some")


def link_newest(run_dir: Path) -> bool:
    """Point the link ``results/latest`` to this run, or return False if that is not possible."""
    scratch = run_dir.parent / f".latest-{os.getpid()}"
    try:
        scratch.unlink(missing_ok=True)  # left by a killed process
        scratch.symlink_to(run_dir.name, target_is_directory=True)
        scratch.replace(run_dir.parent / "latest")
    except OSError:  # a user's folder has this name, or links are refused: no reason to fail
        scratch.unlink(missing_ok=True)
        return False
    return True


def find_run(name: str, parent: Path) -> Path:
    """Find a run folder by path, by name under `parent`, or by ``latest`` (`UsageError`)."""
    for path in (Path(name), parent / name):
        if (path / MANIFEST).is_file() or (path / STATUS).is_file():
            return path.resolve() if path.is_symlink() else path
    raise UsageError(f"no run folder {name!r} (neither as a path nor in {parent})")
