"""The contract of every decoder, as checks that third parties can import.

    from decoders.core.checks import check_decoder
    check_decoder(MyDecoder(block=4))

The decoder's properties select the checks. Each check runs on `TableModel`, whose distributions are
known, in well under a second (`check_distribution`: a few seconds).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import torch

from decoders.ar import Autoregressive
from decoders.core.adapter.config import MASKED_VARIANTS
from decoders.core.decoder import Decoder, Request
from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.testing.goodness import Draws
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling

Check = Callable[[Decoder], None]
NUM_DISTRIBUTION_DRAWS = 3000
DISTRIBUTION_ALPHA = 1e-4
_BATCH = 64
_VOCAB = 7
_EOS = 6
_PROMPTS = ([1, 2, 3], [4], [0, 5, 1, 1, 2, 3, 4, 0, 5], [2, 2], [3, 1, 4, 1, 5])


def check_decoder(decoder: Decoder) -> None:
    """Run every check that applies; `AssertionError` states what was expected and what came out."""
    for check in checks_for(decoder):
        check(decoder)


def check_drafter(begin: Callable[[Request], Drafter]) -> None:
    """Run every check on the drafter that `begin` makes for an answer, verified by picks."""

    class Alone(DraftAndVerify):
        def drafter(self, request: Request) -> Drafter:
            return begin(request)

    check_decoder(Alone())


def checks_for(decoder: Decoder) -> list[Check]:
    """Return the checks that a decoder's properties select (parametrise a test over them)."""
    checks: list[Check] = [
        check_steps_concatenate,
        check_budget_and_eos,
        check_shortest_inputs,
        check_runs_repeat,
        check_global_rng_is_untouched,
        check_stays_in_the_cache,
        *equality_checks(decoder),
    ]
    if decoder.lossless and not decoder.coupled:
        checks.append(check_distribution)
    if all(part.needs for part in decoder.parts) and decoder.lossless:
        checks += [check_perfect_drafts_are_accepted, check_disjoint_drafts_are_rejected]
    return checks


def equality_checks(decoder: Decoder) -> list[Check]:
    """Return the checks that compare answers with each other and, if promised, with AR's."""
    checks: list[Check] = [check_prompts_leave_no_trace, check_batch_equals_alone]
    if decoder.lossless:
        checks.append(check_greedy_equals_ar)
    if decoder.coupled:
        checks.append(check_coupled_equals_ar)
    return checks


def _models(decoder: Decoder, agreement: float = 0.6, *, max_length: int = 4096) -> Models:
    target = TableModel(_VOCAB, seed=1, scale=1.5, max_length=max_length)
    draft = TableModel(_VOCAB, seed=2, scale=1.5, agree_with=target, agreement=agreement)
    return _with_adapter(decoder, Models(target=target, draft=draft), error=1 - agreement)


def _with_adapter(decoder: Decoder, models: Models, error: float) -> Models:
    for part in decoder.parts:
        model = models.target if part.adapter_of == "target" else models.draft
        if part.adapter_name is not None:
            assert isinstance(model, TableModel)
            model.attach(part.adapter_name, error, *part.variants[:1])
    return models


def _sampling(temperature: float = 0.9, num_tokens: int = 24, *, seed: int = 0) -> Sampling:
    stops = frozenset({_EOS})
    return Sampling(temperature=temperature, max_new_tokens=num_tokens, stop_ids=stops, seed=seed)


def _all(decoder: Decoder, num_seeds: int = 3) -> Iterator[tuple[list[int], Sampling, Generation]]:
    models = _models(decoder)
    for prompt, temperature, seed in itertools.product(_PROMPTS, (0.0, 0.9), range(num_seeds)):
        sampling = _sampling(temperature, seed=seed)
        yield prompt, sampling, generate(decoder, prompt, sampling, models)


