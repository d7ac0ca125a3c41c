"""Every code of u against its definition, on uniforms whose bits are known by hand.

Letters: K slots, D width.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core.adapter.embedding import (
    NUM_BITS,
    NUM_COSINES,
    NUM_LEVELS,
    UniformEmbedding,
    all_levels,
    level_index,
)
from decoders.core.adapter_config import CODES, Code
from decoders.core.types import NO_UNIFORM

WIDTH = 24
HALF = 2 ** (NUM_BITS - 1)
LEVELS = {  # u: floor(u * 2^16)
    0.0: 0,
    0.5: HALF,
    0.25: HALF // 2,
    0.75: HALF + HALF // 2,
    2**-16: 1,
    2**-17: 0,
    1 / 3: 0b0101010101010101,
    1 - 2**-16: 2**16 - 1,
    1 - 2**-53: 2**16 - 1,
}


def embedding_of(code: Code, seed: int = 0, **options: Any) -> UniformEmbedding:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return UniformEmbedding(code, WIDTH, **options)


def doubles(*u: float) -> Tensor:
    return torch.tensor(u, dtype=torch.float64)


@torch.no_grad()
def embed(embedding: UniformEmbedding, u: Tensor, warp: Tensor | None = None) -> Tensor:
    found: Tensor = embedding(u, torch.ones(len(u), 2) if warp is None else warp)
    return found.clone()  # the constant code gives views of its weight


@torch.no_grad()
def affine(embedding: UniformEmbedding, features: Tensor) -> Tensor:
    """The linear layer without torch's own code."""
    assert isinstance(embedding.net, torch.nn.Linear)
    return features.float() @ embedding.net.weight.T + embedding.net.bias


def dyadic_features(u: float) -> list[float]:
    bits = [1.0 if digit == "1" else -1.0 for digit in f"{LEVELS[u]:016b}"]
    return bits + [math.cos(k * math.pi * u) for k in range(1, NUM_COSINES + 1)]


def test_dyadic_writes_fixed_point_bits_and_cosines() -> None:
    embedding = embedding_of("dyadic")
    expected = affine(embedding, torch.tensor([dyadic_features(u) for u in LEVELS]))
    torch.testing.assert_close(embed(embedding, doubles(*LEVELS)), expected, atol=1e-5, rtol=1e-5)


def test_the_bits_of_the_dyadic_code_are_the_exact_binary_digits_of_u() -> None:
    embedding = embedding_of("dyadic")
    assert isinstance(embedding.net, torch.nn.Linear)
    with torch.no_grad():  # the layer becomes a window on the bits
        embedding.net.weight.zero_()
        embedding.net.bias.zero_()
        embedding.net.weight[:NUM_BITS, :NUM_BITS] = torch.eye(NUM_BITS)
    for u, level in LEVELS.items():
        bits = embed(embedding, doubles(u))[0, :NUM_BITS]
        assert set(bits.tolist()) <= {-1.0, 1.0}
        assert sum(2**-k for k, bit in enumerate(bits.tolist(), 1) if bit > 0) == level / 2**16


def test_the_dyadic_code_distinguishes_neighbouring_levels() -> None:
    u = torch.arange(0, 2**16, 97, dtype=torch.float64) / 2**16
    embedding = embedding_of("dyadic")
    assert isinstance(embedding.net, torch.nn.Linear)
    with torch.no_grad():
        embedding.net.weight[:, NUM_BITS:] = 0  # by the bits alone
    apart = (embed(embedding, u) - embed(embedding, u + 2**-16)).abs().amax(-1)
    assert apart.min() > 0.01
    # and nothing below: a step of half a level stays on it
    assert torch.equal(embed(embedding, u), embed(embedding, u + 2**-17))


def test_a_level_stands_for_the_uniforms_around_it() -> None:
    u = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    stands = all_levels()[[level_index(value) for value in u.tolist()]]
    assert (stands - u).abs().max() <= 0.5 / NUM_LEVELS
    assert all_levels()[level_index(NO_UNIFORM)] == NO_UNIFORM


