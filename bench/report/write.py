"""`bench report`: every table, figure and text of a run, written from its folder alone.

A pure function of the records: writing twice gives the same bytes, nothing says "now", no model is
needed. Every file is replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pandas as pd
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from bench.errors import Exit
from bench.records.files import replacing, write_files
from bench.records.plan import NO_GUARANTEE
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.report.page.render import render_page
from bench.report.parquet import write_samples
from bench.report.tables.table import ACCEPTED, EMITTED, Table, entropy_sentence
from bench.report.template import render_markdown
from bench.stats.intervals import LEVEL
from bench.stats.summary import ALL
from bench.stats.validity import DAMAGED, EXIT_CODES, VALID, from_here
from bench.text import latex, markdown

SAMPLES_TABLE, SUMMARY = _NUMBERS = ("samples.parquet", "summary.csv")
_TERMINAL = {
    "decoder": "decoder",
    "guarantee": "guarantee",
    f"speed-up, geometric mean [{LEVEL}]": f"speed-up\ngeometric mean\n[{LEVEL}]",
    "ratio of totals": "ratio of\ntotals",
    "specbench_compat": "specbench_compat",
    "tokens per call": "tokens\nper call",
    ACCEPTED: "accepted\ntokens\nper step",
    EMITTED: "emitted\ntokens\nper step",
    "calls per step": "calls\nper step",
    "tokens/s": "tokens/s",
    "TTFT ms": "TTFT\nms",
    "peak memory MB": "memory\nMB",
    f"quality % [{LEVEL}]": "quality\n%",
    "identical to ar %": "same as\nar %",
    "errors": "errors",
}
"""Columns of the terminal's table and their headings there."""
_BARE = (f"quality % [{LEVEL}]", ACCEPTED, EMITTED)
"""Those without their intervals there."""
_EXPENDABLE = (
    *("peak memory MB", "TTFT ms", "specbench_compat", "ratio of totals"),
    *("tokens/s", "calls per step", "identical to ar %", ACCEPTED, EMITTED),
)
"""Those that a narrow terminal shows in further blocks, in this order."""


def write_report(run_dir: Path, reference: str | None = None) -> Findings:
    """Write samples.parquet, summary.csv, report.md, report.html, tables/ and figures/ of a run.

    `reference` names published numbers to print beside the run's; None: as it was configured.
    Returns what it is written from.

    Raises:
        BenchError: where the folder is no run or there is no such reference (2), it is damaged
            (4) or cannot be written (1).
    """
    findings = _findings(run_dir, reference)
    # of a damaged run, what was written before may be the last that is left of it
    kept = [name for name in _NUMBERS if findings.verdict == DAMAGED and (run_dir / name).exists()]
    if SAMPLES_TABLE not in kept:
        with replacing(run_dir / SAMPLES_TABLE) as file:
            write_samples(file, findings.run.records)
    summary = {} if SUMMARY in kept else {SUMMARY: csv_bytes(findings.summary)}
    write_files(run_dir, summary | _tables(findings))
    inline, left_out, figures = _figures(findings)
    shown = {"figures": [(name, caption) for name, caption, _ in inline], "left_out": left_out}
    texts = {
        "report.md": render_markdown("report.md.j2", r=findings, **shown).encode(),
        "report.html": render_page(findings, inline, left_out).encode(),
    }
    write_files(run_dir, figures | texts)
    return findings


def _findings(run_dir: Path, reference: str | None) -> Findings:
    run = load_run(run_dir)
    if reference is None:
        return Findings(run)
    return Findings(dataclasses.replace(run, config={**run.config, "reference": reference}))


def print_summary(run_dir: Path, console: Console, reference: str | None = None) -> Exit:
    """Print what `print_findings` does of a run.

    Published numbers come last, as `write_report` takes them. Returns what the verdict calls for.

    Raises:
        BenchError: where the folder is no run (exit 2) or is damaged (4).
    """
    return print_findings(_findings(run_dir, reference), console)


def print_findings(findings: Findings, console: Console) -> Exit:
    """Print a run's main table, the A/A line, its verdict, and what qualifies the numbers.

    Returns what the verdict calls for.
    """
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
        line = from_here(caveat, findings.run.path)
        reason = line.startswith("Reason: ")
        console.print(Text(f"! {line}", style="bold red" if reason else "yellow"))
    if findings.reference_table is not None:
        _print_reference(findings.reference_table, console)
    return EXIT_CODES[findings.verdict]


