"""Tables of stored runs: `python -m docs.generate` writes them into pages.

``<!-- table: NAME ARGUMENTS -->`` has its own line, directly above the table's lines. NAME is one
of `TABLES`, and the arguments are words: folders of ``results/reference`` for tables of runs, paths
of other files for those of `docs.generate.files`. `machines`, `stored` and `pools` find folders
that nobody named, so that they grow when `bench submit` adds one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

import pandas as pd

from bench.plan.select import build_decoder
from bench.records.files import read_json
from bench.records.plan import (
    BASELINE,
    NO_GUARANTEE,
    SAME_DISTRIBUTION,
    SAME_TOKENS,
    guarantee_rank,
)
from bench.report.tables.table import (
    Columns,
    Table,
    TableCell,
    estimated,
    interval,
    number,
    speed,
    with_interval,
)
from bench.settings.config import FAST, read_toml
from bench.stats.intervals import Estimate
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.summary import ALL
from bench.text import UNKNOWN, factor, percent
from decoders.core.decoder import Decoder, SelfDriven
from docs.generate import files
from docs.generate.decoder_pages import built_in
from docs.generate.places import ROOT
from docs.generate.tables import table

STORED = ROOT / "results" / "reference"
TABLE = re.compile(
    r"^<!-- table: (?P<name>\w+)(?P<runs>(?: [^\s>]+)*) -->$(?:\n\|.*)*", re.MULTILINE
)
"""Matches a table's comment, and the table if there is one."""
OTHER, UNSTEADY = "¹", "²"
"""Marks of a cell whose weights or options differ from the first machine's, and of a machine whose
`ar` differs from itself."""


class StoredRun:
    """A run of ``results/reference``, its rows in the order of tables."""

    def __init__(self, name: str) -> None:
        self.name, self.folder = name, STORED / name
        self.summary = pd.read_csv(self.folder / "summary.csv")
        self._env: Mapping[str, Any] = read_json(self.folder / "env.json") or {}
        self.config: Mapping[str, Any] = read_toml(self.folder / "config.toml")
        self._cells: Mapping[str, Mapping[str, str]] = self.config["decoders"]
        self.date = str((read_json(self.folder / "run.json") or {}).get("started_utc"))[:10]

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
    def processor(self) -> str:
        """Name of the GPU, else of the processor with its family and model, if it is recorded."""
        gpu, machine = self._env["gpu"], self._env["machine"]
        name = gpu["name"] if gpu else re.sub(r"\(R\)|\(TM\)|Processor", "", machine["cpu"])
        return " ".join(name.split())

    @property
    def machine(self) -> str:
        """Maker and name of the GPU, else of the processor."""
        return " ".join(self.processor.split()[:2])

    @property
    def work(self) -> list[object]:
        """The model, its calls, prompts and sampling, by which speed-ups stand in one table."""
        sampling = [self.config.get(name) for name in ("temperature", "top_p", "top_k")]
        tasks = str(self.config.get("tasks")).partition("=")[0]
        numerics = self.config.get("numerics") or FAST
        how = [
            self.config.get("batch_size"),
            numerics,
            (self._env["models"]["target"] or {}).get("compiled"),
        ]
        return [self.config.get("model"), tasks, self.config.get("split"), *sampling, *how]

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


def all_stored() -> list[StoredRun]:
    """Return all stored runs but the sessions of pools, in order of name."""
    return [stored(file.parent.name) for file in sorted(STORED.glob("*/samples.parquet"))]


def by_machine(names: Sequence[str]) -> list[StoredRun]:
    """Return the named runs, and one of the same work for each other processor or GPU.

    It is the one with the most decoders; of several, the newest.
    """
    runs = [stored(name) for name in names]
    others = [run for run in all_stored() if run.work == runs[0].work]
    others.sort(key=lambda run: (len(run.rows), run.date), reverse=True)
    found = {run.processor: run for run in reversed(others)}
    for run in runs:
        found.pop(run.processor, None)
    return runs + sorted(found.values(), key=lambda run: run.processor)


def headings(runs: Sequence[StoredRun]) -> list[str]:
    """Return each machine's name, in full where two have one, marked if its `ar` was unsteady."""
    names = [run.machine for run in runs]
    full = [run.processor if names.count(run.machine) > 1 else run.machine for run in runs]
    marks = [UNSTEADY * run.floor.differs_from_one for run in runs]
    return [f"{name}{mark}" for name, mark in zip(full, marks, strict=True)]


def run(name: str) -> str:
    """Return the table of a run, over all families."""
    columns: Columns = {
        "decoder": lambda row: row.decoder,
        "guarantee": lambda row: str(row.guarantee),
        "speed-up [95 %]": lambda row: speed(row).text,
        "tokens per call": lambda row: number(row.tokens_per_call),
        "tokens per step": _per_step,
        "calls per step": lambda row: number(row.calls_per_step),
        "entropy": lambda row: number(row.base_entropy),
        "quality": lambda row: percent(row.quality),
        "identical to AR": lambda row: percent(row.identical_to_ar),
    }
    return Table.of("", "", columns, stored(name).rows.values()).to_markdown()


def _per_step(row: SummaryRow) -> str:
    """Return a row's tokens per step, in brackets if nothing verifies them."""
    text = number(row.acceptance_length)
    return text if row.decoder == BASELINE or row.acceptance_rate else f"({text})"


