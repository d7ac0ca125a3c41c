"""Inverse autoregressive training: source, model, windows, job and comparison.

The model is held against a plain causal pass over each window alone, the built uniforms against
`pick`, and Theorem 2 of PTP against a table that follows its picks exactly.

Letters: B rows, W windows of a row, N tokens of a window, V vocabulary.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from decoders.core.sampling import pick
from tests.command_line import bench
from tests.tiny_recipe import stopped, trained_steps
from training.inverse.data import Trips, TripSettings
from training.inverse.train import (
    InverseJob,
    InverseRecipe,
    _acceptance,
    ar_nats,
    blind_nats,
    c_ptp_nats,
    compare,
    held_out_text,
    train_both,
)
from training.inverse.windows import (
    ModelSettings,
    Read,
    SlotTransformer,
    TextWindows,
    at_indices,
    draw_text,
    explain,
    picked,
    roll,
)
from training.loop import Loop
from training.recipe import RECIPES, read_recipe
from training.reporter import Reporter, TrainingProgress
from training.run import JobContext

TOLERANCE = 2e-5
SOURCE = TripSettings(width=9, num_goals=2, spread=0.6, roughness=0.3)
SIZES = ModelSettings(width=32, layers=2, heads=2, intermediate=64, embedding_hidden=16, seed=3)
RECIPE_OF_TESTS: dict[str, Any] = {
    "source": {"width": 4, "num_goals": 1, "spread": 0.45, "momentum": 1.0},
    "model": {"width": 16, "layers": 1, "heads": 2, "intermediate": 32, "embedding_hidden": 8},
    "run": {
        "rows": 4,
        "length": 12,
        "windows": 3,
        "slots": 4,
        "num_steps": 4,
        "warmup_steps": 2,
        "workers": 1,
        "eval_steps": 2,
        "eval_rows": 2,
        "final_rows": 6,
        "final_draws": 2,
        "checkpoint_minutes": 1000.0,
    },
}


@functools.cache
def trips() -> Trips:
    return Trips(SOURCE)


def text(seed: int = 0, **sizes: int) -> TextWindows:
    chosen = {"rows": 3, "length": 14, "windows": 4, "slots": 5, **sizes}
    return draw_text(trips(), np.random.default_rng(seed), **chosen)


@functools.cache
def model() -> SlotTransformer:
    """Random, with weights so large that a wrong mask or position shows."""
    found = SlotTransformer(SIZES, trips().num_symbols)
    with torch.no_grad():
        for parameter in found.llama.model.layers.parameters():
            if parameter.ndim == 2:
                parameter.mul_(2.5)
    return found.requires_grad_(False)


def reporter(folder: Path) -> Reporter:
    return Reporter("none", "x", folder / "x.jsonl")


# -- the source --


def known(source: Trips, ids: Any) -> Any:
    """Distributions ``[R, L, V]`` of symbols given earlier ones (0 before index 2)."""
    distributions = np.zeros((*ids.shape, source.num_symbols))
    ahead = source.beliefs(ids)[:, 1:-1] @ source.goals
    steps = source.steps[:, ids[:, :-2], ids[:, 1:-1]]
    distributions[:, 2:] = np.einsum("rlg,grln->rln", ahead, steps)
    return distributions


def test_rows_follow_the_sources_distribution() -> None:
    ids = trips().rows(3000, 6, np.random.default_rng(1))
    distributions = known(trips(), ids)
    assert np.allclose(distributions[:, 2:].sum(-1), 1)
    for place in (2, 5):
        hits = np.eye(9)[ids[:, place]]
        error = np.sqrt(distributions[:, place].mean(0) / 3000)
        assert (abs(hits.mean(0) - distributions[:, place].mean(0)) < 4.5 * error).all()
        # and not only on average: what is left after the distribution is orthogonal to it
        left = ((hits - distributions[:, place]) * distributions[:, place]).sum(-1)
        assert abs(left.mean()) < 4.5 * left.std() / math.sqrt(3000)


def test_beliefs_and_blind_distributions_equal_an_enumeration_of_all_goal_paths() -> None:
    source = trips()
    ids = source.rows(4, 5, np.random.default_rng(2))
    for row in ids.tolist():
        weight: dict[tuple[int, ...], float] = {}
        weight |= {(g,): source.settled[g, row[0], row[1]] for g in range(2)}
        for place in range(2, 5):
            longer: dict[tuple[int, ...], float] = {}
            distribution = np.zeros(9)
            for path, mass in weight.items():
                for g in range(2):
                    through = mass * source.goals[path[-1], g]
                    step = source.steps[g, row[place - 2], row[place - 1]]
                    distribution += through * step
                    longer[(*path, g)] = through * step[row[place]]
            found = known(source, np.array([row]))[0, place]
            assert np.allclose(found, distribution / distribution.sum())
            weight = longer
    # two steps ahead, not seeing the first: the mixture over it
    starts = np.full((4, 1), 3)
    near, far = source.blind(ids, starts, 2)[:, 0].transpose(1, 0, 2)
    assert np.allclose(near, known(source, ids)[:, 3])
    mixture = np.zeros((4, 9))
    for cell in range(9):
        changed = ids.copy()
        changed[:, 3] = cell
        mixture += near[:, cell, None] * known(source, changed)[:, 4]
    assert np.allclose(far, mixture)


def test_a_source_with_too_many_symbols_is_refused() -> None:
    with pytest.raises(ValueError, match="less than or equal to 32"):
        TripSettings(width=36)
    with pytest.raises(ValueError, match="greater than 0"):
        TripSettings(spread=0)


def test_every_window_fits_into_its_row_and_all_starts_occur() -> None:
    windows = text(rows=40, windows=20)
    assert set(windows.starts.flatten().tolist()) == set(range(2, 11))
    assert windows.indices.max() == windows.ids.shape[1] - 1 == 14
    b, w = 5, 7
    start = int(windows.starts[b, w])
    assert windows.tokens[b, w].tolist() == windows.ids[b, start : start + 5].tolist()


# -- the model --


@functools.cache
def plain() -> Any:
    """The same weights with transformers' own attention, masks and positions."""
    found = copy.deepcopy(model().llama.model)
    found.set_attn_implementation("eager")
    return found


