"""`bench export --to eval-results`: quality as a model's results on the Hugging Face hub.

A model's repository keeps them as YAML in ``.eval_results/``; its page and the leaderboard of the
benchmark show them (https://huggingface.co/docs/hub/eval-results). An entry names a dataset of the
hub that is registered as a benchmark, a task of its ``eval.yaml``, and one value. Several values
for one task stand in files of their own, with notes that tell them apart: a file per decoder here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
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
_DEFAULT_TASK = "default"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Which benchmark of the hub the prompts of a family are of."""

    family: str
    dataset: str
    task: str = _DEFAULT_TASK


def parse_benchmarks(texts: Sequence[str], families: Sequence[str]) -> list[Benchmark]:
    """``FAMILY=OWNER/DATASET[#TASK]``, each of a family of the run.

    Raises:
        BenchError: none are given, one has another form or family, or a family has two (exit 2).
    """
    form = "--benchmark FAMILY=OWNER/DATASET#TASK"
    if not texts:
        names = ", ".join(families)
        line = f"eval-results needs {form}, what the hub calls the benchmark of a family's prompts"
        raise UsageError(f"{line}; families of this run: {names}")
    chosen: dict[str, Benchmark] = {}
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
        chosen[family] = Benchmark(family, parts["dataset"], parts["task"] or _DEFAULT_TASK)
    return list(chosen.values())


def eval_results(
    findings: Findings, benchmarks: Sequence[str], source: str | None
) -> dict[str, bytes]:
    """The files by name: one per decoder whose answers were scored.

    A decoder that claims to be lossless and is not has none.

    Args:
        findings: the run.
        benchmarks: as `parse_benchmarks` reads them.
        source: ``OWNER/NAME`` of the dataset that holds the run, to be linked to.

    Raises:
        BenchError: what `parse_benchmarks` refuses (exit 2); a family without quality (5).
    """
    rows = [row for row in rows_of(without_wrong(findings.summary), None) if row.family != ALL]
    chosen = parse_benchmarks(benchmarks, list(dict.fromkeys(row.family for row in rows)))
    files = {}
    for decoder in dict.fromkeys(row.decoder for row in rows):
        scored = {row.family: row for row in rows if row.decoder == decoder}
        entries = [
            _entry(findings, scored[each.family], each, source)
            for each in chosen
            if each.family in scored and scored[each.family].quality is not None
        ]
        if entries:
            name = re.sub(r"[^\w.@-]", "-", decoder)
            files[f".eval_results/decoding-bench_{name}.yaml"] = _yaml(entries)
    if not files:
        raise UnavailableError(
            f"{findings.name} has no quality of {', '.join(each.family for each in chosen)}; "
            "measure it with `bench run --quality-limit 40`",
        )
    return files


def _entry(
    findings: Findings, row: SummaryRow, benchmark: Benchmark, source: str | None
) -> dict[str, Any]:
    """One result; the value is in percent."""
    assert row.quality is not None
    entry: dict[str, Any] = {
        "dataset": {"id": benchmark.dataset, "task_id": benchmark.task},
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
    """How it was decoded and measured, and how fast that is, in one line."""
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
    parts += [
        f"{name} {value}"
        for name, value in (
            ("temperature", config.get("temperature")),
            ("max_new_tokens", config.get("max_new_tokens")),
            ("dtype", run.env.dtype),
        )
        if value is not None
    ]
    return "; ".join([*parts, f"decoding-bench, run {findings.verdict}"])


def _yaml(entries: Sequence[dict[str, Any]]) -> bytes:
    text: str = yaml.safe_dump(
        list(entries), sort_keys=False, allow_unicode=True, width=10**6, default_flow_style=False
    )
    return text.encode()
