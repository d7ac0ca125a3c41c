"""Pairs of synthetic runs, one of them altered."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.records.files import write_files

ENV = {"device": "cpu", "dtype": "float32", "comparability_key": "one-machine"}
Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def pair(synthetic_run: Callable[..., Path]) -> Callable[..., tuple[Path, Path]]:
    """Two runs of the same work; `change` alters each record of head, `env` is head's."""

    def write(
        change: Change | None = None, *, env: dict[str, Any] | None = None, **options: Any
    ) -> tuple[Path, Path]:
        base = synthetic_run(name="base", env=ENV, **options)
        head = synthetic_run(name="head", env=ENV if env is None else env, **options)
        if change is not None:
            alter(head, change)
        return base, head

    return write


def alter(run: Path, change: Change) -> None:
    samples = run / "samples.jsonl"
    records = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    for record in records:
        change(record)
    samples.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")


@pytest.fixture
def altered() -> Callable[[Path, Change], None]:
    """Alters every record of a run in place."""
    return alter


@pytest.fixture
def stored() -> Callable[[Path], Path]:
    """Stores a run as a reference, with its answers, in place of the run's own folder."""

    def export(run: Path) -> Path:
        from bench.extras.exports.export import reference
        from bench.records.run_folder import load_run
        from bench.report.findings import Findings

        (run / "report.md").write_text("")
        files = reference(Findings(load_run(run)))
        shutil.rmtree(run)
        write_files(run, files)
        return run

    return export
