"""The table of other engines: their own numbers on the run's prompts, beside no speed-up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.records.external import ExternalAnswer
from bench.records.record import SampleRecord
from bench.report.tables.table import Columns, Table, TableCell, number
from bench.stats.external import engine_sums
from bench.text import UNKNOWN, percent

_NOTE = (
    "Other engines, with loops, caches, kernels and weights of their own, on this run's prompts "
    "one at a time; measured apart from the run, so no row is paired with ar and none has a "
    "speed-up or an interval. Tokens/s: emitted tokens / end-to-end seconds, summed. Tokens per "
    "call: emitted tokens / forward passes, the prompt's included, from the engine's own counters; "
    "per step: 1 + accepted drafts / steps that verified some. "
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
    """Make the table of engines and modes, or None where no other engine was measured."""
    return Table.of("Other engines", _NOTE, _COLUMNS, engine_sums(answers, records))
