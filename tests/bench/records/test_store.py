"""Answers that are put by: the same to whoever asks, and not held."""

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.errors import BenchError, Exit
from bench.records.files import SampleWriter, write_json
from bench.records.record import SampleRecord, StepColumns
from bench.records.run_folder import load_run
from bench.records.store import AnswerStore, Packed, packed

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
def test_what_was_put_by_is_what_was_there(record: Make, answer: dict[str, Any]) -> None:
    before = record(**answer)
    after = record(**answer)
    after.spill_to_disk(AnswerStore())
    assert not any(held(after, name) for name in ("text", "tokens", "steps"))
    assert after.has_steps
    assert after == before
    assert repr(after) == repr(before)  # 1 and 1.0 are equal
    assert after.to_json() == before.to_json()
    assert dataclasses.replace(after, machine="m") == dataclasses.replace(before, machine="m")


def test_of_an_answer_that_failed_nothing_is_put_by(record: Make) -> None:
    failed = record(tokens=None, text=None, steps=None, error="ValueError: no")
    failed.spill_to_disk(AnswerStore())
    assert held(failed, "steps")
    assert not failed.has_steps
    assert failed == record(tokens=None, text=None, steps=None, error="ValueError: no")


def test_an_answer_is_put_by_once(record: Make) -> None:
    answer = record()
    answer.spill_to_disk(AnswerStore())
    answer.spill_to_disk(AnswerStore())
    assert answer == record()


def test_an_unknown_text_stays_unknown(record: Make) -> None:
    bare = record(text=None)
    bare.spill_to_disk(AnswerStore())
    assert bare == record(text=None)


def test_nothing_else_is_made_up(record: Make) -> None:
    spill_to_disk = record()
    spill_to_disk.spill_to_disk(AnswerStore())
    for thing in (spill_to_disk, spill_to_disk.steps, record(), steps(1)):
        with pytest.raises(AttributeError, match=r"(have|has) no token"):
            _ = thing.token  # type: ignore[union-attr]


def test_beyond_its_bound_a_store_reads_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = tempfile.TemporaryFile

    def make(*args: Any, **options: Any) -> Any:
        made.append(original(*args, **options))
        return made[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", make)
    store = AnswerStore(most_held=100)
    parts = [bytes([number]) * (7 * number) for number in range(1, 12)]
    places = [store.add(part) for part in parts[:4]]
    assert made == []
    places += [store.add(part) for part in parts[4:]]
    assert [store.read(place) for place in places] == parts
    assert [store.read(place) for place in reversed(places)] == parts[::-1]
    assert len(made) == 1
    made[0].seek(0)
    written = made[0].read()
    assert len(written) > 100
    assert b"".join(parts).startswith(written)


def test_integers_take_as_few_bytes_as_the_largest_needs() -> None:
    columns = [(1, 255), (1, 256), (1, -1), (1, 2**40)]
    data = [packed([column], [False]) for column in columns]
    assert [len(each) - len(packed([()], [False])) for each in data] == [2, 4, 8, 16]
    assert [Packed(each)[0] for each in data] == columns


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    store = AnswerStore(most_held=3)
    with pytest.raises(BenchError, match=r"No space left on device; set TMPDIR") as raised:
        store.add(b"four")
    assert raised.value.exit_code == Exit.FAILED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_json(tmp_path / "manifest.json", {"cells": [], "prompts": [], "blocks": []})
    return tmp_path


def test_records_of_a_run_hold_no_answers(record: Make, folder: Path) -> None:
    written = record("ar", text="said", kind="quality")
    with SampleWriter(folder) as writer:
        for cell in ("ar", "spec"):
            writer.record(dataclasses.replace(written, decoder=cell))
    records = load_run(folder).records
    assert len(records) == 2
    assert not any(held(each, name) for each in records for name in ("text", "tokens", "steps"))
    assert records[0] == written


def test_an_integer_beyond_8_bytes_is_refused(record: Make, folder: Path) -> None:
    line = json.loads(record().to_json())
    line["tokens"][0] = 2**70
    (folder / "samples.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    with pytest.raises(BenchError, match="cannot read the records"):
        load_run(folder)
