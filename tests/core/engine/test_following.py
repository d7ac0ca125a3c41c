"""Chains of calls in the engine: one result for all calls, with or without graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.model import Session
from decoders.core.outputs import Chain
from decoders.core.testing.table_model import TableModel
from decoders.core.types import CallResult, Emit, Generation, Sampling, Slots

PROMPTS = [[1, 2, 3], [4, 0], [5], [2, 2, 6, 1, 3, 3]]
GREEDY = Sampling(max_new_tokens=12)
WARM = Sampling(max_new_tokens=12, temperature=0.9, seed=4)
SLOTS = Slots(adapter="ptp", uniforms=(0.5,), sizes=(1,), anchors=(2,), read=(0,))


@dataclass(frozen=True, kw_only=True)
class Chained(Decoder):
    """AR whose next calls are a chain; `results` are what the decoder received."""

    results: list[CallResult]
    output: str = "draws"
    stop: float = 0.0
    num: int = 2

    coupled = True

    def steps(self, request: Request) -> Steps:
        tokens, target = request.prompt_ids, request.target
        while True:
            num = min(self.num, target.room - len(tokens))
            chain = Chain(num, self.num, self.stop)
            result = yield target.call(tokens, output=self.output, chain=chain)
            self.results.append(result)
            yield Emit(tokens=result.picks)
            tokens = result.picks[-1:]


def target() -> Models:
    return Models(target=TableModel(7))


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("output", ["picks", "argmax", "draws", "probs"])
def test_a_chain_gives_the_tokens_and_counters_of_single_calls(
    output: str, sampling: Sampling
) -> None:
    if output == "argmax" and not sampling.greedy:
        pytest.skip("the likeliest tokens are AR's at temperature 0 alone")
    for batch in (1, 3):
        decoder = Chained(results=[], output=output)
        found = Scheduler(decoder, target(), sampling, batch).run(PROMPTS)
        expected = Scheduler(Autoregressive(), target(), sampling, batch).run(PROMPTS)
        for one, other, prompt in zip(found, expected, PROMPTS, strict=True):
            assert isinstance(one, Generation), one
            assert isinstance(other, Generation), other
            assert one.tokens == other.tokens
            assert [step.target_calls for step in one.steps] == [3] * 4
            assert [step.target_rows for step in one.steps] == [len(prompt) + 2, 3, 3, 3]
        for result in decoder.results:
            assert len(result.picks) == 3
            assert len(result.confidences) == (0 if output == "picks" else 3)
            assert (result.probs is not None) == (output == "probs")
            if result.probs is not None:
                chances = result.probs[range(3), result.picks].tolist()
                assert result.confidences == pytest.approx(chances)


def test_a_chain_ends_behind_a_pick_that_is_not_sure() -> None:
    plain, stopping = Chained(results=[]), Chained(results=[], stop=0.5)
    for decoder in (plain, stopping):
        generate(decoder, PROMPTS[0], WARM, target())
    sure = [sure for result in plain.results for sure in result.confidences]
    sizes = [len(result.picks) for result in stopping.results]
    assert {*sizes} >= {1, 3}
    for result in stopping.results:
        assert all(each >= 0.5 for each in result.confidences[:-1])
        assert len(result.picks) == 3 or result.confidences[-1] < 0.5
    found = [sure for result in stopping.results for sure in result.confidences]
    assert found[:12] == pytest.approx(sure[:12])


def test_a_chain_yielded_in_a_list_returns_its_results_in_a_list() -> None:
    class Listed(Chained):
        def steps(self, request: Request) -> Steps:
            call = request.target.call(request.prompt_ids, output="draws", chain=Chain(11, 11))
            results = yield [call]
            assert isinstance(results, list)
            yield Emit(tokens=results[0].picks)

    answer = generate(Listed(results=[]), PROMPTS[0], WARM, target())
    assert answer.tokens == generate(Autoregressive(), PROMPTS[0], WARM, target()).tokens


def test_a_chain_beside_a_call_of_another_sequence_is_refused() -> None:
    class Twins(Chained):
        sequences = 2

        def steps(self, request: Request) -> Steps:
            yield request.target.call(request.prompt_ids)
            both = [request.target, request.target.fork()]
            yield [each.call([1], output="draws", chain=Chain(1, 1)) for each in both]

    with pytest.raises(ValueError, match="a call with a chain among others; yield it alone"):
        generate(Twins(results=[]), PROMPTS[0], GREEDY, target())


@pytest.mark.parametrize(
    ("chain", "how"),
    [
        (Chain(3, 2), {}),
        (Chain(-1, 2), {}),
        (Chain(9, 9), {}),
        (Chain(1, 1, 0.5), {"output": "picks"}),
        (Chain(1, 1), {"output": "logits"}),
        (Chain(1, 1), {"output": ("picks", "entropy")}),
        (Chain(1, 1), {"read": (0, 1)}),
        (Chain(1, 1), {"hidden": True}),
        (Chain(1, 1), {"barred": [2]}),
        (Chain(1, 1), {"mask": torch.ones(2, 2, dtype=torch.bool)}),
        (Chain(1, 1), {"positions": [0, 1]}),
        (Chain(1, 1), {"slots": SLOTS}),
    ],
)
def test_a_chain_that_cannot_follow_is_refused(chain: Chain, how: dict[str, Any]) -> None:
    session = Session(TableModel(7), 0, 10)
    options = {"output": "draws", **how}
    assert session.call([1, 2], output="draws", chain=Chain(8, 8)).chain == Chain(8, 8)
    with pytest.raises(ValueError, match=r"Chain\(.*\) behind a call of [23] rows; at most its"):
        session.call([1, 2], chain=chain, **options)
