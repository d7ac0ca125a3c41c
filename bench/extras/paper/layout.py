"""Venues with the widths of their columns, and the user's choices for the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal, NamedTuple

from bench.errors import UsageError, did_you_mean
from bench.stats.metric import Metric, Paper
from bench.stats.metrics import METRICS


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
"""The venues of ``--venue`` (docs/publishing.md says whose widths they are)."""


def packaged(name: str) -> str:
    """Return the text of a file of this folder."""
    return (files("bench.extras.paper") / name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class PaperColumn:
    """A metric as a column of the table."""

    metric: Metric
    paper: Paper

    def text(self, value: float | None) -> str:
        """Return a value as printed, shares without their unit."""
        return self.metric.text(value, self.paper.spec)


COLUMNS: Mapping[str, PaperColumn] = {
    name: PaperColumn(each, each.paper) for name, each in METRICS.items() if each.paper is not None
}
"""The columns of ``--columns``."""
USUAL = (
    *("speedup", "tokens_per_call", "acceptance_length", "calls_per_step"),
    *("time_per_token_s", "quality"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperLayout:
    """A paper's choices, where `columns` None stands for the usual ones."""

    venue: str
    labels: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    bold: Literal["best", "none"] = "best"


def parse_layout(
    venue: str, labels: Sequence[str], columns: str | None, bold: Literal["best", "none"]
) -> PaperLayout:
    """Parse labels DECODER=TEXT and comma-separated columns (exit 2 if one is malformed)."""
    named = [label.partition("=") for label in labels]
    for label, (name, _, text) in zip(labels, named, strict=True):
        if not (name and text.strip()):
            raise UsageError(f"--label {label}: write DECODER=TEXT")
    names = [name.strip() for name in columns.split(",")] if columns is not None else None
    for name in names or ():
        if name not in COLUMNS:
            raise UsageError(f"no column {name!r}; {did_you_mean(name, COLUMNS)}")
    return PaperLayout(
        venue=venue,
        labels={name: text.strip() for name, _, text in named},
        columns=tuple(dict.fromkeys(names)) if names else None,
        bold=bold,
    )
