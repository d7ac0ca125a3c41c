"""Spec-Bench's question file: families, turns, references, download. The network is never used."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench_tasks import loaders
from specbench_tasks.task import Conversation, DataUnavailable

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
QUESTIONS = SHARED / "data" / "spec_bench" / "question.jsonl"
needs_questions = pytest.mark.skipif(not QUESTIONS.is_file(), reason=f"needs {QUESTIONS.name}")

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_cache_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DECODING_BENCH_CACHE", raising=False)


def load_specbench(path: Path | None) -> list[Conversation]:
    return loaders.load_specbench(path).conversations


def serve(monkeypatch: pytest.MonkeyPatch, data: bytes) -> list[str]:
    """Answer every download with `data`; returns the list of addresses asked for."""
    asked: list[str] = []

    def answer(url: str, timeout: float) -> io.BytesIO:
        assert 0 < timeout <= 60
        asked.append(url)
        return io.BytesIO(data)

    monkeypatch.setattr("urllib.request.urlopen", answer)
    return asked


@needs_questions
def test_all_480_questions_load_with_their_families_and_turns() -> None:
    conversations = load_specbench(QUESTIONS)
    assert [c.id for c in conversations] == [f"specbench-{i}" for i in range(81, 561)]
    assert set(Counter(c.family for c in conversations).values()) == {80}
    assert {(c.family == "mt_bench", len(c.turns)) for c in conversations} == {
        (True, 2),
        (False, 1),
    }


@needs_questions
def test_references_are_kept_where_the_file_has_them() -> None:
    by_family: dict[str, list[Any]] = {}
    for conversation in load_specbench(QUESTIONS):
        by_family.setdefault(conversation.family, []).append(conversation)
    referenced = {
        family: sum(any(c.references) for c in group) for family, group in by_family.items()
    }
    assert referenced == {
        "mt_bench": 39, "translation": 80, "summarization": 80, "qa": 43, "math_reasoning": 80,
        "rag": 80,
    }  # fmt: skip
    for conversation in by_family["math_reasoning"]:
        float(conversation.references[0].answers[0])
    assert by_family["rag"][1].references[0].answers == ("James Ray", "George Harrison")
    assert by_family["qa"][0].references[0].answers == ("Elizabeth Dean Lail",)
    gold = by_family["translation"][1].references[0].answers[0]
    assert gold.startswith("St. Hubert was, according to legend, a truly ruthless hunter, who")


@needs_questions
def test_the_folder_of_the_question_file_loads_like_the_file() -> None:
    assert load_specbench(QUESTIONS.parent) == load_specbench(QUESTIONS)


def test_gold_translations_are_detokenised_before_scoring(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    tokenised = 'The darker the meat , the higher the pH value ( 50 % ) , " he said " .'
    rows = [
        {"question_id": 1, "category": "translation", "turns": ["a"], "reference": [tokenised]},
        {"question_id": 2, "category": "summarization", "turns": ["a"], "reference": [tokenised]},
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    translation, summary = load_specbench(file)
    assert translation.references[0] is not None
    assert translation.references[0].answers == (
        'The darker the meat, the higher the pH value (50%), "he said".',
    )
    assert summary.references[0] is not None
    assert summary.references[0].answers == (tokenised,), "only translations are tokenised"


def test_gold_answers_of_qa_may_lie_in_a_file_beside_the_questions(tmp_path: Path) -> None:
    file, answers = tmp_path / "question.jsonl", tmp_path / "qa_references_of_mine.json"
    file.write_text("\n".join(
        json.dumps({"question_id": i, "category": "qa", "turns": ["a"]}) for i in (321, 322)
    ))  # fmt: skip
    assert [c.references for c in load_specbench(file)] == [(None,), (None,)]
    answers.write_text(json.dumps({"322": {"answer": ["England", "Wales"]}}))
    without, given = load_specbench(file)
    assert without.references == (None,)
    assert given.references[0] is not None
    assert given.references[0].answers == ("England", "Wales")
    for damaged in ("[]", "{", '{"322": {}}', '{"322": {"answer": [1]}}', '{"322": 3}'):
        answers.write_text(damaged)
        with pytest.raises(ValueError, match=r"qa_references_of_mine\.json gives no gold answers"):
            load_specbench(file)


def test_gold_answers_of_qa_are_read_from_all_files_and_never_replace_a_reference(
    tmp_path: Path,
) -> None:
    file = tmp_path / "question.jsonl"
    rows = [{"question_id": i, "category": "qa", "turns": ["a"]} for i in (1, 2, 3)]
    rows[2]["reference"] = ["its own"]
    file.write_text("\n".join(map(json.dumps, rows)))
    for number, name in (("1", "a"), ("2", "b"), ("3", "c")):
        entry = json.dumps({number: {"answer": [name]}})
        (tmp_path / f"qa_references_{name}.json").write_text(entry)
    golds = [c.references[0] and c.references[0].answers for c in load_specbench(file)]
    assert golds == [("a",), ("b",), ("its own",)]


def test_an_empty_reference_of_one_turn_is_none_and_does_not_shift_the_next_turns_reference(
    tmp_path: Path,
) -> None:
    file = tmp_path / "question.jsonl"
    row = {"question_id": 1, "category": "coding", "turns": ["a", "b"], "reference": ["", "x"]}
    file.write_text(json.dumps(row))
    (conversation,) = load_specbench(file)
    first, second = conversation.references
    assert first is None
    assert second is not None
    assert second.answers == ("x",)


def test_a_missing_file_and_rows_of_another_shape_are_refused_with_one_line(
    write: Write, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"no file .*nowhere\.jsonl"):
        load_specbench(tmp_path / "nowhere.jsonl")
    with pytest.raises(
        ValueError, match=r"line 1: it is read as prompts in 'prompt', not as Spec-Bench"
    ):
        load_specbench(write({"prompt": "hi"}))
    with pytest.raises(ValueError, match=r"line 1: the prompt is 7; it must be text"):
        load_specbench(write({"question_id": 1, "category": "qa", "turns": 7}))


def test_loading_offline_without_a_cached_copy_explains_how_to_pass_a_file(
    no_network: Path,
) -> None:
    with pytest.raises(DataUnavailable, match=r"Name or service not known.*specbench=PATH") as info:
        load_specbench(None)
    assert "\n" not in str(info.value)
    assert not list(no_network.rglob("*.jsonl"))


@pytest.mark.parametrize(
    ("variable", "folder"),
    [("XDG_CACHE_HOME", "decoding-bench/spec_bench"), ("DECODING_BENCH_CACHE", "spec_bench")],
)
def test_the_download_is_cached_and_repeated_only_if_the_cached_file_is_damaged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, folder: str
) -> None:
    data = json.dumps({"question_id": 7, "category": "qa", "turns": ["Why?"]}).encode()
    monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr(loaders, "SHA256", hashlib.sha256(data).hexdigest())
    asked = serve(monkeypatch, data)
    assert [c.id for c in load_specbench(None)] == ["specbench-7"]
    assert [c.id for c in load_specbench(None)] == ["specbench-7"]
    assert asked == [loaders.URL]
    cached = tmp_path / folder / "question.jsonl"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [cached]

    cached.write_bytes(b"damaged")
    assert [c.id for c in load_specbench(None)] == ["specbench-7"]
    assert len(asked) == 2


def test_a_download_with_another_checksum_is_refused_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    serve(monkeypatch, b"<html>not found</html>")
    with pytest.raises(DataUnavailable, match=r"sha256 .*4b6d33e79484f984… is pinned"):
        load_specbench(None)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_an_unwritable_cache_is_reported_with_the_variable_that_moves_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "decoding-bench").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loaders, "SHA256", hashlib.sha256(b"x").hexdigest())
    serve(monkeypatch, b"x")
    with pytest.raises(DataUnavailable, match=r"cannot write .*DECODING_BENCH_CACHE"):
        load_specbench(None)
