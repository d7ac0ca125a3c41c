"""Every published shape, in every kind of file, loads by its path; the rest is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench_tasks.loaders import load_file
from specbench_tasks.registry import load_tasks
from tests.specbench_tasks.published import PUBLISHED, WRITERS

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
QUESTIONS = SHARED / "data" / "spec_bench" / "question.jsonl"
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH\n\n{x}"

Write = Callable[..., Path]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_shape_loads_by_its_path_from_every_kind_of_file(
    name: str, tmp_path: Path
) -> None:
    pytest.importorskip("datasets").disable_progress_bars()
    published = PUBLISHED[name]
    for file, write in WRITERS.items():
        path = tmp_path / file
        write(path, published.rows)
        tasks = load_tasks(str(path))
        (first,) = (c for c in tasks.timing if c.turns == published.turns)
        gold = first.references[0]
        assert (gold and gold.answers) == published.answers
        assert (first.replies, first.system) == (published.replies, published.system)
        said = f" is read as {published.shape}: {len(tasks.timing)} conversation"
        assert said in tasks.notes[0], file
        assert tasks.notes[0].endswith(f"({published.families})"), file
        unread = [note for note in tasks.notes if note.startswith("fields that are not read")]
        assert unread == (
            [f"fields that are not read: {published.unread}"] * bool(published.unread)
        )
        assert tasks.name == f"file:{file}"


def test_unusable_sharegpt_conversations_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "share.json"
    WRITERS["rows.json"](path, PUBLISHED["sharegpt"].rows)
    notes = load_tasks(str(path)).notes
    assert notes[1] == "answers given in 1 conversation are the history of later turns"
    assert "2 conversations left out, e.g. " in notes[2]
    assert "item 2: conversations[0] is of the role 'assistant'" in notes[2]
    WRITERS["rows.json"](path, PUBLISHED["sharegpt"].rows[1:])
    with pytest.raises(ValueError, match=r"item 2?1: conversations\[0\] is of the role"):
        load_tasks(str(path))


def test_assistant_messages_are_history_and_also_gold_answers_without_a_reference_column(
    write: Write,
) -> None:
    said = [
        {"role": "user", "content": "6 + 12?"}, {"role": "assistant", "content": "It is\n#### 18"},
        {"role": "assistant", "content": "Ask on."}, {"role": "user", "content": "And 2?"},
        {"role": "assistant", "content": [{"type": "text", "text": "20\n#### 20"}]},
    ]  # fmt: skip
    (both,) = load_file(write({"messages": said, "reference": ["a", "b"]})).conversations
    assert both.replies == ("It is\n#### 18\nAsk on.", "20\n#### 20")
    assert [r and r.answers for r in both.references] == [("a",), ("b",)]
    (alone,) = load_file(write({"messages": [*said[:2], *said[3:]]})).conversations
    assert alone.family == "math_reasoning"
    assert [r and r.answers for r in alone.references] == [("18",), ("20",)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "question": "b"}, "prompt and question could each be the prompt; name"),
        ({"turns": ["a"], "messages": []}, "turns and messages could each be"),
        ({"instruction": "a", "input": "b", "question": "c"}, "question and instruction could"),
        ({"prompt": "a", "body": 1}, None),
        ({"problem": "a", "solution": "b"}, "none of prompt, question, .*it has problem, sol"),
        ({"messages": "Hi"}, "messages is 'Hi'; it must be a list of objects with role and con"),
        ({"messages": [{"role": "user", "content": None}]}, r"messages\[0\].content is None; a"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\]\.content is None"),
        ({"messages": [{"text": "a"}]}, r"messages\[0\] is \{'text': 'a'\}; a message has role"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0. is of the role 'tool'; a"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
         r"messages\[0\]\.content is \[\{'type': 'image_url'"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "text": "alt"}]}]},
         r"messages\[0\]\.content is \[\{'type': 'image'"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [1]}]}, "has tool_cal"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages holds no message of a user"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]},
         r"messages\[1\] is of the role 'system'"),
        ({"turns": "['a', 'b']"}, "turns is \"\\['a', 'b'\\]\"; write its list as JSON"),
        ({"turns": [PLACEHOLDER], "category": "qa", "source": "x", "src_id": "1"},
         "placeholder of SPEED-Bench, not its text: fill the file in with prepare_data.py"),
    ],
)  # fmt: skip
def test_an_ambiguous_or_unknown_row_is_refused_with_its_fields_and_the_expected_fields(
    write: Write, row: dict[str, Any], message: str | None
) -> None:
    path = write({"prompt": "fine"}, row)
    if message is None:
        notes = load_file(path).notes
        assert notes[1:] == ("fields that are not read: body",)
        return
    with pytest.raises(ValueError, match=rf"data\.jsonl, line 2: .*{message}") as caught:
        load_file(path)
    assert "\n" not in str(caught.value)


def test_naming_the_prompt_field_resolves_an_ambiguous_row(write: Write) -> None:
    row = {"instruction": "a", "input": "b", "prompt": "c"}
    reading = load_file(write(row), {"prompt": "instruction"})
    assert reading.conversations[0].turns == ("a",)
    assert "read as prompts in 'instruction'" in reading.notes[0]
    assert reading.notes[1] == "fields that are not read: input, prompt"


def test_rows_of_several_shapes_are_counted_for_each_shape(write: Write) -> None:
    rows = [*PUBLISHED["alpaca"].rows, *PUBLISHED["gsm8k"].rows]
    note = load_file(write(*rows)).notes[0]
    assert "is read as Alpaca (2), GSM8K (1): 3 conversations (other 2, math_reasoning 1)" in note


def test_a_heading_in_an_answer_does_not_make_it_gsm8k(write: Write) -> None:
    note = load_file(write({"question": "a", "answer": "#### Title\ntext"})).notes[0]
    assert "read as prompts in 'question': 1 conversation (other 1)" in note


@pytest.mark.skipif(not QUESTIONS.is_file(), reason=f"needs {QUESTIONS.name}")
def test_the_spec_bench_file_loads_equally_by_its_path_its_folder_and_the_task_name() -> None:
    by_name = load_tasks(f"specbench={QUESTIONS}")
    for path in (QUESTIONS, QUESTIONS.parent):
        by_path = load_tasks(str(path))
        assert (by_path.timing, by_path.quality) == (by_name.timing, by_name.quality)
        assert by_path.notes == by_name.notes
    assert "read as Spec-Bench: 480 conversations (mt_bench 80, translation" in by_path.notes[0]
