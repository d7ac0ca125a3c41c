"""Where a run comes from, in a line each, before anything that it measured."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from bench.extras.paper.write import conditions
from bench.report.tables.setting import report_title, setting
from bench.stats.side import load_side

REFERENCES = Path(__file__).parents[4] / "results" / "reference"


def test_model_tasks_decoders_precision_machine_and_date_are_a_line_each() -> None:
    side = load_side(str(REFERENCES / "cpu-zoo"), REFERENCES)
    assert setting(side, ["ar", "spec"]) == [
        ("model", "zoo (2.2M parameters, compiled calls)"),
        ("tasks", "zoo, temperature 0, batch size 1, at most 256 new tokens, 3 repeats"),
        ("decoders", "ar, spec"),
        ("dtype", "float32"),
        ("device", "cpu, AMD EPYC, 2 cores"),
        ("threads", str(side.env.torch.threads)),
        ("date", str(side.status.started_utc)[:16].replace("T", " ") + " UTC"),
    ]


def test_the_rows_and_the_price_of_one_code_for_all_calls_are_listed() -> None:
    side = load_side(str(REFERENCES / "cpu-zoo"), REFERENCES)
    for price, words in {0.031: "at most 3 % of a call of one row", 0.0: "none"}.items():
        torch_env = dataclasses.replace(side.env.torch, product_rows=64, product_price=price)
        env = dataclasses.replace(side.env, torch=torch_env)
        line = dict(setting(dataclasses.replace(side, env=env), ["ar"]))["products"]
        assert line.startswith("one code for calls of up to 64 rows, ")
        assert line.endswith(f"; price: {words}")


def test_settings_that_change_what_is_measured_are_listed_with_the_tasks() -> None:
    side = load_side(str(REFERENCES / "cpu-zoo"), REFERENCES)
    changed = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "law": "/home/x/law.py:Law"}
    changed |= {
        "numerics": "invariant",
        "fixed_length": True,
        "prompt_tokens": 6,
        "batch_size": 8,
        "reuse_prefix": True,
    }
    side = dataclasses.replace(side, config={**side.config, **changed})
    assert dict(setting(side, ["ar"]))["tasks"] == (
        "zoo, temperature 0.7, top-p 0.9, top-k 5, law law.py:Law, batch size 8, "
        "at most 256 new tokens, EOS ignored, "
        "prompts padded or cut to 6 tokens (scores mean nothing), later turns reuse the cache, "
        "invariant numerics, 3 repeats"
    )
    assert {"top-p 0.9", "top-k 5", "EOS ignored"} <= {*conditions(side)}


@pytest.mark.parametrize(("rows", "told"), [(16, True), (1, False), (None, False)])
def test_padded_calls_of_unknown_price_are_listed_without_a_price(
    rows: int | None, told: bool
) -> None:
    side = load_side(str(REFERENCES / "cpu-zoo"), REFERENCES)
    torch_env = dataclasses.replace(side.env.torch, product_rows=rows, product_price=None)
    env = dataclasses.replace(side.env, torch=torch_env)
    line = dict(setting(dataclasses.replace(side, env=env), ["ar"])).get("products")
    assert (line is not None) is told
    assert "price" not in (line or "")


def test_settings_that_were_not_recorded_are_left_out(tmp_path: Path) -> None:
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
