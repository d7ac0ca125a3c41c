"""On trained weights: transformers' loops give AR's tokens, and ours run inside of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from decoders import transformers_generate
from decoders.ar import Autoregressive
from decoders.core.adapter.module import SlotAdapter
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from decoders.spec import Speculative
from tests.zoo.answers import held_out, sampling_for, tokens_of, tokens_of_ar
from tests.zoo.conftest import ROOT

LOOPS = ["hf", "hf:kind=assisted", "hf:kind=lookup", "hf:kind=early-exit:exit_layer=2"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [*LOOPS[:2], *(pytest.param(spec, marks=pytest.mark.slow) for spec in LOOPS[2:])]
)
def test_a_loop_of_transformers_gives_ars_tokens_alone_and_in_a_batch(
    zoo: Models, tokenizer: PreTrainedTokenizerBase, spec: str
) -> None:
    prompts, sampling = held_out(tokenizer, 1), sampling_for(zoo, tokenizer)
    expected = tokens_of_ar(zoo, prompts, sampling, 6)
    decoder = build(parse_spec(spec))
    assert tokens_of(decoder, zoo, prompts[:2], sampling) == expected[:2]
    assert tokens_of(decoder, zoo, prompts, sampling, 4) == expected


@pytest.mark.slow
@pytest.mark.parametrize("spec", LOOPS)
def test_a_loop_of_transformers_gives_ars_tokens_to_many_prompts(
    zoo: Models, tokenizer: PreTrainedTokenizerBase, spec: str
) -> None:
    prompts, sampling = held_out(tokenizer, 9)[:50], sampling_for(zoo, tokenizer)
    expected = tokens_of(Autoregressive(), zoo, prompts, sampling, 10)
    assert tokens_of(build(parse_spec(spec)), zoo, prompts, sampling) == expected


@pytest.mark.slow
def test_assisted_generation_emits_about_as_many_tokens_per_step_as_spec(
    zoo: Models, tokenizer: PreTrainedTokenizerBase
) -> None:
    # It drafts before the prompt's own token and ends a draft at EOS, so steps begin elsewhere:
    # same draft and k, so nearly as many tokens a step.
    prompts, sampling = held_out(tokenizer, 1), sampling_for(zoo, tokenizer)
    per_step = []
    for decoder in (build(parse_spec("hf:kind=assisted")), Speculative()):
        later = [s for p in prompts for s in generate(decoder, p, sampling, zoo).steps[1:-1]]
        per_step.append(sum(len(step.tokens) for step in later) / len(later))
    assert per_step[0] == pytest.approx(per_step[1], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["ptp", "spec"])
def test_generate_of_transformers_with_our_decoder_emits_its_greedy_ids(
    zoo: Models, tokenizer: PreTrainedTokenizerBase, spec: str
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(ROOT / "zoo" / "target", dtype=torch.float32)
    loop = transformers_generate(
        spec, draft=ROOT / "zoo" / "draft", adapters={"ptp": ROOT / "zoo" / "ptp"}, seed=3
    )
    assert isinstance(zoo.target, HFModel)
    if "ptp" not in zoo.target.adapters:
        zoo.target.attach("ptp", SlotAdapter.load(ROOT / "zoo" / "ptp"))
    sampling = sampling_for(zoo, tokenizer)
    decoder = build(parse_spec(spec))
    for prompt in held_out(tokenizer, 1)[:3]:
        ids = torch.tensor([prompt])
        asked: dict[str, Any] = {
            "attention_mask": torch.ones_like(ids),
            "max_new_tokens": sampling.max_new_tokens,
            "eos_token_id": sorted(sampling.stop_ids),
        }
        given = model.generate(ids, do_sample=False, custom_generate=loop, **asked)
        assert torch.equal(given, model.generate(ids, do_sample=False, **asked))
        expected = generate(decoder, prompt, sampling, zoo).tokens
        assert tuple(given[0, len(prompt) :].tolist()) == expected
