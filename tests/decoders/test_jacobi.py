"""Jacobi decoding: how its calls are laid out, and what comes out of them."""

import dataclasses

import pytest
import torch
from torch import Tensor

from bench.plan.select import built_in_cells
from decoders.ar import Autoregressive
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.model import Call
from decoders.core.sampling import Uniforms, pick, warp
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from decoders.jacobi import Jacobi
from tests import recording

PROMPT = [1, 2, 3]
GREEDY = Sampling(max_new_tokens=40)
WARM = Sampling(temperature=0.9, max_new_tokens=40, seed=2)


class Recording(recording.Recording):
    """Remembers its calls."""

    def __init__(self) -> None:
        super().__init__(31, seed=1, scale=2.0)


def answer_of(decoder: Decoder, model: TableModel, sampling: Sampling) -> Generation:
    return generate(decoder, PROMPT, sampling, Models(target=model))


def test_calls_are_a_sliding_window_that_settles_at_least_one_token() -> None:
    model = Recording()
    for sampling in (GREEDY, WARM):
        model.seen.clear()
        answer = answer_of(Jacobi(block=6), model, sampling)
        assert answer.tokens == answer_of(Autoregressive(), Recording(), sampling).tokens
        left = 40
        for call, step in zip(model.seen, answer.steps, strict=True):
            assert call.slots is None
            assert len(step.tokens) >= 1
            assert step.drafted == len(call.tokens) - (1 if left < 40 else len(PROMPT))
            assert step.drafted == (0 if left == 40 else min(6, left) - 1)
            left -= len(step.tokens)


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_guesses_are_the_picks_of_the_previous_call_padded_with_the_last_pick(
    sampling: Sampling,
) -> None:
    """Of each call the picks behind those that stand are the next one's guesses."""
    model, text = Recording(), list(PROMPT)
    answer = answer_of(Jacobi(block=6), model, sampling)
    said: list[int] = []
    for call, step in zip(model.seen, answer.steps, strict=True):
        fed = call.tokens[len(call.tokens) - step.drafted - 1 :]
        assert fed[0] == text[-1]
        known = [text[-1], *said][: len(fed)]
        assert list(fed) == known + [known[-1]] * (len(fed) - len(known))
        uniforms = Uniforms(sampling.seed, PROMPT)
        first = len(text) - len(PROMPT)
        picks = [picked(model, [*text, *fed[1 : n + 1]], sampling, uniforms, first + n)
                 for n in range(len(fed))]  # fmt: skip
        assert tuple(picks[: len(step.tokens)]) == step.tokens
        said = picks[len(step.tokens) :]
        text += step.tokens


def picked(
    model: TableModel, text: list[int], sampling: Sampling, uniforms: Uniforms, output: int
) -> int:
    """What the target says after a text, at an output position."""
    u = torch.tensor([uniforms.at("draw", output)], dtype=torch.float64)
    return int(pick(warp(model.logits(text)[None], sampling), u))


class Shifting(TableModel):
    """What follows depends on the place alone, so that every guess settles in one iteration."""

    def _run(self, call: Call) -> list[Tensor]:
        places = call.row_positions()
        logits = [torch.eye(7)[(places[row] + 1) % 7] for row in call.read]
        call.session.committed(call)
        return logits


def test_a_whole_window_settles_where_guesses_do_not_matter() -> None:
    sampling = dataclasses.replace(GREEDY, max_new_tokens=31)
    answer = answer_of(Jacobi(block=6), Shifting(), sampling)
    lengths = [len(step.tokens) for step in answer.steps]
    # every second call finds the window as the one before left it, but for the newest places
    assert sum(lengths) == 31
    assert max(lengths) == 6
    assert len(lengths) < 14


def test_jacobi_needs_only_the_target_and_runs_only_if_named() -> None:
    assert Jacobi().needs == ()
    assert Jacobi().adapter_name is None
    assert "jacobi" not in built_in_cells()
    by_default = "ar idlm idlm@isd lookup nar ptp ptp_spec spec"
    assert list(built_in_cells()) == by_default.split()


def test_a_window_without_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="'block' of decoder 'jacobi' is 0; it must be 1 or above"):
        Jacobi(block=0)
