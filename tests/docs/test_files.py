"""Tables of stored files that are no runs say what the files say."""

import csv
import json
from pathlib import Path

import pytest

from docs.generate import files, runs
from docs.generate.sources import num_weights

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results/reference"


def cells(table: str) -> list[list[str]]:
    """The cells of a table's lines, without the line below its headings."""
    lines = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return [lines[0], *lines[2:]]


def rows(name: str) -> list[dict[str, str]]:
    with (REFERENCE / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def last(log: str) -> dict[str, float]:
    lines = map(json.loads, (ROOT / log).read_text(encoding="utf-8").splitlines())
    found: dict[str, float] = [line for line in lines if "held_out" in line][-1]
    return found


def test_a_table_of_files_holds_the_rows_and_columns_that_its_filters_select() -> None:
    columns = "context,sequences,tokens_per_s:tokens_a_second,share"
    head, *body = cells(files.csv_rows("h100/ar-*.csv", columns, "context=512", "sequences=1,64"))
    assert head == ["file", "context", "sequences", "tokens a second", "share"]
    expected = [
        [f"`{stem}`", row["context"], row["sequences"], row["tokens_per_s"], row["share"]]
        for stem in ("ar-llama-1b", "ar-qwen3-8b")
        for row in rows(f"h100/{stem}.csv")
        if row["context"] == "512" and row["sequences"] in ("1", "64")
    ]
    assert len(expected) == 4
    for shown, said in zip(body, expected, strict=True):
        assert shown[:3] == said[:3]
        assert shown[3] == f"{float(said[3]):,.0f}"
        assert float(shown[4]) == pytest.approx(float(said[4]), rel=0.005)


def test_words_in_cells_are_formatted_as_code_and_missing_values_are_dashes() -> None:
    (head, row) = cells(
        files.csv_rows("h100/uniforms.csv", "drafter,over_control", "temperature=1", "drafter=u")
    )
    said = next(r for r in rows("h100/uniforms.csv") if r["temperature"] == "1")
    assert head == ["drafter", "over control"]
    assert row == ["`u`", f"{float(said['over_control']):.3g}"]
    assert cells(files.csv_rows("h100/uniforms.csv", "over_control", "drafter=control"))[1] == ["-"]


def test_the_table_of_training_agrees_with_the_training_logs() -> None:
    head, *body = cells(files.training("zoo/smollm2-135m"))
    told = {
        (row[0].strip("`"), row[1]): dict(zip(head[2:8], row[2:8], strict=True)) for row in body
    }
    logs = sorted((ROOT / "zoo/smollm2-135m").glob("*/*_log.jsonl"))
    assert set(told) == {(log.parent.name, log.stem.removesuffix("_log")) for log in logs}
    for log in logs:
        said, shown = last(str(log)), told[log.parent.name, log.stem.removesuffix("_log")]
        assert shown["steps"] == f"{said['step']:,}"
        assert float(shown["minutes"]) == pytest.approx(said["seconds"] / 60, abs=0.5)
        seen = float(shown["tokens or slots"].removesuffix(" M"))
        assert seen == pytest.approx(said["tokens"] / 1e6, rel=0.05)
    assert [row[1] for row in body if row[0] == "`isd`"] == ["training", "finetuning", "h100"]
    isd = next(row for row in body if row[:2] == ["`isd`", "training"])
    assert isd[6:] == ["0.30, 0.17, 0.12, 0.11", "0.38", "0.53, 0.37, 0.26, 0.17", "0.97"]
    shallow = next(row for row in cells(files.training("zoo")) if row[0] == "`shallow`")
    assert (shallow[7], shallow[9]) == ("3.63", "4.65")


def test_the_cost_of_weights_adds_up_their_logs() -> None:
    weights, seen, minutes = files.cost("zoo/smollm2-135m/isd")
    assert weights == "3.06 M"
    assert len(seen.split(" + ")) == len(minutes.split(" + ")) == 3
    count = num_weights(ROOT / "zoo/draft/model.safetensors")
    assert files.cost("zoo/draft") == (f"{count / 1e6:.2f} M", "-", "-")


def test_a_budget_table_lists_decoders_with_weights_and_the_measurements_of_the_run() -> None:
    head, *body = cells(runs.budget("cpu-zoo-rivals", "zoo"))
    told = {row[0].strip("`"): dict(zip(head, row, strict=True)) for row in body}
    assert set(told) == {"spec", "eagle", "medusa", "shallow", "idlm@isd", "ptp"}
    summary = {r["decoder"]: r for r in rows("cpu-zoo-rivals/summary.csv") if r["family"] == "all"}
    for name, shown in told.items():
        said = {key: float(summary[name][key]) for key in ("speedup", "tokens_per_call")}
        assert shown["speed-up [95 %]"].startswith(f"{said['speedup']:.2f}x [")
        assert shown["tokens per call"] == f"{said['tokens_per_call']:.2f}"
    assert told["ptp"]["minutes"] == "52 + 12"


def test_runs_stand_side_by_side_with_the_floor_of_each() -> None:
    names = ("h100-smollm2-adapters", "h100-smollm2-drafters")
    head, ar, *body = cells(runs.beside(*names))
    assert head == ["decoder", names[0], "tokens per step", names[1], "tokens per step"]
    assert ar == ["ar", "0.88x [0.82, 0.96]", "1.00", "1.01x [0.98, 1.03]", "1.00"]
    told = {row[0]: row[1:] for row in body}
    assert told["shallow"][:2] == ["-", "-"]
    assert told["ptp"][2:] == ["-", "-"]
    for place, name in enumerate(names):
        for row in rows(f"{name}/summary.csv"):
            if row["family"] == "all" and row["decoder"] != "ar":
                assert told[row["decoder"]][2 * place].startswith(f"{float(row['speedup']):.2f}x")


def test_scores_are_those_of_the_zoo() -> None:
    said = json.loads((ROOT / "zoo/scores.json").read_text(encoding="utf-8"))
    _, *body = cells(files.scores())
    assert [row[0].strip("`") for row in body] == list(said["target"]["scores"])
    for row in body:
        family = row[0].strip("`")
        assert row[2] == f"{said['target']['scores'][family][row[1]]:.3f}"
        assert row[-1] == f"{said['agreement'][family]:.2f}"
