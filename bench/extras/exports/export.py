"""Export a run's numbers in the formats of other tools from its folder alone (`bench export`).

CI files, MLflow and acceptance leave out WRONG decoders.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from bench.errors import UnavailableError, UsageError, did_you_mean
from bench.extras.exports.formats import acceptance, github_action
from bench.extras.exports.mlflow import to_mlflow
from bench.extras.sessions.expected import EXPECTED
from bench.records.environment import ENV
from bench.records.files import read_json, refuse_links, write_files
from bench.records.frames import csv_bytes, parquet_bytes, write_samples
from bench.records.plan import MANIFEST, STATUS
from bench.records.prompts import VOCABULARY, answered_ids
from bench.records.record import SampleRecord
from bench.records.run_folder import CONFIG
from bench.records.samples import PHASES_FILE, SAMPLES, SAMPLES_TABLE
from bench.report.findings import Findings
from bench.report.write import REPORT, SUMMARY, table_files
from bench.stats.counters import Tally
from bench.text import portable

BY_PROMPT = "tables/by_prompt.csv"
_IMAGE = re.compile(r"^!\[.*\]\(figures/(.*)\.png\)\n\n", re.MULTILINE)
_REQUEST = (
    *("decoder", "family", "prompt", "prompt_hash", "repeat", "seed", "batch_size"),
    "num_prompt_tokens",
)
_COUNTED = ("tokens", "target_calls", "target_rows", "draft_calls", "steps", "drafted", "accepted")
_TIMED = ("ttft_s", "total_s", "group_s")


def answers(records: Sequence[SampleRecord]) -> pd.DataFrame:
    """Return one row per answer: the request, its counters, its times and scores."""
    frame = pd.DataFrame([_row(record) for record in records])
    return frame.astype(dict.fromkeys([*_COUNTED, "peak_memory_bytes"], "Int64"))


def _row(record: SampleRecord) -> dict[str, object]:
    tally, steps, seconds = Tally.of(record), record.steps, record.total_s
    counts: dict[str, int] = {}
    if steps is not None:
        sums = (tally.emitted, tally.target_calls, sum(steps.target_rows), sum(steps.draft_calls))
        counted = (*sums, len(steps.emitted), tally.drafted, tally.accepted)
        counts = dict(zip(_COUNTED, counted, strict=True))
    return {
        "pass": record.kind,
        **{name: getattr(record, name) for name in _REQUEST},
        **{name: counts.get(name) for name in _COUNTED},
        **{name: getattr(record, name) for name in _TIMED},
        "time_per_token_s": seconds / tally.emitted if seconds and tally.emitted else None,
        **{name: getattr(record, name) for name in ("peak_memory_bytes", "stop", "error")},
        **{f"score_{name}": value for name, value in (record.scores or {}).items()},
    }


FILES: Mapping[str, Callable[[Findings, Sequence[str]], dict[str, bytes]]] = {
    "github-action-benchmark": lambda f, _: github_action(f),
    "csv": lambda f, _: {"answers.csv": csv_bytes(answers(f.run.records), None)},
    "parquet": lambda f, _: {"answers.parquet": parquet_bytes(answers(f.run.records))},
    "acceptance": lambda f, _: acceptance(f),
    "reference": lambda f, figures: reference(f, figures),
}
"""Functions that make the files of each format, by name. MLflow has a store instead."""
_APART = ("acceptance", "reference", "mlflow")
"""Formats with a separate folder, as their files have fixed names."""


def export(
    findings: Findings, kind: str, folder: Path | None = None, figures: Sequence[str] = ()
) -> list[str]:
    """Write a run in one format, and return the files, or the store of a tracker.

    Args:
        findings: the run's.
        kind: the format: a name of `FILES`, or ``mlflow``.
        folder: None means ``export`` in the run's folder; for a tracker, the store named by its
            environment variable takes precedence.
        figures: names of the figures to keep in a stored run.

    Raises:
        BenchError: nothing was measured or a package is missing (5), a store refuses or the files
            cannot be written (1).
    """
    if not findings.run.records:
        raise UnavailableError(f"{findings.name} has no answers to export")
    default = findings.run.path / "export"
    default = default / kind if kind in _APART else default
    if folder is None:
        for path in (default, *default.glob("*")):
            refuse_links(findings.run.path, path)
    if kind == "mlflow":
        return [to_mlflow(findings, folder, default)]
    folder = folder or default
    if kind == "reference" and (folder / SAMPLES).is_file():
        raise UsageError(f"{folder} is a run's own folder: give another --folder")
    return [str(file) for file in write_files(folder, FILES[kind](findings, figures))]


def reference(findings: Findings, figures: Sequence[str] = ()) -> dict[str, bytes]:
    """Return a run's files to keep in a repository, which are read like the run itself.

    Answers are in ``samples.parquet``. Texts of prompts, traces, pages, tables but that by prompt
    and all but the named `figures` are left out. Absolute paths in the configuration are shortened
    to their last part. The same run gives the same bytes.

    Raises:
        UsageError: the report is not written yet, or has no such figure.
    """
    run = findings.run
    if not (run.path / REPORT).is_file():
        raise UsageError(f"{run.path} has no {REPORT}; write it: bench report {run.path}")
    report = (run.path / REPORT).read_text(encoding="utf-8")
    images = _IMAGE.findall(report)
    for name in figures:
        if name not in images:
            raise UsageError(f"no figure {name!r} in {REPORT}; {did_you_mean(name, images)}")
    report = _IMAGE.sub(lambda image: image[0] if image[1] in figures else "", report)
    samples = io.BytesIO()
    write_samples(samples, run.records, run.events, small=True)
    answered = set(map(str, answered_ids(run.records)))
    pieces = (read_json(run.path / VOCABULARY) or {}).items()
    summary = findings.summary.assign(copied=math.nan)  # cannot be counted without prompts
    copied = [CONFIG, ENV, STATUS, PHASES_FILE, EXPECTED]
    copied += [f"figures/{name}.png" for name in figures]
    for name in copied:
        refuse_links(run.path, run.path / name)
    kept = {name: (run.path / name).read_bytes() for name in copied if (run.path / name).is_file()}
    if CONFIG in kept:
        kept[CONFIG] = portable(kept[CONFIG].decode()).encode()
    compact = partial(json.dumps, ensure_ascii=False, separators=(",", ":"))
    return {
        **kept,
        MANIFEST: f"{compact(run.plan.to_manifest())}\n".encode(),
        VOCABULARY: f"{compact({t: piece for t, piece in pieces if t in answered})}\n".encode(),
        SAMPLES_TABLE: samples.getvalue(),
        SUMMARY: csv_bytes(summary),
        REPORT: report.encode(),
        BY_PROMPT: table_files(findings)[BY_PROMPT],
    }
