"""Answers that are packed: the same to whoever asks, and not held."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError
from bench.records.files import write_json
from bench.records.record import SampleRecord, StepColumns, narrow
from bench.records.run_folder import load_run
from bench.records.samples import SampleWriter

Make = Callable[..., SampleRecord]
NEEDED = [f.name for f in dataclasses.fields(StepColumns) if f.default is dataclasses.MISSING]


def held(record: SampleRecord, name: str) -> bool:
    """Whether a record has a field of its own, and does not read it."""
    try:
        object.__getattribute__(record, name)
    except AttributeError:
        return False
    return True


def steps(num: int, **columns: Any) -> StepColumns:
    needed: dict[str, Any] = dict.fromkeys(NEEDED, (1,) * num)
    return StepColumns(**needed, **columns)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"text": "", "tokens": (), "steps": steps(0)},
        {"text": "ü\n\ud800 \N{OCTOPUS}", "tokens": (0, 255, 256, 65_536, 2**31, -1)},
        {"steps": steps(3, rejected=((), (7, 300_000), (1,)), decided=((2,), (), (1, 1)))},
        {"steps": steps(2, rejected=((), ()), ended_s=(0.25, 1e-9), overlap=(1.0, 0.1))},
        {"steps": steps(2, passes=(0, 3), undrafted=(1, 0), tested=(0, 70_000), alpha=(2.0, 0.5))},
    ],
)
def test_packing_does_not_change_a_record(record: Make, answer: dict[str, Any]) -> None:
    before = record(**answer)
    after = record(**answer)
    after.pack()
    assert not any(held(after, name) for name in ("tokens", "steps"))
    assert after == before
    assert repr(after) == repr(before)  # 1 and 1.0 are equal
    assert after.to_json() == before.to_json()
    assert dataclasses.replace(after, machine="m") == dataclasses.replace(before, machine="m")


def test_nothing_of_a_failed_answer_is_packed(record: Make) -> None:
    failed = record(tokens=None, text=None, steps=None, error="ValueError: no")
    failed.pack()
    assert held(failed, "steps")
    assert failed == record(tokens=None, text=None, steps=None, error="ValueError: no")


def test_an_answer_is_packed_once(record: Make) -> None:
    answer = record()
    answer.pack()
    answer.pack()
    assert answer == record()


def test_an_unknown_text_stays_unknown(record: Make) -> None:
    bare = record(text=None)
    bare.pack()
    assert bare == record(text=None)


def test_an_attribute_that_a_record_lacks_raises_an_attribute_error(record: Make) -> None:
    packed_record = record()
    packed_record.pack()
    for thing in (packed_record, packed_record.steps, record(), steps(1)):
        with pytest.raises(AttributeError, match=r"(have|has) no token"):
            _ = thing.token  # type: ignore[union-attr]


def test_integers_take_as_few_bytes_as_the_largest_needs() -> None:
    columns = [(1, 255), (1, 256), (1, -1), (1, 2**40)]
    data = [narrow("tokens", column) for column in columns]
    assert [memoryview(each).nbytes for each in data] == [2, 4, 8, 16]
    assert [tuple(each) for each in data] == columns


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_json(tmp_path / "manifest.json", {"cells": [], "prompts": [], "blocks": []})
    return tmp_path


def test_records_of_a_loaded_run_keep_their_answers_packed(record: Make, folder: Path) -> None:
    written = record("ar", text="said", kind="quality")
    with SampleWriter(folder) as writer:
        for cell in ("ar", "spec"):
            writer.record(dataclasses.replace(written, decoder=cell))
    records = load_run(folder).records
    assert len(records) == 2
    assert not any(held(each, name) for each in records for name in ("tokens", "steps"))
    assert records[0] == written


def test_an_integer_beyond_8_bytes_is_refused(record: Make, folder: Path) -> None:
    line = json.loads(record().to_json())
    line["tokens"][0] = 2**70
    (folder / "samples.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(BenchError, match="cannot read the records"):
        load_run(folder)