def alone(embedded: Tensor) -> Tensor:
    """Logits of a plain causal pass over one sequence of inputs ``[L, D]``."""
    hidden = plain()(inputs_embeds=embedded[None]).last_hidden_state
    logits: Tensor = model().head(hidden[0])
    return logits


def test_a_plain_pass_is_causal_and_depends_on_token_order() -> None:
    embedded = model().tokens(torch.tensor([1, 2, 3, 4]))
    whole = alone(embedded)
    for length in (1, 2, 3):
        assert torch.allclose(alone(embedded[:length]), whole[:length], atol=TOLERANCE)
    swapped = alone(embedded[[1, 0, 2, 3]])
    assert (swapped[3] - whole[3]).abs().max() > 0.01


def test_slots_have_the_logits_of_a_plain_pass_over_context_and_embedded_uniforms() -> None:
    windows = text()
    u = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    read = Read(model(), windows)
    found, first = read.slot_logits(u), read.first_logits()
    for b in range(3):
        for w in range(4):
            start = int(windows.starts[b, w])
            context = model().tokens(windows.ids[b, :start])
            slots = torch.stack([model().embed_uniforms(value[None])[0] for value in u[b, w]])
            expected = alone(torch.cat([context, slots]))
            assert torch.allclose(first[b, w], expected[start - 1], atol=TOLERANCE)
            assert torch.allclose(found[b, w], expected[start:], atol=TOLERANCE)
            # one token more or fewer in the context would show
            off = alone(torch.cat([context[:-1], slots]))[start - 1 :]
            assert (off - found[b, w]).abs().max() > 0.01


