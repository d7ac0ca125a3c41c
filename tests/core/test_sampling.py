"""Sampling and verification against transformers, exact enumeration and chi-square."""

import dataclasses
import gc
import itertools
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from decoders.core.sampling import (
    Uniforms,
    compare_distributions,
    highest,
    likeliest,
    one_hot,
    pick,
    verify_rejection,
    warp,
)
from decoders.core.types import Sampling

GOLDEN_UNIFORMS = [0.8560978196978555, 0.9115757677140159, 0.33988912123192005]


def random_logits(num_rows: int, vocab_size: int, seed: int = 0, scale: float = 3.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, vocab_size, generator=generator) * scale


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 1, 5, 500])
@pytest.mark.parametrize("top_p", [1.0, 0.95, 0.5, 0.01])
def test_warp_equals_transformers_processors(temperature: float, top_k: int, top_p: float) -> None:
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = random_logits(6, 300)
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    distribution = warp(logits, Sampling(temperature=temperature, top_k=top_k, top_p=top_p))
    torch.testing.assert_close(distribution, expected.softmax(-1), atol=1e-6, rtol=1e-5)


def test_top_p_sorts_the_whole_vocabulary_if_the_top_64_tokens_have_too_little_mass() -> None:
    from transformers import TopPLogitsWarper

    flat = random_logits(3, 1000, scale=0.1)
    assert flat.softmax(-1).topk(64).values.sum(-1).max() < 0.9
    distribution = warp(flat, Sampling(temperature=1.0, top_p=0.9))
    torch.testing.assert_close(distribution, TopPLogitsWarper(0.9)(None, flat).softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_highest_returns_the_first_of_tied_values_and_ranks_nan_above_every_number(
    dtype: torch.dtype,
) -> None:
    rows = random_logits(5, 3000).to(dtype)  # in bfloat16 the highest values tie
    rows[3, 40:50] = rows[3].max() + 1
    rows[4, 2000] = torch.nan
    if dtype == torch.float64:
        rows[2, 2500] = rows[2].max() + 1e-12  # lost in float32
    values, ids = highest(rows)
    assert ids.tolist() == [
        *((row == row.max()).nonzero()[0].item() for row in rows[:4]),
        2000,
    ]
    torch.testing.assert_close(values, rows.max(-1).values, equal_nan=True, rtol=0, atol=0)
    assert likeliest(rows).tolist() == [*ids.tolist()[:4], 3000]


def test_temperature_zero_is_the_one_hot_distribution_of_the_argmax() -> None:
    logits = random_logits(4, 50)
    distribution = warp(logits, Sampling())
    assert torch.equal(distribution, one_hot(logits.argmax(-1), 50))


def test_warp_never_changes_its_input() -> None:
    logits = random_logits(2, 100)
    before = logits.clone()
    warp(logits, Sampling(temperature=0.7, top_k=10, top_p=0.8))
    assert torch.equal(logits, before)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), st.floats(0, 1 - 1e-12))
@settings(deadline=None)
def test_pick_is_the_inverse_cdf_and_never_picks_an_impossible_token(
    weights: list[int], u: float
) -> None:
    token = int(pick(torch.tensor([weights]).float(), torch.tensor([u], dtype=torch.float64)))
    assert weights[token] > 0
    total = sum(weights)
    assert sum(weights[:token]) / total <= u + 1e-12
    assert u < sum(weights[: token + 1]) / total + 1e-12


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.2, 0.7, 1.0, 3.0]),
    top_k=st.integers(0, 12),
    top_p=st.floats(0.01, 1.0),
)
ROWS = st.lists(
    st.lists(st.floats(-30, 30, width=32), min_size=9, max_size=9), min_size=1, max_size=5
)