def test_the_constant_code_ignores_u() -> None:
    embedding = embedding_of("constant")
    got = embed(embedding, doubles(0.0, 0.3, 0.9, NO_UNIFORM))
    assert torch.equal(got, embedding.blank.detach().expand(4, -1))
    assert [name for name, _ in embedding.named_parameters()] == ["blank"]


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("hidden", [0, 12])
def test_only_blank_slots_are_embedded_as_the_blank_vector(code: Code, hidden: int) -> None:
    embedding = embedding_of(code, hidden=hidden, conditioned=True)
    u = doubles(0.0, NO_UNIFORM, 0.7, NO_UNIFORM)
    got = embed(embedding, u, torch.rand(4, 2))
    assert got.shape == (4, WIDTH)
    assert got.dtype == torch.float32
    assert torch.equal(got[[1, 3]], embedding.blank.detach().expand(2, -1))
    if code != "constant":
        assert ((got[[0, 2]] - embedding.blank).abs().amax(-1) > 0.01).all()


def test_a_blank_slot_gives_gradient_to_the_blank_vector_alone() -> None:
    embedding = embedding_of("dyadic", hidden=12)
    embedding(doubles(NO_UNIFORM, NO_UNIFORM), torch.ones(2, 2)).sum().backward()
    for name, parameter in embedding.named_parameters():
        assert parameter.grad is not None
        expected = 2.0 if name == "blank" else 0.0
        assert torch.equal(parameter.grad, torch.full_like(parameter, expected))


def test_each_slot_is_embedded_on_its_own() -> None:
    u = torch.rand(9, generator=torch.Generator().manual_seed(0)).double()
    warp = torch.rand(9, 2, generator=torch.Generator().manual_seed(1))
    for code in CODES:
        embedding = embedding_of(code, hidden=12, conditioned=True)
        together = embed(embedding, u, warp)
        alone = torch.cat([embed(embedding, u[[k]], warp[[k]]) for k in range(9)])
        torch.testing.assert_close(together, alone)


def test_only_a_conditioned_embedding_knows_temperature_and_top_p() -> None:
    u, warm = doubles(0.3, 0.3), torch.tensor([[0.7, 0.9], [1.0, 1.0]])
    plain = embed(embedding_of("dyadic"), u, warm)
    assert torch.equal(plain[0], plain[1])
    embedding = embedding_of("dyadic", conditioned=True)
    told = embed(embedding, u, warm)
    assert isinstance(embedding.net, torch.nn.Linear)
    difference = (warm[0] - warm[1]) @ embedding.net.weight.detach()[:, -2:].T
    torch.testing.assert_close(told[0] - told[1], difference)


def test_an_embedding_with_a_hidden_layer_is_a_network_of_two_layers() -> None:
    embedding = embedding_of("dyadic", hidden=12)
    first, _, last = embedding.net  # type: ignore[misc]
    features = torch.tensor([dyadic_features(u) for u in LEVELS])
    middle = features @ first.weight.T + first.bias
    expected = (middle * middle.sigmoid()) @ last.weight.T + last.bias
    torch.testing.assert_close(
        embed(embedding, doubles(*LEVELS)), expected.detach(), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("hidden", [0, 12])
def test_match_scales_outputs_to_the_token_embeddings(code: Code, hidden: int) -> None:
    embedding = embedding_of(code, hidden=hidden)
    u = torch.rand(2000, generator=torch.Generator().manual_seed(0)).double()
    before = embed(embedding, u)
    tokens = 3.7 * torch.randn(500, WIDTH, generator=torch.Generator().manual_seed(1))
    wanted = tokens.square().mean().sqrt().item()
    embedding.match(tokens)
    after = embed(embedding, u)
    assert after.square().mean().sqrt().item() == pytest.approx(wanted, rel=0.1)
    assert embedding.blank.square().mean().sqrt().item() == pytest.approx(wanted, rel=1e-5)
    # a scaling and no more
    torch.testing.assert_close(after / after.norm(), before / before.norm(), atol=1e-6, rtol=1e-4)


def test_the_weights_come_from_torchs_generator() -> None:
    one, same, other = (embedding_of("dyadic", seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not any(torch.equal(one[name], other[name]) for name in one)
