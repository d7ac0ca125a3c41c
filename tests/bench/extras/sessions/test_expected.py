"""Runs of a pooled job show what sessions of their machine predict, or that there are none."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.errors import BenchError
from bench.extras.exports.export import reference
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


def ended(write: Write, **options: Any) -> Path:
    """A run of the pooled job whose first report is not written yet."""
    run = session(write, 6, **{"name": "later"} | options)
    status = json.loads((run / "run.json").read_text()) | {"reported": False}
    (run / "run.json").write_text(json.dumps(status))
    return run


def test_a_run_on_the_pools_machine_shows_the_prediction(pool: Path, synthetic_run: Write) -> None:
    run = ended(synthetic_run)
    (table,) = expected.section(Findings(load_run(run)))
    assert table.title == "Expected from stored sessions"
    assert "holds for its machine alone. " in table.note
    assert table.headings == ("machine", "spec", "nar")
    here, predicted = table.rows
    assert [here[0].text, predicted[0].text] == [f"this run: {EPYC}", EPYC]
    ranges = [estimate.next for _, estimate in load_pool([str(pool)], pool).decoders.values()]
    assert [c.text for c in predicted[1:]] == [f"[{e.low:.2f}, {e.high:.2f}]" for e in ranges]
    summary = Findings(load_run(run)).summary.set_index(["decoder", "family"])["speedup"]
    assert [c.text for c in here[1:]] == [f"{summary[d, 'all']:.2f}x" for d in ("spec", "nar")]


def predict(pool: Path, **ranges: tuple[float, float]) -> None:
    table = pd.read_csv(pool / "pool.csv").set_index("decoder")
    for decoder, ends in ranges.items():
        table.loc[decoder, ["next_low", "next_high"]] = ends
    table.to_csv(pool / "pool.csv")


def test_a_speed_up_outside_of_the_prediction_is_named(pool: Path, synthetic_run: Write) -> None:
    run = ended(synthetic_run)
    predict(pool, spec=(0.5, 0.6), nar=(0.1, 99))
    (line,) = expected.conclusion(run)
    said = rf"Not as stored sessions of this processor predict \({EPYC}\): "
    assert re.fullmatch(said + r"spec \d\.\d\dx, not \[0\.50, 0\.60\]", line)
    (table,) = expected.section(Findings(load_run(run)))
    assert table.note.endswith(f"{line}.")
    predict(pool, spec=(50, 60))
    (run / expected.EXPECTED).unlink()
    (line,) = expected.conclusion(run)
    assert line.endswith("x, not [50.00, 60.00]")
    predict(pool, spec=(0.1, 99))
    line = f"Speed-ups are as stored sessions of this processor predict ({EPYC})"
    assert expected.conclusion(run) == [line]


def test_rows_of_a_pool_without_a_prediction_are_not_shown(
    pool: Path, synthetic_run: Write
) -> None:
    """As those of all its machines."""
    table = pd.read_csv(pool / "pool.csv")
    everywhere = table.assign(machine="all", next_low=math.nan, next_high=math.nan)
    pd.concat([everywhere, table]).to_csv(pool / "pool.csv", index=False)
    run = ended(synthetic_run)
    (shown,) = expected.section(Findings(load_run(run)))
    assert [row[0].text for row in shown.rows] == [f"this run: {EPYC}", EPYC]


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
    run = ended(synthetic_run, env=env)
    (line,) = expected.conclusion(run)
    assert line.startswith("No stored session of this processor (EPYC")
    assert line.endswith("): expect what `bench cost` shows")
    (table,) = expected.section(Findings(load_run(run)))
    assert table.note.endswith(f"{line}.")
    assert [row[0].text for row in table.rows][1:] == [EPYC]


def test_a_run_whose_decoders_are_not_in_the_pool_is_not_reported_as_predicted(
    pool: Path, synthetic_run: Write
) -> None:
    run = ended(synthetic_run)
    for name in ("manifest.json", "samples.jsonl"):
        text = (run / name).read_text().replace('"spec"', '"suffix"').replace('"nar"', '"ptp"')
        (run / name).write_text(text)
    (line,) = expected.conclusion(run)
    assert line.startswith(f"No stored session of these decoders on this processor ({EPYC}): ")


def test_the_report_has_the_section_of_expected_speed_ups(pool: Path, synthetic_run: Write) -> None:
    run = ended(synthetic_run, env=on("Xeon"))
    assert "expected" in {section.name for section in sections()}
    assert tables_of(Findings(load_run(run)))["expected"]
    with only_svg():
        write_report(run)
    assert "No stored session of this processor (Xeon" in (run / "report.md").read_text()
    assert "No stored session of this processor (Xeon" in (run / "report.html").read_text()


def test_another_job_has_no_prediction(pool: Path, synthetic_run: Write) -> None:
    run = ended(synthetic_run)
    assert expected.conclusion(run)
    (run / expected.EXPECTED).unlink()
    configured(run, model="zoo", max_new_tokens=256, temperature=0.7)
    assert expected.conclusion(run) == []
    assert expected.section(Findings(load_run(run))) == ()
    fewer = ended(synthetic_run, name="fewer", conversations=6)
    assert expected.conclusion(fewer) == []


@pytest.mark.parametrize("damage", ["decoder,speedup\nspec,1\n", "", "\x00"])
def test_a_pool_that_cannot_be_read_predicts_nothing(
    damage: str, pool: Path, synthetic_run: Write
) -> None:
    run = ended(synthetic_run)
    (pool / "pool.csv").write_text(damage)
    assert expected.conclusion(run) == []


def test_a_pool_with_a_damaged_session_predicts_nothing(pool: Path, synthetic_run: Write) -> None:
    run = ended(synthetic_run)
    (pool / "s0" / "manifest.json").write_text(json.dumps({"schema": 1}))
    assert expected.conclusion(run) == []


def test_later_reports_show_the_prediction_of_the_first_report_in_any_checkout(
    pool: Path, synthetic_run: Write, tmp_path: Path
) -> None:
    run = ended(synthetic_run)
    (first,) = expected.section(Findings(load_run(run)))
    status = json.loads((run / "run.json").read_text()) | {"reported": True}
    (run / "run.json").write_text(json.dumps(status))
    predict(pool, spec=(0.5, 0.6), nar=(0.1, 99))
    assert expected.section(Findings(load_run(run))) == (first,)
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(pool)
    assert expected.section(Findings(load_run(copy))) == (first,)
    (copy / "report.md").write_text("# A run\n")
    stored = reference(Findings(load_run(copy)))
    assert stored[expected.EXPECTED] == (run / expected.EXPECTED).read_bytes()
    (copy / expected.EXPECTED).unlink()
    assert expected.section(Findings(load_run(copy))) == ()
    (copy / expected.EXPECTED).write_text('{"next": {"EPYC": {"spec": [1]}}}')
    with pytest.raises(BenchError, match=r"expected\.json is damaged"):
        expected.section(Findings(load_run(copy)))


def write_summaries(pool: Path) -> list[Path]:
    """Write the summaries of a pool's runs, and return their folders."""
    folders = sorted(pool.glob("s*"))
    for folder in folders:
        Findings(load_run(folder)).summary.to_csv(folder / "summary.csv", index=False)
    return folders


