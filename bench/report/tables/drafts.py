"""Tables of drafts: acceptance by position and by drafter, rounds and passes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from bench.records.plan import BASELINE, Cell
from bench.records.record import SampleRecord
from bench.report.tables.table import (
    Columns,
    Table,
    TableCell,
    by_family,
    interval,
    is_number,
    number,
    step_length,
    with_interval,
)
from bench.stats.calibration import NUM_BINS
from bench.stats.counters import Tally, accepted_by_drafter, group_by, ratio, timed
from bench.stats.intervals import LEVEL
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.parallel_counters import COPIED_RUN
from bench.stats.summary import ALL
from bench.text import UNKNOWN, percent

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
    "tokens per block": lambda r: number(r.tokens_per_block, ".1f"),
    "passes per block": lambda r: number(r.passes_per_block),
    "passes p95": lambda r: number(r.passes_per_block_p95, ".0f"),
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
        "'-': no step reached this position. Rates depend on the number of drafts K, at "
        "position 1, too: compare only cells of equal K. n: steps at position 1; the counts of "
        "every position and family are in tables/acceptance_by_position.csv."
    )
    return Table.of("Draft acceptance by position", note, columns, rows)


def calibration(summary: pd.DataFrame, table: pd.DataFrame) -> Table | None:
    """Make the table of confidences against acceptance, for decoders that have confidences."""
    groups = dict(list(table.groupby("decoder")))
    rows = [
        (row, kind, groups[row.decoder])
        for row in summary_rows(summary, ALL)
        for kind in ("confidence", "accepted")
        if row.decoder in groups
    ]

    def mean(row: tuple[SummaryRow, str, pd.DataFrame], position: int | None = None) -> str:
        _, kind, some = row
        some = some if position is None else some[some["position"] == position]
        return number(ratio(float(some[kind].sum()), float(some["drafts"].sum())), ".3f")

    def estimate(row: tuple[SummaryRow, str, pd.DataFrame], column: str) -> str:
        value = row[0].estimate(column)
        ends = interval(value.low, value.high, ".3f")
        return with_interval(number(value.value, ".3f"), ends) if row[1] == "confidence" else ""

    columns: Columns = {
        "decoder": lambda row: row[0].decoder,
        "n": lambda row: f"{row[2]['drafts'].sum():,}",
        "ECE": partial(estimate, column="ece"),
        "Brier score": partial(estimate, column="brier"),
        "mean": lambda row: row[1],
        "all": mean,
    }
    positions = sorted(table["position"].unique())[:_MAX_POSITIONS]
    columns |= {str(position): partial(mean, position=position) for position in positions}
    note = (
        "n: tested drafts, whose parents were all accepted. Confidence: the drafter's probability "
        "of a draft, given its parents. Accepted: share of accepted drafts; both over all tested "
        "drafts and by position in the step. ECE: mean gap between confidence and accepted share "
        f"over {NUM_BINS} bins, weighted by drafts. Brier score: mean squared error; 0.25 is that "
        f"of a constant 0.5. {LEVEL} jackknife intervals over conversations. Drawn drafts that "
        "rejection sampling verifies are accepted more often than their probability says."
    )
    return Table.of("Calibration of drafts", note, columns, rows)


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
        "often a block was predicted; its tokens are those that EOS and the budget left. '-': "
        "undefined for this decoder."
    )
    rows = [
        row
        for row in summary_rows(summary, ALL)
        if is_number(row.cold_rounds) or is_number(row.passes_per_block)
    ]
    return Table.of("Rounds and passes", note, _ROUNDS, rows)


def step_lengths(summary: pd.DataFrame, timed: str) -> Table:
    """Make the table of tokens per step by family, with what is known of ar's answers."""
    note = (
        f"Tokens emitted after the prefill / steps after the prefill, pooled; {LEVEL} jackknife "
        f"interval over conversations. {timed}"
    )
    table = by_family(summary, "Tokens per step by family", note, step_length)
    rows = {r.family: r for r in summary_rows(summary, None) if r.decoder == BASELINE}
    firsts: dict[str, Callable[[SummaryRow], str]] = {
        "ar's entropy, nats": lambda row: number(row.base_entropy, ".3g"),
        "ar's tokens copied, %": lambda row: percent(row.copied, ""),
    }
    above = [
        (name, *(text(rows[f]) if f in rows else UNKNOWN for f in table.headings[1:]))
        for name, text in firsts.items()
    ]
    shown = [tuple(map(TableCell, row)) for row in above if {*row[1:]} != {UNKNOWN}]
    if not shown:
        return table
    firsts_note = (
        "First rows: mean entropy of ar's next token along its answers, and the share of their "
        f"tokens that are copied from the prompt (in runs of {COPIED_RUN} or more that occur "
        "there): low entropy and copies make drafting easy."
    )
    return replace(table, note=f"{note} {firsts_note}", rows=(*shown, *table.rows))
