"""Windows, their masks and uniforms against slow loops over the definitions.

Letters: B rows, S places of a row, Q slots of a row, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from decoders.core.adapter_config import SLOT_VARIANTS, Variant
from decoders.core.sampling import pick, warp
from decoders.core.types import NO_UNIFORM, Sampling
from training.adapter.windows import (
    MIN_MASS,
    Windows,
    WindowSampling,
    draw_windows,
    edges,
    explain,
    sources,
)
from training.text.data import Row

VOCAB = 23
LENGTH = 4
ROWS = [
    Row(list(range(1, 19)), [False] * 4 + [True] * 6 + [False] * 3 + [True] * 5),
    Row([5, 6, 7, 8, 9], [False, True, True, True, True]),
    Row([3, 4, 5], [False, False, True]),  # C-PTP finds no window here
    Row([3, 4], [False, False]),  # nor does anyone here
]


def windows_of(seed: int = 0, rows: list[Row] = ROWS, **options: Any) -> Windows:
    chosen = {"num_slots": 11, "length": LENGTH, "sampling": WindowSampling(), "pad": 0, **options}
    return draw_windows(rows, rng=np.random.default_rng(seed), **chosen)


def slots(windows: Windows) -> list[list[list[int]]]:
    """For each row and window its slots' places in Q, in order."""
    found: list[list[list[int]]] = []
    for numbers in windows.number.tolist():
        assert [n for n, _ in itertools.groupby(numbers) if n >= 0] == sorted(set(numbers) - {-1})
        found.append([])
        for n in sorted(set(numbers) - {-1}):
            found[-1].append([q for q, number in enumerate(numbers) if number == n])
    return found


def answer_end(row: Row, place: int) -> int:
    while place < len(row.ids) and row.learn[place]:
        place += 1
    return place


@pytest.mark.parametrize("variant", SLOT_VARIANTS)
def test_windows_run_from_a_trained_token_to_the_end_of_its_answer(variant: Variant) -> None:
    shift, starts = int(variant != "o-ptp"), [Counter[int]() for _ in ROWS]
    for seed in range(40):
        windows = windows_of(seed, variant=variant)
        for b, of_row in enumerate(slots(windows)):
            row = ROWS[b]
            for where in of_row:
                start = int(windows.start[b, where[0]])
                starts[b][start] += 1
                assert row.learn[start]
                full = min(LENGTH, answer_end(row, start) - start - shift)
                cut = where[-1] == 10  # the row is full
                assert 1 <= len(where) <= full
                assert cut or len(where) == full
                for j, q in enumerate(where):
                    assert windows.index[b, q] == start + shift + j
                    assert windows.depth[b, q] == shift + j
            free = 11 - sum(map(len, of_row))
            assert free == (0 if of_row else 11)
    for b, row in enumerate(ROWS):  # all starts occur, the first answer token among them
        trained = [t for t, learned in enumerate(row.learn) if learned]
        assert set(starts[b]) == {t for t in trained if answer_end(row, t) - t > shift}


def test_a_row_that_starts_with_a_trained_token_keeps_it_as_context() -> None:
    row = Row([5, 6, 7], [True, True, True])
    starts = {int(s) for seed in range(20) for s in windows_of(seed, [row]).start.flatten()}
    assert starts == {1, 2}


def test_starts_are_drawn_evenly_over_the_trained_tokens() -> None:
    row = Row(list(range(12)), [False] * 2 + [True] * 10)
    windows = windows_of(0, [row], num_slots=4000, length=1)
    counts = Counter(windows.index[0].tolist())
    assert set(counts) == set(range(2, 12))
    assert all(320 < count < 480 for count in counts.values())


@pytest.mark.parametrize("variant", SLOT_VARIANTS)
def test_aligned_windows_are_never_cut(variant: Variant) -> None:
    shift, empty = int(variant != "o-ptp"), 0
    for seed in range(20):
        windows = windows_of(seed, variant=variant, aligned=True)
        for b, of_row in enumerate(slots(windows)):
            for where in of_row:
                start = int(windows.start[b, where[0]])
                assert len(where) == min(LENGTH, answer_end(ROWS[b], start) - start - shift)
        empty += int((windows.number[:2] < 0).sum())
    assert empty


