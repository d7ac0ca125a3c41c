"""A text that is asked under several names is one cluster of every interval."""

from __future__ import annotations

from collections.abc import Callable

from bench.records.plan import PlannedPrompt
from bench.records.record import SampleRecord
from bench.stats.counters import cluster_names, join_clusters, repeated_texts
from bench.stats.intervals import paired_speedup
from bench.stats.metric import CellData
from bench.stats.parallel_counters import nll_over
from bench.stats.quality import family_quality
from bench.stats.times import timed_units

Make = Callable[..., SampleRecord]


def twelve(record: Make, decoder: str, text: str = "h", **fields: object) -> list[SampleRecord]:
    """Answers to twelve conversations; all ask `text` unless it is empty."""
    return [
        record(
            decoder,
            conversation=f"c{n:02}",
            prompt_hash=text or f"h{n}",
            emitted=(1, 1 + n % 3, 2),
            total_s=1.0 + n / 10,
            block=n,
            **fields,
        )
        for n in range(12)
    ]


def test_the_same_text_under_twelve_names_is_one_cluster(record: Make) -> None:
    scores = {"scores": {"exact_number": 1.0}, "kind": "quality", "nll": 1.0}
    for text, clusters in (("h", 1), ("", 12)):
        ar, mine = twelve(record, "ar", text), twelve(record, "spec", text)
        found = [
            paired_speedup(timed_units(ar), timed_units(mine)),
            CellData(decoder="spec", family="all", records=mine).acceptance_length,
            family_quality("math_reasoning", twelve(record, "spec", text, **scores), {}).estimate,
        ]
        answers = [twelve(record, cell, text, **scores) for cell in ("spec", "ar")]
        assert [each.clusters for each in found] == [clusters] * 3
        assert nll_over(*answers).clusters == clusters


def test_groups_that_ask_the_same_texts_are_one_cluster(record: Make) -> None:
    def units(same: bool) -> set[str]:
        return {
            unit.cluster
            for unit in timed_units(
                record(
                    conversation=f"c{n}", block=n, batch_size=2, prompt_hash="h" * same or f"{n}"
                )
                for n in range(3)
            )
        }

    assert units(True) == {"c0#1"}
    assert len(units(False)) == 3


def test_conversations_are_one_cluster_if_a_chain_of_shared_turns_links_them() -> None:
    named = [("c", "1"), ("b", "1"), ("b", "2"), ("a", "2"), ("d", "3"), ("e", ""), ("f", "")]
    assert join_clusters(named) == {"a": "a", "b": "a", "c": "a", "d": "d", "e": "e", "f": "f"}


def test_the_cluster_of_a_conversation_is_that_of_its_turns(record: Make) -> None:
    turns = [record(turn=1), record(turn=2), record(conversation="c1", turn=1)]
    assert cluster_names(turns) == {"c0": "c0", "c1": "c1"}


def test_repeated_texts_are_reported() -> None:
    def planned(name: str, digest: str, *passes: str) -> PlannedPrompt:
        return PlannedPrompt(
            prompt=f"{name}#1",
            conversation=name,
            turn=1,
            family="qa",
            hash=digest,
            num_tokens=3,
            passes=passes,
        )

    twice = [planned("a", "h", "timing"), planned("b", "h", "timing")]
    (line,) = repeated_texts(twice)
    assert line.startswith("1 of 2 conversations ask a text that another one asks")
    assert repeated_texts([twice[0], planned("b", "h", "quality")]) == []
    assert repeated_texts([twice[0], planned("b", "i", "timing")]) == []
