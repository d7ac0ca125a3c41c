"""`bench report`: write every table, figure and text of a run, from its folder only.

The output depends only on the records: no model, no current time, and writing twice gives the same
bytes. Every file is replaced atomically, so a reader never sees a partial file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from bench.errors import Exit
from bench.records.files import STORED, replacing, write_files
from bench.records.frames import csv_bytes, write_samples
from bench.records.plan import NO_GUARANTEE
from bench.records.run_folder import is_stored, load_run
from bench.report.findings import Findings
from bench.report.page.answers import viewer
from bench.report.page.render import render
from bench.report.tables.main import PER_STEP, entropy_sentence
from bench.report.tables.table import TableCell
from bench.stats.intervals import LEVEL
from bench.stats.summary import ALL
from bench.stats.validity import DAMAGED, EXIT_CODES, VALID, from_here
from bench.text import latex, markdown

SUMMARY, REPORT = "summary.csv", "report.md"
_NUMBERS = (STORED, SUMMARY)
_TERMINAL = {
    "decoder": "decoder",
    "guarantee": "guarantee",
    f"speed-up, geometric mean [{LEVEL}]": f"speed-up\ngeometric mean\n[{LEVEL}]",
    "ratio of totals": "ratio of\ntotals",
    "specbench_compat": "specbench_compat",
    "tokens per call": "tokens\nper call",
    PER_STEP: "tokens\nper step",
    "calls per step": "calls\nper step",
    "tokens/s": "tokens/s",
    "TTFT ms": "TTFT\nms",
    "peak memory MB": "memory\nMB",
    f"quality % [{LEVEL}]": "quality\n%",
    "identical to ar %": "same as\nar %",
    "errors": "errors",
}
"""Columns of the terminal's table and their headings."""
_BARE = (f"quality % [{LEVEL}]", PER_STEP)
"""Columns that the terminal shows without intervals."""
_EXPENDABLE = (
    *("peak memory MB", "TTFT ms", "specbench_compat", "ratio of totals"),
    *("tokens/s", "calls per step", "identical to ar %", PER_STEP),
)
"""Columns that a narrow terminal moves into further blocks, in this order."""


def write_report(run_dir: Path, reference: str | None = None) -> Findings:
    """Write samples.parquet, summary.csv, report.md, report.html, tables/ and figures/ of a run.

    `reference` names published numbers to print next to the run's; None: the configured reference.

    Raises:
        BenchError: the folder is not a run or the reference is unknown (exit 2), the run is
            damaged (4), or the folder cannot be written (1).
    """
    from bench.report.figures import canvas, gallery  # matplotlib: only where something is drawn

    run = load_run(run_dir)
    if reference is not None:
        run = dataclasses.replace(run, config={**run.config, "reference": reference})
    findings = Findings(run)
    # files written earlier may be all that is left of a damaged run
    kept = [name for name in _NUMBERS if findings.verdict == DAMAGED and (run_dir / name).exists()]
    if STORED not in kept and not is_stored(run_dir):
        with replacing(run_dir / STORED) as file:
            write_samples(file, findings.run.records, findings.run.events)
    summary = {} if SUMMARY in kept else {SUMMARY: csv_bytes(findings.summary)}
    write_files(run_dir, summary | tables_of(findings))
    made = gallery.draw_all(findings)
    files: dict[str, bytes] = {}
    for name, drawn in made.drawn.items():
        files |= canvas.figure_files(name, drawn)
    figures = [
        (name, caption, files[f"figures/{name}.svg"].decode())
        for name, caption in made.captions.items()
    ]
    context = {"r": findings, "figures": figures, "left_out": made.left_out}
    files[REPORT] = render("report.md.j2", **context)
    files["report.html"] = render("page.html.jinja", viewer=viewer(findings.run), **context)
    write_files(run_dir, files)
    return findings


def tables_of(findings: Findings) -> dict[str, bytes]:
    """Return the files of ``tables/`` by their path in the run's folder."""
    table, summary = findings.headline, findings.summary
    lines = (table.note, findings.floor_sentence)
    comment = "".join(f"% {latex(line)}\n" for line in lines)
    return {
        "tables/headline.md": f"{table.to_markdown()}\n\n{markdown(' '.join(lines))}\n".encode(),
        "tables/headline.csv": csv_bytes(summary[summary["family"] == ALL]),
        "tables/headline.tex": (comment + table.to_latex()).encode(),
        "tables/acceptance_by_position.csv": csv_bytes(findings.acceptance),
        "tables/by_prompt.csv": csv_bytes(findings.by_prompt),
    }


def print_findings(findings: Findings, console: Console) -> Exit:
    """Print a run's main table, A/A line, verdict and caveats; return the verdict's exit code."""
    if findings.summary.empty:
        console.print(Text("nothing is measured yet"))
    else:
        for block in _blocks(findings, console):
            console.print(block, "")
        entropy = entropy_sentence(findings.summary)
        for line in (*findings.footnotes, findings.basis, entropy):
            console.print(Text(line, style="dim"))
    good = findings.verdict == VALID
    console.print(Text(findings.verdict, style="bold green" if good else "bold red"))
    for caveat in findings.caveats:
        style = "bold red" if caveat.startswith("Reason: ") else "yellow"
        console.print(Text(f"! {from_here(caveat, findings.run.path)}", style=style))
    if (table := findings.reference_table) is not None:
        headings = {name: name.split(" [")[0].replace(" ", "\n") for name in table.headings}
        console.print(Text(f"\n{table.title}", style="bold"))
        console.print(table.bare().to_rich(headings, lambda row, index: ""))
        console.print(Text(table.note, style="dim"))
    return EXIT_CODES[findings.verdict]


def _blocks(findings: Findings, console: Console) -> list[RichTable]:
    """Split the main table into blocks that fit the console's width."""
    table = findings.headline.bare(_BARE)
    errors = any(row[-1].text != "0" for row in table.rows)
    columns = [
        name for name in _TERMINAL if name in table.headings and (name != "errors" or errors)
    ]
    guarantee = table.headings.index("guarantee")

    def style(row: Sequence[TableCell], index: int) -> str:
        if row[index].bad:
            return "bold red"
        lossy = row[guarantee].text == NO_GUARANTEE
        return row[index].bold * ("bold" if lossy else "bold green")

    chosen = {name: _TERMINAL[name] for name in columns}
    return table.to_blocks(console, chosen, style, _EXPENDABLE)
