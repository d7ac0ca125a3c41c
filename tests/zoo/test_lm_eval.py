"""`bench eval` on the embedded model: the answers of `bench run` to the same prompts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cli
from bench import runs as bench_run
from bench.extras.lm_eval.evaluate import EvalRequest, evaluate
from bench.records.run_folder import load_records
from bench.settings.config import load_config
from specbench_tasks.generators import zoo_conversations

pytest.importorskip("lm_eval", reason="lm-eval is the extra `eval`: pip install -e .[eval]")
TASK = """
task: zoo_answers
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "{{{{reference}}}}"
generation_kwargs:
  until: []
  do_sample: false
  max_gen_toks: 48
metric_list:
  - metric: exact_match
"""


@pytest.mark.slow  # on tables: tests/bench/extras/lm_eval/test_lm_eval.py
@pytest.mark.usefixtures("quick")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_bench_eval_gives_the_answers_of_bench_run_to_the_same_prompts(
    temperature: float, tmp_path: Path, progress: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    chosen = [c for f in ("qa", "math_reasoning") for c in zoo_conversations(f)[:2]]
    rows = tmp_path / "tasks" / "rows.jsonl"
    rows.parent.mkdir()
    lines = [{"prompt": c.turns[0], "reference": "?", "id": c.id} for c in chosen]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (rows.parent / "zoo.yaml").write_text(TASK.format(data=rows))
    values = {"max_new_tokens": 48, "temperature": temperature, "device": "cpu", "threads": 1}
    ran = bench_run.run(
        load_config(
            None,
            {**values, "decoders": "ptp,nar", "tasks": f"jsonl={rows}", "repeats": 1,
             "quality_limit": 0, "phase_limit": 0},
        ),
        tmp_path / "runs",
        progress(), report=None,
    )  # fmt: skip
    expected: dict[str, dict[str, Any]] = {"ar": {}, "ptp": {}, "nar": {}}
    for record in load_records(ran.run_dir):
        if record.decoder in expected:
            expected[record.decoder][record.prompt_hash] = record.tokens
    drawn = {"temperature": temperature, "do_sample": True} if temperature else {}
    for decoder, wanted in expected.items():
        asked = EvalRequest(tasks=["zoo_answers"], folder=rows.parent, sampling=drawn)
        config = load_config(None, {**values, "decoders": decoder})
        ended = evaluate(config, asked, tmp_path / "evals", progress())
        text = (ended.folder / "answers.jsonl").read_text(encoding="utf-8")
        answers = [json.loads(line) for line in text.splitlines()]
        assert {a["prompt"]: tuple(a["tokens"]) for a in answers} == wanted
        assert all(answer["text"].strip() for answer in answers)
    assert expected["ptp"] == expected["ar"] != expected["nar"]


@pytest.mark.filterwarnings("ignore")
def test_bench_eval_prints_the_table_of_lm_eval_and_the_path_of_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "What is 2 + 2?", "reference": "4"}\n' * 3, encoding="utf-8")
    (tmp_path / "zoo.yaml").write_text(TASK.format(data=rows))
    options = ["--include", str(tmp_path), "--limit", "2", "--max-new-tokens", "8"]
    command = ["eval", "--tasks", "zoo_answers", "--decoder", "nar", *options]
    done = CliRunner().invoke(
        cli.app, [*command, "--output", str(tmp_path / "out"), "--progress", "none"]
    )
    assert done.exit_code == 0, done.output
    assert re.search(r"^zoo_answers +exact_match +none +0\.0000", done.output, re.MULTILINE)
    assert "nar is not lossless" in done.output
    (folder,) = (tmp_path / "out").iterdir()
    assert str(folder / "results.json") in done.output
    lines = (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()
    assert [len(json.loads(line)["tokens"]) for line in lines] == [8, 8]
