"""Describes the files of a run folder, from the types that are written to them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from bench.compare.gate import TABLES
from bench.errors import Exit
from bench.extras.external.table import ExternalAnswer
from bench.records.environment import (
    AdapterFacts,
    Environment,
    GitState,
    Machine,
    ModelFacts,
    Process,
    TorchSettings,
)
from bench.records.files import SCHEMA
from bench.records.plan import Block, Cell, Difference, Plan, PlannedPrompt, RunStatus
from bench.records.prompts import Prompt, SkippedTurn
from bench.records.record import SampleRecord, StepColumns
from bench.records.samples import PhasedAnswer
from bench.settings.config import RunConfig
from bench.settings.setting import field_settings
from bench.stats.metrics import METRICS, SummaryRow
from docs.generate.answers import FIELDS
from docs.generate.command_line import parameters
from docs.generate.tables import code, table

FILES: dict[str, tuple[type, ...]] = {
    "manifest.json": (Plan, Cell, PlannedPrompt, Block, SkippedTurn),
    "prompts.jsonl": (Prompt,),
    "run.json": (RunStatus, Difference),
    "env.json": (Environment, Machine, TorchSettings, GitState, ModelFacts, AdapterFacts, Process),
    "phases.json": (PhasedAnswer,),
    "external.jsonl": (ExternalAnswer,),
}
"""The types stored in each file, the outermost type first."""
_MEANINGS = {
    Exit.DONE: "done; of `bench compare` also inconclusive",
    Exit.FAILED: "failed at run time; all measurements are kept",
    Exit.USAGE: "usage: the line names the wrong value and the allowed values",
    Exit.REGRESSION: "a regression, or a decoder that is WRONG",
    Exit.INVALID: "a broken invariant, a damaged or unfinished run, or an inconclusive gate",
    Exit.UNAVAILABLE: "not comparable, or not available",
    Exit.INTERRUPTED: "interrupted",
}
_NAMES = {
    **dict.fromkeys(("str", "Moment"), "text"),
    **dict.fromkeys(
        ("int", "Num", "TokenId", "BlockNumber", "RecordSeed", "BatchSize", "Byte", "Bytes"),
        "integer",
    ),
    **dict.fromkeys(("float", "Real", "RealOrInt", "Gap", "Time", "Share"), "number"),
    "bool": "true or false",
}
"""Types in JSON's terms; the bounds of `bench.settings.bounds` are not told."""
_PLURAL = {"text": "texts", "integer": "integers", "number": "numbers"}


def columns() -> str:
    """Return a table of the columns of summary.csv: type, formula, and defining section."""
    rows = []
    for field in dataclasses.fields(SummaryRow):
        metric = METRICS[field.name]
        link = f"[{metric.section}](metrics.md#{anchor(metric.section)})"
        kind = kind_of(field.type).removesuffix(", or null")
        rows.append((code(field.name), kind, metric.formula, link))
    return table(("column", "type", "formula or meaning", "defined under"), rows)


def metrics(section: str) -> str:
    """Return a table of the metrics that a section of docs/metrics.md explains."""
    chosen = [each for each in METRICS.values() if each.section == section and each.compute]
    ends = {name: [code(n) for n, e in METRICS.items() if e.end_of == name] for name in METRICS}
    rows = [(code(each.name), each.formula, ", ".join(ends[each.name])) for each in chosen]
    if not any(interval for *_, interval in rows):
        return table(("column", "formula"), [row[:2] for row in rows])
    return table(("column", "formula", "interval"), rows)


def record() -> str:
    """Return tables of an answer's and its steps' fields."""
    fields = [_row(f, FIELDS[f.name]) for f in dataclasses.fields(SampleRecord)]
    steps = [_row(f, FIELDS[f"steps_{f.name}"]) for f in dataclasses.fields(StepColumns)]
    headings = ("field", "type", "meaning")
    return "\n".join(
        (
            f"Schema {SCHEMA}. {_doc(SampleRecord)}\n",
            table(headings, fields),
            f"**steps** ({code('steps_NAME')} in samples.parquet). {_doc(StepColumns)}\n",
            table(headings, steps),
        )
    )


def files() -> str:
    """Describe every other JSON file of a run folder, type by type."""
    parts = []
    for file, types in FILES.items():
        parts.append(f"### {file}\n")
        for kind in types:
            parts.append(f"**{kind.__name__}.** {_doc(kind)}\n")
            rows = [_row(field)[:2] for field in dataclasses.fields(kind)]
            parts.append(table(("field", "type"), rows))
    return "\n".join(parts)


def configuration() -> str:
    """Return a table of the keys of config.toml and the options that set them."""
    options = {option.name: option.opts for option in parameters("run")}
    rows = []
    for name, setting in field_settings(RunConfig).items():
        words = ", ".join(map(code, options.get(name, ()))) or "-"
        field = RunConfig.model_fields[name]
        meaning = " ".join(f"{setting.help} {field.description or ''}".split())
        rows.append((code(name), words, _default(field), meaning))
    return f"{_doc(RunConfig)}\n\n" + table(("key", "option", "default", "meaning"), rows)


def gate() -> str:
    """Return one table for each table of a gate file."""
    parts = []
    for name, kind in TABLES.items():
        parts.append(f"**[{name}]** {_doc(kind)}\n")
        rows = [(code(key), _default(each)) for key, each in kind.model_fields.items()]
        parts.append(table(("key", "default"), rows))
    return "\n".join(parts)


def exit_codes() -> str:
    """Return a table of all exit codes."""
    return table(("code", "meaning"), [(str(int(each)), _MEANINGS[each]) for each in Exit])


def kind_of(annotation: object) -> str:
    """Return a field's type in JSON's terms: ``tuple[int, ...]`` is "list of integers"."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    text = text.replace('"', "").strip()
    if text.endswith("| None"):
        return f"{kind_of(text.removesuffix('| None'))}, or null"
    if listed := re.fullmatch(r"tuple\[(.+), \.\.\.\]", text):
        inner = kind_of(listed[1])
        return f"list of {_PLURAL.get(inner, inner)}"
    if text.startswith(("Mapping", "Facts", "dict")):
        return "object"
    if " | " in text:
        return " or ".join(kind_of(part) for part in text.split(" | "))
    return _NAMES.get(text, text)


def anchor(heading: str) -> str:
    """Return the anchor of a heading in links."""
    kept = re.sub(r"[^\w\s-]", "", heading.lower()).strip()
    return re.sub(r"[\s]+", "-", kept)


def _row(field: dataclasses.Field[Any], meaning: str = "") -> tuple[str, str, str]:
    return code(field.name), kind_of(field.type), meaning


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value is PydanticUndefined:
        return "-"
    return code(str(value).lower() if isinstance(value, bool) else value)


def _doc(kind: type[Any] | type[BaseModel]) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split())
