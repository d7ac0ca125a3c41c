"""What a run's records say, computed once: the numbers, tables and sentences of its report.

The Markdown report, the HTML report and the terminal all show a `Findings`. A pure function of the
run folder; a run that was interrupted is read as far as it got.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from bench.records.external import read_external
from bench.records.phases import PhasedAnswer, read_phases
from bench.records.plan import BASELINE, WRONG
from bench.records.run_folder import Run
from bench.report import references
from bench.report.tables import ceilings as ceiling_table
from bench.report.tables import external as external_table
from bench.report.tables import latency as latency_table
from bench.report.tables import quality as quality_tables
from bench.report.tables import speed as speed_tables
from bench.report.tables import table as tables
from bench.report.tables import workers as worker_tables
from bench.report.tables.conclusion import conclusion
from bench.report.tables.resolution import resolution
from bench.report.tables.setting import setting
from bench.report.tables.table import Table, TableCell, number, without_wrong
from bench.settings.protocol import departures
from bench.stats import decompose, estimates, latency, workers
from bench.stats import summary as sums
from bench.stats.decompose import Decomposition, Split
from bench.stats.intervals import LEVEL, Estimate
from bench.stats.quality import gold_answers
from bench.stats.summary import ALL
from bench.stats.summary_row import SummaryRow, rows_of
from bench.stats.validity import DAMAGED, Validity, judge
from bench.text import counted, percent, portable

_REPRODUCE = (
    ("bench run --config {run}/config.toml", "measure again, with the resolved configuration"),
    ("bench report {run}", "tables and figures again, from the records (needs no model)"),
)


@dataclass(frozen=True)
class Findings:
    """The findings of one run; every property is computed from `run` alone."""

    run: Run

    @cached_property
    def summary(self) -> pd.DataFrame:
        """One row per decoder and family, see `bench.stats.summary.summarise`."""
        gold = gold_answers(self.run.path, self.run.plan)
        return sums.summarise(self.run.records, self.run.plan, gold, self.wrong)

    @cached_property
    def floor(self) -> Estimate:
        """The A/A noise floor over all families."""
        return sums.noise_floor(self.run.records)

    @cached_property
    def acceptance(self) -> pd.DataFrame:
        """Draft acceptance by position, see `bench.stats.summary.acceptance_table`."""
        return sums.acceptance_table(self.run.records, self.run.plan)

    @cached_property
    def latency(self) -> pd.DataFrame:
        """How long readers waited, see `bench.stats.latency.latency_table`."""
        return latency.latency_table(self.run.records, self.decoders)

    @cached_property
    def lengths(self) -> pd.DataFrame:
        """Tokens per step, see `bench.stats.summary.step_length_table`."""
        return sums.step_length_table(self.run.records, self.run.plan)

    @property
    def name(self) -> str:
        """The name of the run folder."""
        return self.run.path.resolve().name

    @cached_property
    def validity(self) -> Validity:
        """The verdict on the run as it now lies there, and what it rests on."""
        return judge(self.run)

    @property
    def verdict(self) -> str:
        """VALID, or why it is not, see `bench.stats.validity`."""
        return self.validity.verdict

    @cached_property
    def wrong(self) -> list[str]:
        """Decoders that claim to be lossless and are not."""
        return self.run.status.wrong

    def _marked(self, made: Iterable[Table | None]) -> list[Table]:
        """The tables there are, with the rows of wrong decoders marked."""
        return [tables.mark_wrong(table, self.wrong) for table in made if table is not None]

    def _one(self, made: Table | None) -> Table | None:
        return None if made is None else tables.mark_wrong(made, self.wrong)

    @property
    def floor_sentence(self) -> str:
        """The A/A line that stands under the main table."""
        return tables.floor_sentence(self.floor)

    @property
    def resolution(self) -> str:
        """How small a difference the run can show; empty where it has no interval."""
        return resolution(self.summary)

    @cached_property
    def headline(self) -> Table:
        """The main table: every decoder over all families."""
        return tables.mark_wrong(tables.headline(self.summary, self.verdict), self.wrong)

    @cached_property
    def estimators(self) -> Table | None:
        """Every estimator of the speed-ups, or None where nothing was compared to the baseline."""
        second_arm = sums.second_arm(self.run.records)
        return self._one(speed_tables.estimators(self.summary, second_arm))

    @cached_property
    def rivals(self) -> Table | None:
        """Every decoder over every other one; None where there are none to compare."""
        return self._one(speed_tables.pairwise_speedups(self._pairs, self.floor))

    @cached_property
    def _pairs(self) -> sums.Pairs:
        return sums.rivals(self.run.records, self.decoders)

    @cached_property
    def splits(self) -> list[Split]:
        """Time by phase of the second pass; empty where there was none."""
        return decompose.splits(self._phases, self.run.records, self.decoders)

    @cached_property
    def decompositions(self) -> list[Decomposition]:
        """Speed-ups in parts, from the second pass."""
        return decompose.decompositions(self._phases, self.run.records, self.decoders)

    @cached_property
    def time_tables(self) -> list[Table]:
        """Where the time goes and what speed-ups are made of; empty without a second pass."""
        made = (
            speed_tables.split(self.splits),
            speed_tables.parts(self.decompositions),
        )
        return self._marked(made)

    @cached_property
    def wait_table(self) -> Table | None:
        """How long readers waited, in percentiles; None where no answer was timed alone."""
        return self._one(latency_table.waits(self.latency))

    @cached_property
    def part_tables(self) -> list[Table]:
        """What workers and machines measured apart; empty where one process measured it all."""
        records = self.run.records
        made = (
            worker_tables.by_machine(workers.machines(records, self.decoders)),
            worker_tables.by_worker(workers.workers(records, self.decoders)),
        )
        return [table for table in made if table is not None]

    @cached_property
    def reference_table(self) -> Table | None:
        """Published numbers beneath the run's own, where its configuration names some."""
        name, run = self.run.config.get("reference"), self.run
        if name is None or self.summary.empty:
            return None
        reference = references.load_reference(str(name))
        return self._one(references.table(reference, self.summary, run))

    @cached_property
    def engine_table(self) -> Table | None:
        """Other engines on this run's prompts, see `bench external`; None where there are none."""
        answers = read_external(self.run.path)
        return external_table.other_engines(answers, self.run.records)

    @cached_property
    def _phases(self) -> tuple[PhasedAnswer, ...]:
        return read_phases(self.run.path)

    @property
    def decoders(self) -> list[str]:
        """Measured decoders in their order, the second arm of the baseline left out."""
        return sums.decoder_order(self.run.plan, self.run.records, self.wrong)

    @property
    def footnotes(self) -> list[str]:
        """What limits the main table, the most important first: noise, resolution, width."""
        wide = speed_tables.needs(without_wrong(self.summary))
        return [line for line in (self.floor_sentence, self.resolution, wide) if line]

    @property
    def setting(self) -> list[tuple[str, str]]:
        """What was run where, as (what, value) lines."""
        return setting(self.run, self.decoders)

    @cached_property
    def by_prompt(self) -> pd.DataFrame:
        """What the speed-ups are means of, see `bench.stats.estimates.prompt_table`."""
        return estimates.prompt_table(self.run.records, self.decoders)

    @property
    def conclusion(self) -> str:
        """What the run shows, in a sentence or two."""
        return conclusion(self.summary, self._pairs)

    @property
    def sentences(self) -> list[str]:
        """One sentence per decoder that was compared to the baseline."""
        return [_sentence(row) for row in rows_of(self.summary, ALL) if row.decoder != BASELINE]

    @cached_property
    def family_tables(self) -> list[Table]:
        """Speed, counters and time by family; n is the number of prompts timed in each."""
        timed = f"{self._sizes('prompts')} prompts."
        made = tables.by_family
        verifying = tables.verifies(self.summary)
        kinds = [
            *speed_tables.by_families(self.summary, self._sizes("prompts")),
            made(
                self.summary,
                "Tokens per call by family",
                f"Emitted tokens / target calls, prefill included, pooled. {timed}",
                lambda row: TableCell(number(row.tokens_per_call)),
            ),
            *(
                tables.with_entropy(
                    made(
                        self.summary[chosen],
                        f"{name} tokens per step by family",
                        f"Tokens emitted by steps after prefill / such steps, pooled; {LEVEL} "
                        f"jackknife interval over conversations{aside}. {timed} First row: mean "
                        "entropy of ar's next token along its answers; the lower, the easier a "
                        "draft.",
                        tables.step_length,
                    ),
                    self.summary,
                )
                for name, chosen, aside in (
                    ("Accepted", verifying, ""),
                    ("Emitted", ~verifying, "; of decoders that verify nothing"),
                )
                if chosen.any()
            ),
            made(
                self.summary,
                "Milliseconds per token by family",
                f"End-to-end seconds / emitted tokens, pooled. {timed}",
                lambda row: TableCell(number(row.time_per_token_s, ".2f", 1e3)),
            ),
        ]
        return self._marked(kinds)

    @cached_property
    def quality_table(self) -> Table | None:
        """Quality by family, or None where nothing was scored."""
        sizes = self._sizes("quality_prompts")
        return self._one(quality_tables.by_families(self.summary, sizes))

    @cached_property
    def parallel_tables(self) -> list[Table]:
        """Rounds and passes, distance from ar, AUP: those this run has something to say on."""
        kinds = (
            quality_tables.rounds,
            quality_tables.lost_quality,
            quality_tables.agreement,
            quality_tables.repetition,
            quality_tables.text,
            quality_tables.area,
        )
        made = [kind(self.summary) for kind in kinds]
        made.append(tables.by_drafter(self.run.records))
        return self._marked([*made, ceiling_table.ceilings(self.run, self.summary)])

    @cached_property
    def acceptance_table(self) -> Table | None:
        """Acceptance by position over all families, or None where nothing is drafted."""
        return self._one(tables.acceptance(self.acceptance))

    @property
    def basis(self) -> str:
        """What the main table estimates and from how much, in one line."""
        each = dict.fromkeys(tables.basis(row) for row in rows_of(self.summary, ALL))
        return (
            "speed-up: geometric mean of ar time / decoder time per token, paired, end to end, "
            f"{LEVEL} t-interval; {'; '.join(each)}. {tables.SESSIONS}"
        )

    @property
    def status(self) -> str:
        """Where the run stands: how it ended, and how much of the plan is measured."""
        done = len({r.block for r in self.run.records if r.kind == "timing"})
        planned = len(self.run.plan.blocks)
        status = self.run.status.status or "unfinished"
        text = f"{status}; {done} of {planned} timing blocks measured"
        if self.validity.num_graphs is None:
            return text
        made = f"{counted(self.validity.num_graphs, 'graph')} compiled"
        return f"{text}; {made} in {self.validity.compile_s:.0f} s, outside of every recorded time"

    @cached_property
    def caveats(self) -> list[str]:
        """Everything that qualifies the numbers, one line each; empty where nothing does."""
        run, summary = self.run, self.summary
        lines = [f"Reason: {reason}" for reason in self.validity.reasons]
        lines += [
            f"Left out of the figures: {cell}, which is {WRONG}."
            for cell in self.wrong
            if cell in self.summary["decoder"].to_list()
        ]
        if self.verdict == DAMAGED:
            lines.append("A samples.parquet or summary.csv written before is left as it was.")
        warnings = run.status.warnings or self.validity.warnings
        lines += [f"Warning: {warning}" for warning in warnings]
        blocks = len({r.block for r in run.records if r.kind == "timing"})
        if blocks < len(run.plan.blocks):
            lines.append("Only whole blocks count.")
        measured = {record.decoder for record in run.records}
        missing = [c.cell for c in run.plan.cells if c.cell not in measured]
        if missing:
            lines.append(f"Not measured: {', '.join(missing)}.")
        if not run.status.num_errors:  # else the warnings say it
            errors = Counter((r.decoder, r.failure) for r in run.records if r.error is not None)
            lines += [
                f"{n} error(s) of {cell}: {text}" for (cell, text), n in errors.most_common(9)
            ]
        dropped = summary[summary["family"] == ALL].set_index("decoder")["pairs_dropped"]
        lines += [
            f"{count} pair(s) of {name} with ar are left out: an error on one side."
            for name, count in dropped.items()
            if count > 0
        ]
        lines += quality_tables.shortfalls(summary)
        lines += quality_tables.looping(summary)
        lines += ceiling_table.caveat(run)
        lines += speed_tables.instrument_bias_note(self.splits)
        if run.config.get("protocol"):
            left = departures(run.config, len(run.plan.in_pass("timing")))
            lines += [f"Departs from the protocol {run.config['protocol']}: {x}." for x in left]
        skipped = len(run.plan.skipped)
        if skipped:
            lines.append(f"{skipped} prompt(s) were skipped before the run.")
        return [portable(line) for line in lines]

    @property
    def environment(self) -> list[tuple[str, str]]:
        """Machine, versions and the like, as (key, value) lines without absolute paths."""
        return [(key, portable(str(value))) for key, value in _flat(self.run.env.to_json())]

    @property
    def configuration(self) -> list[tuple[str, str]]:
        """The resolved configuration, as (key, value) lines without absolute paths."""
        return [(key, portable(str(value))) for key, value in _flat(self.run.config)]

    @property
    def reproduce(self) -> list[tuple[str, str]]:
        """Commands, each with what it does, relative to the folder that holds the run."""
        return [(command.format(run=self.name), what) for command, what in _REPRODUCE]

    def _sizes(self, column: str) -> str:
        """What n is in every family, as the baseline (or the first decoder) has it."""
        if self.summary.empty:
            return "n = 0"
        first = self.summary[self.summary["decoder"] == self.summary["decoder"].iloc[0]]
        each = [f"{f} {n}" for f, n in zip(first["family"], first[column], strict=True)]
        return f"n: {', '.join(each)}"