def test_padding_is_neutral_and_rows_are_filled_up_on_the_right() -> None:
    windows = windows_of(pad=22, aligned=True)
    padding = windows.number < 0
    assert padding[3].all()
    for field in (windows.index, windows.depth, windows.greedy, windows.start):
        assert not field[padding].any()
    assert (windows.warp[padding] == 1).all()
    for ids, row in zip(windows.ids.tolist(), ROWS, strict=True):
        assert ids == row.ids + [22] * (18 - len(row.ids))


def test_windows_are_determined_by_the_random_generator() -> None:
    sampling = WindowSampling(temperatures=(0.5, 1.5), top_ps=(0.5, 0.9), greedy=0.3)
    first, same, other = (windows_of(seed, sampling=sampling) for seed in (1, 1, 2))
    for name in ("index", "depth", "number", "warp", "greedy", "noise"):
        assert torch.equal(getattr(first, name), getattr(same, name))
        assert not torch.equal(getattr(first, name), getattr(other, name))
    assert first.noise.dtype == torch.float64
    assert first.warp.dtype == torch.float32


def test_each_window_has_one_distribution_drawn_as_configured() -> None:
    sampling = WindowSampling(
        temperatures=(0.5, 1.5), usual_temperature=0.7, top_ps=(0.8, 1.0), greedy=0.25, beta=0.5
    )
    row = Row(list(range(20)), [False] * 2 + [True] * 18)
    windows = windows_of(3, [row] * 4, num_slots=2000, sampling=sampling)
    drawn = []
    for b, of_row in enumerate(slots(windows)):
        for where in of_row:
            assert len(windows.warp[b, where].unique(dim=0)) == 1
            assert len(windows.greedy[b, where].unique()) == 1
            drawn.append((*windows.warp[b, where[0]].tolist(), bool(windows.greedy[b, where[0]])))
    temperature, top_p, greedy = map(np.array, zip(*drawn, strict=True))
    usual = np.isclose(temperature, 0.7)
    assert abs(usual.mean() - 0.5) < 0.05
    assert temperature[~usual].min() < 0.52
    assert temperature[~usual].max() > 1.48
    assert ((temperature >= 0.5) & (temperature <= 1.5)).all()
    assert abs((top_p == 1).mean() - 0.5) < 0.05
    assert abs(greedy.mean() - 0.25) < 0.05
    noise = windows.noise.numpy()
    assert abs(noise.mean() - 0.5) < 0.02
    assert abs(noise.var() - 1 / 8) < 0.01  # of Beta(1/2, 1/2); of a uniform 1/12


@pytest.mark.parametrize("variant", SLOT_VARIANTS)
@pytest.mark.parametrize("seed", range(4))
def test_the_mask_follows_the_definition(seed: int, variant: Variant) -> None:
    windows = windows_of(seed, variant=variant, aligned=seed % 2 == 1)
    seen = windows.mask()
    num_rows, num_slots = windows.index.shape
    width = windows.ids.shape[1]
    assert seen.shape == (num_rows, num_slots, width + num_slots)
    for b in range(num_rows):
        window_of = {q: where for where in slots(windows)[b] for q in where}
        for q in range(num_slots):
            if q in window_of:
                where = window_of[q]
                start = int(windows.index[b, where[0]]) - int(variant != "o-ptp")
                expected = {*range(start), *(width + k for k in where if k <= q)}
            else:
                expected = {0}
            assert set(seen[b, q].nonzero().flatten().tolist()) == expected