def test_a_window_sees_neither_its_own_tokens_nor_later_uniforms() -> None:
    windows = text()
    u = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before = Read(model(), windows).slot_logits(u)
    ids = windows.ids.clone()
    start = int(windows.starts[0, 0])
    ids[0, start:] = (ids[0, start:] + 1) % 9
    changed = dataclasses.replace(windows, ids=ids)
    later = u.clone()
    later[..., 3] = 1 - later[..., 3]
    assert torch.equal(Read(model(), changed).slot_logits(u)[0, 0], before[0, 0])
    after = Read(model(), windows).slot_logits(later)
    assert torch.allclose(after[..., :3, :], before[..., :3, :], atol=TOLERANCE)
    assert ((after - before)[..., 3:, :].abs().amax((0, 1, 3)) > 1e-3).all()


def test_logits_of_the_text_equal_those_of_a_plain_pass() -> None:
    windows = text()
    read = Read(model(), windows)
    indices = windows.indices
    for b in range(3):
        expected = alone(model().tokens(windows.ids[b, :-1]))
        assert torch.allclose(model().head(read.hidden)[b], expected, atol=TOLERANCE)
        found = read.window_logits()[b]
        assert torch.allclose(found, expected[indices[b] - 1], atol=TOLERANCE)


# -- windows --


def test_constructed_uniforms_pick_the_text_and_a_finished_window_has_the_same_logits() -> None:
    windows = text(rows=6)
    read = Read(model(), windows)
    us, logits = read.explained()
    assert torch.equal(picked(logits, us), windows.tokens)
    assert torch.allclose(logits[:, :, 0], read.first_logits(), atol=TOLERANCE)
    at_once = read.slot_logits(us[..., :-1])
    assert torch.allclose(logits[:, :, 1:], at_once, atol=TOLERANCE)
    assert torch.equal(read.drafted(us), windows.tokens)


def test_built_uniforms_fill_their_intervals_evenly() -> None:
    first = torch.tensor([0.2, 0.5, 0.3]).log().expand(4000, 3)
    noise = torch.from_numpy(np.random.default_rng(0).random((4000, 1)))
    tokens = torch.ones(4000, 1, dtype=torch.int64)
    u = explain(first, tokens, noise, lambda u: first)[0]
    assert torch.allclose(u, 0.2 + 0.5 * noise, atol=1e-6)


class RecipeTable:
    """A model that is right: a chain's distribution of the next token follows from its own pick."""

    def __init__(self, steps: Tensor, start: Tensor) -> None:
        self.steps, self.distribution = steps, start

    def follow(self, u: Tensor) -> Tensor:
        self.distribution = self.steps[pick(self.distribution, u)]
        return self.distribution.log()


def test_uniforms_inform_an_exact_model_as_much_as_tokens_do() -> None:
    """Theorem 2: P(t_k | t_<i, u_i..u_{k-1}) = P(t_k | t_<k)."""
    generator = torch.Generator().manual_seed(4)
    steps = torch.rand(7, 7, generator=generator).pow(3).double()
    steps /= steps.sum(-1, keepdim=True)
    tokens = torch.randint(7, (50, 9), generator=generator)
    noise = torch.rand(50, 8, generator=generator, dtype=torch.float64)
    distribution = steps[tokens[:, 0]]
    us, found = explain(
        distribution.log(), tokens[:, 1:], noise, RecipeTable(steps, distribution).follow
    )
    assert torch.allclose(found.exp(), steps[tokens[:, :-1]], atol=1e-6)
    other_us, other = explain(
        distribution.log(), tokens[:, 1:], 1 - noise, RecipeTable(steps, distribution).follow
    )
    assert not torch.allclose(us, other_us)
    assert torch.allclose(found, other)  # which u of an interval does not matter


def test_a_rollout_picks_one_token_after_another_by_the_uniforms() -> None:
    windows = text()
    rolled = Read(model(), windows).rolled(windows.noise)
    for b, w in ((0, 0), (2, 3)):
        ids = windows.ids[b, : int(windows.starts[b, w])].tolist()
        for n in range(5):
            distribution = alone(model().tokens(torch.tensor(ids)))[-1:].softmax(-1)
            ids.append(int(pick(distribution, windows.noise[b, w, n : n + 1])))
        assert rolled[b, w].tolist() == ids[-5:]


