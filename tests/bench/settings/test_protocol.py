"""Spec-Bench's protocol: its settings, template and counting, and its leaderboard beside ours."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import pytest

from bench.errors import BenchError
from bench.extras.sections import published as figures
from bench.records.environment import Environment
from bench.records.run_folder import load_run
from bench.report.write import write_report
from bench.settings import protocol
from bench.settings.config import load_config
from bench.settings.protocol import published
from tests.conftest import Characters

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared"
STORIES = SHARED / "models" / "stories260K"
QUESTIONS = SHARED / "data" / "spec_bench" / "question.jsonl"
Write = Callable[..., Path]


def test_the_protocol_sets_every_option_that_is_not_set_explicitly() -> None:
    config = load_config(None, {"protocol": "specbench", "max_new_tokens": 64})
    assert (config.tasks, config.limit, config.batch_size) == ("specbench", None, 1)
    assert (config.temperature, config.repeats, config.max_new_tokens) == (0.0, 3, 64)
    assert config.quality_limit == 0


def test_a_configuration_with_a_protocol_is_read_back_unchanged(tmp_path: Path) -> None:
    config = load_config(None, {"protocol": "specbench", "repeats": 1})
    (tmp_path / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    assert load_config(tmp_path / "config.toml", {}) == config


def test_the_template_is_fastchats_vicuna() -> None:
    system = (
        "A chat between a curious user and an artificial intelligence assistant. The assistant "
        "gives helpful, detailed, and polite answers to the user's questions."
    )
    assert protocol.vicuna(["Hi"]) == f"{system} USER: Hi ASSISTANT:"
    two = protocol.vicuna(["Hi", "Hello.", "Bye"])
    assert two == f"{system} USER: Hi ASSISTANT: Hello.</s>USER: Bye ASSISTANT:"


@pytest.mark.parametrize("text", ["", "a", "Paris is a city."])
def test_the_recount_of_an_answer_excludes_the_bos_that_a_tokenizer_adds(text: str) -> None:
    characters: Any = Characters()
    assert protocol.recount(characters, text) == len(text)


def kept() -> tuple[dict[str, Any], int]:
    config = {**protocol.SPECBENCH, "protocol": "specbench", "dtype": "float16"}
    config |= {"model": "lmsys/vicuna-7b-v1.3"}
    return config, protocol.NUM_TURNS


def test_a_run_that_follows_the_protocol_has_no_departures() -> None:
    assert protocol.departures(*kept()) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"max_new_tokens": 64}, "max_new_tokens is 64, not 1024"),
        ({"temperature": 0.7}, "temperature is 0.7, not 0.0"),
        ({"law": "json.py:Grammar"}, "law is json.py:Grammar, not none"),
        ({"prompt_tokens": 128}, "prompt_tokens is 128, not none"),
        ({"quantize": "int8"}, "quantize is int8, not none"),
        ({"reuse_prefix": True}, "reuse_prefix is true, not false"),
        ({"dtype": "float32"}, "dtype is float32, not float16"),
        ({"tasks": "zoo"}, "the tasks are not Spec-Bench's questions"),
        ({"overlong": "truncate"}, "prompts longer than the context were cut at the beginning"),
    ],
)
def test_each_departure_from_the_protocol_is_reported(changed: dict[str, Any], told: str) -> None:
    config, num_turns = kept()
    assert protocol.departures(config | changed, num_turns) == [told]


def test_missing_questions_are_a_departure() -> None:
    config, _ = kept()
    assert protocol.departures(config, 0) == ["0 turns were timed, not 560"]


# ---------------------------------------------------------------- published numbers


def test_the_same_model_protocol_and_device_make_lengths_and_speeds_comparable() -> None:
    reference = figures.load_reference("specbench-a100-7b")
    env = Environment(gpu={"name": "NVIDIA A100-SXM4-80GB"})
    assert figures.obstacles(reference, kept()[0], env, []) == ([], [])


def test_on_another_device_only_accepted_tokens_are_comparable() -> None:
    reference = figures.load_reference("specbench-a100-7b")
    lengths, speeds = figures.obstacles(
        reference, kept()[0], Environment(gpu={"name": "NVIDIA H200"}), []
    )
    assert lengths == []
    assert speeds == ["another device (NVIDIA H200)"]


def test_another_model_or_protocol_makes_lengths_and_speeds_incomparable() -> None:
    reference = figures.load_reference("specbench-a100-7b")
    config = {"model": "zoo", "temperature": 0.0, "dtype": "float32"}
    lengths, speeds = figures.obstacles(reference, config, Environment(device="cpu"), [])
    assert lengths == ["another model than vicuna-7b-v1.3", "not run with --protocol specbench"]
    assert speeds == [*lengths, "another device (cpu)", "float32, not float16"]


def test_a_reference_that_does_not_state_its_protocol_and_device_is_not_comparable() -> None:
    reference = figures.load_reference("ptp-7b")
    lengths, speeds = figures.obstacles(
        reference, kept()[0] | {"temperature": 0.7}, Environment(), []
    )
    assert lengths == ["its protocol is not fully stated"]
    assert "its device is not stated" in speeds


def test_an_unknown_reference_is_refused_with_a_list_of_the_references() -> None:
    with pytest.raises(BenchError, match=r"no reference 'specbench'.*specbench-a100-7b"):
        load_config(None, {"reference": "specbench"})


def test_every_reference_has_a_source_and_plausible_rows() -> None:
    for name in published():
        found = figures.load_reference(name)
        assert found["source"]
        assert found["rows"]
        for _, speed, length in found["rows"]:
            assert math.isnan(speed) or 1 <= speed < 10
            assert 1 <= length < 10


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn")
def test_the_report_prints_published_figures_beneath_the_rows_of_the_run(
    synthetic_run: Write,
) -> None:
    path = synthetic_run(quality=0)
    write_report(path, "specbench-a100-7b")
    text = (path / "report.md").read_text(encoding="utf-8")
    assert "## Published figures: specbench-a100-7b" in text
    assert "| spec (this run) |" in text
    assert "| EAGLE-2 | 2.36x | - | 4.34 | no | no |" in text
    assert "Source: github.com/hemingkx/Spec-Bench" in text
    assert "Published figures: specbench-a100-7b" in (path / "report.html").read_text(
        encoding="utf-8"
    )
    write_report(path)
    assert "Published figures" not in (path / "report.md").read_text(encoding="utf-8")


# ---------------------------------------------------------------- a whole run


def recomputed(folder: Path, decoder: str, encode: Callable[[str], list[int]]) -> float:
    """specbench_compat from samples.jsonl, after Spec-Bench's speed.py and nothing of ours."""
    lines = (folder / "samples.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    rows = [row for row in rows if row.get("kind") == "timing"]
    ratios = []
    for repeat in sorted({row["repeat"] for row in rows}):
        speeds: dict[str, list[float]] = {}
        for name in (decoder, "ar"):
            tokens: dict[str, int] = {}
            seconds: dict[str, float] = {}
            for row in rows:
                if (row["decoder"], row["repeat"]) == (name, repeat):
                    question = row["conversation"]
                    new = len(encode(row["text"])) - 1 if name == "ar" else len(row["tokens"])
                    tokens[question] = tokens.get(question, 0) + new
                    seconds[question] = seconds.get(question, 0.0) + row["total_s"]
            speeds[name] = [tokens[q] / seconds[q] for q in tokens]
        ratios.append(fmean(speeds[decoder]) / fmean(speeds["ar"]))
    return fmean(ratios)


@pytest.mark.slow
@pytest.mark.skipif(not (STORIES.is_dir() and QUESTIONS.is_file()), reason="../shared is not there")
def test_all_480_questions_give_the_ratio_of_spec_benchs_formula(
    tmp_path: Path, progress: Any
) -> None:
    from transformers import AutoTokenizer

    from bench import runs

    config = load_config(
        None,
        {
            "protocol": "specbench",
            "tasks": f"specbench={QUESTIONS}",
            "model": str(STORIES),
            "decoders": "lookup",
            "max_new_tokens": 4,
            "repeats": 1,
            "overlong": "truncate",
            "device": "cpu",
            "reference": "specbench-a100-7b",
            "phase_limit": 0,
        },
    )
    folder = runs.run(config, tmp_path, progress()).run_dir
    run = load_run(folder)
    assert len({r.conversation for r in run.records}) == 480
    assert len({r.prompt for r in run.records}) == protocol.NUM_TURNS
    tokenizer = AutoTokenizer.from_pretrained(STORIES)
    (decoder,) = {r.decoder for r in run.records} - {"ar", "ar@aa"}
    frame = pd.read_csv(folder / "summary.csv").set_index(["decoder", "family"])
    expected = recomputed(folder, decoder, lambda text: tokenizer(text).input_ids)
    assert frame.loc[(decoder, "all"), "specbench_compat"] == pytest.approx(expected, rel=1e-5)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "Departs from the protocol specbench: max_new_tokens is 4, not 1024." in text
    assert "## Published figures: specbench-a100-7b" in text
    assert "Published figures: specbench-a100-7b" in (folder / "report.html").read_text()
