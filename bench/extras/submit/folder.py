"""The folder of a submitted run: its files, without paths of the machine, and its name."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w

from bench.errors import UsageError
from bench.extras.exports.export import reference
from bench.records.files import write_files
from bench.records.plan import STATUS
from bench.records.run_folder import CONFIG, Run
from bench.report.findings import Findings
from bench.report.tables.setting import hardware, short_name
from bench.report.write import REPORT
from bench.text import portable


def public_files(findings: Findings) -> dict[str, bytes]:
    """Return the files to store, by name: of a stored run all but report and figures.

    A report takes a sixth of the room, and `bench report FOLDER` writes it. Absolute paths in the
    configuration are shortened to their last part.

    Raises:
        UsageError: the run has no report yet.
    """
    files = reference(findings)
    del files[REPORT]
    config = dict(findings.run.config)
    if (public := _without_paths(config)) != config:
        files[CONFIG] = tomli_w.dumps(public).encode()
    return files


def _without_paths(value: Any) -> Any:
    if isinstance(value, str):
        return portable(value)
    if isinstance(value, Mapping):
        return {key: _without_paths(each) for key, each in value.items()}
    return [_without_paths(each) for each in value] if isinstance(value, list) else value


def stored_runs(name: str) -> list[str]:
    """Return all runs in a folder, at any depth, or the name if there are none."""
    return [str(file.parent) for file in sorted(Path(name).rglob(STATUS))] or [name]


def free_folder(parent: Path, name: str | None, run: Run) -> Path:
    """Return a new folder by its name, or by a free name made of the run.

    Raises:
        UsageError: the name is taken, or pages cannot name it.
    """
    if name is not None:
        if not re.fullmatch(r"[\w-]+", name):
            raise UsageError(f"--name {name!r} may have letters, digits, - and _ alone")
        if (parent / name).exists():
            raise UsageError(f"{parent / name} exists; remove it, or give another --name")
        return parent / name
    usual = default_name(run)
    names = (f"{usual}-{number}" if number > 1 else usual for number in itertools.count(1))
    return next(parent / each for each in names if not (parent / each).exists())


def default_name(run: Run) -> str:
    """Return MACHINE-MODEL, with the temperature of a sampled run: ``intel-xeon-6-207-zoo-t07``."""
    machine = re.sub(r"\(R\)|\(TM\)|Processor|\d+ cores|family|model|,", "", hardware(run) or "cpu")
    temperature = run.config.get("temperature") or 0
    sampled = f"-t{temperature:g}".replace(".", "") if temperature else ""
    words = f"{machine} {short_name(run.config.get('model'))}{sampled}"
    return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def write_folder(folder: Path, files: Mapping[str, bytes]) -> int:
    """Write a folder, and return its size in bytes (`BenchError` if it cannot be written)."""
    write_files(folder, files)
    return sum(map(len, files.values()))
