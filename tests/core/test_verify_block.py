"""Block verification by exact enumeration: its law, its optimality, and its published wrong forms.

A test accepts below a threshold, and the token after the accepted drafts is a step function of its
uniform. All thresholds are found by bisection, so the distribution of answers is exact.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from decoders.core.joint_verification import verify_block
from decoders.core.sampling import verify_rejection

Verify = Callable[..., tuple[Tensor, Tensor]]
Law = Callable[[tuple[int, ...]], Tensor]
V, K = 3, 3


def table(seed: int, scale: float = 1.5) -> Law:
    """Distributions ``[V]`` after each text, drawn anew for each."""

    def law(text: tuple[int, ...]) -> Tensor:
        number = sum((token + 1) * (V + 1) ** place for place, token in enumerate(text))
        generator = torch.Generator().manual_seed(1000 * seed + number)
        return (scale * torch.randn(V, generator=generator, dtype=torch.float64)).softmax(-1)

    return law


def even(text: tuple[int, ...]) -> Tensor:
    """Zeros, certainties and even distributions in turn."""
    rows = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.0, 0.25, 0.75]]
    return torch.tensor(rows[(sum(text) + len(text)) % 4], dtype=torch.float64)


def answers(target: Law, draft: Law, verify: Verify, length: Callable[..., int]) -> tuple:
    """Distribution of the first K + 1 tokens, the target's behind a step, and tokens a step."""
    law: defaultdict[tuple[int, ...], float] = defaultdict(float)
    tokens_a_step = 0.0
    for drafts in itertools.product(range(V), repeat=K):
        num = length(drafts)
        if any(drafts[num:]):
            continue  # padding
        drawn = [draft(drafts[:i]) for i in range(num)]
        mass = float(torch.tensor([row[x] for row, x in zip(drawn, drafts, strict=False)]).prod())
        if not mass:
            continue
        probs = torch.stack([target(drafts[:i]) for i in range(K + 1)])
        padding = [torch.full((V,), 7.0, dtype=torch.float64)] * (K - num)
        call = (probs, torch.stack([*drawn, *padding]), torch.tensor(drafts), torch.tensor(num))
        for accepted, chance, token, weight in outcomes(verify, call, num):
            tokens_a_step += mass * chance * weight * (accepted + 1)
            text = (*drafts[:accepted], token)
            for rest in itertools.product(range(V), repeat=K + 1 - len(text)):
                after = [float(target((*text, *rest[:i]))[x]) for i, x in enumerate(rest)]
                law[*text, *rest] += mass * chance * weight * math.prod(after)
    return law, tokens_a_step


def outcomes(verify: Verify, call: tuple, num: int) -> list[tuple[int, float, int, float]]:
    """Every number of accepted drafts with its chance, and every token after them with its."""
    is_block = verify is verify_block

    def edge(tests: list[float], place: int | None, holds: Callable[..., Tensor]) -> float:
        """The u of a test (None: of the token) below which a verdict holds, to 1e-7."""
        low, width, grid = 0.0, 1.0, torch.arange(400).double() / 400
        for _ in range(3):
            u_accept = torch.tensor([tests]).double().repeat(400, 1)
            u_recover = torch.full((400, K + 1), 0.5).double()
            u = low + width * grid
            if place is None:
                u_recover = u[:, None].repeat(1, K + 1)
            else:
                u_accept[:, place] = u
            batch = (each.expand(400, *each.shape) for each in call)
            passed = int(holds(*verify(*batch, u_accept, u_recover)).sum())
            if passed == 0:
                return low
            low, width = low + width * (passed - 1) / 400, width / 400
        return low + width

    chances = []
    for i in range(num):
        tests = [1.0] * K if is_block else [0.0] * i + [1.0] * (K - i)
        chances.append(edge(tests, i, lambda accepted, _, i=i: accepted > i))
    result = []
    for accepted in range(num + 1):
        # by block the last test that passes decides, by rejection the first that fails
        fails = chances[accepted:] if is_block else chances[accepted : accepted + 1]
        passes = chances[:accepted][-1:] if is_block else chances[:accepted]
        chance = math.prod([*passes, *(1 - each for each in fails)])
        if chance > 1e-9:
            tests = [1.0] * K if is_block else [0.0] * accepted + [1.0] * (K - accepted)
            tests[accepted - 1 : accepted] = [0.0] * bool(accepted)
            edges = [edge(tests, None, lambda _, token, t=t: token <= t) for t in range(V)]
            weights = [up - low for low, up in itertools.pairwise([0.0, *edges])]
            result += [(accepted, chance, t, w) for t, w in enumerate(weights) if w > 1e-9]
    return result


def distance(target: Law, law: dict[tuple[int, ...], float]) -> float:
    gaps = 0.0
    for text in itertools.product(range(V), repeat=K + 1):
        after = torch.tensor([target(text[:i])[x] for i, x in enumerate(text)]).double()
        gaps += abs(float(after.prod()) - float(law.get(text, 0.0)))
    return gaps / 2


def whole(drafts: tuple[int, ...]) -> int:
    return K


def until_zero(drafts: tuple[int, ...]) -> int:
    """A chain ends with its first 0, as one that stops at an unlikely draft does."""
    return drafts.index(0) + 1 if 0 in drafts else K


CASES = [(table(1), table(2)), (table(3, 3.0), table(4)), (even, table(5)), (table(6), even)]


@pytest.mark.parametrize("length", [whole, until_zero])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_block_verification_keeps_the_distribution_and_accepts_no_fewer_tokens_than_rejection(
    case: int, length: Callable[..., int]
) -> None:
    target, draft = CASES[case]
    law, tokens = answers(target, draft, verify_block, length)
    assert distance(target, law) < 1e-6
    reference, fewer = answers(target, draft, verify_rejection, length)
    assert distance(target, reference) < 1e-6
    assert tokens > fewer - 1e-9
    assert case > 1 or tokens > fewer + 1e-3


def test_the_papers_example_accepts_11_ninths_of_a_token_and_10_ninths_by_rejection() -> None:
    """Section 2 of arXiv 2403.10444: two words, drafts of two tokens."""

    def laws(first: float) -> Law:
        return lambda text: torch.tensor([first, 1 - first, 0.0], dtype=torch.float64)

    def two(drafts: tuple[int, ...]) -> int:
        return 2

    for verify, expected in ((verify_block, 11 / 9), (verify_rejection, 10 / 9)):
        _, tokens = answers(laws(1 / 3), laws(2 / 3), verify, two)
        assert tokens - 1 == pytest.approx(expected, abs=1e-6)


def test_drafts_from_the_targets_own_distribution_are_accepted_despite_rounding() -> None:
    probs = torch.rand(1, K + 1, V).softmax(-1)
    drafts = torch.tensor([[0, 1, 2]])
    tests = torch.full((1, K), 1 - 2**-53, dtype=torch.float64)
    accepted, _ = verify_block(
        probs, probs[:, :-1], drafts, torch.tensor([K]), tests, torch.zeros(1, K + 1).double()
    )
    assert accepted.item() == K


def test_a_target_distribution_of_nan_gives_no_token() -> None:
    probs = torch.full((1, 2, V), torch.nan)
    draft = torch.tensor([[[0.5, 0.5, 0.0]]])
    u = torch.zeros(1, 2).double()
    accepted, token = verify_block(
        probs, draft, torch.tensor([[0]]), torch.tensor([1]), u[:, :1], u
    )
    assert (accepted.item(), token.item()) == (0, V)
