"""Block diffusion equals a plain loop over whole texts, without a cache, in every form."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core.engine.models import Models, check_models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.masked import MaskedForm
from decoders.core.sampling import Uniforms
from decoders.core.testing.tiny_llama import tiny_models
from decoders.core.types import Generation, Sampling
from decoders.dllm import BlockDiffusion

VOCAB, MASK, STOP = 61, 60, 7
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7], list(range(10, 29))]


def masked_models(shifted: bool = False, block: int = 4) -> Models:
    models = tiny_models(VOCAB, 256)
    models.target.masked = MaskedForm(mask_id=MASK, shifted=shifted, block=block)
    return Models(target=models.target)


@torch.inference_mode()
def plain_loop(
    module: Any, prompt: Sequence[int], sampling: Sampling, decoder: BlockDiffusion, shifted: bool
) -> tuple[list[int], list[int]]:
    """Return an answer and the pass of each token: one sequence, dense attention, no cache."""
    size, full = decoder.block, decoder.attention == "full"
    limit, start = len(prompt) + sampling.max_new_tokens, len(prompt)
    text, when = list(prompt), [0] * len(prompt)
    uniforms = Uniforms(sampling.seed, prompt)
    while len(text) < limit and not sampling.stop_ids & {*text[start:]}:
        first = len(text)
        end = min(first + size, limit) if full else (first // size + 1) * size
        text += [MASK] * ((limit if full else end) - first)
        when += [0] * (len(text) - first)
        hidden, number = list(range(first, end)), 0
        at_once = [first] if shifted and not full and first % size == 0 else []
        num_open = len(hidden) - len(at_once)
        while hidden:
            block = torch.zeros(len(text)) if full else torch.arange(len(text)) // size
            unseen = block[None, :] > block[:, None]
            mask = torch.zeros(unseen.shape).masked_fill(unseen, torch.finfo(torch.float32).min)
            out = module(torch.tensor([text]), attention_mask=mask[None, None], use_cache=False)
            logits = out.logits[0].float()
            logits[:, MASK] = -torch.inf
            if shifted:
                logits = torch.cat([logits[:1], logits[:-1]])
            probs = torch.softmax(logits / (sampling.temperature or 1), -1)
            guesses = []
            for place in hidden:
                token = int(probs[place].argmax())
                if sampling.temperature:
                    u, below = uniforms.at("draw", place - start), probs[place].double().cumsum(-1)
                    token = int((below <= u * below[-1]).sum())
                guesses.append((float(probs[place, token]), place, token))
            number += 1
            rest = sorted((g for g in guesses if g[1] not in at_once), key=lambda g: (-g[0], g[1]))
            if decoder.passes:
                share, more = divmod(num_open, decoder.passes)
                rest = rest[: share + (number <= more)]
            else:
                rest = [g for g in rest if g[0] >= decoder.threshold] or rest[:1]
            for _, place, token in [g for g in guesses if g[1] in at_once] + rest:
                text[place], when[place] = token, 0 if place in at_once else number
                hidden.remove(place)
            at_once = []
        text, when = text[:end], when[:end]
    answer = text[start:limit]
    ends = [i + 1 for i, token in enumerate(answer) if token in sampling.stop_ids]
    answer = answer[: min(ends, default=len(answer))]
    return answer, when[start : start + len(answer)]


RULES = [{"threshold": 0.0}, {"threshold": 0.15}, {"threshold": 0.9}, {"passes": 1}, {"passes": 3}]
FORMS = [("block", False), ("block", True), ("full", False), ("full", True)]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize(("attention", "shifted"), FORMS)
def test_answers_alone_and_in_a_batch_are_those_of_the_plain_loop(
    attention: Any, shifted: bool, rule: dict[str, Any], temperature: float
) -> None:
    models = masked_models(shifted)
    sampling = Sampling(
        temperature=temperature, max_new_tokens=19, stop_ids=frozenset({STOP}), seed=3
    )
    decoder = BlockDiffusion(block=4, attention=attention, **rule)
    expected = [
        plain_loop(models.target.library_module, prompt, sampling, decoder, shifted)
        for prompt in PROMPTS
    ]
    together = Scheduler(decoder, models, sampling, len(PROMPTS)).run(PROMPTS)
    for prompt, answer, batched in zip(PROMPTS, expected, together, strict=True):
        alone = generate(decoder, prompt, sampling, models)
        for outcome in (alone, batched):
            assert isinstance(outcome, Generation), outcome
            decided = [number for step in outcome.steps for number in step.decided]
            assert (list(outcome.tokens), decided) == answer
            assert MASK not in outcome.tokens
