"""MTP layers of checkpoints: drafts of a plain reference, AR's tokens, counts, memory, refusals."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bench.machine.usage import PeakMemory
from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.model import Call, DraftCall
from decoders.core.types import CallResult, Generation, Sampling
from decoders.mtp import MultiTokenPrediction
from tests.tiny_mtp import KINDS, VOCAB, in_shards, plain_drafts, save_mtp

PROMPTS = [[5, 3, 1, 6], [4, 4], [1], [3, 0, 5, 5, 6, 1, 2]]
GREEDY = Sampling(max_new_tokens=24)
WARM = Sampling(temperature=0.8, max_new_tokens=24, seed=3)


class Recording:
    """A model whose draft calls and their results are remembered."""

    def __init__(self, model: HFModel) -> None:
        self.pairs: list[tuple[DraftCall, CallResult]] = []
        self.num_merged, self._draft = 0, model.draft
        model.draft = self.draft  # type: ignore[method-assign]

    def draft(self, calls: Sequence[DraftCall]) -> Sequence[CallResult]:
        results = self._draft(calls)
        self.pairs += zip(calls, results, strict=True)
        self.num_merged = max(self.num_merged, len(calls))
        return results


@pytest.fixture(scope="module", params=KINDS)
def stored(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("mtp") / request.param
    return folder, save_mtp(folder, request.param)


def opened(folder: Path, **options: Any) -> Models:
    return Models(target=HFModel.load(folder, dtype=torch.float32, **options))


def accepted(answer: Generation) -> int:
    return sum(step.accepted for step in answer.steps)


@pytest.mark.parametrize("k", [1, 3])
def test_drafts_are_those_of_a_plain_pass_without_a_cache(
    stored: tuple[Path, dict[str, Any]], k: int
) -> None:
    folder, parts = stored
    models = opened(folder)
    recording, num = Recording(models.target), 0  # type: ignore[arg-type]
    for prompt in PROMPTS:
        recording.pairs.clear()
        answer = generate(MultiTokenPrediction(k=k), prompt, GREEDY, models)
        assert len(recording.pairs) >= len(answer.steps) - 2
        text = list(prompt)
        for step, (call, result) in zip(answer.steps, recording.pairs, strict=False):
            text += step.tokens
            logits = plain_drafts(parts, text, min(k, call.max_depth))
            assert result.picks == tuple(logits.argmax(-1).tolist())
            chances = logits.softmax(-1).max(-1).values.cumprod(0)
            assert torch.allclose(torch.tensor(result.confidences).float(), chances, atol=1e-5)
            num += len(result.picks)
    assert num > 20 * k


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("k", [1, 4])
def test_tokens_are_those_of_ar_alone_and_in_a_batch(
    stored: tuple[Path, dict[str, Any]], sampling: Sampling, k: int
) -> None:
    models, decoder, total = opened(stored[0]), MultiTokenPrediction(k=k), 0
    recording = Recording(models.target)  # type: ignore[arg-type]
    alone = [generate(decoder, prompt, sampling, models) for prompt in PROMPTS]
    for prompt, answer in zip(PROMPTS, alone, strict=True):
        assert answer.tokens == generate(Autoregressive(), prompt, sampling, models).tokens
        total += accepted(answer)
    assert total > 2
    assert recording.num_merged == 1
    together = Scheduler(decoder, models, sampling, 4).run(PROMPTS)
    assert recording.num_merged > 1
    for answer, outcome in zip(alone, together, strict=True):
        assert isinstance(outcome, Generation)
        assert outcome.tokens == answer.tokens
        assert [step.drafted for step in outcome.steps] == [s.drafted for s in answer.steps]