@given(rows=ROWS, sampling=SAMPLINGS)
@settings(deadline=None, max_examples=80)
def test_a_warped_distribution_sums_to_one_over_the_tokens_that_the_warp_keeps(
    rows: list[list[float]], sampling: Sampling
) -> None:
    logits = torch.tensor(rows)
    distribution = warp(logits, sampling)
    assert distribution.shape == logits.shape
    assert (distribution >= 0).all()
    torch.testing.assert_close(distribution.sum(-1), torch.ones(len(rows)))
    whole = warp(logits, dataclasses.replace(sampling, top_k=0, top_p=1.0))
    likeliest = whole == whole.amax(-1, keepdim=True)  # of tokens that tie, some stay
    stays = distribution.masked_fill(~likeliest, 0).sum(-1) > 0
    assert stays.all(), "the likeliest token stays"
    if sampling.top_k:
        kth = logits.sort(-1, descending=True).values[:, min(sampling.top_k, 9) - 1 :][:, :1]
        assert (distribution[logits < kth] == 0).all()
    for row, one in zip(distribution, rows, strict=True):  # whatever stands beside it
        assert torch.equal(warp(torch.tensor([one]), sampling)[0], row)


@given(rows=ROWS, sampling=SAMPLINGS, u=st.floats(0, 1, exclude_max=True))
@settings(deadline=None, max_examples=60)
def test_a_pick_always_has_a_positive_probability(
    rows: list[list[float]], sampling: Sampling, u: float
) -> None:
    distribution = warp(torch.tensor(rows), sampling)
    tokens = pick(distribution, torch.full((len(rows),), u, dtype=torch.float64))
    assert (distribution.gather(-1, tokens[:, None]) > 0).all()


@given(data=st.data(), k=st.integers(1, 4), size=st.integers(2, 6))
@settings(deadline=None, max_examples=80)
def test_rejection_accepts_a_leading_run_and_adds_a_possible_token(
    data: st.DataObject, k: int, size: int
) -> None:
    weights = st.lists(st.integers(0, 5), min_size=size, max_size=size).filter(any)
    draw = lambda num: torch.tensor([data.draw(weights) for _ in range(num)]).float()  # noqa: E731
    target, draft = draw(k + 1), draw(k)
    target, draft = target / target.sum(-1, keepdim=True), draft / draft.sum(-1, keepdim=True)
    uniform = st.floats(0, 1, exclude_max=True)
    u = torch.tensor([[data.draw(uniform) for _ in range(2 * k + 1)]], dtype=torch.float64)
    drafts = pick(draft, u[0, :k])[None]
    accepted, token = verify_rejection(
        target[None], draft[None], drafts, torch.tensor([k]), u[:, :k].flip(-1), u[:, k:]
    )
    place = int(accepted)
    assert 0 <= place <= k
    assert all(target[i, drafts[0, i]] > 0 for i in range(place)), "an impossible draft stood"
    assert target[place, int(token)] > 0


def test_pick_follows_the_distribution_over_many_uniforms() -> None:
    distribution = torch.tensor([0.1, 0.0, 0.6, 0.3])
    u = torch.linspace(0, 1, 10_001, dtype=torch.float64)[:-1]
    counts = pick(distribution.expand(len(u), -1), u).bincount(minlength=4)
    torch.testing.assert_close(counts / len(u), distribution, atol=2e-4, rtol=0)


def test_uniforms_depend_on_seed_prompt_stream_and_position_but_not_on_order() -> None:
    uniforms = Uniforms(3, [1, 2, 3])
    late_first = [uniforms.at("draw", position) for position in (700, 0, 255, 256)]
    again = Uniforms(3, [1, 2, 3])
    assert [again.at("draw", p) for p in (0, 255, 256, 700)] == sorted_by(late_first, (1, 2, 3, 0))
    different = [
        Uniforms(4, [1, 2, 3]).at("draw", 0),
        Uniforms(3, [3, 2, 1]).at("draw", 0),
        uniforms.at("accept", 0),
        uniforms.at("recover", 0),
        uniforms.at("draw", 1),
    ]
    assert len({late_first[1], *different}) == 6


def sorted_by(values: list[float], order: tuple[int, ...]) -> list[float]:
    return [values[index] for index in order]


