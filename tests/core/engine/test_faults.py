"""What a decoder may count and call: everything else is refused before it becomes a number."""

from __future__ import annotations

from typing import Any

import pytest

from decoders.core.engine.faults import check_calls, check_emitted
from decoders.core.model import Call
from decoders.core.outputs import Chain
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, MaskedForm, StepEvent

VOCAB = 7


def event(**counts: Any) -> StepEvent:
    names = ("target_calls", "target_rows", "draft_calls", "draft_rows")
    work: dict[str, Any] = dict.fromkeys(names, 1)
    return StepEvent(tokens=(3,), **work, **counts)


def answer(tokens: tuple[Any, ...], *events: StepEvent) -> Generation:
    return Generation(tokens=tokens, steps=events, stop="length")


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ({"drafted": 1.0}, "counted 1.0"),
        ({"accepted": True}, "counted True"),
        ({"drafted": 2, "depth": "1"}, "counted '1'"),
        ({"num_leading": None}, "counted None"),
        ({"passes": 2.0}, "counted 2.0"),
        ({"decided": (1, "2")}, "counted '2'"),
        ({"confidences": ((1.01, True),)}, "confidence 1.01"),
        ({"confidences": ((0.5, True), (-0.01, False))}, "confidence -0.01"),
        ({"confidences": ((float("nan"), True),)}, "confidence nan"),
        ({"rejected": (2, VOCAB)}, "rejected 7"),
        ({"rejected": (-1,)}, "rejected -1"),
    ],
    ids=str,
)
def test_wrong_counts_of_a_step_are_refused(counts: dict[str, Any], line: str) -> None:
    model = TableModel(VOCAB)
    right = event(drafted=3, accepted=1, depth=2, decided=(1, 2), confidences=((1.0, True),))
    check_emitted(answer((3,), right), model)
    with pytest.raises(ValueError, match=line):
        check_emitted(answer((3, 3), right, event(**counts)), model)


@pytest.mark.parametrize("token", [True, 1.0, "1", -1, VOCAB])
def test_emitted_tokens_that_are_no_ids_are_refused(token: Any) -> None:
    with pytest.raises(ValueError, match="emitted"):
        check_emitted(answer((3, token)), TableModel(VOCAB))


def test_an_emitted_mask_is_refused() -> None:
    model = TableModel(VOCAB)
    model.masked = MaskedForm(mask_id=6)
    check_emitted(answer((3, 5), event()), model)
    with pytest.raises(AssertionError, match="a mask that it never decided"):
        check_emitted(answer((3, 6), event()), model)


def calls_of(*chains: Chain | None) -> tuple[list[Call], dict[str, Any]]:
    """Calls of a session and its forks, and the session by its role."""
    model = TableModel(VOCAB)
    model.reserve(len(chains), 10)
    root = model.open()
    root.max_sequences = len(chains)
    sessions = [root, *[root.fork() for _ in chains[1:]]]
    calls = [
        session.call([1], output="draws", chain=chain)
        for session, chain in zip(sessions, chains, strict=True)
    ]
    return calls, {"target": root}


def test_a_chain_beside_calls_without_a_chain_is_refused() -> None:
    mixed: list[tuple[Chain | None, ...]] = [(Chain(1, 1), None), (None, Chain(1, 1))]
    for chains in mixed:
        calls, roots = calls_of(*chains)
        with pytest.raises(ValueError, match="a chain among others"):
            check_calls(calls, roots, [1], VOCAB)
    uniform: list[tuple[Chain | None, ...]] = [(None, None), (Chain(1, 1),)]
    for chains in uniform:
        calls, roots = calls_of(*chains)
        check_calls(calls, roots, [1], VOCAB)


def test_a_call_of_another_answers_session_is_refused() -> None:
    calls, _ = calls_of(None)
    _, roots = calls_of(None)
    with pytest.raises(ValueError, match="a session other than its own"):
        check_calls(calls, roots, [1], VOCAB)
