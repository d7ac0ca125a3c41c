"""Exports for the Hugging Face hub: `bench export --to hub` and ``--to eval-results``.

A dataset is a folder ready to upload. The front matter of its card, ``README.md``, names the tables
so that the hub's viewer and `datasets.load_dataset` find them
(https://huggingface.co/docs/hub/datasets-cards). It has no texts or ids of prompts and answers,
because a run does not know who owns them.

Results are YAML files in ``.eval_results/`` of the model's repository
(https://huggingface.co/docs/hub/eval-results). An entry names a registered benchmark of the hub, a
task of its ``eval.yaml``, and one value; several values for one task must be in separate files with
notes, so there is one file per decoder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.errors import BenchError, UnavailableError, UsageError, did_you_mean
from bench.records.frames import parquet_bytes
from bench.records.plan import BASELINE
from bench.report.exports.answers import answers
from bench.report.findings import Findings
from bench.report.page.render import render
from bench.report.tables.table import guarantee_label, interval, number, without_wrong
from bench.stats.intervals import LEVEL
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import percent, portable

_TABLES = (
    ("summary", "data/summary.parquet", "a row per decoder and family, and one for all families"),
    ("answers", "data/answers.parquet", "a row per answer: its counters and times"),
    ("by_prompt", "data/by_prompt.parquet", "a row per decoder and prompt: its speed-ups"),
)
"""Tables of the viewer (name, file, content), default first; readers expect one file type."""
_SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))
"""The hub's size categories, each with its upper limit in rows."""
_LARGEST = "1M<n<10M"
_FORM = re.compile(r"(?P<family>[^=]+)=(?P<dataset>[\w.-]+/[\w.-]+)(?:#(?P<task>[\w.-]+))?")


def dataset(findings: Findings, licence: str | None) -> dict[str, bytes]:
    """Return the files of the folder, including figures of the run's report.

    `licence` is an identifier of the hub such as ``cc-by-4.0``.
    """
    frame = answers(findings.run.records)
    frame["error"] = [portable(text) if text else text for text in frame["error"]]
    frames = (findings.summary, frame, findings.by_prompt)
    tables = {file: parquet_bytes(each) for (_, file, _), each in zip(_TABLES, frames, strict=True)}
    figures = _figures(findings.run.path)
    card = render(
        "dataset_card.md.j2",
        r=findings,
        front=_front_matter(findings, len(frame), licence),
        tables=_TABLES,
        figures=sorted(figures),
    )
    return {"README.md": card, **tables, **figures}


def _front_matter(findings: Findings, num_rows: int, licence: str | None) -> str:
    """Return the card's YAML: keywords of the hub, and the tables it shows."""
    size = next((name for top, name in _SIZES if num_rows < top), _LARGEST)
    data: dict[str, Any] = {
        "pretty_name": f"decoding-bench: {portable(findings.name)}",
        **({} if licence is None else {"license": licence}),
        "task_categories": ["text-generation"],
        "tags": ["benchmark", "decoding-bench", "speculative-decoding"],
        "size_categories": [size],
        "configs": [
            {
                "config_name": name,
                "data_files": [{"split": "train", "path": file}],
                **({"default": True} if name == _TABLES[0][0] else {}),
            }
            for name, file, _ in _TABLES
        ],
    }
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    return text


def _figures(run_dir: Path) -> dict[str, bytes]:
    files = sorted((run_dir / "figures").glob("*.png"))
    try:
        return {f"figures/{file.name}": file.read_bytes() for file in files}
    except OSError as error:
        raise BenchError(f"cannot read the figures of {run_dir}: {error.strerror}") from error


