"""Heads from recipe to decoding: what they learn, resumption, reports, the command."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.ar import Autoregressive
from decoders.core.adapter.draft_layer import DraftLayer
from decoders.core.adapter.heads import DraftHeads
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.checkpoint import weights_sha256
from decoders.core.hf.model import HFModel
from decoders.core.types import DraftShape, Sampling
from decoders.eagle import Eagle
from decoders.medusa import Medusa
from tests.command_line import bench
from tests.tiny_recipe import toml_of, trained_steps, whole_and_parts
from training.adapters import build_job, train_heads
from training.heads.job import NONE, HeldOut, HiddenJob, head_targets, unrolled
from training.heads.recipe import HeadsRecipe
from training.recipe import RECIPES, read_recipe
from training.reporter import Reporter, TrainingProgress
from training.run import JobContext
from training.text.data import Row


@pytest.fixture
def tables(home: Path) -> dict[str, Any]:
    """A recipe of seconds."""
    return {
        "model": {"path": str(home / "letters")},
        "heads": {"num_heads": 3, "rank": 16, "seed": 1},
        "data": {
            "kind": "on-policy", "num_completions": 24, "max_new_tokens": 20, "max_tokens": 40,
            "temperatures": [0.7], "rows_per_step": 6, "seed": 1,
        },
        "run": {
            "num_steps": 60, "warmup_steps": 2, "adamw_lr": 0.03, "max_tokens": 80,
            "eval_steps": 20, "eval_rows": 8,
        },
    }  # fmt: skip


def job_of(tables: dict[str, Any], folder: Path) -> Any:
    reporter = Reporter("none", "heads", None)
    return build_job(HeadsRecipe.of(tables), JobContext(folder, torch.device("cpu"), reporter))


def test_each_head_learns_the_answer_token_at_its_distance() -> None:
    row = Row([10, 11, 12, 13, 14], [False, False, True, True, True])
    short = Row([20, 21], [False, True])
    targets = head_targets([row, short], 2)
    assert targets[0].tolist() == [
        [NONE, NONE],  # the token after it is of the prompt
        [13, 14],
        [14, NONE],
        [NONE, NONE],
        [NONE, NONE],
    ]
    assert (targets[1] == NONE).all()


def test_the_loss_is_the_weighted_sum_of_the_losses_of_heads(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    """Against the module's own states, row by row, and logits of one state at a time."""
    tables["run"]["head_decay"] = 0.5
    job = job_of(tables, tmp_path)
    generator = torch.Generator().manual_seed(2)
    job.heads.up.data = 0.2 * torch.randn(job.heads.up.shape, generator=generator)
    progress, expected, num = TrainingProgress(), 0.0, 0
    for row in job.source.rows(0):
        hidden = job.module.base_model(torch.tensor([row.ids])).last_hidden_state[0]
        for place in range(len(row.ids)):
            for head in range(3):
                at = place + 2 + head
                if at < len(row.ids) and row.learn[place + 1] and row.learn[at]:
                    logits = job.module.lm_head(job.heads(hidden[place][None])[0, head])
                    expected -= 0.5**head * logits.log_softmax(-1)[row.ids[at]].item()
                    num += 1
    pieces = list(job.pieces(progress))
    assert sum(piece[0].item() for piece in pieces) == pytest.approx(expected, rel=1e-4)
    assert sum(piece[1] for piece in pieces) == num
    assert sum(piece[2] for piece in pieces) == sum(len(row.ids) for row in job.source.rows(0))
    job.run = job.run.model_copy(update={"max_logits": 3 * 30 * 4})  # a few states at a time
    cut = list(job.pieces(progress))
    assert len(cut) > len(pieces)
    assert sum(piece[0].item() for piece in cut) == pytest.approx(expected, rel=1e-4)
    assert sum(piece[2] for piece in cut) == sum(piece[2] for piece in pieces)


def oracle(ranks: Sequence[Sequence[int | None]]) -> float:
    """Mean leading heads that are right."""
    return sum(
        sum(1 for _ in itertools.takewhile(lambda rank: rank == 0, row)) for row in ranks
    ) / len(ranks)


