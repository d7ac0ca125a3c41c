"""One record: what it keeps of an answer's steps, and what it refuses to read."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bench.records.invariants import broken_invariants
from bench.records.record import (
    MAX_REJECTED,
    MAX_REJECTED_PER_ANSWER,
    SampleRecord,
    StepColumns,
)
from decoders.core.types import Generation, StepEvent

Make = Callable[..., SampleRecord]


def rejecting(*rejected: tuple[int, ...]) -> Generation:
    work: dict[str, Any] = {"target_calls": 1, "target_rows": 3, "draft_calls": 0, "draft_rows": 0}
    steps = tuple(
        StepEvent(tokens=(1,), drafted=len(ids), accepted=0, rejected=ids, **work)
        for ids in rejected
    )
    return Generation(tokens=(1,) * len(steps), steps=steps, stop="length")


def read_again(record: SampleRecord) -> StepColumns:
    read = SampleRecord.from_dict(json.loads(record.to_json()))
    assert read == record
    assert read.steps is not None
    return read.steps


def test_a_record_keeps_rejected_drafts_deciding_passes_and_end_times(record: Make) -> None:
    answer = rejecting((), (7, 8))
    second = dataclasses.replace(answer.steps[1], decided=(2,))
    answer = dataclasses.replace(answer, steps=(answer.steps[0], second))
    steps = StepColumns.of(answer, (0.0312344, 0.25))
    written = record(steps=steps, tokens=answer.tokens)
    assert broken_invariants(written, 9) == ()
    read = read_again(written)
    assert read.rejected == ((), (7, 8))
    assert read.decided == ((), (2,))
    assert read.ended_s == (0.031234, 0.25)


def test_a_record_keeps_a_bounded_number_of_rejected_ids(record: Make) -> None:
    long = tuple(range(MAX_REJECTED + 5))
    many = MAX_REJECTED_PER_ANSWER // MAX_REJECTED
    steps = read_again(record(steps=StepColumns.of(rejecting(*[long] * (many + 2), ()))))
    assert steps.rejected == (*[long[:MAX_REJECTED]] * many, (), (), ())
    assert steps.drafted[:2] == (len(long),) * 2
    assert StepColumns.of(rejecting((), ())).rejected == ()


def test_each_confidence_is_stored_in_one_byte_together_with_its_outcome(record: Make) -> None:
    answer = rejecting((), (7,), (8, 9))
    drafts = ((), ((1.0, True), (0.5, False)), ((1.0000001, True), (0.0, False)))
    steps = [
        dataclasses.replace(s, confidences=d) for s, d in zip(answer.steps, drafts, strict=True)
    ]
    columns = StepColumns.of(dataclasses.replace(answer, steps=tuple(steps)))
    assert columns.confidence == ((), (255, 128), (255, 0))
    written = record(steps=columns, tokens=answer.tokens)
    assert read_again(written).confidence == columns.confidence
    written.pack()
    assert written.steps is not None
    assert written.steps.confidence == columns.confidence
    assert StepColumns.of(answer).confidence == ()


def test_without_compared_distributions_the_columns_tested_overlap_and_alpha_are_empty() -> None:
    steps = StepColumns.of(rejecting((), (7,)))
    assert (steps.tested, steps.overlap, steps.alpha) == ((), (), ())


@pytest.mark.parametrize(
    ("field", "value"), [("turn", True), ("num_prompt_tokens", False), ("decoder", "a\x1b[2J")]
)
def test_a_field_of_another_kind_is_refused(record: Make, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"a record's {field} cannot be"):
        SampleRecord.from_dict(json.loads(record().to_json()) | {field: value})


def test_an_older_record_without_the_newer_columns_is_read(record: Make) -> None:
    line = json.loads(record().to_json())
    for name in ("confidence", "rejected", "decided", "ended_s"):
        del line["steps"][name]
    assert SampleRecord.from_dict(line) == record()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"rejected": [[1], 2, [3]]}, "rejected"),
        ({"rejected": [["a"], [], []]}, "rejected"),
        ({"rejected": 5}, "rejected"),
        ({"decided": [[1]]}, "decided"),
        ({"confidence": [[256], [], []]}, "confidence"),
        ({"confidence": [[-1], [], []]}, "confidence"),
        ({"confidence": [[0.5], [], []]}, "confidence"),
        ({"ended_s": [0.1, "x", 0.2]}, "ended_s"),
    ],
)
def test_newer_columns_of_a_wrong_form_are_refused(
    record: Make, columns: dict[str, Any], said: str
) -> None:
    line = json.loads(record().to_json())
    line["steps"] |= columns
    with pytest.raises(ValueError, match=said):
        SampleRecord.from_dict(line)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"rejected": ((1,), (), ())}, "rejected more"),
        ({"decided": ((1, 2), (), ())}, "deciding passes"),
        ({"ended_s": (0.1, 0.3, 0.2)}, "ended before"),
        ({"emitted": (3, 0, 0), "drafted": (0, 2, 0)}, "verified drafts and emitted nothing"),
    ],
)
def test_newer_columns_that_contradict_the_older_columns_break_an_invariant(
    record: Make, columns: dict[str, Any], said: str
) -> None:
    sound = record()
    assert sound.steps is not None
    broken = dataclasses.replace(sound, steps=dataclasses.replace(sound.steps, **columns))
    assert broken_invariants(sound, 9) == ()
    assert [said in line for line in broken_invariants(broken, 9)] == [True]


def test_a_step_may_emit_no_token_only_if_it_verified_no_drafts(
    record: Make,
) -> None:
    cold = record("spec", (1, 2, 0), drafted=(0, 2, 0), accepted=(0, 1, 0), tokens=(5, 5, 5))
    assert broken_invariants(cold, 9) == ()
    silent = record("spec", (1, 0, 2), drafted=(0, 2, 0), accepted=(0, 0, 0), tokens=(5, 5, 5))
    assert "a step verified drafts and emitted nothing" in broken_invariants(silent, 9)[0]


@pytest.mark.parametrize(("emitted", "drafted"), [((1, 1, 1), (0, 4, 4)), ((1, 4, 4), (0, 3, 3))])
def test_a_verifying_decoder_must_have_fed_a_row_for_each_token_and_each_draft(
    record: Make, emitted: tuple[int, ...], drafted: tuple[int, ...]
) -> None:
    def lines(*rows: int) -> Sequence[str]:
        answer = record("spec", emitted, drafted=drafted, rows=(10, *rows))
        return broken_invariants(answer, 9, verified=True)

    assert lines(4, 4) == ()
    assert "later steps fed the target 7 rows, fewer than tokens or drafts" in lines(4, 3)[0]