def test_roll_feeds_back_the_tokens_that_it_picks() -> None:
    seen: list[list[int]] = []

    def follow(tokens: Tensor) -> Tensor:
        seen.append(tokens.tolist())
        return torch.eye(3)[(tokens + 1) % 3].log()

    u = torch.full((2, 3), 0.5, dtype=torch.float64)
    rolled = roll(torch.eye(3)[[0, 2]].log(), u, follow)
    assert rolled.tolist() == [[0, 1, 2], [2, 0, 1]]
    assert seen == [[0, 2], [1, 0]]


# -- the job --


def made(tables: dict[str, Any], folder: Path, name: Any = "c-ptp") -> InverseJob:
    context = JobContext(folder, torch.device("cpu"), reporter(folder))
    return InverseJob(name, InverseRecipe.of(tables), context)


def job_of(folder: Path, name: Any = "c-ptp", **run: Any) -> InverseJob:
    tables = {**RECIPE_OF_TESTS, "run": {**RECIPE_OF_TESTS["run"], **run}}
    return made(tables, folder, name)


def test_the_loss_counts_every_token_and_every_slot(tmp_path: Path) -> None:
    ((loss, count, tokens),) = job_of(tmp_path).pieces(TrainingProgress())
    assert count == tokens == 4 * 12 + 4 * 3 * 3
    ((plain, fewer, _),) = job_of(tmp_path, "ar").pieces(TrainingProgress())
    assert fewer == 4 * 12
    job = job_of(tmp_path)
    read = Read(job.trained, job.text(0))
    distributions = read.explained()[1][:, :, 1:].log_softmax(-1)
    targets = job.text(0).tokens[..., 1:, None]
    slots = -distributions.gather(-1, targets).sum()
    assert loss.item() == pytest.approx(plain.item() + slots.item(), rel=1e-5)


def test_gradients_reach_every_parameter_of_c_ptp_and_no_uniform_embedding_of_ar(
    tmp_path: Path,
) -> None:
    for name in ("ar", "c-ptp"):
        job = job_of(tmp_path, name)
        for loss, *_ in job.pieces(TrainingProgress()):
            loss.backward()  # type: ignore[no-untyped-call]
        without = {key for key, p in job.trained.named_parameters() if p.grad is None}
        uniforms = {key for key, _ in job.trained.named_parameters() if key.startswith("uniforms.")}
        blank = {"uniforms.blank"}  # the slot of greedy decoding
        assert without - blank == (uniforms - blank if name == "ar" else set())


def test_both_models_see_the_same_rows_and_start_from_the_same_weights(tmp_path: Path) -> None:
    one, other = job_of(tmp_path, "ar"), job_of(tmp_path, "c-ptp")
    for step in (0, 3):
        assert torch.equal(one.text(step).ids, other.text(step).ids)
    assert not torch.equal(one.text(0).ids, one.text(3).ids)
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.trained.parameters(), other.trained.parameters(), strict=True)
    )


def test_workers_split_the_rows_of_a_step_without_gap_or_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path)
    whole = job.text(1)
    parts = []
    for rank in range(2):
        monkeypatch.setattr("training.inverse.train.worker", lambda rank=rank: (rank, 2))
        parts.append(job.text(1))
    assert [len(part.ids) for part in parts] == [2, 2]
    for name in ("ids", "starts", "noise"):
        joined = torch.stack([getattr(part, name) for part in parts], 1).flatten(0, 1)
        assert torch.equal(joined, getattr(whole, name))


def state_of(folder: Path, name: str) -> Any:
    return torch.load(folder / ".training" / f"{name}.pt", weights_only=True)


@pytest.mark.slow
def test_a_resumed_run_ends_in_the_same_weights_and_figures(tmp_path: Path) -> None:
    recipe = RECIPE_OF_TESTS
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_both(recipe, whole, progress="none")
    for _ in range(8):  # four steps of each model, one a time
        with stopped():
            train_both(recipe, parts, progress="none")
    train_both(recipe, parts, progress="none")
    for name in ("ar", "c-ptp"):
        one, other = state_of(whole, name), state_of(parts, name)
        assert one["progress"]["step"] == other["progress"]["step"] == 4
        for key, value in one["model"].items():
            assert torch.equal(value, other["model"][key]), key
    first = (whole / "inverse.json").read_text(encoding="utf-8")
    assert first == (parts / "inverse.json").read_text(encoding="utf-8")


