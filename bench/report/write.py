"""Write every table, figure and text of a run from its folder alone, for `bench report`.

The output depends only on the records: no model, no current time, and writing twice gives the same
bytes. Every file is replaced atomically, so a reader never sees a partial file.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.errors import Exit
from bench.records.files import replacing, write_files
from bench.records.frames import csv_bytes, write_samples
from bench.records.plan import BASELINE, NO_GUARANTEE, NOT_VERIFIED, read_plan
from bench.records.run_folder import is_stored, load_run
from bench.records.samples import SAMPLES_TABLE
from bench.report.findings import Findings
from bench.report.page import render
from bench.report.page.answers import viewer
from bench.report.sections import sections, tables_by_section
from bench.report.tables import main
from bench.report.tables.table import TableCell
from bench.stats.validity import DAMAGED, EXIT_CODES, VALID

SUMMARY, REPORT = "summary.csv", "report.md"


def write_report(run_dir: Path, reference: str | None = None) -> Findings:
    """Write samples.parquet, summary.csv, report.md, report.html, tables/ and figures/ of a run.

    `reference` names published numbers to print next to the run's; None: the configured reference.

    Raises:
        BenchError: the folder is not a run or the reference is unknown (exit 2), the run is
            damaged (4), or the folder cannot be written (1).
    """
    from bench.report.figures import canvas, gallery  # imports matplotlib: only for drawing

    run = load_run(run_dir)
    if reference is not None:
        run = dataclasses.replace(run, config={**run.config, "reference": reference})
    findings = Findings(run)
    # earlier files may be the only rest of a damaged run
    kept = [
        name
        for name in (SAMPLES_TABLE, SUMMARY)
        if findings.verdict == DAMAGED and (run_dir / name).exists()
    ]
    if SAMPLES_TABLE not in kept and not is_stored(run_dir):
        with replacing(run_dir / SAMPLES_TABLE) as file:
            write_samples(file, findings.run.records, findings.run.events)
    summary = {} if SUMMARY in kept else {SUMMARY: csv_bytes(findings.summary)}
    write_files(run_dir, summary | table_files(findings))
    drawings = gallery.draw_all(findings)
    files: dict[str, bytes] = {}
    for name, plot in drawings.plots.items():
        files |= canvas.figure_files(name, plot)
    figures = [
        (name, caption, files[f"figures/{name}.svg"].decode())
        for name, caption in drawings.captions.items()
    ]
    context = {"r": findings, "sections": tables_by_section(findings)}
    context |= {"figures": figures, "left_out": drawings.left_out}
    files[REPORT] = render("report.md.j2", **context)
    ranked = [row.decoder for row in main.ranked_rows(findings.summary)]
    files["report.html"] = render("page.html.jinja", viewer=viewer(findings.run, ranked), **context)
    write_files(run_dir, files)
    return findings


def table_files(findings: Findings) -> dict[str, bytes]:
    """Return the files of ``tables/`` by their path in the run's folder."""
    return {
        f"tables/{name}.csv": csv_bytes(findings.once(make))
        for section in sections()
        for name, make in section.data.items()
    }


def print_findings(findings: Findings, console: Console, *, wide: bool = False) -> Exit:
    """Print verdict, conclusion, main table and caveats, and return the verdict's exit code.

    `wide` adds the folded columns, in further blocks where they do not fit, and all footnotes.
    """
    good = findings.verdict == VALID
    verdict = Text(findings.verdict, style="bold green" if good else "bold red")
    if findings.summary.empty:
        console.print(verdict.append(": nothing is measured yet", style="none"))
    else:
        console.print(verdict.append(f"  {findings.conclusion}", style="none"))
    _print_caveats(findings, console, reasons=True)
    if not findings.summary.empty:
        console.print()
        for block in _blocks(findings, console, wide):
            console.print(block, "")
        notes = findings.footnotes if wide else findings.footnotes[:1]
        for line in filter(None, [findings.basis, *notes, main.entropy_sentence(findings.summary)]):
            console.print(Text(line, style="dim"))
    _print_caveats(findings, console, reasons=False)
    printed = (section for section in sections() if section.is_printed)
    for table in (t for section in printed for t in section.tables(findings) if t and t.rows):
        headings = {name: name.split(" [")[0].replace(" ", "\n") for name in table.headings}
        console.print(Text(f"\n{table.title}", style="bold"))
        console.print(*table.bare().to_blocks(console, headings, lambda row, index: ""))
        console.print(Text(table.note, style="dim"))
    return EXIT_CODES[findings.verdict]


def print_next(run: Path, console: Console, *, wide: bool = False) -> None:
    """Print the next commands for a run (by the name `latest` if it is): open, explain, verify."""
    link = run.parent / "latest"
    run = link if link.is_symlink() and link.resolve() == run.resolve() else run
    folder, page = (shlex.quote(str(path)) for path in (run, run / "report.html"))
    steps = {
        "open": (page, "figures, step viewer"),
        "explain": (f"bench explain {folder}", "where the time went"),
    }
    plan = read_plan(run)
    if plan is None or any(cell.cell == BASELINE for cell in plan.cells):
        files = dict.fromkeys(str(c.name).rpartition(":")[0] for c in plan.cells) if plan else {}
        words = [str(run / "config.toml"), *(w for f in files if f for w in ("--allow", f))]
        steps["verify"] = (f"bench verify --config {shlex.join(words)}", "are they lossless?")
    if not wide:
        steps["more"] = (f"bench report {folder} --wide", "all columns, notes")
    width = max(len(command) for command, _ in steps.values())
    fits = 9 + width + 2 + max(len(purpose) for _, purpose in steps.values()) <= console.width
    console.print()
    for name, (command, purpose) in steps.items():
        line = Text(f"{name:<9}", style="dim").append(f"{command:<{width}}", style="not dim")
        console.print(line.append(f"  {purpose}" * fits), soft_wrap=True)


def _print_caveats(findings: Findings, console: Console, *, reasons: bool) -> None:
    for caveat in findings.caveats:
        if caveat.startswith("Reason: ") == reasons:
            style = "bold red" if reasons else "yellow"
            console.print(Text(f"! {caveat}", style=style))


def _blocks(findings: Findings, console: Console, wide: bool) -> list[RichTable]:
    """Return the main table's columns that fit the console, or all in blocks if `wide`."""
    columns = {name: main.COLUMNS[name] for name in findings.headline.headings}
    shown = {name: c.terminal for name, c in columns.items() if wide or c.heading.first}
    table = findings.headline.bare([name for name in shown if columns[name].heading.bare])
    guarantee = table.headings.index("guarantee")

    def style(row: Sequence[TableCell], index: int) -> str:
        if row[index].bad:
            return "bold red"
        lossy = row[guarantee].text in (NO_GUARANTEE, NOT_VERIFIED)
        return row[index].bold * ("bold" if lossy else "bold green")

    expendable = [name for name in reversed(shown) if name not in main.KEPT]
    blocks = table.to_blocks(console, shown, style, expendable)
    return blocks if wide else blocks[:1]
