"""Tables of stored runs: `python -m docs.generate` writes them into pages.

``<!-- table: NAME RUN… -->`` has its own line, directly above the table's lines. NAME is one of
`TABLES`, and each RUN a folder of ``results/reference``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import Any

import pandas as pd

from bench.plan.select import build_decoder
from bench.records.files import read_json
from bench.records.plan import BASELINE, NO_GUARANTEE, guarantee_rank
from bench.report.tables.table import Columns, Table, TableCell, estimated, number, speed
from bench.settings.config import read_toml
from bench.stats.intervals import Estimate
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.summary import ALL
from bench.text import UNKNOWN, percent
from decoders.core.decoder import Decoder
from docs.generate.places import ROOT

TABLE = re.compile(
    r"^<!-- table: (?P<name>\w+)(?P<runs>(?: [\w-]+)+) -->$(?:\n\|.*)*", re.MULTILINE
)
"""Matches a table's comment, and the table if there is one."""
OTHER, UNSTEADY = "¹", "²"
"""Marks of a cell whose weights or options differ from the first machine's, and of a machine whose
`ar` differs from itself."""


class StoredRun:
    """A run of ``results/reference``, its rows in the order of tables."""

    def __init__(self, name: str) -> None:
        self.folder = ROOT / "results" / "reference" / name
        self.summary = pd.read_csv(self.folder / "summary.csv")
        self._env: Mapping[str, Any] = read_json(self.folder / "env.json") or {}
        self._cells: Mapping[str, Mapping[str, str]] = read_toml(self.folder / "config.toml")[
            "decoders"
        ]

    @cached_property
    def rows(self) -> dict[str, SummaryRow]:
        """Rows over all families by decoder: the baseline first, then by guarantee."""
        rows = summary_rows(self.summary, ALL)
        rows.sort(key=lambda row: (row.decoder != BASELINE, guarantee_rank(row.guarantee)))
        return {row.decoder: row for row in rows}

    @property
    def floor(self) -> Estimate:
        """The A/A noise floor of the run."""
        return self.rows[BASELINE].floor

    @property
    def machine(self) -> str:
        """Name of the GPU, else of the processor, without the maker's ornaments."""
        gpu, machine = self._env["gpu"], self._env["machine"]
        name = gpu["name"] if gpu else re.sub(r"\(.*?\)|Processor", "", machine["cpu"])
        return " ".join(name.split()[:2])

    @property
    def heading(self) -> str:
        """The machine, marked if the run was not steady."""
        return f"{self.machine}{UNSTEADY * self.floor.differs_from_one}"

    def decoder(self, cell: str) -> Decoder:
        """Build the decoder of a cell, with the options that it had."""
        return build_decoder(cell, self._cells[cell])

    def weights(self, cell: str) -> list[str]:
        """Return the hashes of a cell's adapters and draft model."""
        models = self._env["models"]
        parts = self.decoder(cell).parts
        adapters = [models["adapters"][part.adapter_name] for part in parts if part.adapter_name]
        drafts = [models["draft"] for part in parts if "draft" in part.needs]
        return [each["weights_sha256"] for each in adapters + drafts]

    def equals(self, other: StoredRun, cell: str) -> bool:
        """Tell whether a cell has the same options and weights as in another run."""
        same = self.decoder(cell) == other.decoder(cell)
        return same and self.weights(cell) == other.weights(cell)


stored = cache(StoredRun)


def run(name: str) -> str:
    """Return the table of a run, over all families. In brackets: tokens that nothing verifies."""

    def tokens(row: SummaryRow) -> str:
        text = number(row.acceptance_length)
        return text if row.decoder == BASELINE or row.acceptance_rate else f"({text})"

    columns: Columns = {
        "decoder": lambda row: row.decoder,
        "guarantee": lambda row: str(row.guarantee),
        "speed-up [95 %]": lambda row: speed(row).text,
        "tokens per call": lambda row: number(row.tokens_per_call),
        "tokens per step": tokens,
        "calls per step": lambda row: number(row.calls_per_step),
        "entropy": lambda row: number(row.base_entropy),
        "quality": lambda row: percent(row.quality),
        "identical to AR": lambda row: percent(row.identical_to_ar),
    }
    return Table.from_rows("", "", columns, stored(name).rows.values()).to_markdown()


def families(*names: str) -> str:
    """Return the quality by family, in per cent, of one run, or of several: ``99.7 / 99.4``."""
    runs = [
        {(row.decoder, row.family): row.quality for row in summary_rows(stored(name).summary, None)}
        for name in names
    ]
    scored = dict.fromkeys(
        family for (_, family), quality in runs[0].items() if family != ALL and quality is not None
    )

    def quality(decoder: str, family: str) -> str:
        return " / ".join(percent(run.get((decoder, family)), "") for run in runs)

    columns: Columns = {"decoder": str} | {
        family: partial(quality, family=family) for family in scored
    }
    return Table.from_rows("", "", columns, stored(names[0]).rows).to_markdown()


def machines(*names: str) -> str:
    """Return the speed-ups of decoders with a guarantee, a column per run, the fastest first.

    Tokens per step are those of the first run. `ar` stands for itself: its second arm.
    """
    runs = [stored(name) for name in names]

    def speedup(each: StoredRun, cell: str) -> TableCell | str:
        if cell == BASELINE:
            return estimated(each.floor)
        if cell not in each.rows:
            return UNKNOWN
        estimate = each.rows[cell].estimate("speedup")
        mark = "" if each.equals(runs[0], cell) else OTHER
        faster = estimate.exceeds(each.floor) and (estimate.value or 0) > 1
        return TableCell(f"{estimated(estimate)}{mark}", bold=faster)

    def identical(cell: str) -> str:
        shares = [each.rows[cell].identical_to_ar if cell in each.rows else None for each in runs]
        return ", ".join(percent(share, "", 0) for share in shares)

    columns: Columns = {
        "decoder": str,
        **{each.heading: partial(speedup, each) for each in runs},
        "tokens per step": lambda cell: number(runs[0].rows[cell].acceptance_length),
        "identical to AR, %": identical,
    }
    table = Table.from_rows("", "", columns, with_guarantee(runs[0])).to_markdown()
    return re.sub(r"x \[(\S+) ", "x\N{NO-BREAK SPACE}[\\1\N{NO-BREAK SPACE}", table)


def with_guarantee(run: StoredRun) -> list[str]:
    """Return the cells that guarantee something: the baseline, then by speed-up."""
    rows = [row for row in run.rows.values() if row.guarantee != NO_GUARANTEE]
    rows.sort(key=lambda row: (row.decoder != BASELINE, -(row.speedup or 0)))
    return [row.decoder for row in rows]


TABLES: dict[str, Callable[..., str]] = {"run": run, "families": families, "machines": machines}


def with_tables(text: str, path: str) -> str:
    """Return a page with all tables as the stored runs give them.

    Args:
        text: Markdown of the page.
        path: path of the page's file in the repository.

    Raises:
        ValueError: the page names an unknown table.
    """

    def table(mark: re.Match[str]) -> str:
        if mark["name"] not in TABLES:
            known = ", ".join(TABLES)
            raise ValueError(f"{path} asks for table {mark['name']!r}; there is: {known}")
        rows = TABLES[mark["name"]](*mark["runs"].split())
        return f"<!-- table: {mark['name']}{mark['runs']} -->\n{rows}"

    return TABLE.sub(table, text)
