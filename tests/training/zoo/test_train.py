"""Zoo training on a tiny recipe: the chat format, the lean forward pass, resuming, exporting."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench_tasks.generators import generate
from specbench_tasks.scorers import corpus_bleu, score
from specbench_tasks.task import FAMILIES
from tests.tiny_recipe import stopped, trained_steps
from training.forward import last_states
from training.loop import Loop
from training.recipe import LoopTable, read_recipe
from training.text.data import Encoder, groups, learnt, padded
from training.text.tokenizer import END, build_tokenizer
from training.zoo.train import (
    EVAL_SEED,
    MODELS,
    SizeTable,
    ZooRecipe,
    _family_scores,
    adapted_counts,
    build_model,
    train_zoo,
)

ZOO_TOML = Path(__file__).parents[3] / "training" / "recipes" / "zoo.toml"
SIZE: dict[str, Any] = {
    "width": 32,
    "layers": 2,
    "heads": 2,
    "intermediate": 64,
    "num_steps": 6,
    "warmup_steps": 2,
    "decay": 0.5,
    "muon_lr": 0.02,
    "adamw_lr": 0.003,
    "num_repeated": 2,
    "repeated_steps": 4,
    "seed": 5,
}
RECIPE: dict[str, Any] = {
    "tokenizer": {"num_examples": 40, "num_merges": 20, "seed": 1},
    "data": {
        "seed": 3,
        "max_tokens": 400,
        "adaptive": True,
        "counts": dict.fromkeys(FAMILIES, 1),
    },
    "run": {
        "workers": 1,
        "eval_steps": 2,
        "eval_prompts": 1,
        "eval_max_new_tokens": 4,
        "checkpoint_minutes": 1000,
    },
    "target": SIZE,
    "draft": {**SIZE, "layers": 1, "num_steps": 2},
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(**RECIPE["tokenizer"])


def weights(path: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return state


@pytest.mark.parametrize("family", FAMILIES)
def test_the_chat_template_gives_the_training_format(family: str, tokenizer: Any) -> None:
    encoder = Encoder(tokenizer)
    examples = generate(family, "train", 8)
    for _ in range(20):
        example = next(examples)
        messages = []
        for turn, response in zip(example.turns, example.responses, strict=True):
            messages += [
                {"role": "user", "content": turn},
                {"role": "assistant", "content": response},
            ]
        row = encoder.row(example)
        ids = tokenizer.apply_chat_template(messages, return_dict=False)
        assert ids == row.ids
        prompt = tokenizer.apply_chat_template(
            messages[:1], add_generation_prompt=True, return_dict=False
        )
        assert prompt == row.ids[: len(prompt)]
        assert row.learn[len(prompt)]
        assert not row.learn[len(prompt) - 1]


def test_text_survives_the_tokenizer(tokenizer: Any) -> None:
    texts = ["Grüße, Welt! 1234\n\tx  y", "日本 <b>&amp;</b>", " it 's , spaced ."]
    texts += [next(generate(family, "test", 2)).responses[0] for family in FAMILIES]
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_each_digit_is_a_token(tokenizer: Any) -> None:
    assert len(tokenizer.encode("907")) == 3


def test_a_system_message_opens_the_first_turn(tokenizer: Any) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi."}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|> Be kind. Hi.<|assistant|>"


def test_the_forward_pass_of_training_equals_transformers_own(tokenizer: Any) -> None:
    model = build_model(SizeTable(**SIZE), len(tokenizer), Encoder(tokenizer))
    ids = torch.randint(0, len(tokenizer), (3, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got = last_states(model, input_ids=ids)
        model.set_attn_implementation("eager")
        want = model.model(ids).last_hidden_state
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_batches_learn_answers_and_end_tokens_only(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer)
    rows = encoder.rows(dict.fromkeys(FAMILIES, 2), seed=1, step=0)
    rows += encoder.repeated(3, seed=1, step=0)
    batches = [(padded(group, encoder.pad), learnt(group)) for group in groups(rows, 300)]
    assert sum(len(ids) for ids, _ in batches) == len(rows) == 15
    assert all(ids.numel() <= 300 or len(ids) == 1 for ids, _ in batches)
    targets = torch.cat([ids[learn] for ids, learn in batches])
    assert len(targets) == sum(sum(row.learn) for row in rows)
    assert encoder.pad not in targets
    assert encoder.user not in targets
    assert (targets == encoder.end).sum() >= 15


@pytest.mark.slow
def test_a_stopped_and_a_killed_run_both_resume_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_zoo(RECIPE, tmp_path / "whole", progress="none")
    with stopped():
        train_zoo(RECIPE, tmp_path / "parts", progress="none")
    often = {**RECIPE, "run": {**RECIPE["run"], "checkpoint_minutes": 0.0}}
    real_step = Loop._step

    def killed_at_step_four(loop: Loop, seconds: float) -> None:
        if loop.progress.step == 4:
            raise KeyboardInterrupt
        real_step(loop, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", killed_at_step_four)
        with pytest.raises(KeyboardInterrupt):
            train_zoo(often, tmp_path / "parts", progress="none")
    train_zoo(RECIPE, tmp_path / "parts", progress="none")
    for name in MODELS:
        whole = weights(tmp_path / "whole" / ".training" / f"{name}.pt")
        parts = weights(tmp_path / "parts" / ".training" / f"{name}.pt")
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[key], parts[key]) for key in whole)


@pytest.mark.slow
def test_the_exported_models_load_and_share_a_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    train_zoo(RECIPE, tmp_path, progress="none")
    for name in MODELS:
        model = AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / name)
        assert tokenizer.eos_token == END
        assert model.config.eos_token_id == tokenizer.eos_token_id
        assert model.config.vocab_size == len(tokenizer)
        trained = weights(tmp_path / ".training" / f"{name}.pt")["model.norm.weight"]
        assert torch.equal(model.model.norm.weight, trained.to(torch.bfloat16).float())
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hi."}], add_generation_prompt=True, return_dict=False
        )
        assert model(torch.tensor([ids])).logits.shape == (1, len(ids), len(tokenizer))


@pytest.mark.slow
def test_the_log_holds_losses_and_scores_per_family(tmp_path: Path) -> None:
    train_zoo(RECIPE, tmp_path, progress="plain")
    log = tmp_path / ".training" / "target.jsonl"
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    scores = [record for record in records if "scores" in record]
    assert set(scores[-1]["scores"]) == set(FAMILIES)
    assert scores[-1]["tokens"] > 0
    assert (tmp_path / "training_log.jsonl").read_bytes() == log.read_bytes()


@pytest.mark.slow
def test_a_checkpoint_of_another_recipe_is_refused(tmp_path: Path) -> None:
    train_zoo(RECIPE, tmp_path, progress="none")
    other = {**RECIPE, "target": {**SIZE, "muon_lr": 0.5}}
    with pytest.raises(ValueError, match="made by another recipe; delete it"):
        train_zoo(other, tmp_path, progress="none")
    train_zoo(other, tmp_path, resume=False, progress="none")
    assert trained_steps(tmp_path, "target") == SIZE["num_steps"]


def test_an_incomplete_recipe_says_which_section_is_missing(tmp_path: Path) -> None:
    without = {name: table for name, table in RECIPE.items() if name != "data"}
    with pytest.raises(ValueError, match=r"^recipe: data is missing; add it$"):
        train_zoo(without, tmp_path)
    with pytest.raises(ValueError, match=r"^recipe: unknown key target.size; use width, layers"):
        train_zoo({**RECIPE, "target": {**SIZE, "size": 1}}, tmp_path)
    with pytest.raises(ValueError, match="unknown key drafts; use tokenizer, data, run, target, "):
        train_zoo({**RECIPE, "drafts": {}}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_shipped_recipe_is_complete() -> None:
    recipe = ZooRecipe.of(read_recipe(ZOO_TOML))
    assert set(recipe.data.counts) == set(FAMILIES)


def test_a_recipe_may_extend_another(tmp_path: Path) -> None:
    (tmp_path / "zoo.toml").write_bytes(ZOO_TOML.read_bytes())
    path = tmp_path / "short.toml"
    path.write_text('extends = "zoo.toml"\n[target]\nnum_steps = 1\n', encoding="utf-8")
    whole = read_recipe(ZOO_TOML)
    assert read_recipe(path) == {**whole, "target": {**whole["target"], "num_steps": 1}}


def test_the_rate_warms_up_stays_and_decays() -> None:
    run = LoopTable(num_steps=100, warmup_steps=10, decay=0.2, adamw_lr=1)
    assert run.rate_scale(0) == pytest.approx(0.1)
    assert run.rate_scale(50) == 1
    assert run.rate_scale(90) == pytest.approx(0.5)
    assert run.rate_scale(99) == pytest.approx(0.05)


def test_with_a_time_limit_the_learning_rate_decays_by_the_clock_if_time_runs_out_first() -> None:
    run = LoopTable(num_steps=100, warmup_steps=1, decay=0.2, adamw_lr=1, minutes=2)
    assert run.rate_scale(5, seconds=60) == 1
    assert run.rate_scale(5, seconds=108) == pytest.approx(0.5)
    assert run.rate_scale(95, seconds=60) == pytest.approx(0.25)
    assert run.share_of_time(119) < 1 <= run.share_of_time(120)


def test_families_that_fail_get_more_rows() -> None:
    base = dict.fromkeys(FAMILIES, 5)
    counts = adapted_counts(base, {family: float(family != "rag") for family in FAMILIES})
    assert counts["rag"] > 10 > counts["qa"] >= 2


@pytest.mark.parametrize("family", ["translation", "qa"])
def test_a_family_is_scored_by_its_mean_and_translation_by_corpus_bleu(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = list(itertools.islice(generate(family, "test", EVAL_SEED), 4))
    said = [[example.responses[0] if i else "Der"] for i, example in enumerate(examples)]
    monkeypatch.setattr("training.zoo.train._chat_answers", lambda *_: said)
    unused: Any = None
    scores = _family_scores(unused, unused, family, 4, 8)
    golds = [example.references[0] for example in examples]
    pairs = [(text, gold) for (text,), gold in zip(said, golds, strict=True) if gold is not None]
    assert len(pairs) == 4
    assert scores["exact"] == 0.75
    if family == "translation":
        assert scores["score"] == corpus_bleu([(text, gold.answers) for text, gold in pairs]) < 1
    else:
        right = [score(family, *pair)["contains_answer"] for pair in pairs]
        assert scores["score"] == sum(right) / 4 == 0.75
