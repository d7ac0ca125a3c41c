"""samples.parquet in groups of rows: every record as it is, and columns of one type throughout."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.errors import InvalidRunError
from bench.records import frames
from bench.records.record import SampleRecord, StepColumns, field_values
from tests.bench.conftest import make_record
from tests.bench.stats.test_workers import record


def written(records: Sequence[SampleRecord]) -> bytes:
    file = io.BytesIO()
    frames.write_samples(file, records)
    return file.getvalue()


def test_row_groups_hold_all_records_and_unknown_values_are_null(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "_GROUP", 4)
    plain: Any = [record("w0", "ar", block, block, 1.5) for block in range(9)]
    scored = replace(plain[0], kind="quality", scores={"f1": 0.5}, total_s=None)
    failed = replace(plain[1], tokens=None, steps=None, error="no", total_s=None)
    records = [failed] * 4 + plain + [scored]
    data = written(records)
    file = pq.ParquetFile(io.BytesIO(data))
    assert file.num_row_groups == 4
    assert data == written(records)
    frame = pd.read_parquet(io.BytesIO(data))
    assert len(frame) == len(records)
    for row, wanted in zip(frame.to_dict("records"), records, strict=True):
        for field in fields(SampleRecord):
            value = getattr(wanted, field.name)
            if field.name in ("tokens", "drafters"):
                assert (value is None) == (row[field.name] is None)
                assert value is None or tuple(row[field.name]) == value
            elif field.name not in ("steps", "scores"):
                assert pd.isna(row[field.name]) if value is None else row[field.name] == value
        for name, column in (field_values(wanted.steps) if wanted.steps else {}).items():
            if name != "ended_s":
                assert tuple(row[f"steps_{name}"]) == column
    assert frame["score_f1"].tolist()[-1] == 0.5
    assert frame["score_f1"].isna().sum() == len(records) - 1


def test_a_table_of_no_records_has_all_columns() -> None:
    frame = pd.read_parquet(io.BytesIO(written([])))
    assert frame.empty
    assert {"decoder", "tokens", "steps_emitted", "worker"} <= set(frame)
    names = {field.name for field in fields(StepColumns)} - {"ended_s"} | {"lasted_us"}
    assert {f"steps_{name}" for name in names} == {
        n for n in map(str, frame) if n.startswith("steps_")
    }


def test_times_of_steps_are_whole_microseconds_in_the_table_and_read_back_exactly(
    full: list[SampleRecord], tmp_path: Path
) -> None:
    full_steps = full[0].steps
    assert full_steps is not None
    # 0.003912 * 1e6 is below 3912; the second column is damaged, and kept
    ends = (0.003912, 0.003913, 1e7 - 1e-6), (0.319221, 0.1, 0.1)
    steps = [replace(full_steps, ended_s=each) for each in ends]
    records = [replace(full[0], steps=each) for each in steps]
    file = tmp_path / "samples.parquet"
    file.write_bytes(written(records))
    lasted = pd.read_parquet(file)["steps_lasted_us"].tolist()
    assert [list(each) for each in lasted] == [[3912, 1, 9999999996086], [319221, -219221, 0]]
    assert [SampleRecord.from_dict(line) for line in frames.read_samples(file)] == records


def test_a_table_of_an_older_version_has_times_in_seconds(tmp_path: Path) -> None:
    plain = make_record("ar", (1, 1))
    assert plain.steps is not None
    table = pq.read_table(io.BytesIO(written([plain])))
    place = table.schema.get_field_index("steps_lasted_us")
    old = pa.array([[0.003624, 0.0123456789]], pa.list_(pa.float64()))
    file = tmp_path / "samples.parquet"
    pq.write_table(table.set_column(place, "steps_ended_s", old), file)
    (line,) = frames.read_samples(file)
    assert line["steps"]["ended_s"] == [0.003624, 0.0123456789]
    assert SampleRecord.from_dict(line).steps == replace(
        plain.steps, ended_s=(0.003624, 0.0123456789)
    )


@pytest.fixture
def full() -> list[SampleRecord]:
    """Records that hold something in every field, and nothing in every field that may be null."""
    plain = make_record("spec", (1, 3, 2), drafted=(0, 4, 4), accepted=(0, 2, 1))
    assert plain.steps is not None
    steps = replace(
        plain.steps,
        **dict.fromkeys(("passes", "tested", "undrafted", "depth"), (0, 1, 2)),
        overlap=(0.0, 0.1, 1 / 3),
        alpha=(1.0, 0.25, 1e-9),
        ended_s=(0.01, 0.02, 0.03),
        source=((), (0, 1), (1,)),
        confidence=((), (255, 0, 129), (2,)),
        rejected=((), (2**40, 7), (9,)),
        decided=((0,), (1, 1, 2), (0, 0)),
    )
    bare = make_record("ar", tokens=(), text="", steps=steps, ttft_s=None, total_s=None,
                       drafters=("a", "b"))  # fmt: skip
    texts = {name: f"{name} ü\n" for name in ("error_at", "worker", "node", "machine")}
    reals = dict.fromkeys(("nll", "agreement", "entropy", "group_s", "energy_j"), 1 / 7)
    whole: Any = {**texts, **reals, "steps": steps, "drafters": ("a", "b"), "recounted": 3}
    whole["num_behind"] = 2
    return [
        bare,
        make_record("ar", error="ValueError: no"),
        make_record("spec", kind="quality", scores={"f1": 0.1, "bleu": 1.0}, **whole),
        make_record("spec", kind="quality", scores={"exact_number": 0.0}),
    ]


def test_records_and_events_are_read_back_as_they_were(
    full: list[SampleRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_GROUP", 3)
    used = {f.name for f in fields(SampleRecord) if any(getattr(r, f.name) for r in full)}
    assert used >= {f.name for f in fields(SampleRecord)} - {"repeat", "seed", "order", "attempt",
                                                             "block"}  # fmt: skip
    events: list[dict[str, Any]] = [{"event": "load", "block": 1, "other_cores": 0.1}]
    file = tmp_path / "samples.parquet"
    with file.open("wb") as opened:
        frames.write_samples(opened, full, events)
    event, *lines = frames.read_samples(file)
    assert event == events[0]
    again = [SampleRecord.from_dict(line) for line in lines]
    assert again == full
    assert list(map(repr, again)) == list(map(repr, full))  # 1 and 1.0 are equal
    assert frames.num_samples(file) == len(full)


def test_a_damaged_table_is_refused_and_never_read_as_different_records(
    full: list[SampleRecord], tmp_path: Path
) -> None:
    data = written(full * 9)
    file = tmp_path / "samples.parquet"
    file.write_bytes(data)
    whole = list(frames.read_samples(file))
    end_of_pages = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    num_found = 0
    for place in range(4, end_of_pages, end_of_pages // 100):
        file.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
        try:
            assert list(frames.read_samples(file)) == whole  # of a page's header a part is unused
        except InvalidRunError:
            num_found += 1
    assert num_found > 50
    for cut in (data[:-1], data[: len(data) // 2], b"", b"{}"):
        file.write_bytes(cut)
        with pytest.raises(InvalidRunError, match=r"samples\.parquet is damaged: .*; put back"):
            list(frames.read_samples(file))
        assert frames.num_samples(file) == 0


def test_a_table_that_claims_more_rows_than_it_has_is_refused(tmp_path: Path) -> None:
    """A changed count in the footer, which no checksum covers: rows would be missing in silence."""
    data = written([record("w0", "ar", block, block, 1.5) for block in range(3)])
    three, four = b"\x06", b"\x08"  # as Thrift writes 3 and 4
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    claimed = []
    for place in range(footer, len(data) - 8):
        if data[place : place + 1] == three:
            file = tmp_path / f"{place}.parquet"
            file.write_bytes(data[:place] + four + data[place + 1 :])
            with contextlib.suppress(Exception):
                if pq.read_metadata(file).row_group(0).num_rows == 4:
                    claimed.append(file)
    assert claimed
    for file in claimed:
        with pytest.raises(InvalidRunError, match="is damaged"):
            list(frames.read_samples(file))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\uff1d"])
def test_text_that_reads_as_a_formula_is_escaped_in_a_csv_file(start: str) -> None:
    attack = f"{start}cmd|' /C calc'!A0"
    frame = pd.DataFrame({"decoder": ["spec", attack], attack: [1, -2.5], "text": [None, "-5"]})
    written = frames.csv_bytes(frame).decode()
    (heading, *rows) = csv.reader(io.StringIO(written, newline=""))
    assert heading == ["decoder", f"'{attack}", "text"]
    assert rows == [["spec", "1", ""], [f"'{attack}", "-2.5", "-5"]]


def test_a_text_of_several_lines_stays_in_one_csv_cell() -> None:
    frame = pd.DataFrame({"text": ["a\r=b", "\r\n@c", "d\ne"], "n": [1, 2, 3]})
    written = frames.csv_bytes(frame).decode()
    rows = list(csv.reader(io.StringIO(written, newline="")))[1:]
    assert rows == [["a\n=b", "1"], ["'\n@c", "2"], ["d\ne", "3"]]


def test_numbers_and_plain_text_are_unchanged_in_a_csv_file() -> None:
    values = {"n": [-3, 4], "x": [-1.5e-7, 2.0], "ok": [True, False], "t": ["-1.5e-7", "+3"]}
    frame = pd.DataFrame({**values, "plain": ["a=b", "'q"], "mixed": [-2, "1 - 1"]})
    again = pd.read_csv(io.BytesIO(frames.csv_bytes(frame, None)), dtype={"t": str, "mixed": str})
    wanted = frame.assign(mixed=["-2", "1 - 1"])
    pd.testing.assert_frame_equal(again, wanted, check_dtype=False)
