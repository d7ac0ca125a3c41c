"""The Python interface for scripts and notebooks: measure decoders, or open a measured run.

`load_run` needs neither torch nor transformers. docs/notebooks.md has examples.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from bench.extras.exports.export import answers
from bench.machine.openmp import shorten_spinning
from bench.plan.code import check_code
from bench.progress import choose
from bench.records.run_folder import find_run
from bench.records.run_folder import load_run as read_run
from bench.report.findings import Findings
from bench.settings.config import load_config
from bench.stats.metrics import SummaryRow, summary_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawing(NamedTuple):
    """A matplotlib figure of a run, and its plotted numbers."""

    figure: Figure
    data: pd.DataFrame


@dataclass(frozen=True, eq=False)
class Results:
    """A run as data frames, typed rows and figures, with all else of its report in `findings`."""

    path: Path
    findings: Findings = field(repr=False)

    @property
    def verdict(self) -> str:
        """The verdict on the run: VALID, or the kind of problem."""
        return self.findings.verdict

    @property
    def summary(self) -> pd.DataFrame:
        """A row per decoder and family: the columns of ``summary.csv``."""
        return self.findings.summary.copy()

    @property
    def rows(self) -> list[SummaryRow]:
        """The rows of `summary`, typed: ``results.rows[0].speedup``."""
        return summary_rows(self.findings.summary, None)

    @property
    def answers(self) -> pd.DataFrame:
        """A row per answer: its prompt, counts and times."""
        return answers(self.findings.run.records)

    @property
    def headline(self) -> pd.DataFrame:
        """The main table as printed, indexed by decoder."""
        table = self.findings.headline
        rows = [[cell.text for cell in row] for row in table.rows]
        return pd.DataFrame(rows, columns=list(table.headings)).set_index(table.headings[0])

    @cached_property
    def figures(self) -> dict[str, Drawing]:
        """The figures of the report, by name."""
        from bench.report.figures.gallery import draw_all

        return {name: Drawing(*parts) for name, parts in draw_all(self.findings).plots.items()}

    def _repr_html_(self) -> str:
        notes = (*self.findings.caveats, self.findings.headline.note)
        lines = (f"{self.verdict}: {self.path}", *notes)
        return "".join(f"<p>{html.escape(line)}</p>" for line in lines) + self.headline.to_html()


def run(
    decoders: str | Sequence[str] | None = None,
    *,
    output: str | Path = "results",
    progress: str = "none",
    config: str | Path | None = None,
    **settings: Any,
) -> Results:
    """Measure decoders as `bench run` does, in a new folder below `output`, and open the results.

    `settings` are fields of `RunConfig`, such as ``limit=4``; they override the `config` file.

    Raises:
        BenchError: any failure before the first measurement.
        ValueError: `progress` is none of auto, rich, plain and none.
    """
    shorten_spinning()
    from bench.runs import run as measure

    file = None if config is None else Path(config)
    configuration = load_config(file, {**settings, "decoders": decoders})
    if file is not None and decoders is None:
        check_code([configuration], file, ())
    with choose(progress) as shown:
        return load_run(measure(configuration, Path(output), shown).run_dir)


def load_run(run_dir: str | Path = "latest", *, output: str | Path = "results") -> Results:
    """Open a run by its folder, its name under `output`, or ``latest`` (`BenchError`)."""
    path = find_run(str(run_dir), Path(output))
    return Results(path, Findings(read_run(path)))