def beside(*names: str) -> str:
    """Return speed-ups and tokens per step of several runs; `ar` has its A/A floor."""
    runs = [stored(name) for name in names]
    cells = dict.fromkeys(cell for run in runs for cell in run.rows)

    def numbers(run: StoredRun, cell: str) -> tuple[str, str]:
        if cell not in run.rows:
            return UNKNOWN, UNKNOWN
        row = run.rows[cell]
        return estimated(run.floor) if cell == BASELINE else speed(row).text, _per_step(row)

    heads = ["decoder", *(head for run in runs for head in (run.name, "tokens per step"))]
    rows = [[cell, *itertools.chain(*(numbers(run, cell) for run in runs))] for cell in cells]
    return table(heads, rows).rstrip()


def budget(name: str, folder: str) -> str:
    """Return what training cost and what it gave: a run's decoders with weights of a folder."""
    run, rows = stored(name), []
    for cell, row in run.rows.items():
        if cell.partition("@")[0] not in built_in() or isinstance(run.decoder(cell), SelfDriven):
            continue
        parts = run.decoder(cell).parts
        names = [part.adapter_name for part in parts if part.adapter_name]
        names += ["draft" for part in parts if "draft" in part.needs]
        cost = [files.cost(f"{folder}/{each}") for each in dict.fromkeys(names)]
        results = (_per_step(row), number(row.tokens_per_call), speed(row).text)
        rows += [(f"`{cell}`", *map(" + ".join, zip(*cost, strict=True)), *results)] * bool(cost)
    heads = ("decoder", "weights", "tokens or slots seen", "minutes")
    return table((*heads, "tokens per step", "tokens per call", "speed-up [95 %]"), rows).rstrip()


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
    return Table.of("", "", columns, stored(names[0]).rows).to_markdown()


def machines(*names: str) -> str:
    """Return the speed-ups of decoders with a guarantee, a column per machine, the fastest first.

    Headings have prompts × most tokens. Tokens per step are those of the first run. `ar` stands for
    itself: its second arm.
    """
    runs = by_machine(names)

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

    titles, rows = headings(runs), runs[0].rows
    sizes = [
        f"{run.rows[BASELINE].prompts}\N{MULTIPLICATION SIGN}{run.config['max_new_tokens']}"
        for run in runs
    ]
    measured = zip(titles, sizes, runs, strict=True)
    columns: Columns = {
        "decoder": str,
        **{f"{name}, {size}": partial(speedup, run) for name, size, run in measured},
        "tokens per step (first machine)": lambda cell: number(rows[cell].acceptance_length),
        "identical to AR, % (by machine)": identical,
    }
    text = Table.of("", "", columns, with_guarantee(runs[0])).to_markdown()
    return re.sub(r"x \[(\S+) ", "x\N{NO-BREAK SPACE}[\\1\N{NO-BREAK SPACE}", text)


def with_guarantee(run: StoredRun) -> list[str]:
    """Return the cells that guarantee something: the baseline, then by speed-up."""
    rows = [row for row in run.rows.values() if row.guarantee != NO_GUARANTEE]
    rows.sort(key=lambda row: (row.decoder != BASELINE, -(row.speedup or 0)))
    return [row.decoder for row in rows]


def stored_runs() -> str:
    """Return a row per stored run: what, where and when it measured, and what gained most."""

    def fastest(run: StoredRun) -> str:
        kept = (SAME_TOKENS, SAME_DISTRIBUTION)
        rows = (run.rows[cell] for cell in with_guarantee(run)[1:])
        row = next((row for row in rows if row.guarantee in kept), None)
        return UNKNOWN if row is None else f"`{row.decoder}` {speed(row).text}"

    def link(run: StoredRun) -> str:
        file = "report.md" if (run.folder / "report.md").is_file() else "summary.csv"
        return f"[{run.name}]({run.name}/{file})"

    runs = sorted(all_stored(), key=lambda run: (run.work[0] != "zoo", run.processor, run.name))
    rows = [
        (
            link(run),
            str(run.config.get("model")),
            run.processor,
            f"{run.config.get('temperature'):g}",
            str(run.rows[BASELINE].prompts),
            estimated(run.floor),
            fastest(run),
            run.date,
        )
        for run in runs
    ]
    heads = ("run", "model", "machine", "T", "prompts", "A/A", "fastest with a guarantee", "date")
    return table(heads, rows).rstrip()


def pools() -> str:
    """Return a row per pool, machine and decoder: what its sessions measured, and the next one."""
    rows = [
        (
            f"[{file.parent.name}]({file.parent.name}/pool.md)",
            *(str(row[name]) for name in ("machine", "sessions", "decoder")),
            with_interval(
                factor(row["speedup"]), interval(row["speedup_low"], row["speedup_high"])
            ),
            interval(row["next_low"], row["next_high"]),
        )
        for file in sorted(STORED.glob("*/pool.csv"))
        for _, row in pd.read_csv(file).iterrows()
    ]
    heads = ("pool", "machine", "sessions", "decoder", "speed-up [95 %]", "next session [95 %]")
    return table(heads, rows).rstrip()


TABLES: dict[str, Callable[..., str]] = {
    "run": run,
    "beside": beside,
    "budget": budget,
    "families": families,
    "machines": machines,
    "stored": stored_runs,
    "pools": pools,
    "csv": files.csv_rows,
    "training": files.training,
    "scores": files.scores,
}


def with_tables(text: str, path: str) -> str:
    """Return a page with all tables as the stored runs give them.

    Args:
        text: Markdown of the page.
        path: path of the page's file in the repository.

    Raises:
        ValueError: the page names an unknown table.
    """

    def filled(mark: re.Match[str]) -> str:
        if mark["name"] not in TABLES:
            known = ", ".join(TABLES)
            raise ValueError(f"{path} asks for table {mark['name']!r}; there is: {known}")
        rows = TABLES[mark["name"]](*mark["runs"].split())
        return f"<!-- table: {mark['name']}{mark['runs']} -->\n{rows}"

    return TABLE.sub(filled, text)
