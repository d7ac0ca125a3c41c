"""Rows as conversations: columns, cells, families, and errors that name what is there."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench_tasks.loaders import load_file
from specbench_tasks.shapes import gsm8k_answer
from specbench_tasks.task import Conversation

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
GSM8K = SHARED / "data" / "gsm8k" / "test.jsonl"
needs_gsm8k = pytest.mark.skipif(not GSM8K.is_file(), reason="needs gsm8k/test.jsonl")

Write = Callable[..., Path]


def load_jsonl(path: Path, columns: dict[str, str] | None = None) -> list[Conversation]:
    return load_file(path, columns).conversations


@needs_gsm8k
def test_gsm8k_loads_as_math_with_the_final_number_as_answer() -> None:
    conversations = load_jsonl(GSM8K)
    assert len(conversations) == 1319
    assert {c.family for c in conversations} == {"math_reasoning"}
    first = conversations[0]
    assert first.id == "test-00000"
    assert first.turns[0].startswith("Janet")
    assert first.references[0] is not None
    assert first.references[0].answers == ("18",)


def test_the_unnamed_index_that_pandas_writes_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(",prompt,note\n7,first,n\n8,second,n\n", encoding="utf-8")
    reading = load_file(file)
    assert [(one.id, one.system, one.references) for one in reading.conversations] == [
        ("a-00000", None, (None,)),
        ("a-00001", None, (None,)),
    ]
    assert reading.notes[-1] == "fields that are not read: '', note"


def test_commas_and_signs_of_gsm8k_answers_are_read() -> None:
    assert gsm8k_answer("so\n#### 1,080") == "1080"
    assert gsm8k_answer("so\n#### -3.5") == "-3.5"
    assert gsm8k_answer("no mark 5") == "no mark 5"


def answers(conversation: Conversation) -> tuple[str, ...]:
    gold = conversation.references[0]
    assert gold is not None
    return gold.answers


def test_usual_column_names_are_found_and_a_mapping_overrides_them(write: Write) -> None:
    path = write({"question": "q", "title": "t", "answer": "a", "gold": "g", "category": "math"})
    (usual,) = load_jsonl(path)
    assert (usual.turns, answers(usual), usual.family) == (("q",), ("a",), "mt_bench")
    (mapped,) = load_jsonl(path, {"prompt": "title", "reference": "gold", "family": "rag"})
    assert (mapped.turns, answers(mapped), mapped.family) == (("t",), ("g",), "rag")
    (plain,) = load_jsonl(write({"question": "q", "answer": "a"}))
    assert (plain.family, answers(plain)) == ("other", ("a",))


def test_a_family_mapping_prefers_a_column_to_a_family_of_the_same_name(write: Write) -> None:
    path = write({"prompt": "p", "answer": "a", "qa": "rag"})
    (conversation,) = load_jsonl(path, {"family": "qa"})
    assert conversation.family == "rag"


def test_fewer_references_than_turns_belong_to_the_first_turns(write: Write) -> None:
    (talk,) = load_jsonl(write({"turns": ["p", "q", "r"], "family": "qa", "answer": ["x", "y"]}))
    assert [gold and gold.answers for gold in talk.references] == [("x",), ("y",), None]


def test_decimal_commas_of_gsm8k_answers_stay() -> None:
    assert gsm8k_answer("Es sind 5/2. #### 2,5") == "2,5"
    assert gsm8k_answer("#### 1,234,567") == "1234567"


def test_every_kind_of_prompt_cell_becomes_turns(write: Write) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]
    conversations = load_jsonl(write({"prompt": "a"}, {"prompt": ["b", "c"]}, {"prompt": messages}))
    assert [c.turns for c in conversations] == [("a",), ("b", "c"), ("one", "two")]
    assert conversations[2].system == "Be brief."
    assert conversations[2].replies == ("1", None)
    for bad in (None, 3, [], [1]):
        with pytest.raises(ValueError, match="line 1: the prompt is"):
            load_jsonl(write({"prompt": bad}))


@pytest.mark.parametrize("row", [{"prompt": ""}, {"prompt": " \n"}, {"turns": ["a", ""]}])
def test_an_empty_prompt_is_refused_with_its_line(write: Write, row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"data\.jsonl, line 2: the prompt is empty \(turn"):
        load_jsonl(write({"prompt": "a"}, row))


@pytest.mark.parametrize(
    "row", [{"prompt": "Hi \ud83d!"}, {"prompt": "Hi", "answer": ["x", "\udc00"]}]
)
def test_a_lone_surrogate_is_refused_with_its_line_number(
    write: Write, row: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"data\.jsonl, line 2 holds half a character") as caught:
        load_jsonl(write({"prompt": "\U0001f600"}, row))
    assert str(caught.value).isascii()
    assert "\n" not in str(caught.value)
    assert re.search(r"surrogate \\ud(83d|c00)\)", str(caught.value))


def test_a_surrogate_pair_of_two_escapes_is_read_as_one_character(write: Write) -> None:
    path = write({"prompt": "x"})
    path.write_text(r'{"prompt": "\ud83d\ude00"}' + "\n", encoding="utf-8")
    assert load_jsonl(path)[0].turns == ("\U0001f600",)


def test_every_kind_of_reference_cell_becomes_answers(write: Write) -> None:
    cells = ["a", ["a", "b"], {"text": ["a", "b"], "answer_start": [1, 2]}, 18,
             {"value": "a", "aliases": ["b"]}, None, ""]  # fmt: skip
    path = write(*({"prompt": "p", "family": "qa", "answer": cell} for cell in cells))
    answers = [c.references[0] and c.references[0].answers for c in load_jsonl(path)]
    assert answers == [("a",), ("a", "b"), ("a", "b"), ("18",), ("a", "b"), None, None]
    (two,) = load_jsonl(write({"turns": ["p", "q"], "family": "qa", "answer": ["x", ["y", "z"]]}))
    assert [r and r.answers for r in two.references] == [("x",), ("y", "z")]
    with pytest.raises(ValueError, match="one entry for each of 2 turns"):
        load_jsonl(write({"turns": ["p", "q"], "answer": ["x", "y", "z"]}))


def test_ids_come_from_the_file_or_are_running_numbers_and_stay_unique(write: Write) -> None:
    rows = [{"prompt": "a", "question_id": 7}, {"prompt": "b"}]
    assert [c.id for c in load_jsonl(write(*rows))] == ["data-7", "data-00001"]
    with pytest.raises(ValueError, match="line 2: the id 'data-7' occurs twice"):
        load_jsonl(write(rows[0], rows[0]))


def test_an_error_about_a_missing_column_lists_the_columns_present(write: Write) -> None:
    path = write({"text": "a", "label": 1})
    with pytest.raises(ValueError, match=r"line 1: none of prompt, .* in it; it has text, label"):
        load_jsonl(path)
    with pytest.raises(ValueError, match=r"no column 'ask' .*columns present: text, label"):
        load_jsonl(path, {"prompt": "ask"})
    with pytest.raises(ValueError, match="unknown column key 'promt'"):
        load_jsonl(path, {"promt": "text"})


def test_an_unknown_family_is_an_error_but_a_foreign_category_is_not(write: Write) -> None:
    with pytest.raises(ValueError, match="the family is 'maths'; use one of mt_bench"):
        load_jsonl(write({"prompt": "a", "family": "maths"}))
    with pytest.raises(ValueError, match="the family is 'closed_qa'"):
        load_jsonl(write({"prompt": "a", "kind": "closed_qa"}), {"family": "kind"})
    (foreign,) = load_jsonl(write({"prompt": "a", "category": "closed_qa"}))
    assert foreign.family == "other"
    (named,) = load_jsonl(write({"prompt": "a", "family": "other"}))
    assert named.family == "other"
    (mapped,) = load_jsonl(write({"prompt": "a"}), {"family": "other"})
    assert mapped.family == "other"
    (ours,) = load_jsonl(write({"prompt": "a", "category": "stem"}))
    assert ours.family == "mt_bench"


def test_broken_lines_are_named_by_number(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    for text, message in (
        ('{"prompt": "a"}\n{"prompt"\n', "line 2 is not JSON"),
        ('{"prompt": "a"}\n\n[1]\n', "line 3 is a list, not an object"),
        ("\n", "holds no rows"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_jsonl(file)
    file.write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(ValueError, match="not UTF-8"):
        load_jsonl(file)
    with pytest.raises(ValueError, match="no file"):
        load_jsonl(tmp_path / "nowhere.jsonl")


def test_line_separators_inside_a_text_do_not_split_the_row(tmp_path: Path) -> None:
    file = tmp_path / "odd.jsonl"
    file.write_text('{"prompt": "a\u2028b\u0085c"}\n', encoding="utf-8")
    assert load_jsonl(file)[0].turns == ("a\u2028b\u0085c",)


def test_only_answers_before_a_later_turn_are_reported_as_history(write: Write) -> None:
    asked, told = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
    talks = ([asked, told], [asked, told, asked], [asked, asked, told])
    for talk, is_history in zip(talks, (False, True, False), strict=True):
        notes = load_file(write({"messages": talk})).notes
        assert any("history of later turns" in note for note in notes) is is_history
