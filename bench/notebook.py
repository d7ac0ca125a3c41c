"""The Python interface, for scripts and notebooks: measure, or open what was measured.

    from bench import load_run, run

    results = run(decoders="spec:k=4", limit=4, repeats=1)   # as `bench run`, same files
    results                                                  # in a notebook: verdict and main table
    results.summary                                          # a DataFrame, as summary.csv
    results.figures["speedup"].save("speedup.pdf")

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

from bench.errors import UsageError, did_you_mean
from bench.machine.openmp import shorten_spinning
from bench.progress import choose
from bench.records.record import SampleRecord
from bench.records.run_folder import find_run
from bench.records.run_folder import load_run as read_run
from bench.report.exports.answers import answers
from bench.report.findings import Findings
from bench.report.tables.table import Table
from bench.settings.config import load_config
from bench.stats.summary_row import SummaryRow, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = Path("results")
"""Default folder of run folders."""


@dataclass(frozen=True)
class Drawing:
    """A figure of a run and the numbers in it; a notebook shows it as SVG.

    Attributes:
        name: file name of the figure, without its kind.
        figure: of matplotlib, to change or to draw on.
        data: the numbers that are drawn.
    """

    name: str
    figure: Figure
    data: pd.DataFrame

    @cached_property
    def _files(self) -> Mapping[str, bytes]:
        from bench.report.figures.canvas import render

        return render(self.figure)

    def save(self, path: str | Path) -> Path:
        """Write it; the suffix .png, .pdf or .svg says how (`UsageError`)."""
        path = Path(path)
        kind = path.suffix.removeprefix(".")
        if kind not in self._files:
            raise UsageError(f"cannot draw {path}: name a .png, .pdf or .svg file")
        path.write_bytes(self._files[kind])
        return path

    def _repr_svg_(self) -> str:
        return self._files["svg"].decode()


class Drawings(dict[str, Drawing]):
    """The figures of a run by name, in the order they are shown; a notebook shows them all."""

    def __missing__(self, name: str) -> Drawing:
        raise KeyError(f"no figure {name!r}; {did_you_mean(name, list(self))}")

    def _repr_html_(self) -> str:
        return "".join(f"<div>{drawing._repr_svg_()}</div>" for drawing in self.values())


@dataclass(frozen=True, eq=False)
class Results:
    """The measurements of a run as frames, rows and figures; a pure function of its folder.

    Attributes:
        path: the run folder.
        findings: the numbers, tables and sentences of its report.
    """

    path: Path
    findings: Findings = field(repr=False)

    @property
    def verdict(self) -> str:
        """VALID, or why it is not."""
        return self.findings.verdict

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons of a verdict other than VALID."""
        return tuple(self.findings.validity.reasons)

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration that measures the same again, as ``config.toml`` has it."""
        return self.findings.run.config

    @property
    def records(self) -> tuple[SampleRecord, ...]:
        """Every answer that counts, step by step."""
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
        """A row per answer: what was asked, counted and timed."""
        return answers(self.records)

    @property
    def prompts(self) -> pd.DataFrame:
        """A row per prompt and decoder: the ratios that speed-ups are means of."""
        return self.findings.by_prompt.copy()

    @property
    def headline(self) -> pd.DataFrame:
        """The main table as it is printed, indexed by decoder."""
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
        decoders: specs such as ``"ptp,spec:k=4"`` or a list of them; None: all whose needs are met.
        output: folder of run folders.
        progress: ``auto``, ``rich``, ``plain`` or ``none``, on stderr.
        config: a TOML file; the other arguments go before it.
        settings: fields of `bench.settings.config.RunConfig`, such as ``limit=4``.

    Raises:
        BenchError: for anything that stops it before something is measured.
        ValueError: an unknown `progress`.
    """
    shorten_spinning()
    from bench.runs import run as measure

    file = None if config is None else Path(config)
    chosen = load_config(file, {**settings, "decoders": decoders})
    with choose(progress) as shown:
        return load_run(measure(chosen, Path(output), shown).run_dir)


def load_run(run_dir: str | Path = "latest", *, output: str | Path = RESULTS) -> Results:
    """Open a run: its folder, its name under `output`, or ``latest`` (`BenchError`)."""
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
