"""`bench export --to eval-results`: quality as a model's results on the Hugging Face hub.

Results are YAML files in ``.eval_results/`` of the model's repository
(https://huggingface.co/docs/hub/eval-results). An entry names a dataset of the hub that is
registered as a benchmark, a task of its ``eval.yaml``, and one value. Several values for one task
must be in separate files with notes, so there is one file per decoder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from bench.errors import UnavailableError, UsageError, did_you_mean
from bench.records.plan import BASELINE
from bench.report.findings import Findings
from bench.report.tables.table import guarantee_label, interval, number, without_wrong
from bench.stats.intervals import LEVEL
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import percent, portable

_FORM = re.compile(r"(?P<family>[^=]+)=(?P<dataset>[\w.-]+/[\w.-]+)(?:#(?P<task>[\w.-]+))?")


def _parse(texts: Sequence[str], families: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return (dataset, task) by family of the run."""
    form = "--benchmark FAMILY=OWNER/DATASET#TASK"
    if not texts:
        names = ", ".join(families)
        line = f"eval-results needs {form}, what the hub calls the benchmark of a family's prompts"
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
