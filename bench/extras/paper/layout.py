"""Venues with the widths of their columns, and the user's choices for the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal, NamedTuple

from bench.errors import UsageError, did_you_mean
from bench.report.tables.table import number
from bench.text import percent


class Venue(NamedTuple):
    """A venue: width of a text column in inches, and whether a page has two."""

    width: float
    two_columns: bool


VENUES: Mapping[str, Venue] = {
    "icml": Venue(3.25, two_columns=True),
    "acl": Venue(3.03, two_columns=True),
    "neurips": Venue(5.5, two_columns=False),
    "iclr": Venue(5.5, two_columns=False),
    "tmlr": Venue(6.5, two_columns=False),
    "arxiv": Venue(6.5, two_columns=False),
}
"""The venues of ``--venue`` (docs/reporting.md says whose widths they are)."""


def packaged(name: str) -> str:
    """Return the text of a file of this folder."""
    return (files("bench.extras.paper") / name).read_text(encoding="utf-8")


class Column(NamedTuple):
    """A number of the summary as a column: heading, words in the caption, format."""

    heading: str
    caption: str
    spec: str = ".2f"
    scale: float = 1.0
    best: Literal["most", "least", "none"] = "most"

    def text(self, value: float | None) -> str:
        """Return a value as printed, shares without their unit."""
        is_share = self.scale == 100
        return percent(value, "") if is_share else number(value, self.spec, self.scale)


COLUMNS: Mapping[str, Column] = {
    "speedup": Column(
        r"Speed-up",
        "speed-up over autoregressive decoding (geometric mean over prompts of paired end-to-end "
        "time per token, 95\\,\\% t-interval over prompts, this session)",
    ),
    "speedup_decode": Column("Decode", "speed-up from the first token on"),
    "tokens_per_call": Column("Tok./call", "emitted tokens per target call"),
    "acceptance_length": Column("Tok./step", "tokens per step after prefill"),
    "calls_per_step": Column("Calls/step", "target calls per step", best="none"),
    "acceptance_rate": Column("Acc.", "accepted drafts in per cent", ".1f", 100),
    "rows_per_token": Column("Rows/tok.", "target rows per emitted token", best="least"),
    "ttft_s": Column("TTFT", "ms to the first token", ".1f", 1e3, best="least"),
    "time_per_token_s": Column("ms/tok.", "ms per emitted token", ".2f", 1e3, best="least"),
    "tokens_per_s": Column("Tok./s", "emitted tokens per second", ".0f"),
    "peak_memory_bytes": Column("MB", "peak memory in MB", ".0f", 1e-6, best="least"),
    "quality": Column("Quality", "quality in per cent", ".1f", 100),
    "identical_to_ar": Column("Same", "answers identical to AR's in per cent", ".1f", 100),
}
"""The columns of ``--columns``."""
USUAL = (
    *("speedup", "tokens_per_call", "acceptance_length", "calls_per_step"),
    *("time_per_token_s", "quality"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A paper's choices; `columns` None: the usual ones."""

    venue: str
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    bold: Literal["best", "none"] = "best"


def parse_layout(
    venue: str, labels: Sequence[str], columns: str | None, bold: Literal["best", "none"]
) -> Layout:
    """Parse labels DECODER=TEXT and comma-separated columns (exit 2 if one is malformed)."""
    named = [label.partition("=") for label in labels]
    for label, (name, _, text) in zip(labels, named, strict=True):
        if not (name and text.strip()):
            raise UsageError(f"--label {label}: write DECODER=TEXT")
    chosen = [name.strip() for name in columns.split(",")] if columns is not None else None
    for name in chosen or ():
        if name not in COLUMNS:
            raise UsageError(f"no column {name!r}; {did_you_mean(name, COLUMNS)}")
    return Layout(
        venue=venue,
        labels={name: text.strip() for name, _, text in named},
        columns=tuple(dict.fromkeys(chosen)) if chosen else None,
        bold=bold,
    )