def _parse(texts: Sequence[str], families: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return (dataset, task) by family of the run."""
    form = "--benchmark FAMILY=OWNER/DATASET#TASK"
    if not texts:
        names = ", ".join(families)
        line = f"eval-results needs {form}, the hub's name for the benchmark of a family's prompts"
        raise UsageError(f"{line}; families of this run: {names}")
    chosen: dict[str, tuple[str, str]] = {}
    for text in texts:
        parts = _FORM.fullmatch(text)
        if parts is None:
            example = "as in math_reasoning=openai/gsm8k#gsm8k"
            raise UsageError(f"--benchmark {text!r} is not {form[12:]}, {example}")
        family = parts["family"]
        if family not in families:
            known = did_you_mean(family, families)
            raise UsageError(f"this run has no family {family!r}; {known}")
        if family in chosen:
            raise UsageError(f"--benchmark names {family} twice; name it once")
        chosen[family] = parts["dataset"], parts["task"] or "default"
    return chosen


def eval_results(
    findings: Findings, benchmarks: Sequence[str], source: str | None
) -> dict[str, bytes]:
    """Return a file per decoder whose answers were scored.

    `benchmarks` are ``FAMILY=OWNER/DATASET[#TASK]``; `source` (``OWNER/NAME``) is the dataset to
    link to.

    Raises:
        BenchError: `benchmarks` are missing or malformed (exit 2), or no family has a quality (5).
    """
    rows = [row for row in rows_of(without_wrong(findings.summary), None) if row.family != ALL]
    chosen = _parse(benchmarks, list(dict.fromkeys(row.family for row in rows)))
    files = {}
    for decoder in dict.fromkeys(row.decoder for row in rows):
        scored = {row.family: row for row in rows if row.decoder == decoder}
        entries = [
            _entry(findings, scored[family], dataset, task, source)
            for family, (dataset, task) in chosen.items()
            if family in scored and scored[family].quality is not None
        ]
        if entries:
            name = re.sub(r"[^\w.@-]", "-", decoder)
            text = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True, width=10**6)
            files[f".eval_results/decoding-bench_{name}.yaml"] = text.encode()
    if not files:
        raise UnavailableError(
            f"{findings.name} has no quality of {', '.join(chosen)}; "
            "measure it with `bench run --quality-limit 40`",
        )
    return files


def _entry(
    findings: Findings, row: SummaryRow, dataset: str, task: str, source: str | None
) -> dict[str, Any]:
    """Return one result, in percent."""
    assert row.quality is not None
    entry: dict[str, Any] = {
        "dataset": {"id": dataset, "task_id": task},
        "value": round(100 * row.quality, 2),
    }
    if findings.run.status.started_utc is not None:
        entry["date"] = findings.run.status.started_utc
    if source is not None:
        owner = source.split("/", maxsplit=1)[0]
        url = f"https://huggingface.co/datasets/{source}"
        entry["source"] = {"url": url, "name": "decoding-bench", "user": owner}
    return {**entry, "notes": portable(_notes(findings, row))}


def _notes(findings: Findings, row: SummaryRow) -> str:
    """Describe in one line the decoder, the measurement, and the speed-up."""
    run, config = findings.run, findings.run.config
    whole = next(r for r in rows_of(findings.summary, ALL) if r.decoder == row.decoder)
    parts = [
        f"decoder {row.decoder} (guarantee: {guarantee_label(row)})",
        f"{row.quality_metric}, percent",
        f"{row.quality_prompts} prompts of the benchmark",
    ]
    if row.quality_low is not None and row.quality_high is not None:
        low, high = percent(row.quality_low, ""), percent(row.quality_high, "")
        parts.append(f"{LEVEL} interval [{low}, {high}]")
    if row.decoder != BASELINE and whole.speedup is not None:
        within = interval(whole.speedup_low, whole.speedup_high)
        device = run.env.gpu_name or run.env.machine.cpu or run.env.device
        where = f" on {device}" if device else ""
        parts.append(
            f"{number(whole.speedup)}x {within} as fast as {BASELINE} over the whole run{where}"
        )
    settings = {name: config.get(name) for name in ("temperature", "max_new_tokens")}
    settings["dtype"] = run.env.dtype
    parts += [f"{name} {value}" for name, value in settings.items() if value is not None]
    return "; ".join([*parts, f"decoding-bench, run {findings.verdict}"])