def test_a_checkpoint_of_another_recipe_is_refused_and_a_longer_run_goes_on(tmp_path: Path) -> None:
    with stopped():
        train_both(RECIPE_OF_TESTS, tmp_path, progress="none")
    other = {**RECIPE_OF_TESTS, "source": {**RECIPE_OF_TESTS["source"], "seed": 9}}
    with pytest.raises(ValueError, match="another recipe"):
        train_both(other, tmp_path, progress="none")
    longer = {**RECIPE_OF_TESTS, "run": {**RECIPE_OF_TESTS["run"], "num_steps": 5}}
    train_both(longer, tmp_path, progress="none")
    assert trained_steps(tmp_path, "ar") == 5
    train_both(other, tmp_path, progress="none", resume=False)
    assert trained_steps(tmp_path, "c-ptp") == 4


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"run": {"num_steps": 1, "step": 2}},
        "unknown key run.step; use num_steps, .*rows, length, .*",
    ),
    ({"source": {"widht": 9}}, "unknown key source.widht; use width, .*, seed"),
    ({"data": {}}, "unknown key data; use source, model, run"),
    ({"run": {}}, "run.num_steps is missing; add it"),
    ({"run": {"num_steps": 0}}, r"run.num_steps: input should be .* equal to 1 \(got 0\)"),
    ({"model": {"code": "x"}}, r"model.code: input should be 'dyadic' or 'constant' \(got 'x'\)"),
    ({"model": {"heads": 0}}, r"model.heads: input should be .* equal to 1 \(got 0\)"),
]


