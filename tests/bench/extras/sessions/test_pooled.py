"""Sessions of one job: which may be pooled, what is written of them, and how the command ends."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy import stats

from bench.errors import BenchError, Exit
from bench.extras.sessions.pooled import (
    frame,
    load_pool,
    print_pool,
    sessions,
    table,
    write_pool,
)
from tests.bench.conftest import over_spec
from tests.bench.extras.together.test_runs import configured, with_options
from tests.command_line import bench

ROOT = Path(__file__).parents[4]
Write = Callable[..., Path]
MACHINE = {"device": "cpu", "machine": {"cpu": "EPYC", "affinity": 2}, "torch": {"threads": 2}}


def session(write: Write, number: int, **options: Any) -> Path:
    status = {"status": "complete", "verdict": "VALID", "reasons": [], "warnings": []}
    began = f"2026-11-2{number // 2}T10:1"
    status["started_utc"] = f"{began}{5 * (number % 2)}:00+00:00"
    status["finished_utc"] = f"{began}{5 * (number % 2) + 1}:00+00:00"
    cells = {"spec": 3.0, "nar": 6.0}
    chosen: dict[str, Any] = {"env": MACHINE, "status": status, "lossy": ["nar"], "quality": 0}
    chosen |= {"name": f"runs/s{number}", "seed": number}
    return write(cells, **chosen | options)


def refused(*runs: Path) -> BenchError:
    with pytest.raises(BenchError) as told:
        load_pool([str(run) for run in runs], Path("nowhere"))
    assert "\n" not in told.value.message
    return told.value


def test_a_folder_of_sessions_becomes_one_table(synthetic_run: Write) -> None:
    *_, last = (session(synthetic_run, number) for number in range(4))
    folder = last.parent
    (folder / "latest").symlink_to(folder / "s3")
    ended = bench("pool", folder)
    assert ended.code == 0, ended.err
    title = "4 sessions, 2 occasions, 14 prompts, 2 UTC dates, 1 machine: EPYC, 2 cores, 2 threads"
    assert title in ended.out.replace("\n", " ").replace("  ", " ")
    table = pd.read_csv(folder / "pool.csv").set_index("decoder")
    assert list(table.index) == ["spec", "nar"]
    assert list(table["guarantee"]) == ["same tokens", "none"]
    assert set(table["sessions"]) == {4}
    assert set(table["days"]) == set(table["occasions"]) == {2}
    spec = table.loc["spec"]
    assert spec["speedup_low"] < spec["speedup"] < spec["speedup_high"]
    assert spec["next_low"] < spec["speedup"] < spec["next_high"]
    assert spec["predicted"] == 4
    page = (folder / "pool.md").read_text()
    assert "over prompts and sessions" in page
    assert "| s3 | 2 | 2026-11-21 10:15 | EPYC, 2 cores, 2 threads |" in page
    assert "one occasion" not in page
    assert "are one occasion" in " ".join(load_pool(["s0", "s1"], folder).notes)
    assert bench("pool", folder).out == ended.out  # and again the same, its own files beside them


def test_a_pool_is_a_table_for_a_paper_with_a_group_of_rows_by_machine(
    synthetic_run: Write, tmp_path: Path
) -> None:
    envs = [MACHINE, on("Xeon_%"), MACHINE, on("Xeon_%")]
    runs = [session(synthetic_run, number, env=env) for number, env in enumerate(envs)]
    write_pool(load_pool([*map(str, runs)], runs[0]), tmp_path)
    text = (tmp_path / "pool.tex").read_text()
    assert r"\label{tab:pool}" in text
    assert "95 %" not in text.replace(r"\%", "")
    body = text.partition(r"\toprule")[2].partition(r"\bottomrule")[0]
    groups = re.findall(r"\\multicolumn\{6\}\{@\{\}l\}\{\\emph\{(.*)\}\} ", body)
    assert groups == ["all machines", "EPYC, 2 cores, 2 threads", r"Xeon\_\%, 2 cores, 2 threads"]
    rows = [line for line in body.splitlines() if " & " in line]
    assert {line.count("&") for line in rows} == {5}
    assert re.match(r"spec & same tokens & \\textbf\{2\.\d\dx \[.*\]\} & -- & ", rows[1])
    assert r"\begin{tabular}{@{}llrrrr@{}}" in text
    assert text.count("{") == text.count("}")
    for each in ("over prompts and sessions", "Decoders of zoo", "4 sessions, "):
        assert each in text


def on(cpu: str, **more: Any) -> dict[str, Any]:
    return MACHINE | {"machine": {"cpu": cpu, "affinity": 2, **more}}


def test_the_next_session_is_predicted_for_each_machine_and_not_over_all_machines(
    synthetic_run: Write,
) -> None:
    xeon = on("Xeon", instructions=["avx512f", "amx_bf16"])
    envs = [MACHINE, xeon, MACHINE, xeon, MACHINE, xeon, on("Ampere")]
    runs = [session(synthetic_run, number, env=env) for number, env in enumerate(envs)]
    pool = load_pool([*map(str, runs)], runs[0])
    shown: Any = frame(pool).set_index(["machine", "decoder"])
    epyc, intel = "EPYC, 2 cores, 2 threads", "Xeon, 2 cores, 2 threads, avx512f, amx_bf16"
    assert list(dict.fromkeys(shown.index.get_level_values("machine"))) == ["all", epyc, intel]
    assert shown.loc["all", "sessions"].tolist() == [7, 7]
    assert shown.loc["all", "machines"].tolist() == [3, 3]
    assert shown.loc["all", ["next_low", "next_high"]].isna().all(axis=None)
    alone: Any = frame(load_pool([str(run) for run in runs[1::2]], runs[0])).set_index("decoder")
    assert alone["machine"].unique().tolist() == [intel]
    pd.testing.assert_frame_equal(shown.loc[intel], alone.drop(columns="machine"))
    assert shown.loc[intel, "next_low"].notna().all()
    assert "Ampere, 2 cores, 2 threads: one session, which predicts none." in pool.notes
    assert [c.text for c in table(pool).rows[0][:2]] == ["spec", "all"]
    assert "machine" not in table(load_pool([str(run) for run in runs[::2][:3]], runs[0])).headings


def test_a_masked_processor_name_is_shown_with_family_not_recorded(synthetic_run: Write) -> None:
    masked = on("AMD EPYC", architecture="x86_64", instructions=None)
    named = on("AMD EPYC (family 26, model 2)", architecture="x86_64")
    arm = on("Cortex", architecture="aarch64")
    runs = [session(synthetic_run, n, env=env) for n, env in enumerate((masked, named, arm))]
    assert load_pool([*map(str, runs)], runs[0]).machines == [
        "AMD EPYC, 2 cores, 2 threads, family not recorded",
        "AMD EPYC (family 26, model 2), 2 cores, 2 threads",
        "Cortex, 2 cores, 2 threads",
    ]


def test_sessions_of_one_name_keep_their_occasions(synthetic_run: Write) -> None:
    first, later = (session(synthetic_run, number) for number in (0, 2))
    twin = first.parent / "elsewhere" / first.name
    twin.parent.mkdir()
    later.rename(twin)
    made = sessions(load_pool([str(first), str(twin)], Path("nowhere")))
    assert [[cell.text for cell in row[:2]] for row in made.rows] == [["s0", "1"], ["s0", "2"]]


def test_the_pooled_mean_is_the_geometric_mean_of_the_sessions(synthetic_run: Write) -> None:
    runs = [session(synthetic_run, number) for number in range(3)]
    found = load_pool([*map(str, runs)], runs[0])
    _, spec = found.decoders["spec"]
    product = 1.0
    for each in found.sessions:
        product *= each.mean("spec", "speedup")
    assert spec.mean.value == pytest.approx(product ** (1 / 3))
    assert found.floor.value == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperature": 0.7}, "temperature is 0.0 in one and 0.7 in the other"),
        ({"split": "test"}, "split is None in one and test in the other"),
        ({"law": "x.py:Law"}, "law is None in one and x.py:Law in the other"),
        ({"compile": True}, "compile is None in one and True in the other"),
        ({"model": "other"}, "model is zoo in one and other in the other"),
    ],
)
def test_sessions_of_another_job_are_refused_with_the_setting_that_differs(
    settings: dict[str, Any], said: str, synthetic_run: Write
) -> None:
    one, two = (session(synthetic_run, number) for number in range(2))
    configured(two, **{"model": "zoo", "max_new_tokens": 256} | settings)
    told = refused(one, two)
    assert told.exit_code == Exit.UNAVAILABLE
    assert f"s0 and s1 cannot be pooled: {said}" in told.message


def test_sessions_with_different_baselines_or_model_weights_are_refused(
    synthetic_run: Write,
) -> None:
    """Their speed-ups refer to different cells, or their drafts are of different models."""
    one, two, three = (session(synthetic_run, number) for number in range(3))
    for name in ("manifest.json", "samples.jsonl"):
        text = (two / name).read_text()
        assert "ar@aa" in text
        (two / name).write_text(text.replace("ar@aa", "spec@aa"))
    assert "baseline is ar in one and spec in the other" in refused(one, two).message
    for run, digest in ((one, "a"), (three, "b")):
        env = json.loads((run / "env.json").read_text())
        env["models"] = {"models": {"tiny": {"weights_sha256": digest}}}
        (run / "env.json").write_text(json.dumps(env))
    assert "model tiny weights is a in one and b in the other" in refused(one, three).message


def test_sessions_with_different_options_prompts_or_devices_are_refused(
    synthetic_run: Write,
) -> None:
    one, two = (session(synthetic_run, number) for number in range(2))
    with_options(one, "spec", k=4)
    with_options(two, "spec", k=8)
    assert "k of spec is 4 in one and 8 in the other" in refused(one, two).message
    fewer = session(synthetic_run, 2, conversations=6)
    assert "their prompts differ" in refused(two, fewer).message
    gpu = session(synthetic_run, 3, env=MACHINE | {"device": "cuda:0"})
    assert "kind of device is cpu in one and cuda in the other" in refused(two, gpu).message


def test_a_single_session_is_refused_and_an_interrupted_session_is_left_out(
    synthetic_run: Write,
) -> None:
    one, two = (session(synthetic_run, number) for number in range(2))
    assert "needs 2 or more sessions that ended, and got 1" in refused(one).message
    assert refused(one, one).exit_code == Exit.USAGE
    stopped = session(synthetic_run, 2, status={"status": "interrupted"})
    found = load_pool([str(one), str(two), str(stopped)], one)
    assert len(found.sessions) == 2
    assert found.left_out == ("Left out: s2 did not end.",)


def test_wrong_decoders_and_decoders_missing_from_a_session_are_left_out(
    synthetic_run: Write,
) -> None:
    one, two = (session(synthetic_run, number) for number in range(2))
    status = json.loads((two / "run.json").read_text())
    wrong = {"cell": "spec", "num_answers": 3, "num_compared": 8, "num_wrong": 2, "example": "x"}
    (two / "run.json").write_text(json.dumps(status | {"differences": [wrong]}))
    ended = bench("pool", one, two, "--folder", one.parent / "pooled")
    assert ended.code == Exit.REGRESSION, ended.err
    assert "Left out: spec claims to be lossless and is not." in ended.out
    assert list(pd.read_csv(one.parent / "pooled" / "pool.csv")["decoder"]) == ["nar"]
    three = synthetic_run({"nar": 6.0}, name="runs/s7", env=MACHINE, lossy=["nar"])
    found = load_pool([str(one), str(three)], one)
    assert found.left_out == ("Left out: spec has no speed-up in some session.",)


def test_a_decoder_without_a_speed_up_in_one_session_is_not_pooled(synthetic_run: Write) -> None:
    """In one session `nar` ends its answers in the first step, which compares prefills."""
    one, two = (session(synthetic_run, number) for number in range(2))
    lines = [json.loads(line) for line in (two / "samples.jsonl").read_text().splitlines()]
    for line in lines:
        if line["decoder"] == "nar":
            steps = {name: column[:1] for name, column in line["steps"].items()}
            line["steps"] = steps | {"emitted": [len(line["tokens"])]}
    (two / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = load_pool([str(one), str(two)], one)
    assert list(found.decoders) == ["spec"]
    assert found.left_out == ("Left out: nar has no speed-up in some session.",)


def test_stored_references_pool_by_their_answers(tmp_path: Path) -> None:
    stored = ROOT / "results" / "reference" / "h100-smollm2-adapters"
    copies = [shutil.copytree(stored, tmp_path / name) for name in ("a", "b")]
    status = json.loads((copies[1] / "run.json").read_text())
    later = status | {"started_utc": "2026-12-24T11:34:57+00:00"}
    (copies[1] / "run.json").write_text(json.dumps(later))
    found = load_pool([*map(str, copies)], tmp_path)
    summary = pd.read_csv(stored / "summary.csv").set_index(["decoder", "family"])
    for decoder, (_, pooled) in found.decoders.items():
        assert pooled.mean.value == pytest.approx(
            summary.loc[(decoder, "all"), "speedup"], rel=1e-4
        )


def test_no_column_of_a_pool_is_cut_by_a_narrow_terminal(synthetic_run: Write) -> None:
    pool = load_pool([str(session(synthetic_run, number)) for number in (1, 2, 3)], Path())
    console = Console(width=50, color_system=None)
    with console.capture() as capture:
        print_pool(pool, console)
    shown, numbers = capture.get(), table(pool)
    assert max(map(len, shown.splitlines())) <= 50
    for cell in (*numbers.headings, *(cell.text for row in numbers.rows for cell in row)):
        assert set(cell.split()) <= set(shown.split())


def test_no_session_is_left_to_check_what_two_predict_and_a_note_says_so(
    synthetic_run: Write,
) -> None:
    one = {"device": "cpu", "machine": {"cpu": "EPYC", "affinity": 2}, "torch": {"threads": 1}}
    runs = [session(synthetic_run, number, env=one) for number in (0, 2)]
    found = load_pool([str(run) for run in runs], Path("nowhere"))
    (line,) = [note for note in found.notes if note.startswith("Two sessions")]
    assert "no other is left to check the prediction (Predicted: -)" in line
    assert table(found).rows[-1][-1].text == "-"
    assert found.title.endswith("EPYC, 2 cores, 1 thread")
    assert "0 of 0" not in table(found).to_markdown()


def test_a_pool_file_has_the_ends_of_the_mean_and_next_session_intervals(
    synthetic_run: Write,
) -> None:
    """Three sessions of one occasion: the next one as a new value of their means."""
    begun = [session(synthetic_run, number) for number in (0, 1)]
    later = json.loads((begun[1] / "run.json").read_text())
    later |= {
        f"{end}_utc": f"2026-11-20T10:2{i}:00+00:00"
        for i, end in enumerate(("started", "finished"))
    }
    runs = [*begun, session(synthetic_run, 5, status=later)]
    found = load_pool([*map(str, runs)], runs[0])
    assert set(found.occasions) == {"1"}
    logs = [math.log(each.mean("spec", "speedup")) for each in found.sessions]
    half = stats.t.ppf(0.975, 2) * np.std(logs, ddof=1) * math.sqrt(1 + 1 / 3)
    row = frame(found).set_index("decoder").loc["spec"]
    ends = [math.exp(np.mean(logs) + sign * half) for sign in (-1, 1)]
    assert [row["next_low"], row["next_high"]] == pytest.approx(ends)
    mean = found.decoders["spec"][1].mean
    assert [row["speedup_low"], row["speedup_high"]] == [mean.low, mean.high]
    assert mean.low != pytest.approx(ends[0])


@pytest.mark.parametrize(
    ("decoder", "loss"),
    [
        ("spec", {"error": "RuntimeError: boom", "tokens": None, "steps": None, "total_s": None}),
        ("ar", {"total_s": None}),
    ],
)
def test_a_prompt_that_one_session_did_not_time_is_left_out_of_every_session(
    decoder: str, loss: dict[str, Any], synthetic_run: Write
) -> None:
    one, two = (session(synthetic_run, number) for number in range(2))
    rows = [json.loads(line) for line in (two / "samples.jsonl").read_text().splitlines()]
    lost = rows[0]["conversation"]
    for row in rows:
        if row["conversation"] == lost and row["decoder"] == decoder:
            row |= loss
    (two / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = load_pool([str(one), str(two)], one)
    each = [s.by_prompt[s.by_prompt["decoder"] == "spec"] for s in found.sessions]
    both = [rows[rows["conversation"] != lost]["speedup"] for rows in each]
    expected = math.exp(np.mean([np.log(ratios).mean() for ratios in both]))
    pooled = found.decoders["spec"][1].mean
    assert pooled.num == len(both[1])
    assert (pooled.num < found.decoders["nar"][1].mean.num) is (decoder == "spec")
    assert pooled.value == pytest.approx(expected)


def test_prompts_with_the_same_name_and_different_text_are_refused(synthetic_run: Write) -> None:
    one, two = (session(synthetic_run, number) for number in range(2))
    text = (two / "samples.jsonl").read_text()
    first = json.loads(text.splitlines()[0])["prompt_hash"]
    (two / "samples.jsonl").write_text(text.replace(first, "f" * len(first)))
    manifest = (two / "manifest.json").read_text()
    (two / "manifest.json").write_text(manifest.replace(first, "f" * len(first)))
    assert "their prompts differ" in refused(one, two).message


@pytest.mark.parametrize(
    ("began", "ended", "occasions"),
    [
        ("10:00", "10:40", ["1", "1"]),  # five minutes of pause after forty of work
        ("10:00", "10:20", ["1", "2"]),
        ("10:36", None, ["1", "1"]),  # its end is unknown
    ],
)
def test_a_pause_is_from_the_end_of_a_session_to_the_start_of_the_next(
    began: str, ended: str | None, occasions: list[str], synthetic_run: Write
) -> None:
    runs = []
    for number, (start, end) in enumerate(((began, ended), ("10:45", "10:50"))):
        status: dict[str, Any] = {"status": "complete", "verdict": "VALID"}
        status["started_utc"] = f"2026-11-20T{start}:00+00:00"
        if end is not None:
            status["finished_utc"] = f"2026-11-20T{end}:00+00:00"
        runs.append(session(synthetic_run, number, status=status))
    assert load_pool([*map(str, runs)], runs[0]).occasions == occasions


def test_a_pool_names_the_baseline_of_its_sessions(synthetic_run: Write) -> None:
    runs = [str(over_spec(session(synthetic_run, number))) for number in range(3)]
    pool = load_pool(runs, Path("nowhere"))
    assert [*pool.decoders] == ["ar", "nar"]
    assert table(pool).note.startswith("Speed-up over spec: ")
    by_session = sessions(pool)
    assert "spec ms per token" in by_session.headings
    assert "how much slower spec became" in by_session.note
