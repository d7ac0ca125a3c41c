"""Write one page, one Markdown file, and a figure of several runs (`bench report RUN RUN …`).

Nothing is pooled: every number belongs to one run. The output depends only on the run folders and
the report's location relative to them; writing twice gives the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd
from rich.console import Console
from rich.text import Text

from bench.errors import Exit, UsageError
from bench.extras.together.runs import NamedRun, all_facts, differences, load_members, same_machine
from bench.records.files import write_files
from bench.records.frames import csv_bytes
from bench.records.plan import MANIFEST, NO_GUARANTEE, STATUS, WRONG
from bench.report.figures.style import WIDTH, interval_note
from bench.report.findings import ordered_decoders
from bench.report.page import render
from bench.report.tables import main
from bench.report.tables import table as tables
from bench.report.tables.conclusion import conclusion
from bench.report.tables.setting import describe_model
from bench.report.tables.table import Table, TableCell
from bench.stats.intervals import LEVEL
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.summary import ALL
from bench.stats.validity import EXIT_CODES, VALID
from bench.text import UNKNOWN, percent, portable

Members = Sequence[NamedRun]


def report(names: Sequence[str], parent: Path, folder: Path, console: Console) -> Exit:
    """Write and print one report of several runs, and return its exit code.

    Args:
        names: paths or names of the runs.
        parent: the folder in which names are looked up.
        folder: the report's folder.
        console: where it is printed.
    """
    members = load_members(names, parent)
    write_joint(members, folder)
    return print_joint(members, console)


def write_joint(members: Members, folder: Path) -> list[Path]:
    """Write report.html, report.md, summary.csv and figures/, and return them.

    Raises:
        BenchError: the folder is itself a run (exit 2), or the files cannot be written (1).
    """
    from bench.report.figures import canvas, dots  # matplotlib: only where something is drawn

    if any((folder / name).is_file() for name in (MANIFEST, STATUS)):
        raise UsageError(f"{folder} is a run's own folder: give another --folder")
    drawing = dots.dots_figure(members, dots.SPEEDUP, WIDTH, size=9)
    context: dict[str, object] = {
        "title": f"{len(members)} runs: {', '.join(member.name for member in members)}",
        "sections": [_section(member, i, folder) for i, member in enumerate(members, start=1)],
        "matrices": list(matrices(members).values()),
        "unlike": unlike(members),
        "alike": alike(members),
        "machines": _machines(members),
        "figures": [],
    }
    frames = []
    for member in members:
        rows = member.summary[member.summary["family"] == ALL].drop(columns="family")
        key = member.side.env.comparability_key
        columns = {"run": member.name, "model": member.label, "comparability_key": key}
        rows = pd.DataFrame(columns, index=rows.index).join(rows)
        frames.append(rows.dropna(axis="columns", how="all"))
    files = {"summary.csv": csv_bytes(pd.concat(frames, ignore_index=True))}
    if drawing is not None:
        files |= canvas.figure_files("speedup", drawing)
        svg = files["figures/speedup.svg"].decode()
        within = interval_note(pd.concat([m.summary for m in members]), "speedup", " with ")
        lines = [
            f"Speed-up over {tables.over(members[0].summary)} of the same run, geometric mean over "
            f"prompts{within and f'{within}s'}."
        ]
        if any(member.floor.low is not None for member in members):
            lines.append("The grey bands are the runs' A/A noise floors.")
        kinds = {str(kind) for member in members for kind in member.summary["guarantee"]}
        if NO_GUARANTEE in kinds:
            lines.append("Hollow: lossy, no guarantee.")
        if WRONG in kinds:
            lines.append(f"Decoders that are {WRONG} are left out.")
        context["figures"] = [("speedup", " ".join(lines), svg)]
    files["report.md"] = render("joint.md.j2", **context)
    files["report.html"] = render("joint.html.jinja", **context)
    return write_files(folder, files)


def _section(member: NamedRun, number: int, folder: Path) -> dict[str, Any]:
    """Return the section of one run, with a link to the run's report, if any."""
    side = member.side
    wrong = [r.decoder for r in summary_rows(member.summary, ALL) if r.guarantee == WRONG]
    lines = [
        *(f"Reason: {line}" for line in side.reasons),
        *(f"Warning: {line}" for line in side.status.warnings),
        *(f"Left out of the figure: {name}, which is {WRONG}." for name in wrong),
    ]
    reports = [side.path / name for name in ("report.html", "report.md")]
    page = next((file.resolve() for file in reports if file.is_file()), None)
    return {
        "id": f"run-{number}",
        "name": member.name,
        "label": member.label,
        "verdict": side.verdict,
        "conclusion": conclusion(member.summary, member.pairs),
        "headline": tables.mark_wrong(
            main.headline(member.summary, side.verdict, describe_model(side)), wrong
        ),
        "floor_sentence": main.floor_sentence(member.floor, tables.over(member.summary)),
        "caveats": [portable(line) for line in lines],
        "link": page and quote(Path(os.path.relpath(page, folder.resolve())).as_posix()),
    }


