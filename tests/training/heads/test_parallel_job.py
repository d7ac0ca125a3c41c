"""Drafters from recipe to decoding: places, uniforms, losses, what u is worth, reports, files."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core.adapter.embedding import NUM_LEVELS
from decoders.core.adapter.parallel_layers import ParallelLayers
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel
from decoders.core.types import NO_UNIFORM, Sampling
from decoders.shallow import Shallow
from tests.command_line import bench
from tests.tiny_recipe import toml_of, whole_and_parts
from training.adapter.lean_job import GREEDY_TEMPERATURE, compute_teacher
from training.adapters import build_job, train_heads
from training.heads.job import ByKind, HeldOut
from training.heads.parallel_job import ParallelJob
from training.heads.recipe import DrafterTable, HeadsRecipe
from training.recipe import RECIPES, read_recipe
from training.reporter import Reporter, TrainingProgress
from training.run import JobContext
from training.text.data import padded

SLOTS = 3


@pytest.fixture
def tables(home: Path) -> dict[str, Any]:
    """A recipe of seconds."""
    return {
        "model": {"path": str(home / "letters")},
        "drafter": {
            "num_slots": SLOTS, "num_layers": 2, "rank": 16, "num_heads": 2, "bias_rank": 4,
        },
        "data": {
            "kind": "on-policy", "num_completions": 60, "max_new_tokens": 20, "max_tokens": 40,
            "temperatures": [0.0, 0.7, 1.0], "rows_per_step": 12, "seed": 1,
        },
        "run": {
            "num_steps": 60, "warmup_steps": 2, "adamw_lr": 0.01, "muon_lr": 0.03,
            "max_tokens": 160, "eval_steps": 20, "eval_rows": 12, "anchors_per_row": 8,
            "teacher_top": 5,
        },
    }  # fmt: skip


def job_of(tables: dict[str, Any], folder: Path) -> ParallelJob:
    reporter = Reporter("none", "heads", None)
    job = build_job(HeadsRecipe.of(tables), JobContext(folder, torch.device("cpu"), reporter))
    assert isinstance(job, ParallelJob)
    return job


def test_anchors_lie_in_the_answer_and_slots_end_with_the_answer(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    job = job_of(tables, tmp_path)
    rows = job.source.rows(0)
    anchors, inside, _ = job._anchors(rows)
    for row, places, known in zip(rows, anchors.tolist(), inside.tolist(), strict=True):
        assert len(set(places)) == len(places)
        for place, slots in zip(places, known, strict=True):
            answer = [*row.learn, *[False] * (SLOTS + 42)][place + 1 : place + 2 + SLOTS]
            assert slots == [all(answer[: 2 + slot]) for slot in range(SLOTS)]
    possible = [max(0, sum(row.learn) - 1) for row in rows]
    assert inside[..., 0].sum(1).tolist() == [min(8, num) for num in possible]


def test_the_loss_is_the_weighted_sum_of_the_losses_of_slots(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the module's own logits, and from uniforms that make the target pick the text."""
    tables["run"] |= {"position_decay": 0.5, "label_share": 0.25}
    tables["run"]["teacher_top"] = job_of(tables, tmp_path).module.config.vocab_size
    job = job_of(tables, tmp_path)
    seen: list[torch.Tensor] = []
    embedded = job.heads.embedded

    def spying(u: torch.Tensor) -> torch.Tensor:
        seen.append(u)
        return embedded(u)

    monkeypatch.setattr(job.heads, "embedded", spying)
    rows = job.source.rows(0)
    assert {row.temperature for row in rows} == {0.0, 0.7, 1.0}
    job._generator.manual_seed(4)
    anchors, inside, noise = job._anchors(rows)
    job._generator.manual_seed(4)
    ((loss, num),) = job._losses(rows)
    job._generator.manual_seed(4)
    slots = job._slots(rows)
    drafted = job.module.lm_head(slots.features[..., : job.heads.config.width])
    drafted = (drafted + slots.features[..., -4:] @ job.heads.right.T).log_softmax(-1)
    expected, count = 0.0, 0
    for b, row in enumerate(rows):
        logits = job.module(torch.tensor([row.ids])).logits[0]
        greedy = row.temperature == 0
        for a, place in enumerate(anchors[b].tolist()):
            for slot in range(SLOTS):
                if not inside[b, a, slot]:
                    continue
                at = place + 2 + slot
                token, logs = row.ids[at], drafted[b, a, slot]
                u = seen[0][b, a, slot].item()
                if greedy:
                    assert u == NO_UNIFORM
                    truth = (logits[at - 1] / GREEDY_TEMPERATURE).softmax(-1)
                    part = -0.75 * (truth * logs).sum() - 0.25 * logs[token]
                else:
                    cdf = (logits[at - 1].double() / row.temperature).softmax(-1).cumsum(0)  # type: ignore[operator]
                    below = cdf[token - 1].item() if token else 0.0
                    share = cdf[token].item() - below
                    assert u == pytest.approx(below + share * noise[b, a, slot].item(), abs=1e-5)
                    part = -logs[token]
                expected += 0.0 + (part * torch.exp(torch.tensor(-0.5 * slot))).item()
                count += 1
    assert num == count
    assert loss.item() == pytest.approx(expected, rel=1e-3)