def check_steps_concatenate(decoder: Decoder) -> None:
    """Check that steps' tokens and counts add up to the answer; the first step runs the target.

    Accepted <= depth <= drafted, and the target was fed all drafts. A step that verifies emits its
    leading tokens, accepted drafts, and at most one token after them. If given, `rejected` has all
    rejected drafts (in a tree: of one branch), and `decided` covers all tokens.
    """
    for prompt, sampling, answer in _all(decoder):
        where = f"{decoder} on {prompt} with {sampling}"
        joined = tuple(token for step in answer.steps for token in step.tokens)
        assert joined == answer.tokens, f"{where}: steps give {joined}, answer {answer.tokens}"
        for step in answer.steps:
            assert 0 <= step.accepted <= step.longest <= step.drafted, f"{where}: {step}"
            assert step.drafted < max(1, step.target_rows), f"{where}: not all verified: {step}"
            behind = len(step.tokens) - step.num_leading - step.accepted
            assert behind >= 0, f"{where}: accepted but not emitted: {step}"
            assert not step.drafted or behind <= 1, (
                f"{where}: {behind} tokens are neither accepted drafts nor the one after them; "
                f"count tokens before them in Emit.num_leading, or make two steps: {step}"
            )
            fallen = step.drafted - step.accepted
            count = len(step.rejected)
            assert count in (0, fallen) or (step.longest < step.drafted and count < fallen), (
                f"{where}: {fallen} drafts were rejected: {step}"
            )
            count = len(step.decided)
            assert count in (0, len(step.tokens)), f"{where}: passes of {count} tokens: {step}"
        assert answer.steps[0].target_calls >= 1, f"{where}: nothing ran before the first emit"


def check_budget_and_eos(decoder: Decoder) -> None:
    """Check that nothing is emitted past EOS or the budget, at any place within a block."""
    models = _models(decoder)
    for num_tokens in range(1, 12):
        for prompt in _PROMPTS[num_tokens % 2 :: 2]:
            answer = generate(decoder, prompt, _sampling(num_tokens=num_tokens), models)
            tokens = answer.tokens
            assert 1 <= len(tokens) <= num_tokens, f"{len(tokens)} tokens of {num_tokens}"
            assert _EOS not in tokens[:-1], f"{decoder} went on after EOS: {tokens}"
            ended = tokens[-1] == _EOS
            assert answer.stop == ("eos" if ended else "length"), f"{answer.stop} for {tokens}"
            assert ended or len(tokens) == num_tokens, f"{decoder} stopped early: {tokens}"


def check_shortest_inputs(decoder: Decoder) -> None:
    """Check that a prompt of one token and a budget of one token work."""
    answer = generate(decoder, [0], _sampling(num_tokens=1), _models(decoder))
    assert len(answer.tokens) == 1, f"{len(answer.tokens)} tokens for a budget of 1"


def check_runs_repeat(decoder: Decoder) -> None:
    """Check that the same prompt and seed give the same answer, steps included."""
    first, second = list(_all(decoder, 1)), list(_all(decoder, 1))
    assert first == second, f"{decoder} gives another answer when run again"


def check_prompts_leave_no_trace(decoder: Decoder) -> None:
    """Check that an answer does not depend on earlier prompts (no cache or heuristic leaks)."""
    sampling, models = _sampling(), _models(decoder)
    fresh = [generate(decoder, prompt, sampling, _models(decoder)) for prompt in _PROMPTS]
    for order in (range(len(_PROMPTS)), reversed(range(len(_PROMPTS)))):
        for index in order:
            answer = generate(decoder, _PROMPTS[index], sampling, models)
            assert answer == fresh[index], f"{decoder} on {_PROMPTS[index]} depends on the past"


def check_global_rng_is_untouched(decoder: Decoder) -> None:
    """Check that randomness comes only from the positional uniforms."""
    before_torch, before_numpy = torch.get_rng_state(), _numpy_state()
    generate(decoder, _PROMPTS[0], _sampling(), _models(decoder))
    assert torch.equal(before_torch, torch.get_rng_state()), f"{decoder} uses torch's global RNG"
    assert before_numpy == _numpy_state(), f"{decoder} uses numpy's global RNG"


def _numpy_state() -> str:
    return repr(np.random.get_state())  # noqa: NPY002  (reads the legacy state to prove it is unused)


def check_batch_equals_alone(decoder: Decoder) -> None:
    """Check that an answer is the same alone and in a batch of any size, steps included."""
    for temperature in (0.0, 0.9) if decoder.alike_in_batches else (0.0,):
        sampling, models = _sampling(temperature), _models(decoder)
        alone = [generate(decoder, prompt, sampling, models) for prompt in _PROMPTS]
        for batch_size in (2, 3, 8):
            together = Scheduler(decoder, models, sampling, batch_size).run(_PROMPTS)
            assert together == alone, f"{decoder} answers otherwise in a batch of {batch_size}"


def check_stays_in_the_cache(decoder: Decoder) -> None:
    """Check that prompt and budget may just fill the context; one more token is refused."""
    prompt = [1, 2, 3, 4, 5]
    models = _models(decoder, max_length=len(prompt) + 16)
    sampling = Sampling(temperature=0.9, max_new_tokens=16)
    assert len(generate(decoder, prompt, sampling, models).tokens) == 16
    try:
        generate(decoder, [*prompt, 0], sampling, models)
    except ValueError:
        return
    raise AssertionError(f"{decoder} accepted a prompt that exceeds the context")