def slowed(run: Path, factor: float) -> None:
    """Multiply the times per token of a stored run by a factor."""
    summary = pd.read_csv(run / "summary.csv")
    summary["time_per_token_s"] *= factor
    summary.to_csv(run / "summary.csv", index=False)


def slow_baselines(run: Path) -> list[str]:
    (run / expected.EXPECTED).unlink(missing_ok=True)
    return list(expected.caveats(Findings(load_run(run))))


def test_a_baseline_that_is_slower_than_in_earlier_runs_causes_a_warning(
    pool: Path, synthetic_run: Write
) -> None:
    run = ended(synthetic_run)
    write_summaries(pool)
    assert slow_baselines(run) == []  # as fast
    slowed(pool / "s1", 1 / 1.5)
    slowed(pool / "s2", 1 / 1.2)
    (line,) = slow_baselines(run)
    took = r"Warning: ar took 1\.[45]\d times as long per token as in s1, the fastest run"
    assert re.match(took, line)
    status = json.loads((pool / "s1" / "run.json").read_text())
    (pool / "s1" / "run.json").write_text(json.dumps(status | {"verdict": "INVALID"}))
    (line,) = slow_baselines(run)
    assert re.match(r"Warning: ar took 1\.[12]\d times as long per token as in s2, ", line)
    shutil.rmtree(pool)
    assert [*expected.caveats(Findings(load_run(run)))] == [line]  # kept with the run
    assert slow_baselines(run) == []


def test_runs_without_times_set_no_expected_time_of_the_baseline(
    pool: Path, synthetic_run: Write
) -> None:
    run = ended(synthetic_run)
    for before in write_summaries(pool):
        slowed(before, math.nan)
    assert slow_baselines(run) == []
    assert json.loads((run / expected.EXPECTED).read_text())["fastest"] is None


def test_the_baseline_is_compared_with_a_neighbouring_run_and_not_with_itself(
    pool: Path, synthetic_run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expected, "REFERENCES", pool)  # and not the folder of both runs
    run, before = ended(synthetic_run), session(synthetic_run, 5, name="faster")
    (run.parent / "latest").symlink_to(before)
    for folder, factor in ((run, 1 / 4), (before, 1 / 2)):
        rows = Findings(load_run(folder)).summary[::-1]  # the baseline's are the last
        rows.to_csv(folder / "summary.csv", index=False)
        slowed(folder, factor)
    (line,) = slow_baselines(run)
    assert " as in faster, the fastest run" in line
    (took,) = re.findall(r"took ([\d.]+) times", line)
    assert float(took) == pytest.approx(2, rel=0.1)
    findings = Findings(load_run(run))
    findings.summary["time_per_token_s"] = math.nan
    assert [*expected.caveats(findings)] == []


def test_a_neighbouring_run_that_lost_its_plan_is_passed_over(
    pool: Path, synthetic_run: Write
) -> None:
    run = ended(synthetic_run)
    for before in write_summaries(pool):
        (before / "manifest.json").unlink()
    assert slow_baselines(run) == []


def test_the_baseline_is_not_compared_with_runs_of_other_machines_or_jobs(
    pool: Path, synthetic_run: Write
) -> None:
    for before in write_summaries(pool):
        slowed(before, 1 / 2)
    assert slow_baselines(ended(synthetic_run, name="other", env=on("Xeon"))) == []
    assert slow_baselines(ended(synthetic_run, name="fewer", conversations=6)) == []
    assert slow_baselines(ended(synthetic_run))