# Uniforms.


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    vocab=st.sampled_from([2, 5, 97, 700]),
    scale=st.sampled_from([0.05, 1.0, 4.0, 10.0]),
    temperature=st.sampled_from([0.2, 0.7, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 4, 50]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    share=st.floats(0, 1, exclude_max=True),
)
def test_any_u_of_an_interval_picks_its_token(
    seed: int,
    vocab: int,
    scale: float,
    temperature: float,
    top_k: int,
    top_p: float,
    share: float,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(6, vocab, generator=generator)
    distribution = warp(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    likely = pick(distribution[:3], torch.rand(3, generator=generator, dtype=torch.float64))
    tokens = torch.cat([likely, torch.randint(vocab, (3,), generator=generator)])
    left, mass = edges(logits, tokens, torch.tensor([temperature, top_p]).expand(6, 2), top_k)
    assert left.dtype == mass.dtype == torch.float64
    assert torch.equal(mass > 0, distribution.gather(1, tokens[:, None]).squeeze(1) > 0)
    # an edge is only as sharp as float64: keep off it by some roundings
    margin = 1e-14
    wide = mass > 4 * margin
    assume(bool(wide.any()))
    u = (left + mass * share).clamp(min=left + margin, max=left + mass - margin)
    assert torch.equal(pick(distribution, u)[wide], tokens[wide])
    below, above = left - margin, left + mass + margin
    assert (
        pick(distribution, below.clamp(min=0))[wide & (below >= 0)] < tokens[wide & (below >= 0)]
    ).all()
    assert (
        pick(distribution, above.clamp(max=1))[wide & (above < 1)] > tokens[wide & (above < 1)]
    ).all()


def test_interval_edges_use_a_separate_distribution_for_each_token() -> None:
    logits = 2 * torch.randn(3, 4, VOCAB, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(VOCAB, (3, 4), generator=torch.Generator().manual_seed(1))
    warps = torch.tensor([[0.5, 1.0], [0.9, 0.8], [1.3, 0.3], [1.0, 1.0]]).expand(3, 4, 2)
    left, mass = edges(logits, tokens, warps, 9)
    for b, q in itertools.product(range(3), range(4)):
        temperature, top_p = warps[b, q].tolist()
        distribution = warp(
            logits[b, q][None], Sampling(temperature=temperature, top_k=9, top_p=top_p)
        )[0]
        token = int(tokens[b, q])
        assert left[b, q].item() == pytest.approx(distribution[:token].sum().item(), abs=1e-6)
        assert mass[b, q].item() == pytest.approx(distribution[token].item(), abs=1e-6)


DISTRIBUTIONS = WindowSampling(temperatures=(0.6, 1.4), top_ps=(0.7, 1.0), top_k=15, greedy=0.4)


def explain_by(windows: Windows, logits: Tensor, top_k: int, variant: Variant) -> Any:
    """Uniforms and targets from logits ``[B, Q, V]`` before each carried token."""
    tokens = windows.ids.gather(1, sources(windows, variant))
    left, mass = edges(logits, tokens, windows.warp, top_k)
    u, target, usable = explain(windows, logits.argmax(-1), left, mass, variant)
    return SimpleNamespace(u=u, target=target, usable=usable)


def explained(seed: int, variant: Variant) -> tuple[Windows, Tensor, Any]:
    """Windows on random text and logits ``[B, Q, V]`` that like the text in most places."""
    rng = np.random.default_rng(seed)
    rows = [
        Row(rng.integers(0, VOCAB, n).tolist(), [False] * 3 + [True] * (n - 3)) for n in (14, 9)
    ]
    rows.append(Row([1, 2], [False, False]))
    windows = windows_of(
        seed, rows, num_slots=17, sampling=DISTRIBUTIONS, variant=variant, aligned=True
    )
    by_place = 1.5 * torch.randn(3, 14, VOCAB, generator=torch.Generator().manual_seed(seed))
    liked = torch.rand(3, 14, generator=torch.Generator().manual_seed(seed + 1)) < 0.6
    by_place.scatter_add_(2, windows.ids[..., None], 4.0 * liked[..., None])
    before = (windows.index - int(variant != "o-ptp")).clamp(min=0)
    logits = by_place.gather(1, before[..., None].expand(-1, -1, VOCAB))  # teacher of that token
    return windows, logits, explain_by(windows, logits, DISTRIBUTIONS.top_k, variant)


def check_explained(seed: int, variant: Variant) -> tuple[int, int]:
    """How many slots counted and how many chains ended, once all is as defined."""
    windows, logits, got = explained(seed, variant)
    shift, usable, ended = int(variant != "o-ptp"), 0, 0
    for b, of_row in enumerate(slots(windows)):
        inside = {q for where in of_row for q in where}
        for q in set(range(17)) - inside:
            assert got.u[b, q] == NO_UNIFORM
            assert not got.usable[b, q]
        for where in of_row:
            alive = True
            for q in where:
                text = windows.ids[b].tolist()
                index, before = int(windows.index[b, q]), int(windows.index[b, q]) - shift
                temperature, top_p = windows.warp[b, q].tolist()
                sampling = Sampling(temperature=temperature, top_k=DISTRIBUTIONS.top_k, top_p=top_p)
                distribution = warp(logits[b, q][None], sampling)
                top = int(logits[b, q].argmax())
                greedy = bool(windows.greedy[b, q])
                agrees = (
                    text[before] == top
                    if greedy
                    else bool(distribution[0, text[before]] > MIN_MASS)
                )
                # O-PTP may still learn a greedy token that the text does not have
                counts = alive and (agrees or (greedy and variant == "o-ptp"))
                assert bool(got.usable[b, q]) == counts
                assert got.u[b, q] == NO_UNIFORM if greedy else 0 <= got.u[b, q] < 1
                learned = top if greedy and variant == "o-ptp" else text[index]
                assert not counts or int(got.target[b, q]) == learned
                if counts and not greedy:  # what is carried is the u of the carried token
                    assert int(pick(distribution, got.u[b, q][None])) == text[before]
                usable, ended = usable + counts, ended + (alive and not agrees)
                alive = alive and agrees
    return usable, ended


@pytest.mark.parametrize("variant", SLOT_VARIANTS)
def test_uniforms_targets_and_chain_ends_follow_the_definition(variant: Variant) -> None:
    usable, ended = map(sum, zip(*(check_explained(s, variant) for s in range(6)), strict=True))
    assert usable > 80
    assert ended > 20


def test_a_token_that_no_float64_can_reach_is_not_explained() -> None:
    row = Row([0, 1, 2], [False, True, True])
    windows = windows_of(0, [row], num_slots=40, length=2)
    logits = torch.tensor([50.0, 0.0, 50.0]).expand(1, 40, 3)
    assert edges(logits, windows.ids.gather(1, windows.index), windows.warp, 0)[1].min() > 0
    usable = explain_by(windows, logits, 0, "o-ptp").usable
    # token 1 is out of reach; token 2 counts where a window starts at it
    assert torch.equal(usable, windows.start == 2)


def test_noise_stays_strictly_between_0_and_1_even_for_an_extreme_beta_distribution() -> None:
    noise = windows_of(0, ROWS[:1], num_slots=20_000, sampling=WindowSampling(beta=0.02)).noise
    assert 0 < noise.min() < 1e-6
    assert 1 - 1e-6 < noise.max() < 1


def test_all_tensors_of_windows_move_to_a_device() -> None:
    moved = windows_of().to(torch.device("meta"))
    assert moved.mask().is_meta
    assert all(getattr(moved, name).is_meta for name in ("ids", "warp", "greedy", "noise"))


@pytest.mark.parametrize("variant", SLOT_VARIANTS)
def test_a_slot_carries_the_predicted_token_in_o_ptp_and_the_token_before_otherwise(
    variant: Variant,
) -> None:
    windows = windows_of(variant=variant, aligned=True)
    real = windows.number >= 0
    found = sources(windows, variant)
    assert torch.equal(found[real], (windows.index - int(variant != "o-ptp"))[real])
    assert not found[~real].any()


def test_noise_places_u_within_the_interval_of_its_token() -> None:
    windows, logits, got = explained(0, "o-ptp")
    left, mass = edges(
        logits, windows.ids.gather(1, windows.index), windows.warp, DISTRIBUTIONS.top_k
    )
    counts = got.usable & ~windows.greedy
    share = ((got.u - left) / mass)[counts]
    torch.testing.assert_close(share, windows.noise[counts])


def test_standalone_windows_do_not_see_the_token_before_them() -> None:
    rows = [Row([3, 4, 5, 6, 7, 8], [False, False, True, True, True, True])]
    windows = draw_windows(
        rows,
        num_slots=6,
        length=3,
        sampling=DISTRIBUTIONS,
        pad=0,
        rng=np.random.default_rng(0),
        standalone=True,
    )
    mask = windows.mask()[0]
    for slot in range(6):
        start = int(windows.start[0, slot])
        assert mask[slot, : start - 1].all()
        assert not mask[slot, start - 1 : 6].any()
