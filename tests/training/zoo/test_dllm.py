"""Training a block-diffusion model: its rows see what rows of decoding see; it resumes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.checkpoint import is_masked
from decoders.core.hf.model import HFModel
from decoders.core.types import Sampling
from decoders.extras.dllm import BlockDiffusion
from tests.tiny_recipe import stopped, trained_steps
from tests.training.zoo.test_train import RECIPE, SIZE
from training.recipe import RECIPES, read_recipe
from training.reporter import Reporter
from training.run import JobContext
from training.text.data import Row
from training.zoo.dllm import MaskedJob, MaskedRecipe, train_masked
from training.zoo.train import build_model

TINY = {**RECIPE, "dllm": SIZE, "masks": {"block": 4, "hidden": 0.25}}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("dllm")
    train_masked(TINY, output, progress="none", device="cpu")
    assert trained_steps(output, "dllm") == SIZE["num_steps"]
    return output


def job_of(output: Path) -> MaskedJob:
    reporter = Reporter("none", "dllm", None)
    return MaskedJob(MaskedRecipe.of(TINY), JobContext(output, torch.device("cpu"), reporter))


def test_each_answer_becomes_a_row_filled_up_with_end_tokens_to_whole_blocks(trained: Path) -> None:
    job = job_of(trained)
    end = job.encoder.end
    both = Row([5, 6, 7, end, 8, 9, end], [False, False, True, True, False, True, True])
    first, second = job._turns([both])
    assert first == Row([5, 6, 7, end], [False, False, True, True])
    assert second.ids == [5, 6, 7, end, 8, 9, end, end]
    assert second.learn == [False] * 5 + [True] * 3


def test_logits_of_masked_tokens_are_those_of_a_pass_over_the_text_up_to_their_block(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(trained)
    monkeypatch.setattr(torch, "bfloat16", torch.float32)  # no autocast
    ids = list(range(8, 24))
    row = Row(ids, [False] * 6 + [True] * 10)
    short = Row(ids[:8], [False] * 3 + [True] * 5)

    class AllMasked:
        """The first copy masks all learnt tokens, the second none."""

        def random(self, shape: Any) -> Any:
            return np.zeros(shape)

    with torch.no_grad():
        logits, labels = job._predictions([row, short], AllMasked())  # type: ignore[arg-type]
    assert labels.tolist() == ids[6:] + ids[3:8]
    expected = []
    for each in (row, short):
        for start in range(each.learn.index(True) // 4 * 4, len(each.ids), 4):
            text = list(each.ids[: start + 4])
            places = [at for at in range(start, start + 4) if each.learn[at]]
            for at in places:
                text[at] = job.mask_id
            block = torch.arange(len(text)) // 4
            hidden = block[None] > block[:, None]
            mask = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
            with torch.no_grad():
                out = job.trained(torch.tensor([text]), attention_mask=mask[None, None])
            expected.append(out.logits[0, places])
    torch.testing.assert_close(logits, torch.cat(expected), rtol=1e-3, atol=1e-4)


def test_a_resumed_run_reaches_the_same_weights(trained: Path, tmp_path: Path) -> None:
    with stopped():
        train_masked(TINY, tmp_path, progress="none", device="cpu")
    train_masked(TINY, tmp_path, progress="none", device="cpu")
    one, two = (load_file(each / "dllm" / "model.safetensors") for each in (trained, tmp_path))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_restart_with_another_tokenizer_takes_it(tmp_path: Path) -> None:
    sizes = []
    for merges in (20, 5):
        tokenizer = {**RECIPE["tokenizer"], "num_merges": merges}
        train_masked({**TINY, "tokenizer": tokenizer}, tmp_path, progress="none", resume=False)
        config = json.loads((tmp_path / "dllm" / "config.json").read_text(encoding="utf-8"))
        sizes.append(config["vocab_size"])
    assert sizes[0] == sizes[1] + 15


def test_the_checkpoint_declares_its_masks_and_dllm_decodes_it(trained: Path) -> None:
    folder = trained / "dllm"
    assert is_masked(str(folder))
    model = HFModel.load(folder, dtype=torch.float32)
    assert model.masked is not None
    assert (model.masked.block, model.masked.shifted) == (4, False)
    mask_id = model.masked.mask_id
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    marks = {each["content"]: each["id"] for each in tokenizer["added_tokens"]}
    assert marks["<|mask|>"] == mask_id == model.vocab_size - 1
    answer = generate(BlockDiffusion(), [5, 6, 7], Sampling(max_new_tokens=9), Models(target=model))
    assert len(answer.tokens) == 9
    assert mask_id not in answer.tokens


def test_the_log_has_the_accuracy_of_every_family(trained: Path) -> None:
    lines = (trained / "training_log.jsonl").read_text(encoding="utf-8").splitlines()
    held_out = [json.loads(line)["held_out"] for line in lines if "held_out" in line]
    assert len(held_out) == SIZE["num_steps"] // RECIPE["run"]["eval_steps"]
    assert all(0 <= each["accuracy"] <= 1 for each in held_out[-1].values())


def test_the_shipped_recipe_gives_a_model_below_1_2_megabytes() -> None:
    recipe = MaskedRecipe.of(read_recipe(RECIPES / "dllm.toml"))
    encoder = type("Encoder", (), {"end": 1, "pad": 0})
    model = build_model(recipe.dllm, 1582, encoder)  # type: ignore[arg-type]
    assert 2 * sum(each.numel() for each in model.parameters()) < 1.2e6
