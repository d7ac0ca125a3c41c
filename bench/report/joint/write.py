"""`bench report RUN RUN …`: one page, one Markdown file, tables and a figure of several runs.

A pure function of the run folders and of where the report lies beside them: writing twice gives the
same bytes. The runs' own folders are only read.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import pandas as pd
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.errors import Exit, UsageError
from bench.records.files import write_files
from bench.records.plan import BASELINE, MANIFEST, NO_GUARANTEE, WRONG
from bench.records.status import STATUS
from bench.report.figures.style import WIDTH, interval_of
from bench.report.joint.tables import alike, frame, machines, matrices, unlike
from bench.report.page.render import render_joint
from bench.report.tables import main
from bench.report.tables import table as tables
from bench.report.tables.conclusion import conclusion
from bench.report.tables.table import Table
from bench.report.template import render_markdown
from bench.report.together import NamedRun, differences
from bench.report.write import csv_bytes
from bench.stats.summary import ALL
from bench.stats.summary_row import rows_of
from bench.stats.validity import EXIT_CODES, VALID, from_here
from bench.text import latex, markdown, portable


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    """What the report says of one run by itself; `link` leads to the run's own report, if any."""

    id: str
    name: str
    label: str
    verdict: str
    conclusion: str
    headline: Table
    floor_sentence: str
    caveats: tuple[str, ...]
    link: str | None


def write_joint(members: Sequence[NamedRun], folder: Path) -> list[Path]:
    """Write report.html, report.md, summary.csv, tables/ and figures/; returns them.

    Raises:
        BenchError: the folder is a run's own (exit 2), or the files cannot be written (1).
    """
    from bench.report.figures import canvas, dots

    if any((folder / name).is_file() for name in (MANIFEST, STATUS)):
        line = f"{folder} is a run's own folder: give another --folder"
        raise UsageError(line)
    sections = [_section(member, i, folder) for i, member in enumerate(members, start=1)]
    drawn = dots.dots_figure(members, dots.SPEEDUP, WIDTH, size=9)
    shown = matrices(members)
    context: dict[str, object] = {
        "title": f"{len(members)} runs: {', '.join(member.name for member in members)}",
        "sections": sections,
        "matrices": list(shown.values()),
        "unlike": unlike(members),
        "alike": alike(members),
        "machines": machines(members),
    }
    made = {"summary.csv": csv_bytes(frame(members))}
    for name, table in shown.items():
        made[f"tables/{name}.md"] = f"{table.to_markdown()}\n\n{markdown(table.note)}\n".encode()
        made[f"tables/{name}.tex"] = f"% {latex(table.note)}\n{table.to_latex()}".encode()
    figure = None
    if drawn is not None:
        rendered = canvas.render(drawn[0])
        figure = (_caption(members), rendered["svg"].decode())
        made |= {f"figures/speedup.{kind}": data for kind, data in rendered.items()}
        made["figures/data/speedup.csv"] = csv_bytes(drawn[1])
    caption = figure and figure[0]
    made["report.md"] = render_markdown("joint.md.j2", caption=caption, **context).encode()
    made["report.html"] = render_joint(figure, **context).encode()
    return write_files(folder, made)


def _section(member: NamedRun, number: int, folder: Path) -> _Section:
    side = member.side
    wrong = [r.decoder for r in rows_of(member.summary, ALL) if r.guarantee == WRONG]
    lines = [
        *(f"Reason: {line}" for line in side.reasons),
        *(f"Warning: {line}" for line in side.status.warnings),
        *(f"Left out of the figure: {name}, which is {WRONG}." for name in wrong),
    ]
    own = [name for name in ("report.html", "report.md") if (side.path / name).is_file()]
    return _Section(
        id=f"run-{number}",
        name=member.name,
        label=member.label,
        verdict=side.verdict,
        conclusion=conclusion(member.summary, member.pairs),
        headline=tables.mark_wrong(main.headline(member.summary, side.verdict), wrong),
        floor_sentence=main.floor_sentence(member.floor),
        caveats=tuple(portable(line) for line in lines),
        link=_way(side.path / own[0], folder) if own else None,
    )


def _way(file: Path, folder: Path) -> str:
    """The relative address of a file as seen from a folder."""
    return quote(Path(os.path.relpath(file.resolve(), folder.resolve())).as_posix())


def _caption(members: Sequence[NamedRun]) -> str:
    within = interval_of(pd.concat([m.summary for m in members]), "speedup", " with ")
    lines = [
        f"Speed-up over {BASELINE} of the same run, geometric mean over prompts"
        f"{within and f'{within}s'}."
    ]
    if any(member.floor.low is not None for member in members):
        lines.append("The grey bands are the runs' A/A noise floors.")
    kinds = {str(kind) for member in members for kind in member.summary["guarantee"]}
    if NO_GUARANTEE in kinds:
        lines.append("Hollow: lossy, no guarantee.")
    if WRONG in kinds:
        lines.append(f"Decoders that are {WRONG} are left out.")
    return " ".join(lines)


def print_joint(members: Sequence[NamedRun], console: Console) -> Exit:
    """Print speed-ups by decoder and run, and what the runs differ in.

    Returns what the worst of the runs' verdicts calls for.
    """
    table = matrices(members)["speedup"]
    printed = RichTable(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(table.headings):
        side: Literal["left", "right"] = "right" if place else "left"
        printed.add_column(Text(heading), justify=side, vertical="bottom", overflow="fold")
    for row in table.rows:
        style = ["bold red" if cell.bad else "bold" * cell.bold for cell in row]
        printed.add_row(*(Text(c.text, style=s) for c, s in zip(row, style, strict=True)))
    console.print(Text(table.title, style="bold"))
    console.print(printed)
    for key, values in differences(members):
        console.print(Text(f"{key}: {', '.join(value or '-' for value in values)}", style="dim"))
    console.print(Text(machines(members), style="dim"))
    verdicts = [member.side.verdict for member in members]
    for member in members:
        if member.side.verdict != VALID:
            why = "; ".join(from_here(line, member.side.path) for line in member.side.reasons)
            console.print(
                Text(f"! {member.name} is {member.side.verdict}: {why}", style="bold red")
            )
    return max(EXIT_CODES.get(verdict, Exit.INVALID) for verdict in verdicts)