def test_uniforms_are_the_published_golden_values() -> None:
    # a change here changes every sampled token of every stored run: bump the schema
    uniforms = Uniforms(0, [1, 2, 3])
    assert [uniforms.at("draw", p) for p in range(3)] == GOLDEN_UNIFORMS


def test_uniforms_are_uniform() -> None:
    uniforms = Uniforms(1, [5])
    for stream in ("draw", "accept", "recover"):
        sample = [uniforms.at(stream, position) for position in range(5000)]
        assert stats.kstest(sample, "uniform").pvalue > 1e-3


def test_the_uniforms_of_earlier_steps_are_released() -> None:
    uniforms = Uniforms(1, [2])
    for step in range(1, 20):
        uniforms.at_step(step).at("draw", 0)
    seen, pending = set[int](), list[object]([uniforms])
    while pending:
        each = pending.pop()
        if isinstance(each, Uniforms) and id(each) not in seen:
            seen.add(id(each))
            pending += gc.get_referents(each)
    assert len(seen) == 2


def test_different_steps_have_different_uniforms() -> None:
    uniforms = Uniforms(3, [1, 2, 3])
    first = [uniforms.at_step(1).at("draw", place) for place in range(600)]
    other = [uniforms.at_step(2).at("draw", place) for place in range(600)]
    by_place = [uniforms.at("draw", place) for place in range(600)]
    assert len({*first, *other, *by_place}) == 1800
    assert [uniforms.at_step(1).at("draw", place) for place in (599, 0)] == [first[599], first[0]]
    assert uniforms.at_step(0).at("draw", 1) == by_place[1]
    assert uniforms.at_step(1).at("draw", 0, 1) not in first
    assert stats.kstest(first, "uniform").pvalue > 1e-3


# Distributions in sixths, drafts in thirds: acceptance ratios are multiples of 1/2 and residuals
# of 1/2 or 1, so midpoints of a grid of 6 integrate every uniform exactly.
TARGET = torch.tensor([[4, 1, 1], [3, 3, 0], [2, 2, 2]]) / 6
DRAFT = torch.tensor([[2, 2, 2], [2, 2, 2]]) / 6
GRID = [(step + 0.5) / 6 for step in range(6)]


def enumerate_distribution(accept_bias: float = 0.0) -> dict[tuple[int, ...], float]:
    """Exact distribution of the tokens up to the first that is no draft, then of the one after."""
    distribution: defaultdict[tuple[int, ...], float] = defaultdict(float)
    cases = list(itertools.product(range(3), range(3), GRID, GRID, GRID))
    drafts = torch.tensor([case[:2] for case in cases])
    u_accept = torch.tensor([case[2:4] for case in cases], dtype=torch.float64) - accept_bias
    u_recover = torch.tensor([[case[4]] * 3 for case in cases], dtype=torch.float64)
    batch = len(cases)
    accepted, token = verify_rejection(
        TARGET.expand(batch, -1, -1),
        DRAFT.expand(batch, -1, -1),
        drafts,
        torch.full((batch,), 2),
        u_accept,
        u_recover,
    )
    proposals = drafts.tolist()
    for drafted, num, last in zip(proposals, accepted.tolist(), token.tolist(), strict=True):
        distribution[(*drafted[:num], last)] += 1 / batch
    return distribution


def distribution_of_position(distribution: dict[tuple[int, ...], float], place: int) -> list[float]:
    """Distribution of the token at `place` among the outcomes that reach it, normalised."""
    mass = [0.0, 0.0, 0.0]
    for tokens, probability in distribution.items():
        if len(tokens) > place:
            mass[tokens[place]] += probability
    return [value / sum(mass) for value in mass]


def test_rejection_has_the_targets_exact_distribution_at_every_place() -> None:
    distribution = enumerate_distribution()
    for place in range(3):
        assert distribution_of_position(distribution, place) == pytest.approx(
            TARGET[place].tolist(), abs=1e-6
        )


def test_the_acceptance_probability_is_the_overlap_of_target_and_draft_distribution() -> None:
    distribution = enumerate_distribution()
    overlap = float(torch.minimum(TARGET[0], DRAFT[0]).sum())
    assert sum(mass for tokens, mass in distribution.items() if len(tokens) > 1) == pytest.approx(
        overlap
    )


