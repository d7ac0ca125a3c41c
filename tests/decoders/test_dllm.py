"""Block diffusion equals a plain loop over whole texts, without a cache, in every form."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core.engine.models import Models, check_models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.hf.self_check import check_graphs
from decoders.core.sampling import Uniforms
from decoders.core.testing.tiny_llama import tiny_models
from decoders.core.types import Generation, MaskedForm, Sampling
from decoders.extras.dllm import BlockDiffusion
from decoders.spec import Speculative

VOCAB, MASK, STOP = 61, 60, 7
PROMPTS = [[3, 1, 4, 1, 5], [9], [2, 6, 5, 3, 5, 8, 9, 7], list(range(10, 29))]


def masked_models(shifted: bool = False, block: int = 4, *, length: int = 256) -> Models:
    models = tiny_models(VOCAB, length)
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
        temperature=temperature, max_new_tokens=13, stop_ids=frozenset({STOP}), seed=3
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


def test_without_a_cache_the_answer_is_the_same_and_more_rows_are_read() -> None:
    models = masked_models(shifted=True)
    sampling = Sampling(max_new_tokens=20)
    kept, read_again = (
        generate(BlockDiffusion(cache=cache), PROMPTS[0], sampling, models)
        for cache in ("exact", "none")
    )
    assert kept.tokens == read_again.tokens
    rows = [sum(step.target_rows for step in answer.steps) for answer in (kept, read_again)]
    assert rows[0] < rows[1]


def test_a_block_is_committed_by_the_first_pass_of_the_next_block() -> None:
    answer = generate(
        BlockDiffusion(block=4, passes=2), PROMPTS[2], Sampling(max_new_tokens=12), masked_models()
    )
    assert [step.target_calls for step in answer.steps] == [1] * 6
    # the prompt's two blocks and the first block of masks, then it alone, then both, …
    assert [step.target_rows for step in answer.steps] == [12, 4, 8, 4, 8, 4]
    assert [step.passes for step in answer.steps] == [0, 2, 0, 2, 0, 2]


def test_an_approximate_cache_reads_a_block_and_all_rows_after_it() -> None:
    decoder = BlockDiffusion(block=4, attention="full", cache="approximate", passes=2)
    answer = generate(decoder, PROMPTS[0], Sampling(max_new_tokens=8), masked_models(True, 0))
    assert [step.target_rows for step in answer.steps] == [13, 8, 13, 4]
    decided = [number for step in answer.steps for number in step.decided]
    assert decided[::4] == [0, 0]  # the first pass alone reads the row before a block


def test_a_shifted_block_of_one_token_is_autoregression() -> None:
    models = masked_models(shifted=True, block=1)
    sampling = Sampling(temperature=0.8, max_new_tokens=20, seed=5)
    causal = tiny_models(VOCAB, 256)
    expected = generate(Autoregressive(), PROMPTS[0], sampling, causal)
    assert MASK not in expected.tokens  # which a masked model never picks
    answer = generate(BlockDiffusion(), PROMPTS[0], sampling, models)
    assert answer.tokens == expected.tokens


@pytest.mark.parametrize(("attention", "shifted"), FORMS)
def test_row_invariant_numerics_give_the_same_tokens(attention: Any, shifted: bool) -> None:
    models, decoder = masked_models(shifted), BlockDiffusion(attention=attention, threshold=0.15)
    assert isinstance(models.target, HFModel)
    tiled = Models(target=models.target.in_tiles(8))
    sampling = Sampling(temperature=0.8, max_new_tokens=10, seed=3)
    answers = [generate(decoder, PROMPTS[0], sampling, each).tokens for each in (models, tiled)]
    assert answers[0] == answers[1]


def test_a_lower_threshold_takes_fewer_passes() -> None:
    models, sampling = masked_models(), Sampling(max_new_tokens=32)
    passes = [
        sum(step.passes for step in generate(decoder, PROMPTS[0], sampling, models).steps)
        for decoder in (BlockDiffusion(threshold=threshold) for threshold in (0.0, 0.15, 1.0))
    ]
    assert passes[0] < passes[1] < passes[2]


def test_a_prompt_of_more_rows_than_a_chunk_is_read_in_one_call() -> None:
    prompt = [index * 7 % 53 for index in range(600)]
    models = masked_models(length=1024)
    sampling, decoder = Sampling(max_new_tokens=4), BlockDiffusion(block=4, passes=1)
    answer = generate(decoder, prompt, sampling, models)
    module = models.target.library_module
    assert list(answer.tokens) == plain_loop(module, prompt, sampling, decoder, False)[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"block": 121}, "'block' of decoder 'dllm' is 121; it must be from 0 to 120"),
        ({"threshold": 1.5}, "'threshold' of decoder 'dllm' is 1.5; it must be from 0 to 1"),
        ({"passes": -1}, "it must be 1 or above, or 0"),
        ({"passes": 2, "threshold": 0.5}, "got passes and threshold; give one of them"),
    ],
)
def test_invalid_and_contradictory_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        BlockDiffusion(**options)


def test_dllm_refuses_a_causal_target_and_ar_a_masked_target() -> None:
    causal, masked = tiny_models(VOCAB, 64), masked_models()
    with pytest.raises(ValueError, match="'dllm' needs a target that predicts masked tokens"):
        check_models(BlockDiffusion(), causal, "dllm")
    with pytest.raises(ValueError, match="'ar' needs a causal target, but the model predicts"):
        check_models(Autoregressive(), masked, "ar")


@pytest.mark.parametrize(
    ("options", "form", "says"),
    [
        ({}, MaskedForm(), "names no mask token; add mask_token_id"),
        ({}, MaskedForm(mask_id=3, block=128), "1 to 120, as the target's block has 128 tokens"),
        ({"cache": "approximate"}, MaskedForm(mask_id=3, block=4), "as attention is by block"),
    ],
)
def test_a_masked_target_that_does_not_fit_the_options_is_refused(
    options: dict[str, Any], form: MaskedForm, says: str
) -> None:
    models = masked_models()
    models.target.masked = form
    with pytest.raises(ValueError, match=says):
        check_models(BlockDiffusion(**options), models, "dllm")


def test_a_draft_model_that_predicts_masks_is_refused() -> None:
    models = Models(target=tiny_models(VOCAB, 64).target, draft=masked_models().target)
    with pytest.raises(ValueError, match="needs a draft that predicts no masked tokens"):
        check_models(Speculative(), models, "spec")


def test_calls_that_run_as_graphs_give_the_same_tokens() -> None:
    plain, sampling = masked_models(), Sampling(temperature=0.8, max_new_tokens=10, seed=3)
    module = copy.deepcopy(plain.target.library_module)
    module.config.update({"is_causal": False, "mask_token_id": MASK, "block_size": 4})
    graphed = HFModel(module, compile=True, backend="eager")
    check_graphs(graphed, [2])
    decoder, models = BlockDiffusion(threshold=0.15), Models(target=graphed)
    for prompt in PROMPTS[:2]:
        expected = generate(decoder, prompt, sampling, plain).tokens
        assert generate(decoder, prompt, sampling, models).tokens == expected
    assert graphed.num_graphs > 0