def test_held_out_accuracy_uses_the_argmax_over_all_words(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    """Against the logits themselves, head by head; random heads are right at times."""
    tables["run"]["eval_rows"] = 24
    job = job_of(tables, tmp_path)
    generator = torch.Generator().manual_seed(2)
    job.heads.up.data = 0.2 * torch.randn(job.heads.up.shape, generator=generator)
    likeliest, known = torch.zeros(3), torch.zeros(3)
    with torch.no_grad():
        for row in job.source.held_out(24):
            hidden = job.module.base_model(torch.tensor([row.ids])).last_hidden_state[0]
            targets = head_targets([row], 3)[0]
            for state, after in zip(hidden, targets.tolist(), strict=True):
                logits = job.module.lm_head(job.heads(state[None])[0])
                for head, token in enumerate(after):
                    if token != NONE:
                        known[head] += 1
                        likeliest[head] += int(logits[head].argmax()) == token
    report = job.held_out()
    assert sum(likeliest) > 0
    assert report.accuracy == pytest.approx((likeliest / known).tolist(), abs=1e-3)


def test_a_report_counts_each_heads_accuracy_and_the_leading_correct_drafts() -> None:
    ranks: list[list[int | None]] = [[0, 0, 5], [0, 2, None], [3, 0, 0], [9, None, None]]
    known = torch.tensor([[rank is not None for rank in row] for row in ranks])
    table = Tensor([[0 if rank is None else rank for rank in row] for row in ranks]).long()
    report = HeldOut.of(table == 0, known, 2)
    assert report.accuracy == [0.5, 0.6667, 0.5]
    assert report.leading == oracle(ranks) == 0.75
    assert report.summary() == "leading correct of 3: 0.75; accuracy by head 0.50 0.67 0.50"


def test_heads_are_trained_saved_in_half_precision_and_draft_losslessly(
    tables: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    before = weights_sha256(home / "letters")
    train_heads(tables, tmp_path, progress="none")
    assert trained_steps(tmp_path, "heads") == 60
    records = [json.loads(x) for x in (tmp_path / "training_log.jsonl").read_text().splitlines()]
    leading = [record["held_out"]["leading"] for record in records if "held_out" in record]
    assert len(leading) == 3
    heads, job = DraftHeads.load(tmp_path), job_of(tables, tmp_path)
    fresh = sum(loss.item() for loss, _, _ in job.pieces(TrainingProgress()))
    job.heads = heads
    assert sum(loss.item() for loss, _, _ in job.pieces(TrainingProgress())) < 0.9 * fresh
    assert heads.config.measured["leading"] == leading[-1]
    assert heads.config.base == {"architecture": "LlamaForCausalLM", "weights_sha256": before}
    assert torch.equal(heads.up, heads.up.half().float())
    target = HFModel.load(home / "letters", dtype=torch.float32, device="cpu")
    target.attach("medusa", heads)
    sampling = Sampling(temperature=0.7, max_new_tokens=20, seed=1)
    models = Models(target=target)
    expected = generate(Autoregressive(), [0], sampling, models).tokens
    assert generate(Medusa(), [0], sampling, models).tokens == expected


def test_a_resumed_run_ends_in_the_weights_of_an_uninterrupted_one(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    folders = whole_and_parts(train_heads, tables, tmp_path)
    whole, parts = (DraftHeads.load(folder).state_dict() for folder in folders)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    tables["run"]["minutes"] = 9.0  # how long it may last decides no step
    train_heads(tables, tmp_path / "whole", progress="none")
    assert trained_steps(tmp_path / "whole", "heads") == 4
    tables["heads"]["rank"] = 8
    with pytest.raises(ValueError, match="made by another recipe"):
        train_heads(tables, tmp_path / "whole", progress="none")
    train_heads(tables, tmp_path / "whole", progress="none", resume=False)
    assert trained_steps(tmp_path / "whole", "heads") == 4


@pytest.mark.parametrize(
    "name",
    [
        "medusa.toml",
        "medusa-any.toml",
        "eagle.toml",
        "eagle-any.toml",
    ],
)
def test_the_shipped_recipes_are_complete_and_small_enough(
    name: str, home: Path, tmp_path: Path
) -> None:
    tables = read_recipe(RECIPES / name)
    tables["data"] |= {"num_completions": 8, "max_new_tokens": 3, "max_tokens": 512}
    tables["data"]["prompts"] = {"kind": "zoo", "counts": {"translation": 1}}
    job = job_of(tables, tmp_path)
    assert job.source.rows(0)
    assert job.heads.num_parameters <= 1_500_000


def test_the_command_trains_heads(tables: dict[str, Any], home: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "recipe.toml", tmp_path / "out"
    path.write_text(toml_of(tables), encoding="utf-8")
    train = ("train", "medusa", "--recipe", path, "-o", out, "--progress", "none")
    ended = bench(*train, "--num-steps", 2)
    assert (ended.code, ended.err) == (0, "")
    on_policy = ("--data", "on-policy", "--model", home / "letters")
    assert bench(*train, "--num-steps", 3, *on_policy).code == 0
    assert torch.load(out / ".training" / "heads.pt")["progress"]["step"] == 3
    for wrong, told in (
        (("--set", "heads.num_heads=0"), "heads.num_heads"),
        (("--set", "run.strides=2"), "unknown key run.strides"),
        (("--set", "heads.ranks=2"), "unknown key heads.ranks; use num_heads, rank, seed"),
        (
            ("--set", "run.muon_lr=0.02"),
            "run.muon_lr is 0.02; `bench train medusa` ignores it: unset it (None)",
        ),
    ):
        ended = bench(*train, *wrong)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert told in ended.err


LAYER = {"layer": {"unroll": 2, "rank": 16, "num_heads": 2}}
DRAFTER = {"drafter": {"num_slots": 3, "rank": 16, "num_heads": 2, "bias_rank": 4}}


@pytest.mark.parametrize(
    ("table", "key"),
    [
        *(({}, key) for key in HiddenJob.unread),
        *((LAYER, key) for key in ("anchors_per_row", "position_decay", "label_share")),
        *((DRAFTER, key) for key in ("head_decay", "max_logits")),
    ],
)
def test_a_key_that_the_trainer_would_ignore_is_refused(
    tables: dict[str, Any], tmp_path: Path, table: dict[str, Any], key: str
) -> None:
    if table:
        del tables["heads"]
    tables |= table
    tables["run"][key] = 1
    with pytest.raises(ValueError, match=rf"run\.{key} is .*; `bench train .*unset it"):
        job_of(tables, tmp_path)


def test_muon_updates_the_matrices_of_a_draft_layer_if_the_recipe_has_a_rate_for_them(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    del tables["heads"]
    tables |= LAYER
    (adamw,) = job_of(tables, tmp_path).optimizers()
    assert isinstance(adamw, torch.optim.AdamW)
    tables["run"]["muon_lr"] = 0.02
    job = job_of(tables, tmp_path)
    muon, adamw = job.optimizers()
    assert isinstance(muon, torch.optim.Muon)
    layer = job.heads
    matrices = [layer.join, layer.attention, layer.attention_out, layer.feed, layer.feed_out]
    assert [*map(id, muon.param_groups[0]["params"])] == [*map(id, matrices)]
    assert [*map(id, adamw.param_groups[0]["params"])] == [id(layer.scale)]
    assert muon.param_groups[0]["lr"] == 0.02


def test_shipped_recipes_set_no_key_that_their_trainers_ignore() -> None:
    every = map(read_recipe, RECIPES.glob("*.toml"))
    recipes = [HeadsRecipe.of(each) for each in every if {"heads", "layer", "drafter"} & {*each}]
    for recipe in recipes:
        recipe.run.refuse_unread(resolve_name(recipe.network.job).unread, "its trainer")
    assert len(recipes) >= 9


@pytest.mark.slow
def test_a_draft_layer_is_trained_saved_and_drafts_losslessly(
    tables: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    del tables["heads"]
    tables["layer"] = {"unroll": 3, "rank": 16, "num_heads": 2, "seed": 1}
    tables["run"]["adamw_lr"] = 0.01
    fresh = job_of(tables, tmp_path)
    before = sum(loss.item() for loss, _, _ in fresh.pieces(TrainingProgress()))
    train_heads(tables, tmp_path, progress="none")
    assert trained_steps(tmp_path, "heads") == 60
    layer, job = DraftLayer.load(tmp_path), job_of(tables, tmp_path)
    job.heads = layer
    # most of it is the entropy of the target itself
    assert sum(loss.item() for loss, _, _ in job.pieces(TrainingProgress())) < 0.95 * before
    assert len(layer.config.measured["accuracy"]) == 3
    target = HFModel.load(home / "letters", dtype=torch.float32, device="cpu")
    target.attach("eagle", layer)
    sampling = Sampling(temperature=0.7, max_new_tokens=20, seed=1)
    models = Models(target=target)
    expected = generate(Autoregressive(), [0], sampling, models).tokens
    answer = generate(Eagle(), [0], sampling, models)
    assert answer.tokens == expected
    assert sum(step.draft_calls for step in answer.steps) > 0


def test_a_draft_layers_loss_is_against_the_targets_own_distribution(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    """Row by row and place by place, from the module's own logits and the unrolled states."""
    del tables["heads"]
    tables["layer"] = {"unroll": 2, "rank": 8, "num_heads": 2}
    tables["run"]["head_decay"] = 0.5
    job = job_of(tables, tmp_path)
    expected, num = 0.0, 0
    for row in job.source.rows(0):
        ids = torch.tensor([row.ids])
        hidden = job.module.base_model(ids).last_hidden_state
        truth = job.module.lm_head(hidden)[0].softmax(-1)
        embedded = job.module.get_input_embeddings()(ids)
        states = unrolled(job.heads, hidden, embedded, 2)
        for place in range(len(row.ids)):
            for depth in range(2):
                at = place + 2 + depth
                if at < len(row.ids) and row.learn[place + 1] and row.learn[at]:
                    drafted = job.module.lm_head(states[depth][0, place]).log_softmax(-1)
                    expected -= 0.5**depth * (truth[at - 1] * drafted).sum().item()
                    num += 1
    pieces = list(job.pieces(TrainingProgress()))
    assert sum(piece[0].item() for piece in pieces) == pytest.approx(expected, rel=1e-4)
    assert sum(piece[1] for piece in pieces) == num


def test_a_draft_layer_with_few_words_learns_the_targets_distribution_over_those_words(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    """Against a layer of all words, masked by hand; kept states are those computed anew."""
    del tables["heads"]
    tables["layer"] = {"unroll": 2, "rank": 8, "num_heads": 2, "words": 7}
    tables["run"] |= {"head_decay": 0.5, "keep_states": True}
    job = job_of(tables, tmp_path)
    words = job.heads.words.tolist()
    assert sorted(job.source.frequent(7)) == words
    whole = job_of(tables | {"layer": {**tables["layer"], "words": 0}}, tmp_path)
    expected, num = 0.0, 0
    for row in job.source.rows(0):
        ((logits, targets, truth),) = whole._drafted([row])
        drafted = logits[..., words].log_softmax(-1)
        losses = -(truth[..., words].softmax(-1) * drafted).sum(-1) * (targets != NONE)
        expected += (losses * torch.tensor([1.0, 0.5])).sum().item()
        num += int((targets != NONE).sum())
    for _ in range(2):  # the second time by the states that were kept
        pieces = list(job.pieces(TrainingProgress()))
        assert sum(piece[0].item() for piece in pieces) == pytest.approx(expected, rel=1e-3)
        assert sum(piece[1] for piece in pieces) == num


def test_held_out_tokens_that_a_draft_layer_has_no_word_for_count_as_wrong(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    del tables["heads"]
    tables["layer"] = {"unroll": 2, "rank": 8, "num_heads": 2, "words": 3}
    job = job_of(tables, tmp_path)
    rows = job.source.held_out(8)
    ((_, targets, _),) = [next(job._drafted(rows))]
    indices = job._indices(targets)
    outside = (targets != NONE) & ~torch.isin(targets, job.heads.words)
    assert outside.any()
    assert (indices[outside] == NONE).all()  # no word is this
    inside = (targets != NONE) & ~outside
    assert torch.equal(job.heads.words[indices[inside]], targets[inside])


def test_a_draft_layer_can_have_words_absent_from_answers_but_not_more_words_than_the_model(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    del tables["heads"]
    tables["layer"] = {"unroll": 2, "rank": 8, "num_heads": 2, "words": 500}
    num_words = len(job_of(tables | {"layer": {"num_heads": 2}}, tmp_path).module.lm_head.weight)
    with pytest.raises(ValueError, match=r"layer\.words is 500; the model has \d+ words"):
        job_of(tables, tmp_path)
    tables["layer"]["words"] = num_words - 1
    words = job_of(tables, tmp_path).heads.words.tolist()
    assert words == sorted(set(words))
    assert len(words) == num_words - 1


@pytest.mark.slow
def test_a_draft_layer_with_few_words_drafts_only_those_words_and_emits_ars_tokens(
    tables: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    del tables["heads"]
    tables["layer"] = {"unroll": 2, "rank": 16, "num_heads": 2, "words": 4}
    train_heads(tables, tmp_path, progress="none")
    layer = DraftLayer.load(tmp_path)
    target = HFModel.load(home / "letters", dtype=torch.float32, device="cpu")
    target.attach("eagle", layer)
    head = target.module.get_output_embeddings().weight
    short = 4 * head.shape[1] * head.element_size()
    assert target.adapter_bytes("eagle") == 4 * layer.num_parameters + short
    models = Models(target=target)
    models.ensure(1, 8)
    session, states = target.open(), torch.randn(1, layer.config.width)
    shape = DraftShape(depth=2, width=4, nodes=20)
    (drafts,) = target.draft([session.draft("eagle", states, [0], shape, Sampling())])
    assert sorted({*drafts.picks}) == layer.words.tolist() != [0, 1, 2, 3]
    target.close(session)
    for temperature in (0.0, 0.7):
        sampling = Sampling(temperature=temperature, max_new_tokens=20, seed=1)
        expected = generate(Autoregressive(), [0], sampling, models).tokens
        for verify in ("coupled", "rejection") if temperature == 0 else ("coupled",):
            assert generate(Eagle(verify=verify), [0], sampling, models).tokens == expected


@pytest.mark.slow
def test_a_draft_layer_can_start_from_a_draft_layer_of_the_same_sizes(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    del tables["heads"]
    tables["layer"] = {"unroll": 2, "rank": 8, "num_heads": 2, "words": 4}
    train_heads(tables, tmp_path, progress="none")
    given = DraftLayer.load(tmp_path)
    tables["layer"] |= {"seed": 9, "initial": str(tmp_path)}
    begun = job_of(tables, tmp_path / "next").heads
    assert begun.feed.requires_grad
    assert all(torch.equal(value, begun.state_dict()[k]) for k, value in given.state_dict().items())
    tables["layer"]["rank"] = 16
    with pytest.raises(ValueError, match=r"layer\.initial .* has other sizes than \[layer\]"):
        job_of(tables, tmp_path / "next")


def test_the_command_trains_a_draft_layer(
    tables: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    del tables["heads"]
    tables["layer"] = {"unroll": 2, "rank": 8, "num_heads": 2}
    path, out = tmp_path / "recipe.toml", tmp_path / "out"
    path.write_text(toml_of(tables), encoding="utf-8")
    train = ("train", "eagle", "--recipe", path, "-o", out, "--progress", "none")
    ended = bench(*train, "--num-steps", 2)
    assert (ended.code, ended.err) == (0, "")
    assert DraftLayer.load(out).config.variant == "eagle"


def test_a_run_stops_at_its_limit_of_minutes(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["run"] |= {"num_steps": 10**6, "minutes": 0.01}
    train_heads(tables, tmp_path, progress="none")
    assert 0 < trained_steps(tmp_path, "heads") < 10**6
    assert DraftHeads.load(tmp_path).config.num_slots == 3