def check_greedy_equals_ar(decoder: Decoder) -> None:
    """Check that a lossless decoder gives exactly AR's tokens at temperature 0."""
    _check_equals_ar(decoder, [0.0])


def check_coupled_equals_ar(decoder: Decoder) -> None:
    """Check that a coupled decoder gives exactly AR's tokens for a seed, at any temperature."""
    _check_equals_ar(decoder, [0.3, 0.7, 1.0])


def _check_equals_ar(decoder: Decoder, temperatures: list[float]) -> None:
    models = _models(decoder)
    for temperature, seed, prompt in itertools.product(temperatures, range(5), _PROMPTS):
        sampling = _sampling(temperature, seed=seed)
        expected = _ars_answer(tuple(prompt), sampling)
        tokens = generate(decoder, prompt, sampling, models).tokens
        assert tokens == expected, f"{decoder} at T={temperature}: {tokens}, AR: {expected}"


@functools.cache
def _ars_answer(prompt: tuple[int, ...], sampling: Sampling) -> tuple[int, ...]:
    decoder = Autoregressive()
    return generate(decoder, prompt, sampling, _models(decoder)).tokens


def check_distribution(decoder: Decoder) -> None:
    """Check that answers under many fixed seeds follow the exact distribution (level 1e-4)."""
    draws = table_draws(decoder, NUM_DISTRIBUTION_DRAWS)
    draws.draw(0, _BATCH)
    fit = draws.fit
    assert fit.p_value > DISTRIBUTION_ALPHA, (
        f"{decoder} does not follow the target's distribution: chi-square {fit.statistic:.1f} at "
        f"{fit.dof} degrees of freedom over {fit.num_draws} draws, p = {fit.p_value:.2g}"
    )


def table_draws(decoder: Decoder, num_draws: int) -> Draws:
    """Prepare draws of five-token answers from three tokens: few cells, several steps."""
    target = TableModel(3, seed=1, scale=1.0)
    draft = TableModel(3, seed=2, scale=1.0, agree_with=target, agreement=0.6)
    models = _with_adapter(decoder, Models(target=target, draft=draft), error=0.4)
    sampling = Sampling(temperature=0.9, max_new_tokens=5)
    return Draws(decoder, models, [1, 2], sampling, num_draws)


def check_perfect_drafts_are_accepted(decoder: Decoder) -> None:
    """Check that drafts equal to the target are all accepted (slots without u: if greedy)."""
    blind = any(variant in MASKED_VARIANTS for part in decoder.parts for variant in part.variants)
    for temperature in (0.0,) if blind else (0.0, 0.9):
        sampling = _sampling(temperature)
        for prompt in _PROMPTS:
            answer = generate(decoder, prompt, sampling, _models(decoder, agreement=1.0))
            # the cut may fall among the last step's accepted drafts
            for step in answer.steps[:-1]:
                # in a tree the accepted branch may be shorter than the longest branch
                is_chain = step.longest == step.drafted
                stood = step.accepted == step.drafted if is_chain else not step.rejected
                assert stood, f"{decoder} rejected a perfect draft: {step}"


def check_disjoint_drafts_are_rejected(decoder: Decoder) -> None:
    """Check that drafts which the target never picks are never accepted."""
    target = _Half(low=True)
    # the target's own adapter errs in every slot; the draft's adapter agrees with the draft
    error = float(decoder.adapter_of == "target")
    models = _with_adapter(decoder, Models(target=target, draft=_Half(low=False)), error)
    for temperature in (0.0, 0.9):
        for prompt in _PROMPTS:
            answer = generate(decoder, prompt, _sampling(temperature), models)
            accepted = sum(step.accepted for step in answer.steps)
            assert accepted == 0, f"{decoder} accepted {accepted} tokens the target never says"


class _Half(TableModel):
    """A table that only picks from the lower, or only from the upper, half of the vocabulary."""

    def __init__(self, *, low: bool) -> None:
        super().__init__(_VOCAB, seed=3)
        half = _VOCAB // 2
        self._silent = slice(half, None) if low else slice(0, half)

    def logits(self, context: list[int]) -> torch.Tensor:  # type: ignore[override]
        logits = super().logits(context).clone()
        logits[self._silent] = float("-inf")
        return logits
