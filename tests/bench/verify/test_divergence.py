"""Where answers part: the first difference decides, and rounding excuses what it could have done.

The target is a table of one distribution, in the order of the vocabulary: 0.5, 0.3, 0.15, 0.05.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from bench.verify.divergence import MARGINS, Divergence, edge_margin, examine
from decoders.core.sampling import Uniforms
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling

DISTRIBUTION = (0.5, 0.3, 0.15, 0.05)
STATED = {"float32": 0.001, "float16": 0.03, "bfloat16": 0.25}
SAMPLED = Sampling(temperature=1.0)
FLOAT32 = edge_margin(MARGINS["float32"], 1.0)


class OneDistribution(TableModel):
    """Says the same distribution everywhere."""

    def __init__(self, distribution: Sequence[float]) -> None:
        super().__init__(len(distribution))
        self._distribution = torch.tensor(distribution).log()

    def logits(self, context: Sequence[int]) -> torch.Tensor:
        return self._distribution


def parted(
    answer: Sequence[int],
    expected: Sequence[int],
    sampling: Sampling,
    *,
    distribution: Sequence[float] = DISTRIBUTION,
    dtype: str = "float32",
) -> Divergence:
    found = examine(OneDistribution(distribution), [1, 2], answer, expected, sampling, dtype)
    assert found is not None
    return found


def at(monkeypatch: pytest.MonkeyPatch, u: float) -> None:
    """Let the uniform of every position be u."""
    monkeypatch.setattr(Uniforms, "at", lambda *_: u)


def test_equal_answers_have_no_divergence() -> None:
    assert examine(OneDistribution(DISTRIBUTION), [1], [0, 1], (0, 1), SAMPLED, "float32") is None


def test_an_answer_that_stops_early_is_no_near_tie() -> None:
    found = parted([0], [0, 1], Sampling())
    assert (found.by, found.num_equal, found.near_tie) == ("length", 1, False)


@pytest.mark.parametrize(("gap", "dtypes"), [(5e-4, 3), (0.01, 2), (0.1, 1), (0.5, 0)])
def test_a_greedy_difference_is_a_near_tie_if_the_logits_tie_in_their_dtype(
    gap: float, dtypes: int
) -> None:
    distribution = [0.4, 0.4 * float(torch.tensor(-gap).exp()), 0.1, 0.1]
    near = [
        parted([1], [0], Sampling(), distribution=distribution, dtype=dtype).near_tie
        for dtype in MARGINS
    ]
    assert near == [dtypes > 2, dtypes > 1, dtypes > 0, False]


def test_a_sampled_difference_is_a_near_tie_if_u_is_close_to_the_edge_between_both_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at(monkeypatch, 0.5 + FLOAT32 / 2)
    found = parted([0], [1], SAMPLED)
    assert found.near_tie
    assert found.distance == pytest.approx(FLOAT32 / 2, rel=1e-2)
    # as near to a border, but no border of token 2
    assert not parted([2], [1], SAMPLED).near_tie


def test_a_sampled_token_far_from_u_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 0.6)
    found = parted([0], [1], SAMPLED)
    assert found.distance == pytest.approx(0.1, abs=1e-6)
    assert not found.near_tie


@pytest.mark.parametrize(
    ("distribution", "cut"),
    [
        ((0.5, 0.3, 0.1, 0.1 - 1e-6), {"top_k": 3}),  # kept is token 2, next is token 3
        ((0.5, 0.3, 0.1 + 1e-6, 0.1 - 1e-6), {"top_p": 0.9}),  # 0.9 is reached by token 2
        ((0.5, 0.3, 0.1 - 1e-6, 0.1 + 1e-6), {"top_p": 0.9}),  # and by token 3 alone
    ],
)
def test_near_ties_of_a_top_k_or_top_p_cut_are_judged_on_both_sides_of_the_cut(
    distribution: Sequence[float], cut: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """u is of token 0 where three tokens are kept, and of token 1 where all four are."""
    at(monkeypatch, 0.53)
    sampling = Sampling(temperature=1.0, **cut)  # type: ignore[arg-type]
    for answer, expected in (([1], [0]), ([0], [1])):
        assert parted(answer, expected, sampling, distribution=distribution).near_tie
        assert not parted([3], expected, sampling, distribution=distribution).near_tie
    clear = (0.5, 0.3, 0.13, 0.07)
    assert not parted([1], [0], sampling, distribution=clear).near_tie


@pytest.mark.parametrize(("dtype", "margin"), STATED.items())
def test_near_ties_end_at_the_documented_margin(
    dtype: str, margin: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/verify.md: so far apart in logits, and that / 4T between u and the token's share."""
    for share, near in ((0.9, True), (1.1, False), (2.0, False)):
        distribution = [0.4, 0.4 * math.exp(-share * margin), 0.1, 0.1]
        assert parted([1], [0], Sampling(), distribution=distribution, dtype=dtype).near_tie is near
        for temperature in (0.5, 1.0, 2.0):
            probs = (torch.tensor(DISTRIBUTION).log() / temperature).softmax(0)
            edge = share * margin / (4 * temperature)
            at(monkeypatch, float(probs[0]) + edge)
            sampling = Sampling(temperature=temperature)
            assert parted([0], [1], sampling, dtype=dtype).near_tie is near


