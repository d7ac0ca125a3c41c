"""Compute the findings of a run once: the numbers, tables and sentences of its report.

The Markdown report, the HTML report and the terminal all show a `Findings`, which depends only on
the run folder and covers the completed part of an interrupted run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, cast

import pandas as pd

from bench.records.plan import RunStatus, guarantee_rank
from bench.records.run_folder import Run
from bench.registry import extras
from bench.report.tables import conclusion, main
from bench.report.tables.setting import describe_model, report_title, setting
from bench.report.tables.table import SESSIONS, Table, mark_wrong
from bench.settings.protocol import departures
from bench.stats import workers
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.metrics import summary_rows
from bench.stats.quality import with_telling_quality
from bench.stats.summary import ALL, decoder_order, summarise
from bench.stats.validity import DAMAGED, judge
from bench.text import counted, flat, portable

_T = TypeVar("_T")


@dataclass(frozen=True)
class Findings:
    """Compute numbers, tables and sentences of one run, all from `run`."""

    run: Run

    @cached_property
    def _computed(self) -> dict[Callable[[Findings], object], object]:
        return {}

    def once(self, compute: Callable[[Findings], _T]) -> _T:
        """Return a function's result for these findings, computed only at its first use."""
        if compute not in self._computed:
            self._computed[compute] = compute(self)
        return cast("_T", self._computed[compute])

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return self.run.path.resolve().name

    @property
    def title(self) -> str:
        """A title for readers: model, tasks, date."""
        return report_title(self.run)

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per decoder and family, see `bench.stats.summary.summarise`."""
        return summarise(self.run)

    @cached_property
    def report_summary(self) -> pd.DataFrame:
        """The summary that the report shows, see `bench.stats.quality.with_telling_quality`."""
        return with_telling_quality(self.summary)

    @cached_property
    def floor(self) -> Estimate:
        """The A/A noise floor over all families."""
        return workers.noise_floor(self.run.records)

    @cached_property
    def rivals(self) -> conclusion.Rivals:
        """Speed-ups of each decoder over every other one."""
        return conclusion.rivals(self.run.records, self.timed_decoders)

    @property
    def timed_decoders(self) -> list[str]:
        """The decoders whose ratios of times are their own speed-ups."""
        overall = self.summary[self.summary["family"] == ALL]
        return [str(name) for name in overall.loc[overall["no_speedup"].isna(), "decoder"]]

    @property
    def decoders(self) -> list[str]:
        """Measured decoders in order, without the baseline's second arm."""
        return decoder_order(self.run)

    @cached_property
    def wrong(self) -> list[str]:
        """Decoders that wrongly claim to be lossless."""
        return self.run.status.wrong

    @cached_property
    def validity(self) -> RunStatus:
        """The verdict on the run folder as it is now, with its evidence."""
        return judge(self.run)

    @property
    def verdict(self) -> str:
        """VALID or another verdict of `bench.stats.validity`."""
        return str(self.validity.verdict)

    @cached_property
    def headline(self) -> Table:
        """The main table: every decoder over all families."""
        model = describe_model(self.run)
        return mark_wrong(main.headline(self.report_summary, self.verdict, model), self.wrong)

    def sizes(self, column: str) -> str:
        """Format n of every family, as of the first decoder (the baseline, if measured)."""
        if self.summary.empty:
            return "n = 0"
        first = self.summary[self.summary["decoder"] == self.summary["decoder"].iloc[0]]
        each = [f"{f} {n}" for f, n in zip(first["family"], first[column], strict=True)]
        return f"n: {', '.join(each)}"

    @property
    def conclusion(self) -> str:
        """The result of the run in a sentence or two."""
        return conclusion.conclusion(self.report_summary, self.rivals)

    @property
    def floor_sentence(self) -> str:
        """The A/A line under the main table."""
        return main.floor_sentence(self.floor, self.run.plan.baseline)

    @property
    def footnotes(self) -> list[str]:
        """Limits of the main table, most important first: noise, resolution."""
        lines = [
            self.floor_sentence,
            conclusion.resolution(self.report_summary),
            conclusion.primary_sentence(self.summary, self.run.config.get("primary")),
            conclusion.telling(self.summary),
            conclusion.weights_sentence(self.summary, self.run.env.gpu_name),
        ]
        return [line for line in lines if line]

    @property
    def setting(self) -> list[tuple[str, str]]:
        """The origin of the run as (key, value) lines."""
        return setting(self.run, self.decoders)

    @property
    def basis(self) -> str:
        """One line about the estimates of the main table and their sample."""
        return (
            f"speed-up: geometric mean of {self.run.plan.baseline} time / decoder time per token, "
            f"paired, end to end, {LEVEL} t-interval; {main.bases(self.summary)}. {SESSIONS}"
        )

    @property
    def status(self) -> str:
        """How the run ended, and how much of the plan was measured."""
        num_blocks = len({r.block for r in self.run.records if r.kind == "timing"})
        text = (
            f"{self.run.status.status or 'unfinished'}; {num_blocks} of "
            f"{len(self.run.plan.blocks)} timing blocks measured"
        )
        num_graphs, compile_s = self.validity.num_graphs, self.validity.compile_s
        if num_graphs is None or compile_s is None:
            return text
        graphs = counted(num_graphs, "graph")
        return f"{text}; {graphs} compiled in {compile_s:.0f} s, not part of any recorded time"

    @cached_property
    def caveats(self) -> list[str]:
        """Caveats about the numbers, one line each."""
        return [portable(line) for line in self._caveats()]

    def _caveats(self) -> Iterator[str]:
        run, summary = self.run, self.summary
        yield from (f"Reason: {reason}" for reason in self.validity.reasons)
        if self.verdict == DAMAGED:
            yield "An earlier samples.parquet or summary.csv was not overwritten."
        for warning in run.status.warnings or self.validity.warnings:
            yield f"Warning: {warning}"
        measured = {record.decoder for record in run.records}
        if missing := ", ".join(c.cell for c in run.plan.cells if c.cell not in measured):
            yield f"Not measured: {missing}."
        yield from conclusion.no_speedups(summary)
        yield from conclusion.quality_limits(summary)
        yield from conclusion.loop_sentences(summary)
        yield from conclusion.ends(run.records, self.decoders)
        for make_caveats in extras("bench.caveats").values():
            yield from make_caveats(self)
        if protocol := run.config.get("protocol"):
            for departure in departures(run.config, len(run.plan.in_pass("timing"))):
                yield f"Departs from the protocol {protocol}: {departure}."
        if run.plan.skipped:
            yield f"{counted(len(run.plan.skipped), 'prompt')} skipped before the run."

    @property
    def environment(self) -> list[tuple[str, str]]:
        """Machine, versions and so on, as (key, value) lines without absolute paths."""
        text = "models.target.template.text"  # it may be long and is in env.json
        return [entry for entry in flat(self.run.env.to_json()) if entry[0] != text]

    @property
    def configuration(self) -> list[tuple[str, str]]:
        """The resolved configuration, as (key, value) lines without absolute paths."""
        return list(flat(self.run.config))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNumbers:
    """Hold the summary and the A/A floor of one run.

    `name` is the folder's name, made unique among the runs. `label` heads the run's column: the
    model if no two runs share a model, else `name`.
    """

    name: str = ""
    label: str = ""
    summary: pd.DataFrame
    floor: Estimate


def ordered_decoders(members: Sequence[RunNumbers]) -> list[str]:
    """Return all decoders: the baseline first, then by guarantee, then in the runs' order."""
    ranks: dict[str, int] = {}
    for member in members:
        for row in summary_rows(member.summary, ALL):
            rank = -1 if row.decoder == row.over else guarantee_rank(row.guarantee)
            ranks[row.decoder] = max(rank, ranks.get(row.decoder, rank))
    return sorted(ranks, key=ranks.__getitem__)
