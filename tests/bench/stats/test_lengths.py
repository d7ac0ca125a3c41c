"""Speed-up by length against prompts whose lengths and speed-ups are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bench.records.record import SampleRecord
from bench.stats.lengths import by_length

Make = Callable[..., SampleRecord]


def answers(record: Make, num: int, **fields: object) -> list[SampleRecord]:
    """Prompt i is answered in 10 + i tokens of 1 ms by ar; spec is 2x, in the longer half 4x."""
    made = []
    for i in range(num):
        tokens, faster = 10 + i, 2 if i < num // 2 else 4
        for decoder, ms in (("ar", 1.0), ("spec", 1 / faster)):
            place = {"conversation": f"c{i}", "block": i, "total_s": tokens * ms / 1e3}
            made.append(record(decoder, (1,) * tokens, **{**place, **fields}))
    return made


def test_prompts_are_grouped_by_the_length_of_ars_answers(record: Make) -> None:
    table = by_length(answers(record, 12), ["ar", "spec"])
    assert set(table["decoder"]) == {"spec"}
    assert list(table["prompts"]) == [6, 6]
    assert list(table["shortest"]) == [10, 16]
    assert list(table["longest"]) == [15, 21]
    assert list(table["ar_tokens"]) == pytest.approx([12.5, 18.5])
    assert list(table["speedup"]) == pytest.approx([2.0, 4.0])
    assert table["speedup_low"].isna().all()  # the prompts of a group do not differ
    assert table["speedup_low"].dtype == float


def test_groups_are_of_six_prompts_or_more_and_at_most_four(record: Make) -> None:
    assert by_length(answers(record, 11), ["ar", "spec"]).empty
    assert len(by_length(answers(record, 23), ["ar", "spec"])) == 3
    assert len(by_length(answers(record, 60), ["ar", "spec"])) == 4


def test_the_lengths_of_groups_are_none_of_an_answer(record: Make) -> None:
    batched = answers(record, 12, batch_size=2, total_s=None, group_s=1.0)
    assert by_length(batched, ["ar", "spec"]).empty


def test_what_is_scored_and_not_timed_does_not_count(record: Make) -> None:
    scored = [record("ar", (1,) * 500, kind="quality", batch_size=8, conversation="c99")]
    table = by_length([*answers(record, 12), *scored], ["ar", "spec"])
    assert table["longest"].max() == 21


def of_lengths(record: Make, *lengths: int) -> list[SampleRecord]:
    return [
        record(decoder, (1,) * tokens, conversation=f"c{i:02}", block=i, total_s=tokens * seconds)
        for i, tokens in enumerate(lengths)
        for decoder, seconds in (("ar", 1e-3), ("spec", 5e-4))
    ]


@pytest.mark.parametrize(
    ("lengths", "prompts", "spans"),
    [
        ([*range(20, 26), *(128,) * 18], [6, 18], [(20, 25), (128, 128)]),
        ([*(128,) * 18, *range(20, 26)], [6, 18], [(20, 25), (128, 128)]),
        ([*(10,) * 17, *range(20, 27)], [17, 7], [(10, 10), (20, 26)]),
        ([*(10,) * 20, *range(20, 24)], [], []),
        ([128] * 24, [], []),
    ],
)
def test_answers_of_one_length_are_never_in_two_groups(
    record: Make, lengths: list[int], prompts: list[int], spans: list[tuple[int, int]]
) -> None:
    table = by_length(of_lengths(record, *lengths), ["ar", "spec"])
    assert list(table["prompts"]) == prompts
    assert list(zip(table["shortest"], table["longest"], strict=True)) == spans