def print_joint(members: Members, console: Console) -> Exit:
    """Print speed-ups by decoder and run and differences, and return the worst verdict's code."""
    table = matrices(members)["speedup"]
    console.print(Text(table.title, style="bold"))
    console.print(*table.to_blocks(console, {name: name for name in table.headings}))
    for key, values in differences(members):
        console.print(Text(f"{key}: {', '.join(value or '-' for value in values)}", style="dim"))
    console.print(Text(_machines(members), style="dim"))
    for run in (member.side for member in members if member.side.verdict != VALID):
        why = "; ".join(run.reasons)
        console.print(Text(f"! {run.name} is {run.verdict}: {why}", style="bold red"))
    return max(EXIT_CODES[member.side.verdict] for member in members)


def matrices(members: Members) -> dict[str, Table]:
    """Return tables (decoders × runs) of speed-up, tokens per step, quality, identity with ar."""
    bases = "; ".join(
        f"{member.label}: {'; '.join(dict.fromkeys(map(main.basis, rows)))}"
        for member in members
        for rows in [[r for r in summary_rows(member.summary, ALL) if r.decoder != r.over]]
    )
    metrics = {
        "speedup": (
            f"Speed-up [{LEVEL}]",
            f"Against {tables.over(members[0].summary)} of the same run: geometric mean over "
            f"prompts of paired, end-to-end time per token, {LEVEL} t-interval over conversations; "
            f"bold where it excludes 1 and exceeds the A/A floor. {_machines(members)} {bases}.",
            tables.speed,
        ),
        "tokens_per_step": (
            f"Tokens per step [{LEVEL}]",
            "Emitted tokens / steps, both after the first step, pooled within a run; jackknife "
            "interval over conversations; in brackets if nothing verifies them. Counts, not times.",
            tables.step_length,
        ),
        "quality": (
            f"Quality % [{LEVEL}]",
            "Mean over families whose scores can show a loss, on held-out prompts. Runs also "
            "differ if they scored other numbers of prompts or sampled differently.",
            tables.quality,
        ),
        "identical_to_ar": (
            "Identical to ar %",
            "Share of answers identical to those of ar in the same run; '-' if a decoder promises "
            "ar's distribution, not its tokens.",
            lambda row: TableCell(percent(row.identical_to_ar, "")),
        ),
    }
    runs = [{row.decoder: row for row in summary_rows(member.summary, ALL)} for member in members]
    lossy = {name for run in runs for name in run if run[name].guarantee == NO_GUARANTEE}
    names = {n: f"{n} (lossy)" if n in lossy else n for n in ordered_decoders(members)}
    shown = {}
    for name, (title, note, make) in metrics.items():
        rows = [
            (TableCell(text), *(_cell(run.get(decoder), make) for run in runs))
            for decoder, text in names.items()
        ]
        if any(cell.text != UNKNOWN for row in rows for cell in row[1:]):
            headings = ("decoder", *(member.label for member in members))
            shown[name] = Table(title=title, note=note, headings=headings, rows=tuple(rows))
    return shown


def _cell(row: SummaryRow | None, make: Callable[[SummaryRow], TableCell]) -> TableCell:
    if row is None:
        return TableCell(UNKNOWN)
    cell = make(row)
    return cell if row.guarantee != WRONG else TableCell(f"{cell.text} {WRONG}", bad=True)


def _machines(members: Members) -> str:
    """State whether the runs share a machine and setup, and that their times are not compared."""
    if same_machine(members):
        kind = "The runs share their kind of machine and setup (comparability key), not a session"
    else:
        kind = "The runs come from different or unknown machines or setups"
    return f"{kind}: times are neither pooled nor compared between runs."


def unlike(members: Members) -> Table | None:
    """Return the table of the runs' known differences, a row per fact, if there are any."""
    facts = differences(members)
    if not facts:
        return None
    return Table(
        title="Differences between the runs",
        note="Hashes identify weights. A commit 'with uncommitted changes' cannot be restored.",
        headings=("fact", *(member.name for member in members)),
        rows=tuple(
            (TableCell(key), *(TableCell(value or UNKNOWN) for value in values))
            for key, values in facts
        ),
    )


def alike(members: Members) -> list[tuple[str, str]]:
    """Return the facts that all runs share, as (key, value)."""
    return [(k, str(v[0])) for k, v in all_facts(members) if len(set(v)) == 1]
