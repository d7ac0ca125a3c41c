"""A run to keep in a repository: small, complete, and readable like the run itself.

Answers are in ``samples.parquet``. Texts of prompts, traces and pages are left out, and so are
figures that are not requested.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bench.errors import UsageError, did_you_mean
from bench.records.environment import ENV
from bench.records.files import STORED
from bench.records.frames import csv_bytes, write_samples
from bench.records.json_file import read_json
from bench.records.phases import PHASES_FILE
from bench.records.plan import MANIFEST
from bench.records.run_folder import CONFIG
from bench.records.status import STATUS
from bench.records.vocabulary import VOCABULARY, answered_ids
from bench.report.findings import Findings
from bench.report.write import REPORT, SUMMARY, tables_of

_IMAGE = re.compile(r"^!\[.*\]\(figures/(.*)\.png\)\n\n", re.MULTILINE)


def reference(findings: Findings, figures: Sequence[str] = ()) -> dict[str, bytes]:
    """Return the files to store, with the named `figures`; the same run gives the same bytes.

    Raises:
        UsageError: the report is not written yet, or has no such figure.
    """
    run = findings.run
    if not (run.path / REPORT).is_file():
        raise UsageError(f"{run.path} has no {REPORT}; write it: bench report {run.path}")
    report = (run.path / REPORT).read_text(encoding="utf-8")
    drawn = _IMAGE.findall(report)
    for name in figures:
        if name not in drawn:
            raise UsageError(f"no figure {name!r} in {REPORT}; {did_you_mean(name, drawn)}")
    report = _IMAGE.sub(lambda image: image[0] if image[1] in figures else "", report)
    samples = io.BytesIO()
    write_samples(samples, run.records, run.events)
    answered = set(map(str, answered_ids(run.records)))
    pieces = (read_json(run.path / VOCABULARY) or {}).items()
    tables = {name: data for name, data in tables_of(findings).items() if name.endswith(".csv")}
    copied = [CONFIG, ENV, STATUS, PHASES_FILE, *(f"figures/{name}.png" for name in figures)]
    return {
        **{name: (run.path / name).read_bytes() for name in copied if (run.path / name).is_file()},
        MANIFEST: _json(run.plan.to_manifest()),
        VOCABULARY: _json({token: piece for token, piece in pieces if token in answered}),
        STORED: samples.getvalue(),
        SUMMARY: csv_bytes(findings.summary),
        REPORT: report.encode(),
        **tables,
    }


def _json(data: Mapping[str, Any]) -> bytes:
    return (json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n").encode()
