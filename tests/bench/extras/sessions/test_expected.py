"""Runs of a pooled job show what sessions of their machine predict, or that there are none."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bench.extras.sessions import expected
from bench.extras.sessions.pooled import load_pool, write_pool
from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.report.sections import sections
from bench.report.write import write_report
from tests.bench.conftest import tables_of
from tests.bench.extras.sessions.test_pooled import MACHINE, Write, on, session
from tests.bench.extras.together.test_runs import configured
from tests.conftest import only_svg

EPYC = "EPYC, 2 cores, 2 threads"


@pytest.fixture
def pool(synthetic_run: Write, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four sessions of one machine, pooled."""
    *_, last = (session(synthetic_run, number) for number in range(4))
    folder = last.parent
    write_pool(load_pool([str(folder)], folder), folder)
    monkeypatch.setattr(expected, "REFERENCES", folder.parent)
    return folder


def test_a_run_on_the_pools_machine_shows_the_prediction(pool: Path, synthetic_run: Write) -> None:
    run = session(synthetic_run, 6, name="later")
    (line,) = expected.conclusion(run)
    assert re.match(rf"[012] of 2 speed-ups as the stored .* predict \({EPYC}\)", line)
    (table,) = expected.section(Findings(load_run(run)))
    assert table.title == "Expected from stored sessions"
    assert "4 sessions of the pool runs" in table.note
    assert EPYC in table.note
    ranges = {row.decoder: row for row in load_pool([str(pool)], pool).estimates}
    for cells in table.rows:
        ends = ranges[cells[0].text].next
        assert cells[1].text == f"[{ends.low:.2f}, {ends.high:.2f}]"


def test_a_speed_up_outside_of_the_prediction_is_named(pool: Path, synthetic_run: Write) -> None:
    run = session(synthetic_run, 6, name="later")
    text = (pool / "pool.csv").read_text().splitlines()
    columns = text[0].split(",")
    low, high = columns.index("next_low"), columns.index("next_high")
    rows = [line.replace(f'"{EPYC}"', "MACHINE").split(",") for line in text[1:]]
    for row in rows:
        row[low], row[high] = ("0.5", "0.6") if row[0] == "spec" else ("0.1", "99")
    lines = [",".join(row).replace("MACHINE", f'"{EPYC}"') for row in rows]
    (pool / "pool.csv").write_text("\n".join([text[0], *lines]))
    (line,) = expected.conclusion(run)
    assert re.search(r"^1 of 2 speed-ups as .*; spec \d\.\d\dx, not \[0\.50, 0\.60\]$", line)
    (table,) = expected.section(Findings(load_run(run)))
    assert {row[0].text: row[2].bad for row in table.rows} == {"spec": True, "nar": False}


@pytest.mark.parametrize(
    "env",
    [
        on("EPYC (family 26, model 2)"),
        on("EPYC", instructions=["avx512f"]),
        MACHINE | {"torch": {"threads": 4}},
    ],
)
def test_a_run_on_another_machine_says_that_no_session_is_stored(
    env: dict[str, Any], pool: Path, synthetic_run: Write
) -> None:
    run = session(synthetic_run, 6, name="later", env=env)
    (line,) = expected.conclusion(run)
    assert line.startswith("no stored session of this processor (EPYC")
    assert line.endswith("): expect what `bench cost` shows")
    (table,) = expected.section(Findings(load_run(run)))
    assert table.note.startswith(f"N{line[1:]}. ")
    assert [row[0].text for row in table.rows] == [EPYC]
    assert table.headings == ("machine", "spec", "nar")


def test_the_report_has_the_section(pool: Path, synthetic_run: Write) -> None:
    run = session(synthetic_run, 6, name="later", env=on("Xeon"))
    assert "expected" in {section.name for section in sections()}
    assert tables_of(Findings(load_run(run)))["expected"]
    with only_svg():
        write_report(run)
    assert "No stored session of this processor (Xeon" in (run / "report.md").read_text()
    assert "No stored session of this processor (Xeon" in (run / "report.html").read_text()


def test_another_job_has_no_prediction(pool: Path, synthetic_run: Write) -> None:
    run = session(synthetic_run, 6, name="later")
    assert expected.conclusion(run)
    configured(run, model="zoo", max_new_tokens=256, temperature=0.7)
    assert expected.conclusion(run) == []
    assert expected.section(Findings(load_run(run))) == ()
    fewer = session(synthetic_run, 5, name="fewer", conversations=6)
    assert expected.conclusion(fewer) == []


@pytest.mark.parametrize("damage", ["decoder,speedup\nspec,1\n", "", "\x00"])
def test_a_pool_that_cannot_be_read_predicts_nothing(
    damage: str, pool: Path, synthetic_run: Write
) -> None:
    run = session(synthetic_run, 6, name="later")
    (pool / "pool.csv").write_text(damage)
    assert expected.conclusion(run) == []


def test_a_pool_with_a_damaged_session_predicts_nothing(pool: Path, synthetic_run: Write) -> None:
    run = session(synthetic_run, 6, name="later")
    (pool / "s0" / "manifest.json").write_text(json.dumps({"schema": 1}))
    assert expected.conclusion(run) == []
