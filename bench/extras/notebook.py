"""The Python interface for scripts and notebooks: measure decoders, or open a measured run.

    from bench import load_run, run

    results = run(decoders="spec:k=4", limit=4, repeats=1)   # like `bench run`, with the same files
    results                                                  # in a notebook: verdict and main table
    results.summary                                          # a DataFrame, like summary.csv
    results.figures["speedup"]                               # drawn as SVG

`load_run` needs neither torch nor transformers.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bench.errors import did_you_mean
from bench.extras.exports.answers import answers
from bench.machine.openmp import shorten_spinning
from bench.plan.trust import check_code
from bench.progress import choose
from bench.records.record import SampleRecord
from bench.records.run_folder import find_run
from bench.records.run_folder import load_run as read_run
from bench.report.findings import Findings
from bench.report.tables.table import Table
from bench.settings.config import load_config
from bench.stats.metrics import SummaryRow, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path("results")
"""Default folder that holds the run folders."""


@dataclass(frozen=True)
class Drawing:
    """A figure of a run and its numbers; a notebook shows the figure as SVG.

    Attributes:
        name: file name of the figure, without a suffix.
        figure: matplotlib figure, to change or to draw on.
        data: plotted numbers.
    """

    name: str
    figure: Figure
    data: pd.DataFrame

    def _repr_svg_(self) -> str:
        from bench.report.figures.canvas import render

        return render(self.figure, ["svg"])["svg"].decode()


class Drawings(dict[str, Drawing]):
    """The figures of a run by name, in display order; a notebook shows all of them."""

    def __missing__(self, name: str) -> Drawing:
        raise KeyError(f"no figure {name!r}; {did_you_mean(name, list(self))}")

    def _repr_html_(self) -> str:
        return "".join(f"<div>{drawing._repr_svg_()}</div>" for drawing in self.values())


@dataclass(frozen=True, eq=False)
class Results:
    """The measurements of a run as data frames, rows and figures, read only from its folder.

    Attributes:
        path: the run folder.
        findings: the numbers, tables and sentences of its report.
    """

    path: Path
    findings: Findings = field(repr=False)

    @property
    def verdict(self) -> str:
        """The verdict on the run: VALID, or the kind of problem."""
        return self.findings.verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons for a verdict other than VALID."""
        return tuple(self.findings.validity.reasons)

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration in ``config.toml``, which repeats the measurement."""
        return self.findings.run.config

    @property
    def records(self) -> tuple[SampleRecord, ...]:
        """The records of all answers that count, step by step."""
        return self.findings.run.records

    @property
    def summary(self) -> pd.DataFrame:
        """A row per decoder and family: the columns of ``summary.csv``."""
        return self.findings.summary.copy()

    @property
    def rows(self) -> list[SummaryRow]:
        """The rows of `summary`, typed: ``results.rows[0].speedup``."""
        return rows_of(self.findings.summary, None)

    @property
    def answers(self) -> pd.DataFrame:
        """A row per answer: its prompt, counts and times."""
        return answers(self.records)

    @property
    def prompts(self) -> pd.DataFrame:
        """A row per prompt and decoder: the ratios whose means are the speed-ups."""
        return self.findings.by_prompt.copy()

    @property
    def headline(self) -> pd.DataFrame:
        """The main table as printed, indexed by decoder."""
        table = self.findings.headline
        rows = [[cell.text for cell in row] for row in table.rows]
        frame = pd.DataFrame(rows, columns=list(table.headings))
        return frame.set_index(table.headings[0])

    @cached_property
    def figures(self) -> Drawings:
        """The figures of the report, by name."""
        from bench.report.figures.gallery import draw_all

        drawn = draw_all(self.findings).drawn
        return Drawings({name: Drawing(name, *parts) for name, parts in drawn.items()})

    def __str__(self) -> str:
        """Return verdict and main table, for a terminal."""
        return f"{self.path.name}: {self.verdict}\n{self.headline.to_string()}"

    def _repr_html_(self) -> str:
        lines = [f"<p><b>{html.escape(self.verdict)}</b> {html.escape(str(self.path))}</p>"]
        lines += [f"<p>{html.escape(reason)}</p>" for reason in self.reasons]
        lines.append(_html(self.findings.headline))
        notes = f"{self.findings.headline.note} {self.findings.floor_sentence}"
        return "\n".join([*lines, f"<p><small>{html.escape(notes)}</small></p>"])


def run(
    decoders: str | Sequence[str] | None = None,
    *,
    output: str | Path = RESULTS,
    progress: str = "none",
    config: str | Path | None = None,
    **settings: Any,
) -> Results:
    """Measure decoders as `bench run` does, in a new folder, and open the results.

    Args:
        decoders: specs like ``"ptp,spec:k=4"`` or a list; None: all decoders whose needs are met.
        output: folder that holds the run folders.
        progress: ``auto``, ``rich``, ``plain`` or ``none``, on stderr.
        config: a TOML file; the other arguments override its values. Code of decoders is named in
            `decoders`, not only there.
        settings: fields of `bench.settings.config.RunConfig`, such as ``limit=4``.

    Raises:
        BenchError: any failure before the first measurement.
        ValueError: `progress` is unknown.
    """
    shorten_spinning()
    from bench.runs import run as measure

    file = None if config is None else Path(config)
    chosen = load_config(file, {**settings, "decoders": decoders})
    if file is not None and decoders is None:
        check_code([chosen], file, ())
    with choose(progress) as shown:
        return load_run(measure(chosen, Path(output), shown).run_dir)


def load_run(run_dir: str | Path = "latest", *, output: str | Path = RESULTS) -> Results:
    """Open a run by its folder, its name under `output`, or ``latest`` (`BenchError`)."""
    path = find_run(str(run_dir), Path(output))
    return Results(path, Findings(read_run(path)))


def _html(table: Table) -> str:
    lines = ["".join(f"<th>{html.escape(heading)}</th>" for heading in table.headings)]
    for row in table.rows:
        cells = [(html.escape(cell.text), cell.bold) for cell in row]
        texts = [f"<b>{text}</b>" if bold else text for text, bold in cells]
        lines.append("".join(f"<td>{text}</td>" for text in texts))
    head, *body = [f"<tr>{line}</tr>" for line in lines]
    return f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"
