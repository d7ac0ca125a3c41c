"""The table of other engines, and its section of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.extras.external.answers import ExternalAnswer, read_external
from bench.extras.external.sums import engine_sums
from bench.records.record import SampleRecord
from bench.report.findings import Findings
from bench.report.sections import Section
from bench.report.tables.table import Columns, Table, TableCell, number
from bench.text import UNKNOWN, percent

_NOTE = (
    "Other engines, with their own loops, caches, kernels and weights, on this run's prompts one "
    "at a time. They were measured separately from the run: no row is paired with ar or "
    "has a speed-up or an interval. Tokens/s: emitted tokens / end-to-end seconds, summed. Tokens "
    "per call: emitted tokens / forward passes, prefill included, from the engine's counters; per "
    "step: 1 + accepted drafts / steps that verified drafts. "
    "Same ids as ar: share of the prompts that ar answered in this run."
)
_COLUMNS: Columns = {
    "other engine": lambda s: f"{s.first.name} (other engine)",
    "version": lambda s: s.first.version,
    "options": lambda s: " ".join(f"{k}={v}" for k, v in s.first.options.items()) or UNKNOWN,
    "model": lambda s: s.first.model,
    "threads": lambda s: number(s.first.threads, ".0f"),
    "prompts": lambda s: str(s.prompts),
    "tokens/s": lambda s: number(s.tokens_per_s, ".1f"),
    "tokens per call": lambda s: number(s.tokens_per_call),
    "tokens per step": lambda s: number(s.tokens_per_step),
    "accepted %": lambda s: percent(s.acceptance_rate, ""),
    "same ids as ar %": lambda s: (
        percent(s.identical, "") + f" (n = {s.compared})" * (s.compared > 0)
    ),
    "errors": lambda s: TableCell(str(s.errors), bad=s.errors > 0),
}


def other_engines(
    answers: Sequence[ExternalAnswer], records: Iterable[SampleRecord]
) -> Table | None:
    """Make the table of other engines; None if none was measured."""
    return Table.of("Other engines", _NOTE, _COLUMNS, engine_sums(answers, records))


def _tables(findings: Findings) -> list[Table | None]:
    run = findings.run
    return [other_engines(read_external(run.path), run.records)]


SECTION = Section("engines", _tables, is_open=True)
