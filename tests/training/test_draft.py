"""A draft model from recipe to speculative decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.checkpoint import weights_sha256
from decoders.core.hf.model import HFModel
from decoders.core.types import Sampling
from decoders.spec import Speculative
from tests.command_line import bench
from tests.tiny_recipe import toml_of, trained_steps, whole_and_parts
from training.adapter.lean_job import GREEDY_TEMPERATURE
from training.draft import (
    DraftJob,
    DraftRecipe,
    DraftReport,
    DraftTable,
    fresh_draft,
    leading_runs,
    train_draft,
)
from training.recipe import ZOO
from training.reporter import Reporter, TrainingProgress
from training.run import JobContext
from training.text.completions import Completion, write_completions
from training.text.data import Row


@pytest.fixture
def tables(home: Path, tmp_path: Path) -> dict[str, Any]:
    """A recipe of seconds; completions of two temperatures."""
    generator = torch.Generator().manual_seed(1)
    made = [
        Completion(
            number=number,
            temperature=0.7 * (number % 2),
            prompt=(4, 5 + number),
            tokens=tuple(torch.randint(3, 30, (12,), generator=generator).tolist()),
        )
        for number in range(40)
    ]
    write_completions(tmp_path / "answers.jsonl", made)
    return {
        "model": {"path": str(home / "zoo")},
        "draft": {"width": 16, "layers": 1, "heads": 2, "intermediate": 24, "seed": 1},
        "data": {
            "kind": "completions", "path": str(tmp_path / "answers.jsonl"), "rows_per_step": 8,
        },
        "run": {
            "num_steps": 30, "warmup_steps": 2, "muon_lr": 0.02, "adamw_lr": 0.01,
            "max_tokens": 80, "head_words": 10, "negatives": 5, "teacher_top": 4,
            "eval_steps": 10, "eval_rows": 8,
        },
    }  # fmt: skip


@pytest.mark.slow
def test_a_draft_model_is_distilled_saved_in_half_precision_and_drafts_losslessly(
    tables: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    train_draft(tables, out, progress="plain")
    assert trained_steps(out, "draft") == 30
    records = [json.loads(x) for x in (out / "training_log.jsonl").read_text().splitlines()]
    losses = [record["held_out"]["loss"] for record in records]
    assert len(losses) == 3
    draft = AutoModelForCausalLM.from_pretrained(out)
    assert draft.dtype == torch.float16
    assert json.loads((out / "draft.json").read_text()) == {
        "target_weights_sha256": weights_sha256(home / "zoo")
    }
    target = HFModel.load(home / "zoo", dtype=torch.float32, device="cpu")
    small = HFModel.load(out, dtype=torch.float32, device="cpu")
    sampling = Sampling(temperature=0.0, max_new_tokens=16, seed=1)
    plain = generate(Autoregressive(), [4, 9], sampling, Models(target=target)).tokens
    models = Models(target=target, draft=small)
    assert generate(Speculative(k=3), [4, 9], sampling, models).tokens == plain


def test_matrices_stored_in_eight_bits_load_in_the_requested_dtype(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["run"] |= {"num_steps": 4, "eval_steps": 4}
    train_draft(tables, tmp_path / "whole", progress="plain")
    tables["draft"]["stored"] = "float8_e4m3fn"
    train_draft(tables, tmp_path / "small", progress="plain")
    stored = load_file(tmp_path / "small" / "model.safetensors")
    kinds = {each.dim(): each.dtype for each in stored.values()}
    assert kinds == {1: torch.float16, 2: torch.float8_e4m3fn}
    whole, small = (
        HFModel.load(tmp_path / kind, dtype=torch.float32, device="cpu").module.state_dict()
        for kind in ("whole", "small")
    )
    for name, weight in whole.items():
        assert small[name].dtype == torch.float32
        assert torch.allclose(small[name], weight, rtol=1 / 16, atol=2**-9), name


def test_a_resumed_run_ends_in_the_weights_of_an_uninterrupted_one(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    folders = whole_and_parts(train_draft, tables, tmp_path)
    whole, parts = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in folders)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_target_may_be_the_zoos(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["model"]["path"] = "zoo"
    context = JobContext(tmp_path, torch.device("cpu"), Reporter("none", "draft", None))
    job = DraftJob(DraftRecipe.of(tables), context)
    assert job.taught_by == weights_sha256(ZOO / "target")


def test_a_finished_run_writes_the_same_model_again(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["run"] |= {"num_steps": 2, "eval_steps": 1, "muon_lr": 1e-4, "adamw_lr": 1e-4}
    written = []
    for _ in range(2):
        train_draft(tables, tmp_path, progress="none")
        written.append((tmp_path / "model.safetensors").read_bytes())
    log = (tmp_path / "training_log.jsonl").read_text(encoding="utf-8").splitlines()
    first, last = (json.loads(line)["held_out"]["drafts_that_stand"] for line in log)
    assert first == last  # a tie: the last weights are written
    assert written[0] == written[1]


def test_a_fresh_draft_models_embeddings_keep_the_cosines_of_the_targets_embeddings() -> None:
    sizes: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, intermediate_size=16, num_hidden_layers=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        target = LlamaForCausalLM(config)
        basis = torch.randn(8, 32)
    target.model.embed_tokens.weight.data = torch.randn(50, 8, generator=seeded(2)) @ basis
    draft = fresh_draft(target, DraftTable(width=8, layers=1, heads=2, intermediate=8))
    ours, theirs = draft.model.embed_tokens.weight.detach(), target.model.embed_tokens.weight
    cosines = [torch.nn.functional.normalize(words.detach()) for words in (ours, theirs)]
    assert torch.allclose(cosines[0] @ cosines[0].T, cosines[1] @ cosines[1].T, atol=1e-4)
    assert draft.lm_head.weight is draft.model.embed_tokens.weight


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_teacher_is_called_once_for_each_row(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables["run"]["teacher_top"] = 2
    with Reporter("none", "draft", tmp_path / "log.jsonl", "tokens") as reporter:
        job = DraftJob(DraftRecipe.of(tables), JobContext(tmp_path, torch.device("cpu"), reporter))
    asked = []

    def logits(states: torch.Tensor) -> torch.Tensor:
        asked.append(len(states))
        return torch.tensor([[0.0, 3.0, 1.0], [2.0, -1.0, 1.5]])

    monkeypatch.setattr(job, "_head", logits)
    row = Row([5, 6, 7], [False, True, True])
    for _ in range(2):
        ids, values = job._likeliest(row)
        assert ids.tolist() == [[1, 2], [0, 2]]
        assert values.tolist() == [[3.0, 1.0], [2.0, 1.5]]
    assert asked == [2]


def test_leading_runs_count_the_correct_tokens_before_the_first_wrong_token() -> None:
    right = [True, True, False, True, True, True, True, True]
    assert leading_runs(right) == [2, 1, 0, 4, 4, 3, 2, 1]


def test_the_command_trains_a_draft_model_and_refuses_an_unknown_key(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["run"]["num_steps"] = 2
    path = tmp_path / "draft.toml"
    path.write_text(toml_of(tables), encoding="utf-8")
    done = bench("train", "draft", "--recipe", path, "-o", tmp_path / "made", "--progress", "none")
    assert done.code == 0, done.err
    assert (tmp_path / "made" / "model.safetensors").is_file()
    refused = bench("train", "draft", "--recipe", path, "--set", "draft.size=3")
    assert refused.code == 2
    assert "unknown key draft.size" in refused.err


@pytest.mark.parametrize("prompt_weight", [0.0, 0.25])
def test_the_loss_uses_the_targets_distribution_before_each_token(
    tables: dict[str, Any], home: Path, tmp_path: Path, prompt_weight: float
) -> None:
    """Row by row through both models: half of it against labels, half against the likeliest."""
    tables["run"] |= {"head_words": 0, "label_share": 0.5, "prompt_weight": prompt_weight}
    with Reporter("none", "draft", tmp_path / "log.jsonl", "tokens") as reporter:
        job = DraftJob(DraftRecipe.of(tables), JobContext(tmp_path, torch.device("cpu"), reporter))
        job.trained.lm_head.weight.data *= 50  # else it is sure of nothing, and all losses alike
        pieces = list(job.pieces(TrainingProgress()))
    target = AutoModelForCausalLM.from_pretrained(home / "zoo", dtype=torch.float32)
    expected, num = 0.0, 0
    with torch.no_grad():
        for row in job.source.rows(0):
            ids = torch.tensor([row.ids])
            said, drafted = target(ids).logits[0], job.trained(ids).logits[0]
            for place in range(1, len(row.ids)):
                weight = 1.0 if row.learn[place] else prompt_weight
                if not weight:
                    continue
                temperature = (row.temperature or GREEDY_TEMPERATURE) if row.learn[place] else 1.0
                likeliest = said[place - 1].topk(4)
                q = (drafted[place - 1] / temperature).log_softmax(-1)
                p = (likeliest.values / temperature).softmax(-1)
                taught = -(p * q[likeliest.indices]).sum() - q[row.ids[place]]
                expected += weight * 0.5 * float(taught)
                num += 1
    assert sum(count for _, count, _ in pieces) == num
    assert sum(loss.item() for loss, _, _ in pieces) == pytest.approx(expected, rel=1e-3)


def test_prompts_that_have_a_weight_are_learnt_from_the_teacher(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["run"] |= {"num_steps": 1, "prompt_weight": 0.25}
    state = tmp_path / ".training"
    with Reporter("none", "draft", tmp_path / "log.jsonl", "tokens") as reporter:
        job = DraftJob(DraftRecipe.of(tables), JobContext(tmp_path, torch.device("cpu"), reporter))
        row = Row([5, 6, 7, 8], [False, False, True, True])
        assert job._mask([row]).tolist() == [[False, True, True, True]]
        ((loss, num_targets, num_tokens), *_) = job.pieces(TrainingProgress())
    assert num_targets > 0
    assert num_targets < num_tokens
    assert loss.isfinite()
    (folder,) = state.glob("teacher-*-prompts/top4")
    kept = [np.load(file)["ids"].shape for file in folder.iterdir()]
    assert kept[0] == (13, 4)  # 2 + 12 tokens, the first of which nothing predicts


def test_a_draft_model_can_start_only_from_a_draft_model_of_the_same_sizes(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["run"]["num_steps"] = 2
    train_draft(tables, tmp_path / "first", progress="none")
    first = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    target = AutoModelForCausalLM.from_pretrained(tables["model"]["path"])
    table = DraftTable(**tables["draft"], initial=str(tmp_path / "first"))
    begun = fresh_draft(target, table)
    for name, weight in first.state_dict().items():
        assert torch.equal(begun.state_dict()[name], weight.float()), name
    with pytest.raises(ValueError, match="other sizes than"):
        fresh_draft(target, table.model_copy(update={"width": 8}))


@pytest.mark.parametrize(("last", "written"), [(0.4, 1), (0.6, 2)], ids=["before", "last"])
def test_the_model_with_the_longest_mean_run_of_correct_drafts_is_written(
    tables: dict[str, Any], tmp_path: Path, last: float, written: int
) -> None:
    with Reporter("none", "draft", tmp_path / "log.jsonl", "tokens") as reporter:
        job = DraftJob(
            DraftRecipe.of(tables), JobContext(tmp_path / "out", torch.device("cpu"), reporter)
        )
    weight = job.trained.model.norm.weight
    for step, stood in ((1, 0.5), (2, last)):
        weight.data.fill_(step)
        job.report = DraftReport(agreement=0.5, drafts_that_stand=stood, loss=1.0, rows=1)
        assert job.best is not None
        job.best.offer(step, stood, job.trained)
    job.export(tmp_path / "out")
    kept = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert kept["model.norm.weight"].unique().tolist() == [written]


def test_an_evaluation_saves_the_best_weights(tables: dict[str, Any], tmp_path: Path) -> None:
    tables["run"] |= {"num_steps": 2, "eval_steps": 1}
    train_draft(tables, tmp_path / "out", progress="none")
    kept = torch.load(tmp_path / "out" / ".training" / "best.pt", weights_only=True)
    assert kept["step"] == 1
    assert (
        kept["model"].keys()
        == torch.load(tmp_path / "out" / ".training" / "draft.pt", weights_only=True)[
            "model"
        ].keys()
    )
