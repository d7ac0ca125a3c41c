"""Show published numbers next to a run's (``--reference NAME``), and their comparability.

``bench/settings/published.toml`` has the numbers with their source and device. Tokens per step are
comparable if model, temperature and protocol agree; speed-ups only if GPU and dtype agree too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from bench.errors import UsageError, did_you_mean
from bench.records.environment import Environment
from bench.records.run_folder import Run
from bench.report.findings import Findings
from bench.report.sections import Section
from bench.report.tables.table import SESSIONS, Table, TableCell, mark_wrong, number, speed
from bench.settings.protocol import departures, published
from bench.stats.intervals import LEVEL
from bench.stats.metrics import summary_rows
from bench.stats.summary import ALL
from bench.text import UNKNOWN, factor

_Reference = Mapping[str, Any]
"""A table of published.toml: rows (name, speed-up, tokens per step) and their setting.

An unknown number is NaN. An empty `gpu`, `dtype` or `protocol` was not stated. Without `protocol`
no number is comparable, and without `gpu` no speed-up.
"""


def load_reference(name: str) -> _Reference:
    """Return the reference of a name (exit 2 if unknown)."""
    references = published()
    if name not in references:
        raise UsageError(f"no reference {name!r}; {did_you_mean(name, references)}")
    return references[name]


def obstacles(
    reference: _Reference, config: Mapping[str, Any], env: Environment, left: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return reasons against comparing tokens per step, and against comparing speed-ups.

    Args:
        reference: the published table.
        config: the run's configuration, as stored.
        env: the run's machine.
        left: the run's departures from its protocol, a line each.
    """
    lengths = []
    if reference["model"] not in str(config.get("model", "")).lower():
        lengths.append(f"another model than {reference['model']}")
    if config.get("temperature") != reference["temperature"]:
        lengths.append(f"temperature {config.get('temperature')}, not {reference['temperature']}")
    if not reference["protocol"]:
        lengths.append("its protocol is not fully stated")
    elif config.get("protocol") != reference["protocol"]:
        lengths.append(f"not run with --protocol {reference['protocol']}")
    else:
        lengths += [line for line in left if not line.startswith(("dtype", "repeats"))]
    speeds = list(lengths)
    here = env.gpu_name or ""
    if not reference["gpu"]:
        speeds.append("its device is not stated")
    elif reference["gpu"] not in here:
        speeds.append(f"another device ({here or env.device or 'unknown'})")
    if config.get("dtype") != reference["dtype"]:
        stated = f"{config.get('dtype')}, not {reference['dtype']}"
        speeds.append(stated if reference["dtype"] else "its dtype is not stated")
    return lengths, speeds


def table(name: str, summary: pd.DataFrame, run: Run) -> Table:
    """Make the table of the run's rows above the published rows."""
    reference = load_reference(name)
    left = departures(run.config, len(run.plan.in_pass("timing")))
    lengths, speeds = obstacles(reference, run.config, run.env, left)
    flags = ["no" if why else "yes" for why in (speeds, lengths)]
    run_rows = [
        (
            TableCell(f"{row.decoder} (this run)"),
            speed(row, "specbench_compat"),
            speed(row),
            TableCell(number(row.acceptance_length)),
            *map(TableCell, (UNKNOWN, UNKNOWN)),
        )
        for row in summary_rows(summary, ALL)
        if row.decoder != row.over
    ]
    published_rows = [
        tuple(map(TableCell, (decoder, factor(times), UNKNOWN, number(length), *flags)))
        for decoder, times, length in reference["rows"]
    ]
    reasons = f"{_why('tokens per step', lengths)}. {_why('speed-up', speeds)}"
    return Table(
        title=f"Published figures: {name}",
        note=(
            f"{reference['title']}. Source: {reference['source']}. Device: {reference['device']}; "
            f"{reference['dtype'] or 'dtype not stated'}, T = {reference['temperature']:g}. "
            f"{reasons}. {SESSIONS}"
        ),
        headings=(
            "decoder",
            "specbench_compat",
            f"geometric mean [{LEVEL}]",
            "tokens per step",
            "speed-up comparable",
            "tokens per step comparable",
        ),
        rows=(*run_rows, *published_rows),
    )


def _why(subject: str, reasons: Sequence[str]) -> str:
    answer = f"no ({', '.join(reasons)})" if reasons else "yes"
    return f"Comparable in {subject}: {answer}"


def _tables(findings: Findings) -> list[Table]:
    name = findings.run.config.get("reference")
    if name is None or findings.summary.empty:
        return []
    return [mark_wrong(table(str(name), findings.summary, findings.run), findings.wrong)]


SECTION = Section("reference", _tables, 4, is_open=True, is_printed=True)
