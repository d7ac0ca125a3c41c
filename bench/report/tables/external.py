"""The table of other engines: their own numbers on the run's prompts, beside no speed-up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bench.records.external import ExternalAnswer
from bench.records.record import SampleRecord
from bench.report.tables.table import Table, TableCell, number
from bench.stats.external import EngineSums, engine_sums
from bench.text import UNKNOWN, percent

_NOTE = (
    "Other engines, with loops, caches, kernels and weights of their own, on this run's prompts "
    "one at a time; measured apart from the run, so no row is paired with ar and none has a "
    "speed-up or an interval. Tokens/s: emitted tokens / end-to-end seconds, summed. Tokens per "
    "call: emitted tokens / forward passes, the prompt's included, from the engine's own counters. "
    "Same ids as ar: share of the prompts that ar answered in this run."
)


def other_engines(
    answers: Sequence[ExternalAnswer], records: Iterable[SampleRecord]
) -> Table | None:
    """A row for each engine and mode, or None where no other engine was measured."""
    if not answers:
        return None
    headings = ("other engine", "version", "options", "model", "threads", "prompts")
    counted = ("tokens/s", "tokens per call", "accepted %", "same ids as ar %", "errors")
    return Table(
        title="Other engines",
        note=_NOTE,
        headings=(*headings, *counted),
        rows=tuple(_row(sums) for sums in engine_sums(answers, records)),
    )


def _row(sums: EngineSums) -> tuple[TableCell, ...]:
    first = sums.first
    options = " ".join(f"{name}={value}" for name, value in first.options.items())
    texts = (
        f"{first.name} (other engine)",
        first.version,
        options or UNKNOWN,
        first.model,
        UNKNOWN if first.threads is None else str(first.threads),
        str(sums.prompts),
        number(sums.tokens_per_s, ".1f"),
        number(sums.tokens_per_call),
        percent(sums.acceptance_rate, ""),
        percent(sums.identical, "") + (f" (n = {sums.compared})" if sums.compared else ""),
    )
    return (*map(TableCell, texts), TableCell(str(sums.errors), bad=sums.errors > 0))
