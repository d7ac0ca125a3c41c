"""The pieces of text a run folder keeps are those of everything that is shown of it."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from bench.errors import BenchError, Exit
from bench.records.files import write_json
from bench.records.prompts import VOCABULARY, Prompt, answered_ids, pieces_in, read_pieces
from bench.records.record import SampleRecord

Make = Callable[..., SampleRecord]


class Letters:
    """Ids are letters; a control character is one, too."""

    chat_template: Any = None
    bos_token_id: int | None = None

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        raise NotImplementedError

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        return "".join(map(chr, token_ids))


def with_rejected(record: SampleRecord, *ids: int) -> SampleRecord:
    assert record.steps is not None
    steps = dataclasses.replace(record.steps, rejected=((), ids, ()))
    return dataclasses.replace(record, steps=steps)


def test_the_vocabulary_has_pieces_of_rejected_drafts_answers_and_prompts(
    record: Make, tmp_path: Path
) -> None:
    records = [
        with_rejected(record(tokens=(97, 98, 99)), 120, 27),
        record(error="ValueError: no"),
    ]
    assert answered_ids(records) == {97, 98, 99, 120, 27}
    prompt = Prompt(conversation="c", turn=1, family="qa", ids=(112,), hash="h", reference=None)
    write_json(tmp_path / VOCABULARY, pieces_in(cast(Any, Letters()), records, [prompt]))
    pieces_kept = json.loads((tmp_path / VOCABULARY).read_text(encoding="utf-8"))
    assert pieces_kept == {"27": "\x1b", "97": "a", "98": "b", "99": "c", "112": "p", "120": "x"}
    pieces = read_pieces(tmp_path)
    assert [pieces(97), pieces(27), pieces(5)] == ["a", "␛", "<5>"]


def test_a_run_without_pieces_shows_ids_and_a_damaged_vocabulary_is_an_error(
    tmp_path: Path,
) -> None:
    assert read_pieces(tmp_path)(7) == "<7>"
    (tmp_path / VOCABULARY).write_text("{", encoding="utf-8")
    with pytest.raises(BenchError, match="damaged") as caught:
        read_pieces(tmp_path)
    assert caught.value.exit_code == Exit.INVALID
