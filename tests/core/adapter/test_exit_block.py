"""The block behind an early exit, against its formula written out."""

import torch

from decoders.core.adapter.config import AdapterConfig
from decoders.core.adapter.heads import ExitBlock

WIDTH, RANK = 6, 4


def block() -> ExitBlock:
    config = AdapterConfig(
        variant="exit",
        code="constant",
        num_slots=1,
        layers={},
        width=WIDTH,
        rank=RANK,
        exit_layer=1,
    )
    return ExitBlock(config, seed=1)


def test_a_fresh_block_changes_nothing() -> None:
    states = torch.randn(2, 3, WIDTH, generator=torch.Generator().manual_seed(1))
    assert torch.equal(block()(states), states)


def test_it_adds_what_its_two_layers_make_of_the_normed_state() -> None:
    made, generator = block(), torch.Generator().manual_seed(2)
    made.up.data = torch.randn(made.up.shape, generator=generator)
    made.bias.data = torch.randn(made.bias.shape, generator=generator)
    states = 3 * torch.randn(2, 3, WIDTH, generator=generator)
    for state, got in zip(states.view(-1, WIDTH), made(states).view(-1, WIDTH), strict=True):
        normed = state / (state.square().mean() + 1e-6).sqrt()
        inner = made.down @ normed + made.bias
        expected = state + made.up @ (inner * torch.sigmoid(inner))
        torch.testing.assert_close(got, expected)
