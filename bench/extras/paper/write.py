r"""Write all parts of a paper that come from runs, from their folders alone (`bench paper`).

The parts: figures at column width with embedded TrueType fonts and no title (the caption has it),
their numbers as CSV, a booktabs table to ``\input`` with its caption, and BibTeX entries. The same
records give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.errors import UsageError, did_you_mean
from bench.extras.paper import table
from bench.extras.paper.citations import bibliography
from bench.extras.paper.table import COLUMNS, SPEEDUPS, VENUES, PaperLayout, TableGrid, eligible
from bench.extras.together.runs import NamedRun
from bench.records.files import write_files
from bench.records.frames import csv_bytes
from bench.records.plan import BASELINE, NO_GUARANTEE, WRONG
from bench.report.findings import ordered_decoders
from bench.report.tables.setting import describe_model, hardware, settings_in_words
from bench.report.tables.table import interval, over, with_interval
from bench.stats.metrics import summary_rows
from bench.stats.side import RunSnapshot
from bench.stats.summary import ALL
from bench.stats.validity import VALID
from bench.text import counted, factor, latex, portable

_SCORES = {"exact_number": "correct results", "contains_answer": "answers with the gold answer"}
_SCORES |= {"rouge_l": "ROUGE-L F", "constraints_met": "constraints met"}
"""Words for metrics of quality; any other has its name."""


def write_paper(
    members: Sequence[NamedRun],
    folder: Path,
    layout: PaperLayout,
    note: Callable[[str], None] = lambda _: None,
) -> list[Path]:
    """Write the table, the figures with their CSVs and the references, and return the files.

    Args:
        members: the runs, each of which has a group of rows.
        folder: where the files are written.
        layout: the paper's choices.
        note: called with a line about names without BibTeX entries.

    Raises:
        BenchError: a label names no decoder and no run (exit 2), or the files cannot be written
            (1).
    """
    from bench.report.figures import canvas, dots  # imports matplotlib: only for drawing

    there = [*ordered_decoders(members), *(member.name for member in members)]
    for name in layout.labels:
        if name not in there:
            line = f"--label {name}: no decoder or run has this name; {did_you_mean(name, there)}"
            raise UsageError(line)
    texts = [layout.labels.get(member.name) for member in members]
    named = zip(members, texts, strict=True)
    members = [replace(run, name=text, label=text) if text else run for run, text in named]
    references, missing = bibliography(members)
    if missing:
        note(f"no BibTeX entry is known for {', '.join(missing)}: add yours to references.bib")
    main = table.latex(members, layout, partial(write_caption, members, layout))
    files: dict[str, bytes] = {}
    shown = {"speedup": dots.SPEEDUP, "tokens_per_step": dots.TOKENS, "quality": dots.QUALITY}
    for name, metric in shown.items():
        drawing = dots.dots_figure(members, metric, VENUES[layout.venue].width, layout.labels)
        if drawing is not None:
            renamed = {column: column.replace(metric.column, name) for column in metric.columns}
            files[f"{name}.pdf"] = canvas.render(drawing[0], ["pdf"])["pdf"]
            files[f"{name}.csv"] = csv_bytes(drawing[1].rename(columns=renamed))
    tables = {"main.tex": main.encode(), "references.bib": references.encode()}
    return write_files(folder, files | tables)


def write_caption(members: Sequence[NamedRun], layout: PaperLayout, grid: TableGrid) -> str:
    """Return the caption as LaTeX: estimands, model, meaning of bold, and lossy decoders."""
    rows = [row for member in members for row in summary_rows(member.summary, ALL)]
    labels = {BASELINE: "AR", **layout.labels}
    scores = dict.fromkeys(_scores(member, labels[BASELINE]) for member in members)
    asides = {"quality": " or ".join(filter(None, scores))}
    if table.STEPS in grid.columns and "(" in grid.digits(table.STEPS):
        asides[table.STEPS] = "in brackets if nothing verifies them"
    words = [
        COLUMNS[name].caption
        + " with its 95\\,\\% interval" * (name in grid.spread - {*SPEEDUPS})
        + (f" ({latex(aside)})" if (aside := asides.get(name)) else "")
        for name in grid.columns
    ]
    bold = ""
    if layout.bold == "best":
        bold = " Bold: the best" + " of each run" * (len(members) > 1)
        bold += "" if all(map(eligible, rows)) else " among decoders with a guarantee"
        bold += ", times and qualities only if their intervals show it"
        if table.STEPS in grid.columns:
            bold += ", tokens per step only among decoders with as many calls per step"
        bold += "."
    named = dict.fromkeys(str(member.side.config.get("primary") or "") for member in members)
    cells = ", ".join(latex(layout.labels.get(n, n)) for n in named if n not in ("", "none"))
    primary = f" Primary comparison: {cells}; all others are exploratory." if cells else ""
    estimated = f"{_setting(members)}: {'; '.join(words)}.{primary}"
    floors = [
        with_interval(factor(floor.value, ""), interval(floor.low, floor.high))
        + f" ({latex(label)})" * (len(members) > 1)
        for label, floor in ((member.label, member.floor) for member in members)
        if floor.value is not None
    ]
    cells_over = dict.fromkeys(over(member.summary) for member in members)
    base = " or ".join(latex(labels.get(name, name)) for name in cells_over)
    noise = f" {base} against a second {base} in the same run: {', '.join(floors)}." * bool(floors)
    text = f"{estimated}{bold}{noise}{_guarantee_warnings(members, layout)}"
    return text if [*cells_over] == [BASELINE] else text.replace("autoregressive decoding", base)


def _scores(member: NamedRun, ar: str) -> str:
    """Name the metrics and families whose mean is a run's quality, and the families left out."""
    families: dict[str, list[str]] = {}
    for row in summary_rows(member.summary.query(f"family != {ALL!r}"), None):
        key = "" if row.quality_tells is False else str(row.quality_metric)
        if row.quality is not None and row.family not in families.setdefault(key, []):
            families[key].append(row.family)
    floored = families.pop("", ())
    parts = [f"{_SCORES.get(key, key)} in {' and '.join(of)}" for key, of in families.items()]
    mean = "mean over families: " * (sum(map(len, families.values())) > 1)
    texts = [f"{mean}{', '.join(parts)}"] * bool(parts)
    texts += [f"left out, as {ar} is at its floor: {', '.join(floored)}"] * bool(floored)
    return "; ".join(texts)