@pytest.mark.parametrize(("change", "told"), WRONG)
def test_invalid_recipes_are_refused_with_the_reason(
    change: dict[str, Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"^recipe: {told}$"):
        train_both({**RECIPE_OF_TESTS, **change}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_recipe_needs_every_table_directly_or_from_the_recipe_that_it_extends(
    tmp_path: Path,
) -> None:
    path = tmp_path / "r.toml"
    path.write_text("[run]\nnum_steps = 1\n[model]\n", encoding="utf-8")
    with pytest.raises(ValueError, match="source is missing; add it"):
        InverseRecipe.of(read_recipe(path))
    under = tmp_path / "under.toml"
    under.write_text("[source]\nwidth = 9\n[run]\nrows = 3\n", encoding="utf-8")
    path.write_text(f'extends = "under.toml"\n{path.read_text()}', encoding="utf-8")
    recipe = InverseRecipe.of(read_recipe(path))
    assert (recipe.source.width, recipe.run.rows, recipe.run.num_steps) == (9, 3, 1)


def test_the_shipped_recipe_has_about_a_million_parameters_and_at_most_32_symbols() -> None:
    recipe = InverseRecipe.of(read_recipe(RECIPES / "ptp-inverse.toml"))
    source = Trips(recipe.source)
    found = SlotTransformer(recipe.model, source.num_symbols)
    assert source.num_symbols <= 32
    assert 0.9e6 < sum(p.numel() for p in found.parameters()) < 1.1e6
    assert (recipe.run.slots, recipe.run.workers) == (16, 2)


# -- the comparison --

LOOK = {"rows": 40, "length": 14, "windows": 3, "slots": 5}


def known_nats(source: Trips, windows: list[TextWindows]) -> Tensor:
    """-log p ``[all windows, N]`` of a predictor that knows the source and sees all tokens."""
    parts = []
    for part in windows:
        distributions = torch.from_numpy(known(source, part.ids.numpy()))
        tokens = at_indices(distributions, part.indices).gather(-1, part.tokens[..., None])
        parts.append(-tokens.squeeze(-1).log())
    return torch.cat(parts).flatten(0, 1)


def test_the_blind_bound_equals_a_full_predictor_at_the_first_token_and_is_worse_later() -> None:
    found = held_out_text(trips(), **LOOK)
    seen, blind = known_nats(trips(), found), blind_nats(trips(), found)
    assert torch.allclose(seen[:, 0], blind[:, 0])
    assert (blind.mean(0) - seen.mean(0))[1:].min() > 0.1
    assert blind.shape == (120, 5)


def test_the_first_slot_has_the_models_next_token_distribution() -> None:
    found = held_out_text(trips(), **LOOK)
    ar, c_ptp = ar_nats(model(), found), c_ptp_nats(model(), found, 2)
    assert torch.allclose(ar[:, 0], c_ptp[:, 0], atol=TOLERANCE)
    windows = text(seed=1)
    distributions = Read(model(), windows).window_logits().softmax(-1)
    for b, w, n in ((0, 0, 0), (2, 3, 4)):
        expected = -distributions[b, w, n, windows.tokens[b, w, n]].log()
        assert torch.isclose(ar_nats(model(), [windows])[b * 4 + w, n], expected, atol=TOLERANCE)


def test_acceptance_falls_with_depth_and_is_1_for_the_first_draft_of_the_same_model() -> None:
    found = held_out_text(trips(), **LOOK)
    own, independent = _acceptance(model(), model(), trips(), found)
    assert own[0] == 1.0  # drafting for itself: the same distribution, the same u
    assert own == sorted(own, reverse=True)
    assert 0 < own[-1] < 1
    assert independent[0] < 1


def test_the_report_adds_up() -> None:
    report = compare(model(), model(), trips(), held_out_text(trips(), **LOOK), 2)
    assert set(report["slots"]) == {"1", "2", "4"}
    assert report["windows"] == 120
    assert report["slots"]["1"]["ratio"] == pytest.approx(1, abs=1e-5)
    for n in (1, 2, 4):
        row = report["slots"][str(n)]
        assert row["ratio"] == pytest.approx(row["c_ptp"] / row["ar"], rel=1e-3)
    values = c_ptp_nats(model(), held_out_text(trips(), **LOOK), 2)
    assert report["perplexity"]["c_ptp"] == pytest.approx(values.mean().exp().item(), rel=1e-4)
    assert report["slots"]["2"]["c_ptp"] == pytest.approx(
        values[:, 1].mean().exp().item(), rel=1e-4
    )


@pytest.mark.slow
def test_uniforms_bring_later_slots_below_the_bound_of_independent_predictors(
    tmp_path: Path,
) -> None:
    tables = {
        "source": RECIPE_OF_TESTS["source"],
        "model": {**RECIPE_OF_TESTS["model"], "width": 32, "layers": 2, "intermediate": 64},
        "run": {
            **RECIPE_OF_TESTS["run"],
            "rows": 24,
            "windows": 8,
            "num_steps": 60,
            "muon_lr": 0.05,
            "adamw_lr": 0.02,
            "eval_steps": 1000,
            "final_rows": 60,
        },
    }
    recipe = InverseRecipe.of(tables)
    source, job = Trips(recipe.source), made(tables, tmp_path)
    Loop(job, tmp_path / "c-ptp.pt").train()
    found = held_out_text(source, recipe.run.final_rows, **recipe.run.sizes)
    nats = c_ptp_nats(job.trained, found, 2).mean(0)
    seen, blind = known_nats(source, found).mean(0), blind_nats(source, found).mean(0)
    assert (nats < math.log(4)).all()
    gained = (blind - nats)[1:] / (blind - seen)[1:]
    assert (gained > 0.4).all(), gained  # 0 is the best independent predictor, 1 the source itself


def test_the_command_writes_the_report_of_a_recipe(tmp_path: Path) -> None:
    lines = []
    for name, section in RECIPE_OF_TESTS.items():
        lines += [f"[{name}]", *(f"{key} = {value}" for key, value in section.items())]
    path = tmp_path / "recipe.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    options = ("--recipe", path, "-o", tmp_path / "out", "--num-steps", 2, "--progress", "none")
    done = bench("train", "inverse", *options)
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "out" / "inverse.json").read_text(encoding="utf-8"))
    assert report["recipe"]["run"]["num_steps"] == 2
    assert report["windows"] == 18
    assert len(report["acceptance"]["survival"]) == 4
