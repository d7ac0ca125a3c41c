"""`bench explain` on a terminal: a table of all decoders first, then a paragraph about each."""

from __future__ import annotations

from typing import Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.report.findings import Findings
from bench.report.tables.table import number
from bench.report.texts.explain import explain
from bench.stats.cost_curve import Cost
from bench.stats.decompose import OVERHEAD, Decomposition, Split
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
from bench.text import UNKNOWN, factor

_HEADINGS = (
    *("decoder", "speed-up", "tokens\nper step", "step costs\nar tokens"),
    *("prefill\n%", "draft\n%", "target\ncalls %", "overhead\n%"),
)


def print_explanation(findings: Findings, console: Console, cost: Cost | None = None) -> None:
    """Print it: lines end between words on a terminal, and with the paragraph where it is piped."""
    if not findings.summary.empty:
        console.print(_overview(findings), "")
    text = Text("\n\n".join(explain(findings, cost)))
    console.print(text, soft_wrap=not console.is_terminal)


def _overview(findings: Findings) -> RichTable:
    """A row per decoder; columns of which nothing is known are left out."""
    splits = {split.decoder: split for split in findings.splits}
    made = {item.decoder: item for item in findings.decompositions}
    rows = [
        _row(row, splits.get(row.decoder), made.get(row.decoder))
        for row in rows_of(findings.summary, ALL)
    ]
    printed = RichTable(box=None, pad_edge=False, header_style="bold")
    known = [any(row[place] != UNKNOWN for row in rows) for place in range(len(_HEADINGS))]
    for place, heading in enumerate(_HEADINGS):
        if known[place]:
            side: Literal["left", "right"] = "right" if place else "left"
            printed.add_column(Text(heading), justify=side, vertical="bottom")
    for row in rows:
        printed.add_row(*(Text(text) for text, shown in zip(row, known, strict=True) if shown))
    return printed


def _row(row: SummaryRow, split: Split | None, parts: Decomposition | None) -> list[str]:
    shares = {} if split is None else dict(split.shares)
    spent = [shares.get(phase) for phase in ("prefill", "draft", "verify")]
    overhead = sum(shares[phase] for phase in OVERHEAD) if shares else None
    return [
        row.decoder,
        factor(row.speedup),
        number(row.acceptance_length),
        UNKNOWN if parts is None else number(parts.cost),
        *(number(share, ".0f", 100) for share in (*spent, overhead)),
    ]
