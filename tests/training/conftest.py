"""Tiny models in folders, and a recipe that trains an adapter on one of them in a second."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from tests.tiny_recipe import ADAPTER, RUN, SIZES, toml_of
from training.text.tokenizer import build_tokenizer


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of tiny random models: `zoo` speaks its tokenizer, `letters` has a BOS token."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("models")
    zoo = build_tokenizer(num_examples=40, num_merges=20, seed=1)
    words = ["<s>", "</s>", "<unk>", *"abcdefghijklmnopqrstuvwxyz ."]
    letters = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<unk>"))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    letters.decoder = decoders.Fuse()
    make: Any = PreTrainedTokenizerFast
    ends = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    spelling = make(tokenizer_object=letters, **ends)
    named: list[tuple[str, Any, Any]] = [
        ("zoo", zoo, {}),
        ("letters", spelling, {"bos_token_id": 0}),
    ]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        for name, tokenizer, more in named:
            config = LlamaConfig(vocab_size=len(tokenizer), eos_token_id=1, **SIZES, **more)
            LlamaForCausalLM(config).save_pretrained(folder / name)
            tokenizer.save_pretrained(folder / name)
        narrow = MistralConfig(vocab_size=len(zoo), eos_token_id=1, sliding_window=100, **SIZES)
        MistralForCausalLM(narrow).save_pretrained(folder / "sliding")
        zoo.save_pretrained(folder / "sliding")
    return folder


@pytest.fixture
def recipe(home: Path) -> dict[str, Any]:
    return {
        "model": {"path": str(home / "zoo"), "dtype": "float32"},
        "adapter": dict(ADAPTER),
        "sampling": {"temperatures": [0.5, 1.0], "top_ps": [0.95, 1.0], "greedy": 0.25},
        "data": {"kind": "zoo", "seed": 2, "counts": {"math_reasoning": 2, "translation": 2}},
        "run": dict(RUN),
    }


@pytest.fixture
def saved(recipe: dict[str, Any], tmp_path: Path) -> Callable[[], Path]:
    """Writes the recipe, as a test or its fixtures left it."""

    def save() -> Path:
        path = tmp_path / "recipe.toml"
        path.write_text(toml_of(recipe), encoding="utf-8")
        return path

    return save
