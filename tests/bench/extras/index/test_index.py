"""The page of a folder of runs, and the history that outlives them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bench.errors import BenchError, Exit
from bench.extras.index.index import HISTORY, INDEX, NUMBERS, gather, write_index
from tests.command_line import bench

REFERENCE = Path(__file__).parents[4] / "results" / "reference" / "cpu-zoo"


def put(folder: Path, day: int, branch: str | None = "main", **changes: Any) -> Path:
    """A stored run as if it were measured on some day; `changes` are of ar's and spec's numbers."""
    run = folder / f"202611{day:02}-run"
    run.mkdir(parents=True)
    for name in ("config.toml", "summary.csv", "manifest.json", "samples.parquet"):
        shutil.copy(REFERENCE / name, run)
    summary = pd.read_csv(run / "summary.csv")
    for column, value in changes.items():
        summary.loc[summary["decoder"] == "spec", column] = value
    summary.to_csv(run / "summary.csv", index=False)
    status = json.loads((REFERENCE / "run.json").read_text())
    status |= {"started_utc": f"2026-11-{day:02}T00:00:00+00:00"}
    (run / "run.json").write_text(json.dumps(status))
    env = json.loads((REFERENCE / "env.json").read_text())
    env["git"] = {"commit": f"{day:02}" * 20, "branch": branch, "dirty": False}
    (run / "env.json").write_text(json.dumps(env))
    return run


def test_the_latest_verdict_of_every_branch_stands_first(tmp_path: Path) -> None:
    put(tmp_path, 1)
    put(tmp_path, 2, "feature")
    run = put(tmp_path, 3)
    status = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**status, "verdict": "WRONG"}))
    (run / "report.html").write_text("")
    page, history = write_index(tmp_path)
    text = page.read_text()
    branches = text[text.index("Latest run of every branch") : text.index("All runs")]
    rows = re.findall(
        r"<tr><th>(.*?)</th><td><span class=\"(\w+)\">(\w+)</span></td><td>(\w+)</td>", branches
    )
    assert rows == [
        ("main", "bad", "WRONG", "030303030"),
        ("feature", "good", "VALID", "020202020"),
    ]
    assert '<a href="20261103-run/report.html">20261103-run</a>' in text
    assert "20261101-run/report.html" not in text
    assert set(history["run"]) == {"20261101-run", "20261102-run", "20261103-run"}


def test_the_page_loads_nothing_from_the_network_and_escapes_markup(tmp_path: Path) -> None:
    put(tmp_path, 1, "<script>alert(1)</script>")
    text = write_index(tmp_path)[0].read_text()
    assert "default-src 'none'" in text.replace("&#39;", "'")
    assert not re.findall(r"(?:src|href)=\"(?!#|data:|history\.parquet|[\w./-]*report\.html)", text)
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "<code>bench compare</code> says" in text
    assert "`" not in text[text.index("<body>") : text.index("<script>")]


def test_runs_that_are_gone_stay_in_the_history(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        put(tmp_path, day)
    write_index(tmp_path)
    shutil.rmtree(tmp_path / "20261101-run")
    put(tmp_path, 4)
    _, history = write_index(tmp_path)
    assert list(dict.fromkeys(history["run"])) == [f"2026110{day}-run" for day in (1, 2, 3, 4)]
    assert not history.duplicated(["run", "decoder"]).any()
    stored = pd.read_parquet(tmp_path / HISTORY)
    assert stored.equals(history)
    summary = pd.read_csv(REFERENCE / "summary.csv")
    (of_spec,) = summary[(summary["decoder"] == "spec") & (summary["family"] == "all")].to_dict(
        "records"
    )
    kept = history[(history["decoder"] == "spec") & (history["run"] == "20261101-run")].iloc[0]
    assert all(kept[name] == pytest.approx(of_spec[name], nan_ok=True) for name in NUMBERS)


def test_a_damaged_run_is_listed_as_damaged_and_a_damaged_history_is_an_error(
    tmp_path: Path,
) -> None:
    put(tmp_path, 1)
    (put(tmp_path, 2) / "env.json").write_text("{")
    _, history = write_index(tmp_path)
    assert history.set_index("run").loc["20261102-run", "verdict"] == "DAMAGED"
    (tmp_path / HISTORY).write_text("no parquet")
    with pytest.raises(BenchError, match=r"history\.parquet is damaged") as raised:
        gather(tmp_path)
    assert raised.value.exit_code == Exit.INVALID


def test_a_damaged_run_is_not_shown_as_the_newest_run_without_a_branch(tmp_path: Path) -> None:
    (put(tmp_path, 1) / "env.json").write_text("{")  # when it began is unknown, too
    put(tmp_path, 2, None)
    text = write_index(tmp_path)[0].read_text()
    branches = text[text.index("Latest run of every branch") : text.index("All runs")]
    assert re.findall(r"<th>(.*?)</th><td><span class=\"\w+\">(\w+)<", branches) == [("-", "VALID")]


def test_a_link_leads_to_a_folder_with_signs_of_its_own(tmp_path: Path) -> None:
    run = put(tmp_path, 1).rename(tmp_path / "20261101-C#_mine.py_Mine")
    (run / "report.html").touch()
    write_index(tmp_path)
    assert 'href="20261101-C%23_mine.py_Mine/report.html"' in (tmp_path / INDEX).read_text()


def test_bench_index_writes_both_files_and_refuses_a_missing_folder(tmp_path: Path) -> None:
    put(tmp_path, 1)
    ended = bench("index", tmp_path)
    assert ended.code == 0
    assert (tmp_path / INDEX).is_file()
    assert (tmp_path / HISTORY).is_file()
    ended = bench("index", tmp_path / "none")
    assert ended.code == Exit.USAGE
    assert "there is no folder" in ended.err


def test_a_folder_without_runs_is_refused_and_gets_no_page(tmp_path: Path) -> None:
    ended = bench("index", tmp_path)
    assert ended.code == 2
    assert ended.out == ""
    assert (
        ended.err
        == f"bench: {tmp_path} holds no run; bench index takes the parent of run folders\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_its_plan_is_damaged_in_the_history(tmp_path: Path) -> None:
    (put(tmp_path, 1) / "samples.jsonl").write_text("{}\n")
    assert set(gather(tmp_path)["verdict"]) == {"DAMAGED"}
    assert not gather(tmp_path)["speedup"].notna().any(), "numbers of a damaged run prove nothing"


def test_a_lossy_decoder_is_marked_and_a_wrong_one_has_no_speed_up(tmp_path: Path) -> None:
    put(tmp_path, 1, guarantee="WRONG", speedup=1.32)
    text = write_index(tmp_path)[0].read_text()
    assert re.search(r"\bnar [\d.]+x \(lossy\)", text)
    assert re.search(r"\bptp [\d.]+x[,<]", text)
    assert not re.search(r"\bspec [\d.]+x", text)
    put(tmp_path, 2, guarantee=None, speedup=1.32)
    assert "spec 1.32x" in write_index(tmp_path)[0].read_text(), "a run of an older version"


def test_with_another_baseline_ar_has_a_speed_up_and_the_baseline_has_none(tmp_path: Path) -> None:
    runs = [put(tmp_path, day) for day in (1, 2, 3)]
    for run in runs:
        summary = pd.read_csv(run / "summary.csv").assign(baseline="spec")
        summary.loc[summary["decoder"] == "ar", "speedup"] = 0.44
        summary.to_csv(run / "summary.csv", index=False)
    text = write_index(tmp_path)[0].read_text()
    assert "ar 0.44x" in text
    assert "spec 1" not in text