def _print_reference(table: Table, console: Console) -> None:
    printed = RichTable(box=None, pad_edge=False, header_style="bold", title_justify="left")
    for place, heading in enumerate(table.headings):
        words = heading.split(" [")[0].replace(" ", "\n")
        side: Literal["left", "right"] = "right" if place else "left"
        printed.add_column(Text(words), justify=side, vertical="bottom", no_wrap=place > 0)
    for row in table.rows:
        printed.add_row(*(Text(cell.text.split(" [")[0]) for cell in row))
    console.print(Text(f"\n{table.title}", style="bold"))
    console.print(printed)
    console.print(Text(table.note, style="dim"))


def _blocks(findings: Findings, console: Console) -> list[RichTable]:
    """The headline table as far as the console is wide, the other columns in blocks below."""
    errors = any(row[-1].text != "0" for row in findings.headline.rows)
    there = set(findings.headline.headings) - (set() if errors else {"errors"})
    columns = [heading for heading in _TERMINAL if heading in there]
    shown = list(columns)
    for heading in [heading for heading in _EXPENDABLE if heading in columns]:
        if _fits(_terminal_table(findings, shown), console):
            break
        shown.remove(heading)
    blocks = [_terminal_table(findings, shown)]
    left = [heading for heading in columns if heading not in shown]
    while left:
        block = ["decoder", left.pop(0)]
        while left and _fits(_terminal_table(findings, [*block, left[0]]), console):
            block.append(left.pop(0))
        blocks.append(_terminal_table(findings, block))
    return blocks


def _fits(table: RichTable, console: Console) -> bool:
    wide = console.options.update(width=1000)
    return Measurement.get(console, wide, table).maximum <= console.width


def _terminal_table(findings: Findings, shown: Sequence[str]) -> RichTable:
    """Some columns of the headline table, the decoder's name being the first."""
    table = findings.headline
    places = {heading: place for place, heading in enumerate(table.headings)}
    printed = RichTable(box=None, pad_edge=False, header_style="bold")
    printed.add_column("decoder", overflow="fold", max_width=24, vertical="bottom")
    for heading in shown[1:]:
        side: Literal["left", "right"] = "left" if heading == "guarantee" else "right"
        printed.add_column(
            Text(_TERMINAL[heading]), justify=side, vertical="bottom", no_wrap=side == "right"
        )
    for row in table.rows:
        cells = [row[places[heading]] for heading in shown]
        texts = [
            cell.text.split(" [")[0] if heading in _BARE else cell.text
            for heading, cell in zip(shown, cells, strict=True)
        ]
        good = row[places["guarantee"]].text != NO_GUARANTEE
        styles = [
            "bold red" if cell.bad else "bold green" if cell.bold and good else "bold" * cell.bold
            for cell in cells
        ]
        printed.add_row(*(Text(t, style=style) for t, style in zip(texts, styles, strict=True)))
    return printed


# ---------------------------------------------------------------- files


def csv_bytes(frame: pd.DataFrame) -> bytes:
    """A CSV of six significant digits; unknown is empty."""
    return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n").encode()


def _tables(findings: Findings) -> dict[str, bytes]:
    table, summary = findings.headline, findings.summary
    note = markdown(f"{table.note} {findings.floor_sentence}")
    comment = "".join(f"% {latex(line)}\n" for line in (table.note, findings.floor_sentence))
    return {
        "tables/headline.md": f"{table.to_markdown()}\n\n{note}\n".encode(),
        "tables/headline.csv": csv_bytes(summary[summary["family"] == ALL]),
        "tables/headline.tex": (comment + table.to_latex()).encode(),
        "tables/acceptance_by_position.csv": csv_bytes(findings.acceptance),
        "tables/by_prompt.csv": csv_bytes(findings.by_prompt),
    }


def _figures(
    findings: Findings,
) -> tuple[list[tuple[str, str, str]], Sequence[str], dict[str, bytes]]:
    """Draw what there is data for: (name, caption, SVG) of each; what is left out; every file."""
    from bench.report.figures import canvas, gallery

    made = gallery.draw_all(findings)
    inline: list[tuple[str, str, str]] = []
    files: dict[str, bytes] = {}
    for name, (figure, data) in made.drawn.items():
        kinds = canvas.render(figure)
        inline.append((name, made.captions[name], kinds["svg"].decode()))
        files |= {f"figures/{name}.{kind}": content for kind, content in kinds.items()}
        files[f"figures/data/{name}.csv"] = csv_bytes(data)
    return inline, made.left_out, files
