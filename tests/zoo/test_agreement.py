"""Six ways to the same tokens: decoders that share next to no code agree, in float32."""

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from bench.plan.sources import load_adapter
from decoders.core.engine.models import Models
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from tests.zoo.answers import held_out, sampling_for, tokens_of
from tests.zoo.conftest import ROOT

SPECS = ["spec", "ptp", "medusa", "eagle", "shallow", "hf"]


@pytest.mark.parametrize(
    ("per_family", "num"), [(1, 3), pytest.param(9, 50, marks=pytest.mark.slow)]
)
def test_ar_spec_adapter_decoders_and_transformers_emit_the_same_tokens(
    zoo: Models, tokenizer: PreTrainedTokenizerBase, per_family: int, num: int
) -> None:
    target = HFModel.load(ROOT / "zoo" / "target", dtype=torch.float32, device="cpu")
    for name in ("ptp", "medusa", "eagle", "shallow"):
        target.attach(name, load_adapter(name, ROOT / "zoo" / name))
    models = Models(target=target, draft=zoo.draft)
    prompts, sampling = held_out(tokenizer, per_family)[:num], sampling_for(zoo, tokenizer)
    assert len(prompts) == num
    expected = tokens_of(build(parse_spec("ar")), models, prompts, sampling)
    assert sum(map(len, expected)) > 20 * num
    for spec in SPECS:
        assert tokens_of(build(parse_spec(spec)), models, prompts, sampling) == expected, spec
