"""Where a run comes from, in a line each, before anything that it measured."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.records.run_folder import load_run
from bench.report.findings import Findings
from bench.report.tables.setting import report_title, setting
from bench.report.tables.table import Table
from bench.stats.side import load_side
from tests.bench.conftest import tables_of

REFERENCES = Path(__file__).parents[4] / "results" / "reference"


def test_model_tasks_decoders_precision_machine_and_date_are_a_line_each() -> None:
    side = load_side(str(REFERENCES / "cpu-zoo"), REFERENCES)
    assert setting(side, ["ar", "spec"]) == [
        ("model", "zoo (2.2M parameters, compiled calls)"),
        ("tasks", "zoo, greedy, at most 256 new tokens, 3 repeats"),
        ("decoders", "ar, spec"),
        ("dtype", "float32"),
        ("device", "cpu, AMD EPYC, 2 cores"),
        ("threads", str(side.env.torch.threads)),
        ("date", str(side.status.started_utc)[:16].replace("T", " ") + " UTC"),
    ]


def test_the_rows_and_the_price_of_one_code_for_all_calls_are_told() -> None:
    side = load_side(str(REFERENCES / "cpu-zoo"), REFERENCES)
    torch_env = dataclasses.replace(side.env.torch, product_rows=64, product_price=0.031)
    env = dataclasses.replace(side.env, torch=torch_env)
    told = dict(setting(dataclasses.replace(side, env=env), ["ar"]))["products"]
    assert told.startswith("one code for calls of up to 64 rows, ")
    assert told.endswith("price: at most 3 % of a call of one row")


@pytest.mark.parametrize(("rows", "told"), [(16, True), (1, False), (None, False)])
def test_padded_calls_of_unknown_price_are_told_without_it(rows: int | None, told: bool) -> None:
    side = load_side(str(REFERENCES / "cpu-zoo"), REFERENCES)
    torch_env = dataclasses.replace(side.env.torch, product_rows=rows, product_price=None)
    env = dataclasses.replace(side.env, torch=torch_env)
    line = dict(setting(dataclasses.replace(side, env=env), ["ar"])).get("products")
    assert (line is not None) is told
    assert "price" not in (line or "")


def test_what_is_not_recorded_is_left_out(tmp_path: Path) -> None:
    for name in ("manifest.json", "samples.parquet"):
        shutil.copy(REFERENCES / "cpu-zoo" / name, tmp_path)
    (tmp_path / "env.json").write_text("{}")
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / "config.toml").write_text('model = "/home/someone/tiny"\n')
    known = setting(load_side(str(tmp_path), tmp_path), ["ar"])
    assert known == [("model", "tiny"), ("decoders", "ar")]
    assert report_title(load_side(str(tmp_path), tmp_path)) == "tiny"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "tasks", "title"),
    [
        ("zoo", "zoo", "zoo on its own tasks, 27 November 2026"),
        ("smollm2-135m", "specbench=/data/question.jsonl", "smollm2-135m on specbench, "),
        ("/home/someone/tiny", "jsonl=/home/someone/q.jsonl", "tiny on q.jsonl, "),
        ("org/name", "qa,rag", "org/name on qa, rag, "),
    ],
)
def test_a_title_names_model_tasks_and_date(model: str, tasks: str, title: str) -> None:
    side = load_side(str(REFERENCES / "cpu-zoo"), REFERENCES)
    config = {**side.config, "model": model, "tasks": tasks}
    assert report_title(dataclasses.replace(side, config=config)).startswith(title)


def with_registered(path: Path, **names: str) -> Findings:
    """A run whose cells `a` and `b` are of files, and registered under these names."""
    file = path / "manifest.json"
    plan = json.loads(file.read_text())
    for cell in plan["cells"]:
        cell["registered"] = names.get(cell["cell"].partition(".py:")[0])
        cell["label"] = cell["cell"].partition("@")[2] or None
    file.write_text(json.dumps(plan))
    return Findings(load_run(path))


def first_words(table: Table) -> list[str]:
    return [row[0].text for row in table.rows]


def test_a_decoder_of_a_file_goes_by_its_registered_name_in_tables(
    synthetic_run: Callable[..., Path],
) -> None:
    path = synthetic_run({"a.py:Mine@x": 3.0, "b.py:Mine": 4.0})
    findings = with_registered(path, a="mine", b="mine")
    assert first_words(findings.headline) == ["ar", "mine", "mine@x"]
    (rivals,) = tables_of(findings)["rivals"]
    assert {*rivals.headings} == {"decoder", "ar", "mine@x", "mine"}
    assert dict(findings.setting)["decoders"] == "ar, mine@x (a.py:Mine@x), mine (b.py:Mine)"
    assert {*findings.summary["decoder"]} == {"ar", "a.py:Mine@x", "b.py:Mine"}  # files keep cells


def test_a_name_that_two_cells_would_have_is_given_to_neither(
    synthetic_run: Callable[..., Path],
) -> None:
    path = synthetic_run({"a.py:Mine": 3.0, "b.py:Mine": 4.0, "spec": 2.0})
    assert with_registered(path, a="mine", b="mine").titles == {}
    assert with_registered(path, a="spec", b="mine").titles == {"b.py:Mine": "mine"}


def test_a_wrong_decoder_of_a_file_is_marked_under_its_name(
    synthetic_run: Callable[..., Path],
) -> None:
    difference = {"cell": "a.py:Mine", "num_answers": 1, "num_compared": 2, "num_wrong": 1}
    status = {"status": "complete", "verdict": "WRONG", "differences": [difference]}
    findings = with_registered(synthetic_run({"a.py:Mine": 3.0}, status=status), a="mine")
    assert first_words(findings.headline) == ["ar", "mine (WRONG)"]