def _sentence(row: SummaryRow) -> str:
    """One decoder in one line."""
    text = f"{row.decoder} (guarantee: {tables.guarantee_label(row)})"
    if row.guarantee == WRONG:
        text = f"{row.decoder} is {WRONG} (it claims to be lossless and is not)"
    text += f": {tables.speed(row).text} vs ar end to end"
    aside = [
        part for part in (speed_tables.beside(row), speed_tables.prompts_needed_note(row)) if part
    ]
    text += f" ({'; '.join(aside)})" if aside else ""
    speedup = row.estimate("speedup")
    if speedup.low is not None and not speedup.exceeds(row.floor):
        why = "it is within the A/A noise" if speedup.differs_from_one else "the interval covers 1"
        text += f" (no difference shown: {why})"
    text += f", {number(row.tokens_per_call)} tokens per target call, "
    text += f"{number(row.acceptance_length)} {tables.kind_of_step(row)} tokens per step of "
    text += f"{number(row.calls_per_step)} calls"
    if row.quality is not None:
        text += f", quality {percent(row.quality, '')} %"
    if row.identical_to_ar is not None:
        text += f", ids identical to ar's in {percent(row.identical_to_ar, '')} %"
    if row.errors:
        text += f", {row.errors} error(s)"
    return f"{text}."


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested mappings as dotted keys; what is unknown is left out."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", value