def _guarantee_warnings(members: Sequence[NamedRun], layout: PaperLayout) -> str:
    """Warn of decoders without a guarantee, and of runs that are not VALID."""
    lossy, wrong = (
        dict.fromkeys(
            layout.labels.get(row.decoder, row.decoder)
            for member in members
            for row in summary_rows(member.summary, ALL)
            if row.guarantee == kind and row.decoder != row.over
        )
        for kind in (NO_GUARANTEE, WRONG)
    )
    text = f" Lossy, without any guarantee: {', '.join(lossy)}." if lossy else ""
    if wrong:
        text += f" {WRONG}, and left out of the figures: {', '.join(wrong)}."
    for member in members:
        if member.side.verdict not in (VALID, WRONG):
            run = f"The run {member.name}" if len(members) > 1 else "The run"
            text += f" {run} is {member.side.verdict}."
    return f" {latex(text)}" if text else ""


def _setting(members: Sequence[NamedRun]) -> str:
    """Name the model, prompts, sampling and machine, by run where the runs differ."""
    each = [[describe_model(member.side), *_conditions(member)] for member in members]
    common = [part for part in each[0] if all(part in parts for parts in each)]
    if len(members) == 1:
        return latex(portable(f"Decoders of {', '.join(common)}"))
    runs = [
        f"{member.label}: {', '.join(rest)}"
        for member, parts in zip(members, each, strict=True)
        if (rest := [part for part in parts if part not in (*common, member.label)])
    ]
    all_with = f", all with {', '.join(common)}" if common else ""
    differing = f" ({'; '.join(runs)})" if runs else ""
    return latex(portable(f"Decoders by run{all_with}{differing}"))


def _conditions(member: NamedRun) -> list[str]:
    rows = summary_rows(member.summary, ALL)
    prompts, clusters, repeats = (
        counted(max(getattr(row, f"{noun}s") or 0 for row in rows), noun)
        for noun in ("prompt", "cluster", "repeat")
    )
    place = filter(None, [hardware(member.side.env)])
    return [f"{prompts} in {clusters}", repeats, *conditions(member.side), *place]


def conditions(side: RunSnapshot) -> list[str]:
    """Return a run's tasks, sampling, batches and dtype."""
    tasks, dtype = side.config.get("tasks"), side.config.get("dtype") or side.env.dtype
    if str(tasks).startswith("specbench="):
        tasks = "specbench"  # the file has Spec-Bench's own name
    named = [f"tasks {tasks}"] if tasks is not None else []
    return [*named, *settings_in_words(side.config), *filter(None, [dtype])]