def test_the_loss_of_a_selector_covers_all_words_without_bias_and_candidates_with_bias(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["drafter"]["candidates"] = 3
    tables["run"] |= {"position_decay": 0.5, "label_share": 1.0}
    job = job_of(tables, tmp_path)
    heads = job.heads
    with torch.no_grad():
        for each in (heads.right, heads.context):
            each.copy_(torch.randn(each.shape, generator=torch.Generator().manual_seed(1)))
    rows = job.source.rows(0)
    job._generator.manual_seed(4)
    anchors, inside, _ = job._anchors(rows)
    job._generator.manual_seed(4)
    ((loss, _),) = job._losses(rows)
    job._generator.manual_seed(4)
    slots = job._slots(rows)
    unbiased, expected, added = job.module.lm_head(slots.features), 0.0, 0
    for b, a, slot in inside.nonzero().tolist():
        logits, at = unbiased[b, a, slot], int(anchors[b, a]) + 2 + slot
        token, likely = rows[b].ids[at], logits.topk(3).indices.tolist()
        if token not in likely:
            likely[2], added = token, added + 1
        factors = 1 + heads.context @ slots.features[b, a, slot]
        bias = heads.right[likely] @ (factors * heads.left[rows[b].ids[at - 1]])
        biased = logits.index_add(0, torch.tensor(likely), bias)
        logs = logits.log_softmax(-1)[token] + biased.log_softmax(-1)[token]
        expected -= logs.item() * math.exp(-0.5 * slot)
    assert added
    assert loss.item() == pytest.approx(expected, rel=1e-3)


def test_the_reported_accuracy_of_a_selector_uses_the_words_that_it_drafts(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    reports = []
    for candidates in (1, 6):
        tables["drafter"]["candidates"] = candidates
        job = job_of(tables, tmp_path)
        with torch.no_grad():
            job.heads.right.copy_(torch.arange(len(job.heads.right))[:, None])  # moves the order
        reports.append(job.held_out().sampled)
    assert reports[1].accuracy != reports[0].accuracy


def test_a_drafter_learns_from_the_layers_that_decoding_feeds_it(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables["drafter"]["hidden_layers"] = [0, 1, -1]
    job = job_of(tables, tmp_path)
    rows = [row for row in job.source.rows(0) if row.temperature == 0][:1]
    ids = torch.tensor([row.ids for row in rows])
    states, *_ = job._targets(rows, ids)
    target = HFModel(job.module, in_place=False)
    target.attach("shallow", job.heads.eval().requires_grad_(False))
    fed: list[torch.Tensor] = []
    drafted = target.draft

    def noting(calls: Any) -> Any:
        fed.extend(c.states if c.rows is None else c.states[[*c.rows]] for c in calls)
        return drafted(calls)

    monkeypatch.setattr(target, "draft", noting)
    prompt, models = rows[0].ids[: rows[0].learn.index(True)], Models(target=target)
    sampling = Sampling(max_new_tokens=len(rows[0].ids) - len(prompt))
    answer = generate(Shallow(stop=0.0), prompt, sampling, models)
    assert [*prompt, *answer.tokens] == rows[0].ids[: len(prompt) + len(answer.tokens)]
    decoded = torch.cat(fed)
    assert decoded.shape[1] == 3 * job.heads.config.width
    assert len(decoded) > 5
    torch.testing.assert_close(decoded, states[0, : len(decoded)], rtol=1e-3, atol=1e-4)


def test_a_layer_that_the_model_lacks_is_refused_before_training(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["drafter"]["hidden_layers"] = [0, 99]
    with pytest.raises(ValueError, match="hidden_layers is \\(0, 99\\); this model has 0"):
        job_of(tables, tmp_path)


def test_a_uniform_stays_below_1_even_at_the_end_of_its_interval(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tables, tmp_path)
    drawn, embedded, seen = job._anchors, job.heads.embedded, []

    def spying(u: torch.Tensor) -> torch.Tensor:
        seen.append(u)
        return embedded(u)

    def at_the_end(rows: Any) -> Any:
        anchors, inside, noise = drawn(rows)
        return anchors, inside, torch.full_like(noise, 2.0)

    monkeypatch.setattr(job.heads, "embedded", spying)
    monkeypatch.setattr(job, "_anchors", at_the_end)
    job._slots([row for row in job.source.rows(0) if row.temperature])
    assert seen[0].max() == 1 - 2**-53


def test_every_step_draws_fresh_anchors_and_uniforms(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tables, tmp_path)
    rows = job.source.rows(0)
    monkeypatch.setattr(job.source, "rows", lambda step: rows)

    def losses(step: int) -> list[float]:
        return [loss.item() for loss, _, _ in job.pieces(TrainingProgress(step=step))]

    assert losses(1) != losses(0)
    assert losses(2) != losses(1)


def test_the_losses_of_a_step_depend_only_on_the_step(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    job = job_of(tables, tmp_path)

    def losses(step: int) -> list[float]:
        return [loss.item() for loss, _, _ in job.pieces(TrainingProgress(step=step))]

    first = losses(0)
    assert len(first) > 1
    job.held_out()
    assert losses(1) != first
    assert losses(0) == first


def trained(tables: dict[str, Any], folder: Path) -> ByKind:
    train_heads(tables, folder, progress="none")
    measured = ParallelLayers.load(folder).config.measured
    return ByKind(*(HeldOut(**measured[kind]) for kind in ("greedy", "sampled")))


@pytest.mark.slow
def test_only_a_drafter_with_uniforms_predicts_sampled_tokens(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    """Of random letters a drafter that knows u tells many, the control the likeliest alone."""
    tables["data"]["num_completions"] = 200
    tables["run"] |= {"num_steps": 150, "eval_steps": 150}
    knowing = trained(tables, tmp_path / "knowing").sampled
    control = tables | {"drafter": tables["drafter"] | {"code": "constant"}}
    blind = trained(control, tmp_path / "blind").sampled
    assert knowing.leading > 0.3 + 2 * blind.leading


def test_the_control_without_uniforms_learns_the_targets_distribution(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    """Its loss does not ask where u lay, and is the mixture's entropy at least."""
    tables["drafter"]["code"] = "constant"
    job = job_of(tables, tmp_path)
    rows = [row for row in job.source.rows(0) if row.temperature]
    job._generator.manual_seed(1)
    ((loss, num),) = job._losses(rows)
    job._generator.manual_seed(1)
    slots = job._slots(rows)
    weight = torch.exp(-0.25 * torch.arange(SLOTS)) * slots.usable
    known = slots.top[1].softmax(-1)
    job._generator.manual_seed(1)
    anchors = job._anchors(rows)[0]
    for b, row in enumerate(rows):  # at the row's own temperature
        at = anchors[b, 0].item() + 2
        if slots.usable[b, 0, 0]:
            logits = job.module(torch.tensor([row.ids])).logits[0, at - 1]
            theirs = (logits[slots.top[0][b, 0, 0]] / row.temperature).softmax(-1)  # type: ignore[operator]
            assert torch.allclose(known[b, 0, 0], theirs, atol=1e-5)
    entropy = -0.7 * (known * known.clamp(min=1e-9).log()).sum(-1)
    assert loss.item() > (entropy * weight).sum().item() > 0.1 * num


def test_a_word_left_out_is_neither_learnt_nor_drafted_and_counts_as_wrong(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["drafter"]["num_words"] = 6
    job = job_of(tables, tmp_path)
    assert job.heads.words.tolist() == sorted(job.source.frequent(6))  # type: ignore[union-attr]
    slots = job._slots(job.source.rows(0))
    there = torch.isin(slots.label, job.heads.words)
    assert torch.equal(slots.usable, slots.inside & there)
    assert (slots.inside & ~there).any()
    outside = 1 - there.float().mean().item()
    assert max(job.held_out().sampled.accuracy) < 1 - outside / 4


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"candidates": 4, "hidden_layers": [0, 1, -1]}])
def test_the_best_scoring_drafter_is_saved_and_drafts_losslessly(
    tables: dict[str, Any], home: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    tables["drafter"] |= options
    tables["run"] |= {"choose": "best", "label_share": 0.5}
    report = trained(tables, tmp_path)
    records = [json.loads(x) for x in (tmp_path / "training_log.jsonl").read_text().splitlines()]
    held_out = [record["held_out"] for record in records if "held_out" in record]
    leading = [(each["greedy"]["leading"] + each["sampled"]["leading"]) / 2 for each in held_out]
    assert report.score == pytest.approx(max(leading))
    assert report.summary().startswith("greedy: leading correct of 3: ")
    assert "; sampled: leading" in report.summary()
    layers = ParallelLayers.load(tmp_path)
    assert layers.config.code == "dyadic"
    assert torch.equal(layers.right, layers.right.half().float())
    target = HFModel.load(home / "letters", dtype=torch.float32, device="cpu")
    target.attach("shallow", layers)
    head = target.module.get_output_embeddings().weight
    levels = (NUM_LEVELS + 1) * layers.config.width * 4
    assert target.adapter_bytes("shallow") == 4 * layers.num_parameters + head.nbytes + levels
    models = Models(target=target)
    for temperature in (0.0, 0.7):
        sampling = Sampling(temperature=temperature, max_new_tokens=20, seed=1)
        expected = generate(Autoregressive(), [0], sampling, models).tokens
        answer = generate(Shallow(), [0], sampling, models)
        assert answer.tokens == expected
        assert sum(step.drafted for step in answer.steps) > 0


@pytest.mark.slow
def test_a_resumed_run_ends_in_the_weights_of_an_uninterrupted_one(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    folders = whole_and_parts(train_heads, tables, tmp_path)
    whole, parts = (ParallelLayers.load(folder).state_dict() for folder in folders)
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_kept_states_of_a_row_do_not_depend_on_the_rows_beside_it(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    """After a stop a row comes again beside other rows, and the run ends in the same weights."""
    tables["run"]["keep_states"] = True
    job = job_of(tables, tmp_path)
    rows = job.source.rows(0)
    job._compute(rows, padded(rows), job._targets)
    together, job._kept = job._kept, {}
    for row in rows:
        job._compute([row], torch.tensor([row.ids]), job._targets)
    assert together.keys() == job._kept.keys()
    for key, tensors in together.items():
        assert all(map(torch.equal, tensors, job._kept[key]))


def test_kept_states_equal_new_states_and_are_computed_once(
    tables: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[list[float]] = []
    asked: list[int] = []

    def asking(*given: Any) -> Any:
        asked.append(1)
        return compute_teacher(*given)

    monkeypatch.setattr("training.heads.parallel_job.compute_teacher", asking)
    for keep in (False, True):
        tables["run"]["keep_states"] = keep
        job = job_of(tables, tmp_path)
        for again in (False, True):
            asked.clear()
            losses.append([loss.item() for loss, _, _ in job.pieces(TrainingProgress())])
            assert bool(asked) == (not keep or not again)
    assert losses[1] == losses[0]
    assert losses[2] == pytest.approx(losses[0], rel=1e-2)
    assert losses[3] == losses[2]


def test_results_of_one_temperature_are_not_used_for_another(
    tables: dict[str, Any], tmp_path: Path
) -> None:
    tables["run"]["keep_states"] = True
    job = job_of(tables, tmp_path)
    row = next(row for row in job.source.rows(0) if row.temperature and sum(row.learn) > 2)
    rows = [dataclasses.replace(row, temperature=heat) for heat in (0.7, 1.0)]
    ids = torch.tensor([row.ids, row.ids])
    kept = job._compute(rows, ids, job._targets)
    anew = job._targets(rows, ids)
    for ours, theirs in zip(kept, anew, strict=True):
        assert torch.allclose(ours.double(), theirs.double(), atol=1e-2)
    assert not torch.allclose(kept[2][0], kept[2][1], atol=1e-2), "so the temperature matters"


@pytest.mark.parametrize("name", ["drafter.toml", "drafter-any.toml"])
def test_the_shipped_recipes_are_complete(name: str, home: Path, tmp_path: Path) -> None:
    tables = read_recipe(RECIPES / name)
    tables["data"] |= {"num_completions": 8, "max_new_tokens": 3, "max_tokens": 512}
    tables["data"]["prompts"] = {"kind": "zoo", "counts": {"translation": 1}}
    job = job_of(tables, tmp_path)
    assert job.source.rows(0)
    assert job.heads.num_parameters < 3_000_000


@pytest.mark.parametrize("name", ["smollm2-drafter.toml", "smollm2-drafter-constant.toml"])
def test_recipes_of_smollm2_have_no_keys_of_another_data_kind(name: str) -> None:
    tables = read_recipe(RECIPES / name)
    assert "num_completions" not in tables["data"]
    assert isinstance(HeadsRecipe.of(tables).network, DrafterTable)


@pytest.mark.slow
def test_the_command_trains_a_drafter(tables: dict[str, Any], home: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "recipe.toml", tmp_path / "out"
    path.write_text(toml_of(tables), encoding="utf-8")
    train = ("train", "drafter", "--recipe", path, "-o", out, "--progress", "none")
    ended = bench(*train, "--num-steps", 2)
    assert (ended.code, ended.err) == (0, "")
    on_policy = ("--data", "on-policy", "--model", home / "letters")
    assert bench(*train, "--num-steps", 3, *on_policy).code == 0
    assert ParallelLayers.load(out).config.variant == "shallow"
    for wrong, told in (
        ("drafter.num_slots=0", "drafter.num_slots"),
        ("drafter.candidates=9999", "fewer candidates than words"),
        ("drafter.code=morse", "drafter.code"),
        ("drafter.num_heads=5", "'num_heads' is 5"),
        ("run.choose=first", "run.choose"),
    ):
        ended = bench(*train, "--set", wrong)
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert told in ended.err


@pytest.mark.parametrize(
    ("places", "score"), [((5, 9), 2.0), ((5, 0), 3.0), ((0, 9), 1.0), ((0, 0), 0.0)]
)
def test_the_score_is_the_mean_over_the_kinds_of_text_that_exist(
    places: tuple[int, int], score: float
) -> None:
    def report(num: int, leading: float) -> HeldOut:
        leading = leading if num else 0.0
        return HeldOut(rows=9, places=num, leading=leading, accuracy=[])

    assert ByKind(report(places[0], 3.0), report(places[1], 1.0)).score == score