class Tied(TableModel):
    """Tokens 0 and 1 tie after `num` tokens, and nowhere else."""

    def __init__(self, num: int) -> None:
        super().__init__(4)
        self._num = num

    def logits(self, context: Sequence[int]) -> torch.Tensor:
        gap = 1e-5 if len(context) == self._num else 3.0
        return torch.tensor([gap, 0.0, -5.0, -6.0])


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_near_tie_counts_only_at_the_first_difference(place: int) -> None:
    prompt, expected = [1, 2], (0,) * 5
    answer = (*expected[:place], 1, 0)
    for moved in (-1, 0, 1):
        target = Tied(len(prompt) + place + moved)
        found = examine(target, prompt, answer, expected, Sampling(), "float32")
        assert found is not None
        assert (found.num_equal, found.near_tie) == (place, moved == 0)


@pytest.mark.parametrize("place", [0, 2])
def test_the_uniform_is_that_of_the_position_of_the_first_difference(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for moved in (-1, 0, 1):
        border = place + moved
        monkeypatch.setattr(Uniforms, "at", lambda _u, _stream, p, b=border: 0.5 if p == b else 0.2)
        answer, expected = (0,) * place + (1,), (0,) * (place + 1)
        assert parted(answer, expected, SAMPLED).near_tie == (moved == 0)


def test_a_near_tie_between_other_tokens_does_not_excuse_a_difference() -> None:
    distribution = (0.4, 0.4, 0.1, 0.1)
    assert parted([1], [0], Sampling(), distribution=distribution).near_tie
    assert not parted([2], [0], Sampling(), distribution=distribution).near_tie


@pytest.mark.parametrize("cut", [{"top_p": 0.95}, {"top_k": 3}])
def test_a_difference_from_a_tie_at_the_border_of_the_nucleus_is_a_near_tie(
    monkeypatch: pytest.MonkeyPatch, cut: dict[str, float]
) -> None:
    distribution = DISTRIBUTION if "top_p" in cut else (0.5, 0.3, 0.1, 0.1)
    # without token 3 the others are wider: u = 0.52 is token 0 there, and token 1 with it
    at(monkeypatch, 0.52)
    sampling = Sampling(temperature=1.0, **cut)  # type: ignore[arg-type]
    assert parted([1], [0], sampling, distribution=distribution).near_tie
    clear = Sampling(temperature=1.0, top_p=0.9, top_k=3)
    assert not parted([1], [0], clear, distribution=(0.5, 0.3, 0.15, 0.05)).near_tie


def test_noise_within_the_margin_moves_the_cdf_no_farther_than_the_edge_margin() -> None:
    generator = torch.Generator().manual_seed(0)
    margin, temperature = 0.2, 0.7
    for _ in range(200):
        logits = torch.randn(12, generator=generator, dtype=torch.float64) * 3
        noise = (torch.rand(12, generator=generator, dtype=torch.float64) - 0.5) * margin
        before = torch.softmax(logits / temperature, 0).cumsum(0)
        after = torch.softmax((logits + noise) / temperature, 0).cumsum(0)
        assert (before - after).abs().max() <= edge_margin(margin, temperature)
