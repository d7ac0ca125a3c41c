"""Row-invariant numerics on the zoo: the tokens of every lossless decoder are AR's, bit for bit."""

import functools
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from bench.plan.sources import load_adapter
from decoders.core.engine.models import Models
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from decoders.core.types import Sampling
from tests.zoo.answers import held_out, tokens_of
from tests.zoo.conftest import ROOT

TILE = 16
ADAPTERS = ("ptp", "isd", "medusa", "eagle", "shallow")
DECODERS = (
    *("spec:verify=coupled", "ptp", "idlm:mode=isd:verify=coupled", "lookup", "jacobi"),
    *("lookahead", "medusa", "eagle", "shallow", "suffix"),
)


@functools.cache
def opened(dtype: torch.dtype) -> Models:
    def load(role: str) -> Any:
        return HFModel.load(ROOT / "zoo" / role, dtype=dtype, device="cpu").in_tiles(TILE)

    target = load("target")
    for name in ADAPTERS:
        target.attach(name, load_adapter(name, ROOT / "zoo" / name))
    return Models(target=target, draft=load("draft"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "temperature", "batch"),
    [
        pytest.param(torch.bfloat16, 0.0, 1, marks=pytest.mark.slow),
        (torch.bfloat16, 0.7, 3),
        pytest.param(torch.float32, 0.7, 1, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_lossless_decoders_give_the_very_tokens_of_ar(
    tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype, temperature: float, batch: int
) -> None:
    models = opened(dtype)
    prompts = held_out(tokenizer, 1)[:3]
    models.reserve(3, max(map(len, prompts)) + 20)
    sampling = Sampling(max_new_tokens=12, temperature=temperature)
    expected = tokens_of(build(parse_spec("ar")), models, prompts, sampling)
    for spec in DECODERS:
        decoder = build(parse_spec(spec))
        assert decoder.comparable_to_ar(sampling), spec
        assert tokens_of(decoder, models, prompts, sampling, batch) == expected, spec
