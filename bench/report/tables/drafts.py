"""Tables of drafts: acceptance by position and by drafter, rounds and passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from bench.records.plan import Cell
from bench.records.record import SampleRecord
from bench.report.tables.main import entropies
from bench.report.tables.table import (
    Columns,
    Table,
    TableCell,
    by_family,
    is_number,
    number,
    step_length,
)
from bench.stats.counters import Tally, accepted_by_drafter, group_by, timed
from bench.stats.intervals import LEVEL
from bench.stats.metrics import summary_rows
from bench.stats.summary import ALL
from bench.text import percent

_MAX_POSITIONS = 16
_ROUNDS: Columns = {
    "decoder": lambda r: r.decoder,
    "tokens per forward": lambda r: number(r.tpf),
    "rows per token": lambda r: number(r.rows_per_token),
    "cold %": lambda r: percent(r.cold_rounds, ""),
    "all accepted %": lambda r: percent(r.accepted_rounds, ""),
    "one rejected %": lambda r: percent(r.rejected_rounds, ""),
    "overlap": lambda r: number(r.overlap, ".3f"),
    "alpha": lambda r: number(r.alpha_all, ".3f"),
    "passes per block": lambda r: number(r.passes_per_block),
    "p95": lambda r: number(r.passes_per_block_p95, ".0f"),
}


def acceptance(table: pd.DataFrame) -> Table | None:
    """Make the table of three kinds of acceptance by position over all families."""
    overall = table[table["family"] == ALL].astype({"position": int})
    positions = sorted(overall["position"].unique())[:_MAX_POSITIONS]
    rows = [
        (decoder, kind, group.set_index("position"))
        for decoder, group in overall.groupby("decoder", sort=False)
        for kind in ("unconditional", "joint", "conditional")
    ]
    columns: Columns = {
        "decoder": lambda row: str(row[0]),
        "probability": lambda row: row[1],
        "n": lambda row: str(row[2].loc[1, "later_steps" if row[1][0] == "u" else "steps"]),
    }

    def probability(row: tuple[str, str, pd.DataFrame], position: int) -> str:
        return number(row[2][row[1]].get(position), ".3f")

    columns |= {str(position): partial(probability, position=position) for position in positions}
    note = (
        "Unconditional: P(a step emits more than j tokens), over all steps after the prefill; 1 + "
        "its sum is the tokens per step. Conditional: P(draft j accepted | all earlier drafts "
        "accepted), over steps that drafted at least j tokens. Joint: P(drafts 1..j all accepted), "
        "the product of the conditionals up to j, so that shorter drafts count up to their length. "
        "'-': no step reached this position. n: steps at position 1; the counts of every position "
        "and family are in tables/acceptance_by_position.csv."
    )
    return Table.of("Draft acceptance by position", note, columns, rows)


def by_drafter(records: Sequence[SampleRecord]) -> Table | None:
    """Make the table of accepted drafts per step, for decoders with several drafters."""
    columns: Columns = {
        "decoder": lambda row: row[0],
        "drafter": lambda row: row[1],
        "accepted per step": lambda row: number(row[2]),
    }
    rows = [
        (decoder, drafter, num / Tally.pool(timed(group)).later_steps)
        for decoder, group in group_by(records).items()
        for drafter, num in sorted(accepted_by_drafter(group).items())
    ]
    note = "Accepted drafts / steps after the prefill. The target adds one token to each step."
    return Table.of("Accepted drafts by drafter", note, columns, rows)


def memory(cells: Sequence[Cell], records: Sequence[SampleRecord]) -> Table | None:
    """Make the table of tokens per step by answers seen, if a decoder remembers."""
    rows = [cell for cell in cells if cell.drafts] if any(c.remembers for c in cells) else []
    seen: defaultdict[tuple[str, int], list[SampleRecord]] = defaultdict(list)
    by_repeat = group_by(timed(records if rows else ()), lambda r: f"{r.decoder} {r.repeat}")
    for group in by_repeat.values():
        for num, record in enumerate(group):
            seen[record.decoder, (num.bit_length() + 1) // 2].append(record)
    columns: Columns = {"decoder": lambda c: c.cell, "remembers": lambda c: c.remembers or "-"}
    for size in sorted({size for _, size in seen}):
        rates = {c.cell: number(Tally.pool(seen[c.cell, size]).acceptance_length) for c in cells}
        title = f"{4 ** (size - 1)}-{4**size - 1}" if size else "0"
        columns[title] = partial(lambda rates, cell: str(rates[cell.cell]), rates)
    note = (
        "Tokens / steps after the prefill, pooled, by the number of answers before in the repeat. "
        "A column has the same prompts for every decoder: compare decoders, not columns."
    )
    return Table.of("Tokens per step by answers seen", note, columns, rows)


def rounds(summary: pd.DataFrame) -> Table | None:
    """Make the table of rounds, distributions and passes, for decoders that have any."""
    note = (
        "Shares of steps after the prefill that verified nothing (cold), accepted all drafts, or "
        "rejected one. Overlap: mean over tested drafts of the probability mass shared by their "
        "distribution and ar's; alpha: mean over emitted tokens of min(1, ar / draft). Passes: how "
        "often a block was predicted. '-': undefined for this decoder."
    )
    rows = [
        row
        for row in summary_rows(summary, ALL)
        if is_number(row.cold_rounds) or is_number(row.passes_per_block)
    ]
    return Table.of("Rounds and passes", note, _ROUNDS, rows)


def step_lengths(summary: pd.DataFrame, timed: str) -> Table:
    """Make the table of tokens per step by family, with ar's entropy if known."""
    note = (
        f"Tokens emitted after the prefill / steps after the prefill, pooled; {LEVEL} jackknife "
        f"interval over conversations. {timed}"
    )
    table = by_family(summary, "Tokens per step by family", note, step_length)
    if not (entropy := entropies(summary)):
        return table
    texts = (number(entropy.get(family), ".3g") for family in table.headings[1:])
    first = (TableCell("ar's entropy, nats"), *map(TableCell, texts))
    row = "First row: mean entropy of ar's next token along its answers; low: easy to draft."
    return replace(table, note=f"{note} {row}", rows=(first, *table.rows))