def test_a_biased_accept_stream_is_seen_by_the_exact_enumeration() -> None:
    distribution = enumerate_distribution(accept_bias=0.2)
    assert distribution_of_position(distribution, 0) != pytest.approx(TARGET[0].tolist(), abs=1e-3)


def test_rejection_ignores_padding_beyond_each_sequences_drafts() -> None:
    one = verify_rejection(
        TARGET[None, :2],
        DRAFT[None, :1],
        torch.tensor([[0]]),
        torch.tensor([1]),
        torch.tensor([[0.9]], dtype=torch.float64),
        torch.tensor([[0.4, 0.6]], dtype=torch.float64),
    )
    padded = verify_rejection(
        torch.stack([TARGET, TARGET]),
        torch.stack([torch.cat([DRAFT[:1], torch.zeros(1, 3)]), DRAFT]),
        torch.tensor([[0, 0], [1, 2]]),
        torch.tensor([1, 2]),
        torch.tensor([[0.9, 0.0], [0.1, 0.1]], dtype=torch.float64),
        torch.tensor([[0.4, 0.6, 0.0], [0.3, 0.3, 0.3]], dtype=torch.float64),
    )
    assert (one[0][0], one[1][0]) == (padded[0][0], padded[1][0])


@pytest.mark.parametrize("accepted", [0, 1, 2])
def test_the_token_after_accepted_drafts_is_drawn_with_the_uniform_of_its_own_position(
    accepted: int,
) -> None:
    """Drafts 0 stand for certain where u is 0, and token 1 or 2 follows, as its place's u says."""
    target = torch.tensor([[0.5, 0.25, 0.25]] * 3)
    draft = torch.tensor([[1.0, 0.0, 0.0]] * 2)
    u_accept = [0.0 if place < accepted else 0.99 for place in range(2)]
    for u, token in ((0.3, 1), (0.9, 2)):
        u_recover = [u if place == accepted else 1.2 - u for place in range(3)]
        found = verify_rejection(
            target[None],
            draft[None],
            torch.tensor([[0, 0]]),
            torch.tensor([2]),
            torch.tensor([u_accept], dtype=torch.float64),
            torch.tensor([u_recover], dtype=torch.float64),
        )
        bonus = int(pick(target[:1], torch.tensor([u], dtype=torch.float64)))
        assert (int(found[0]), int(found[1])) == (accepted, token if accepted < 2 else bonus)


def test_distributions_are_compared_by_ratios_of_at_most_one_and_by_the_mass_they_share() -> None:
    generator = torch.Generator().manual_seed(3)
    target, draft = (torch.rand(1, n, 5, generator=generator).softmax(-1) for n in (5, 4))
    drafts = torch.tensor([[0, 1, 2, 3]])
    ratios, overlaps = compare_distributions(target, draft, drafts)
    places = list(enumerate(drafts[0].tolist()))
    raw = [float(target[0, place, token] / draft[0, place, token]) for place, token in places]
    assert min(raw) < 1 < max(raw)
    assert ratios[0].tolist() == pytest.approx([min(1.0, ratio) for ratio in raw])
    for place, _ in places:
        pairs = zip(target[0, place].tolist(), draft[0, place].tolist(), strict=True)
        assert float(overlaps[0, place]) == pytest.approx(sum(min(pair) for pair in pairs))


def test_one_hot_drafts_are_accepted_with_the_targets_probability_and_never_recovered() -> None:
    target = TARGET[None, :2]
    draft = one_hot(torch.tensor([[0]]), 3)
    for u, expected in ((0.66, 1), (0.67, 0)):
        accepted, token = verify_rejection(
            target,
            draft,
            torch.tensor([[0]]),
            torch.tensor([1]),
            torch.tensor([[u]], dtype=torch.float64),
            torch.tensor([[0.0, 0.0]], dtype=torch.float64),
        )
        assert int(accepted) == expected
        assert expected == 1 or int(token) != 0
