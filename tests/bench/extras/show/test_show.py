"""`bench show`: steps are told apart, prompts and decoders are found or suggested."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.errors import BenchError
from bench.extras.show.show import coloured, show_run
from bench.records.record import SampleRecord

Write = Callable[..., Path]


def shown(path: Path, **options: Any) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        show_run(path, console, **options)
    return capture.get()


@pytest.fixture
def answer(record: Callable[..., SampleRecord]) -> SampleRecord:
    return record("spec", (1, 3, 0, 2), drafted=(0, 4, 4, 1), accepted=(0, 2, 0, 1))


def test_steps_alternate_in_colour_and_accepted_drafts_are_bold(answer: SampleRecord) -> None:
    text = coloured(answer, "t{}".format)
    styles = [str(span.style) for span in text.spans]
    assert text.plain == "t0t1t2t3t4t5"
    assert [style.startswith("bold") for style in styles] == [False, True, True, False, True, False]
    backgrounds = [style.removeprefix("bold ") for style in styles]
    assert len(set(backgrounds[1:4])) == 1
    assert backgrounds[0] not in backgrounds[1:]
    assert len({*backgrounds[3:5]}) == 1  # an empty step lies between: the colour turned twice


def test_a_token_before_the_drafts_is_not_marked_as_a_draft(answer: SampleRecord) -> None:
    assert answer.steps is not None
    steps = dataclasses.replace(answer.steps, undrafted=(0, 1, 0, 0))
    text = coloured(dataclasses.replace(answer, steps=steps), "t{}".format)
    bold = [str(span.style).startswith("bold") for span in text.spans]
    assert bold == [False, False, True, True, True, False]


def test_without_colours_bars_set_steps_apart(answer: SampleRecord) -> None:
    assert coloured(answer, "t{}".format, bars=True).plain == "t0|t1t2t3||t4t5"


def test_without_colours_on_a_terminal_bars_set_steps_apart_too(
    reported_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(width=200, force_terminal=True, color_system="truecolor")
    with console.capture() as capture:
        show_run(reported_run, console, prompt="qa-3#1", decoders=["spec"])
    assert "| marks the start of a step" in capture.get()
    assert capture.get().count("|") > 2


def test_the_default_is_a_few_prompts_of_different_families(reported_run: Path) -> None:
    text = shown(reported_run)
    assert text.count("#1 (") == 3
    assert "mt_bench-0#1 (mt_bench)" in text
    assert "ar@aa" not in text
    assert "tokens per step: prefill 1, then" in text


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("qa-3#1", ["qa-3#1"]),
        ("mt_bench-0", ["mt_bench-0#1", "mt_bench-0#2"]),
    ],
)
def test_a_prompt_is_found_by_name_or_conversation(
    reported_run: Path, prompt: str, expected: list[str]
) -> None:
    text = shown(reported_run, prompt=prompt, decoders=["spec"])
    found = [line.split(" ")[0] for line in text.splitlines() if "#" in line]
    assert found == expected
    assert "\nspec  " in text
    assert "\nnar  " not in text
    assert " w0" in text


def test_unknown_names_are_answered_with_the_nearest(reported_run: Path) -> None:
    with pytest.raises(BenchError, match="did you mean 'spec'"):
        shown(reported_run, decoders=["spek"])
    with pytest.raises(BenchError, match="did you mean 'qa-3#1'"):
        shown(reported_run, prompt="qa-3#7")


def test_an_error_row_shows_its_error(
    synthetic_run: Write, record: Callable[..., SampleRecord]
) -> None:
    path = synthetic_run(conversations=1, repeats=1, quality=0)
    lines = (path / "samples.jsonl").read_text().splitlines()
    failed = record(
        "spec", family="mt_bench", conversation="mt_bench-0", block=0, error="RuntimeError: boom"
    )
    lines[2] = failed.to_json()
    (path / "samples.jsonl").write_text("\n".join(lines) + "\n")
    assert "spec  RuntimeError: boom" in shown(path, prompt="mt_bench-0#1")


def test_ids_stand_in_where_there_is_no_vocabulary(synthetic_run: Write) -> None:
    path = synthetic_run(conversations=1, repeats=1, quality=0)
    (path / "vocab.json").unlink()
    assert "<0>|<1>" in shown(path, decoders=["ar"])


def test_an_invalid_run_is_shown_with_its_verdict_first_and_its_wrong_decoder_marked(
    synthetic_run: Write,
) -> None:
    left = {"cell": "spec", "num_answers": 1, "num_compared": 2, "num_wrong": 1, "example": "c"}
    status = {"status": "complete", "verdict": "VALID", "differences": [left]}
    text = shown(synthetic_run(conversations=1, repeats=1, quality=0, status=status))
    assert text.splitlines()[0] == "WRONG"
    assert "spec WRONG  " in text
    assert "ptp WRONG" not in text


def test_an_empty_run_says_that_nothing_is_measured_yet(synthetic_run: Write) -> None:
    path = synthetic_run(conversations=1, repeats=1, quality=0)
    (path / "samples.jsonl").unlink()
    assert "nothing is measured yet" in shown(path)
