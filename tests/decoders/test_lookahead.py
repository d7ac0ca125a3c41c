"""Lookahead decoding: the tree of its rows, what it gathers, and AR's tokens out of it."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.plan.select import built_in_cells
from decoders.ar import Autoregressive
from decoders.core import masks
from decoders.core.drafting.tree import DraftTree
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from decoders.lookahead import Lookahead, _Gatherer
from tests.recording import Recording

PROMPT = [1, 2, 3]
GREEDY = Sampling(max_new_tokens=40)
WARM = Sampling(temperature=0.9, max_new_tokens=40, seed=2)


class Cycle(TableModel):
    """0, 1, …, V - 1, 0, … whatever came before the last token."""

    def logits(self, context: Sequence[int]) -> Tensor:
        return 50 * torch.eye(self.vocab_size)[(context[-1] + 1) % self.vocab_size]


def answer_of(decoder: Lookahead | Autoregressive, sampling: Sampling) -> Generation:
    return generate(decoder, PROMPT, sampling, Models(target=Recording()))


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("options", [{}, {"from_prompt": False}, {"window": 2, "n": 2}])
def test_tokens_equal_ars_tokens(sampling: Sampling, options: dict[str, Any]) -> None:
    answer = answer_of(Lookahead(**options), sampling)
    assert answer.tokens == answer_of(Autoregressive(), sampling).tokens
    assert sum(step.accepted for step in answer.steps) > 0


def test_batched_answers_equal_those_alone() -> None:
    prompts = [[1, 2, 3], [4, 4, 0, 1], [2]]
    models = Models(target=TableModel(5, seed=1, scale=2.0))
    outcomes = Scheduler(Lookahead(), models, WARM, batch_size=3).run(prompts)
    for prompt, outcome in zip(prompts, outcomes, strict=True):
        assert isinstance(outcome, Generation)
        alone = generate(Lookahead(), prompt, WARM, Models(target=Recording()))
        assert outcome.tokens == alone.tokens


def test_a_window_gathers_n_grams_that_do_not_occur_in_the_prompt() -> None:
    """A cycle of 23 tokens: nothing repeats in the prompt, all n-grams come from guesses."""
    sampling = Sampling(max_new_tokens=60)
    models = Models(target=Cycle(23))
    answer = generate(Lookahead(from_prompt=False), [0, 7, 14, 3, 19], sampling, models)
    assert answer.tokens == tuple((20 + place) % 23 for place in range(60))
    assert max(len(step.tokens) for step in answer.steps) == 4  # an n-gram's rest and one pick
    assert len(answer.steps) < 30


def proposed(levels: list[list[int]]) -> DraftTree:
    """The rows after a last token 9, with three n-grams that begin so, and a window."""
    gatherer: Any = _Gatherer(Lookahead(n=3))
    gatherer._after, gatherer._levels = {9: dict.fromkeys([(1, 2), (1, 3), (4, 2)])}, levels
    tree: DraftTree = gatherer.propose(SimpleNamespace(last=9), 2)
    return tree


def test_rows_are_a_tree_of_candidates_with_shared_prefixes_and_of_the_window() -> None:
    rows = proposed([[5, 6], [7, 8]])
    assert rows.tokens[:6] == [9, 1, 2, 3, 4, 2]
    assert rows.parents[:6] == [masks.ROOT, 0, 1, 1, 0, 4]
    assert rows.read == (*range(6), 8, 9)
    assert rows.tokens[6:] == [5, 6, 7, 8]
    assert rows.parents[6:] == [0, 6, 6, 7]  # a chain after the last token, then each column
    assert masks.depths(rows.parents)[6:] == (1, 2, 2, 3)


def test_the_path_follows_the_picks_and_never_into_the_window() -> None:
    rows = proposed([[8]])
    assert rows.path([1, 3, 0, 0, 0, 0]) == [0, 1, 3]
    assert rows.path([4, 0, 0, 0, 2, 0]) == [0, 4, 5]
    assert rows.path([8, 0, 0, 0, 0, 0]) == [0]  # the window's token is no candidate
    assert rows.first_branch(0) == (1, 2)
    assert rows.first_branch(4) == (2,)
    assert rows.first_branch(3) == ()


def test_the_latest_continuations_are_kept() -> None:
    gatherer: Any = _Gatherer(Lookahead(n=3, candidates=2))
    text = SimpleNamespace(tokens=[1, 2, 3, 1, 4, 5, 1, 2, 3, 1, 6, 6], num_prompt=11)
    gatherer.observe(text, SimpleNamespace(is_prompt=True))
    assert [*gatherer._after[1]] == [(2, 3), (6, 6)]
    assert [*gatherer._after[2]] == [(3, 1)]
    assert 7 not in gatherer._after


def test_calls_read_only_needed_rows_and_leave_only_final_tokens() -> None:
    model = Recording()
    answer = generate(Lookahead(window=3, n=3), PROMPT, GREEDY, Models(target=model))
    length = len(PROMPT)
    for call, step in zip(model.seen[1:], answer.steps[1:], strict=True):
        assert len(call.read) <= 1 + 2 * 5 + 3
        assert step.depth in (0, 2)
        # what is read are the last token's row, the n-grams' and the last level's of three columns
        assert step.drafted == len(call.read) - 1 - 3
        assert min(call.row_positions()) == length
        length += len(step.tokens)
    assert all(step.target_rows <= 1 + 2 * 5 + 2 * 3 for step in answer.steps[1:])


def test_the_prompts_last_n_gram_ends_in_the_answers_first_token() -> None:
    """In a cycle of four nothing is known behind 0 yet, and behind 1 that 2, 3 and 0 follow."""
    sampling = Sampling(max_new_tokens=9)
    answer = generate(Lookahead(n=4), [1, 2, 3], sampling, Models(target=Cycle(4)))
    assert answer.tokens == (0, 1, 2, 3, 0, 1, 2, 3, 0)
    assert [len(step.tokens) for step in answer.steps[:3]] == [1, 1, 4]


@pytest.mark.parametrize("num_tokens", [2, 3, 4])
def test_no_more_drafts_are_verified_than_the_budget_holds(num_tokens: int) -> None:
    sampling = Sampling(max_new_tokens=num_tokens)
    answer = generate(Lookahead(n=4), [0, 1, 2, 3] * 2, sampling, Models(target=Cycle(4)))
    assert [step.drafted for step in answer.steps] == [0, num_tokens - 2]
    assert [len(step.tokens) for step in answer.steps] == [1, num_tokens - 1]


def test_options_beyond_the_rows_of_a_call_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 35 with n=4 and candidates=5"):
        Lookahead(window=36)
    with pytest.raises(ValueError, match="'n' of decoder 'lookahead' is 1; it must be 2 or above"):
        Lookahead(n=1)


def test_lookahead_needs_only_the_target_and_runs_only_if_named() -> None:
    assert Lookahead().needs == ()
    assert "lookahead" not in built_in_cells()
