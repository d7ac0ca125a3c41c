"""Check the contract that every decoder keeps, by functions that other packages can import.

    from decoders.core.checks import check_decoder
    check_decoder(MyDecoder(block=4))

The decoder's properties select the checks. They run on `TableModel`, whose distributions are known,
in well under a second each (`check_distribution`: some seconds), and on a tiny random Llama; those
of a `SelfDriven` decoder run on tiny Llamas alone.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from decoders.ar import Autoregressive
from decoders.core.adapter_config import is_masked
from decoders.core.decoder import Decoder, PastAnswers, Request, SelfDriven
from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.plugins import network
from decoders.core.testing.check_models import EOS, disjoint_tables, llamas, table_draws, tables
from decoders.core.testing.goodness import Draws
from decoders.core.types import Generation, Law, Outcome, Sampling, StepEvent

Check = Callable[[Decoder], None]
NUM_DISTRIBUTION_DRAWS = 10_000
DISTRIBUTION_ALPHA = 1e-4
_PROMPTS = ([1, 2, 3], [4], [0, 5, 1, 1, 2, 3, 4, 0, 5], [2, 2], [3, 1, 4, 1, 5])


def check_decoder(decoder: Decoder) -> None:
    """Run every check that applies, and raise an `AssertionError` about the first that fails."""
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
        check_runs_repeat,
        check_global_rng_is_untouched,
        check_stays_in_the_cache,
        *equality_checks(decoder),
        check_real_tensors,
    ]
    if decoder.lossless and not decoder.coupled:
        checks.append(check_distribution)
    networks = [network(part.variants[0]) for part in decoder.parts if "network" in part.needs]
    drafting = all(part.needs for part in decoder.parts) and all(kind.drafts for kind in networks)
    if drafting and decoder.lossless:
        checks.append(check_perfect_drafts_are_accepted)
        if not isinstance(decoder, SelfDriven):
            checks.append(check_disjoint_drafts_are_rejected)
    return checks


def equality_checks(decoder: Decoder) -> list[Check]:
    """Return the checks that compare answers with each other and, if promised, with AR's."""
    checks: list[Check] = [check_prompts_leave_no_trace, check_batch_equals_alone]
    if decoder.remembers is not None:
        checks.append(check_tokens_ignore_the_memory)
    if decoder.lossless:
        checks.append(check_greedy_equals_ar)
        if not isinstance(decoder, SelfDriven):
            checks.append(check_lawful_answers_equal_ar)
    if decoder.coupled:
        checks.append(check_coupled_equals_ar)
    return checks


def _sampling(temperature: float = 0.9, num_tokens: int = 24, *, seed: int = 0) -> Sampling:
    stops = frozenset({EOS})
    return Sampling(temperature=temperature, max_new_tokens=num_tokens, stop_ids=stops, seed=seed)


def _all(decoder: Decoder, num_seeds: int = 3) -> Iterator[tuple[list[int], Sampling, Generation]]:
    models = tables(decoder)
    for prompt, temperature, seed in itertools.product(_PROMPTS, (0.0, 0.9), range(num_seeds)):
        sampling = _sampling(temperature, seed=seed)
        yield prompt, sampling, generate(decoder, prompt, sampling, models)


def _describe_step(step: StepEvent | None) -> str:
    """List the tokens and drafts of a step, and all further fields that are not empty."""
    values = {} if step is None else asdict(step)
    usual = ("tokens", "drafted", "accepted")
    return ", ".join(f"{k}={v}" for k, v in values.items() if v or k in usual) or "no step"


def check_steps_concatenate(decoder: Decoder) -> None:
    """Check that the tokens and counts of all steps add up to the answer.

    Accepted <= depth <= drafted, and the target was fed all drafts. A step that verifies emits its
    leading tokens, accepted drafts, and at most one token after them. `rejected`, if set, has all
    rejected drafts (of a tree: those of one branch); `decided`, if set, covers all tokens.
    """
    for prompt, sampling, answer in _all(decoder):
        where = f"{decoder} on {prompt} at T={sampling.temperature}, seed {sampling.seed}"
        joined = tuple(token for step in answer.steps for token in step.tokens)
        assert joined == answer.tokens, f"{where}: steps give {joined}, answer {answer.tokens}"
        for step in answer.steps:
            shown = _describe_step(step)
            assert 0 <= step.accepted <= step.max_accepted <= step.drafted, (
                f"{where}: more drafts accepted than drafted; never count the bonus token: {shown}"
            )
            assert step.drafted < max(1, step.target_rows), (
                f"{where}: feed the last token and all drafts, {step.drafted + 1} rows: {shown}"
            )
            behind = len(step.tokens) - step.num_leading - step.accepted
            assert behind >= 0, f"{where}: accepted but not emitted: {shown}"
            assert not step.drafted or behind <= 1, (
                f"{where}: {behind} tokens are neither accepted drafts nor the one after them; "
                f"count tokens before them in Emit.num_leading, or make two steps: {shown}"
            )
            misses = step.drafted - step.accepted
            count = len(step.rejected)
            assert count in (0, misses) or (step.max_accepted < step.drafted and count < misses), (
                f"{where}: {misses} drafts were rejected, {count} given as rejected: {shown}"
            )
            count = len(step.decided)
            assert count in (0, len(step.tokens)), f"{where}: passes of {count} tokens: {shown}"
        assert answer.steps[0].target_calls >= 1, f"{where}: nothing ran before the first emit"


def check_budget_and_eos(decoder: Decoder) -> None:
    """Check that nothing is emitted past EOS or the budget, from prompts and budgets of 1 on."""
    models = tables(decoder)
    for num_tokens in range(1, 12):
        for prompt in _PROMPTS[num_tokens % 2 :: 2]:
            answer = generate(decoder, prompt, _sampling(num_tokens=num_tokens), models)
            tokens = answer.tokens
            assert 1 <= len(tokens) <= num_tokens, f"{len(tokens)} tokens of {num_tokens}"
            assert EOS not in tokens[:-1], f"{decoder} went on after EOS: {tokens}"
            ended = tokens[-1] == EOS
            assert answer.stop == ("eos" if ended else "length"), f"{answer.stop} for {tokens}"
            assert ended or len(tokens) == num_tokens, f"{decoder} stopped early: {tokens}"


def check_runs_repeat(decoder: Decoder) -> None:
    """Check that the same prompt and seed give the same answer, steps included."""
    runs = zip(_all(decoder, 1), [*_all(decoder, 1)], strict=True)
    pairs = list[_Pair]()
    for (prompt, sampling, again), (_, _, first) in runs:
        where = f"{decoder} on {prompt} at T={sampling.temperature}"
        pairs.append((again, first, where, "when run again"))
    _check_same(pairs)


class StepsDifferError(AssertionError):
    """Report two answers of equal tokens but different steps: lossless, but of different speeds."""


def is_verdict(error: BaseException) -> bool:
    """Return whether an error is a check's or the engine's, not the decoder's own assertion."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    by_core = bool(files) and Path(files[-1]).is_relative_to(Path(__file__).parent)
    return isinstance(error, AssertionError) and by_core


_Pair = tuple[Outcome, Generation, str, str]
"""An outcome, the answer that it must equal, and words for their prompt and the outcome's case."""


def _check_tokens(outcome: Outcome, expected: Generation, where: str, when: str) -> Generation:
    if not isinstance(outcome, Generation):
        raise outcome
    assert outcome.tokens == expected.tokens, (
        f"{where} gives other tokens {when}: {outcome.tokens}, not {expected.tokens}"
    )
    return outcome


def _check_same(pairs: Iterable[_Pair]) -> None:
    """Compare the tokens of each pair once its answer exists, and the steps of all at the end."""
    compared = [(_check_tokens(*pair), *pair[1:]) for pair in pairs]
    for answer, expected, where, when in compared:
        both = enumerate(itertools.zip_longest(answer.steps, expected.steps))
        for number, (step, other) in both:
            if step != other:
                line = f"{where} gives the same tokens in other steps {when}; step {number}: "
                line += f"{_describe_step(step)}; not {_describe_step(other)}"
                raise StepsDifferError(line)


def check_prompts_leave_no_trace(decoder: Decoder) -> None:
    """Check that an answer does not depend on earlier prompts (no cache or heuristic leaks)."""
    sampling, models = _sampling(), tables(decoder)
    fresh = [generate(decoder, prompt, sampling, tables(decoder)) for prompt in _PROMPTS]
    order = [*range(len(_PROMPTS)), *reversed(range(len(_PROMPTS)))]
    answers = ((i, generate(decoder, _PROMPTS[i], sampling, models)) for i in order)
    _check_same(
        (answer, fresh[i], f"{decoder} on {_PROMPTS[i]}", "after other prompts")
        for i, answer in answers
    )


def check_tokens_ignore_the_memory(decoder: Decoder) -> None:
    """Check that earlier answers never change tokens, and change steps only by their text.

    Sampled tokens of an uncoupled decoder may change with its drafts (`check_distribution`).
    """
    for temperature in (0.0, 0.9) if decoder.coupled or not decoder.lossless else (0.0,):
        sampling, models, pairs = _sampling(temperature), tables(decoder), list[_Pair]()
        past, memory = PastAnswers(), decoder.memory()
        for prompt in (*_PROMPTS, *reversed(_PROMPTS)):
            again = decoder.memory()
            for each in past:
                assert again is not None
                again.add(*each)
            answer, repeated = (
                Scheduler(decoder, models, sampling, memory=each).run([prompt])[0]
                for each in (memory, again)
            )
            fresh, where = generate(decoder, prompt, sampling, models), f"{decoder} on {prompt}"
            answer = _check_tokens(answer, fresh, where, "after answers that it remembers")
            pairs.append((repeated, answer, where, "with a memory made again"))
            past.add(prompt, answer.tokens)
        _check_same(pairs)


def check_global_rng_is_untouched(decoder: Decoder) -> None:
    """Check that randomness comes only from the positional uniforms."""
    before_torch, before_numpy = torch.get_rng_state(), _numpy_state()
    generate(decoder, _PROMPTS[0], _sampling(), tables(decoder))
    assert torch.equal(before_torch, torch.get_rng_state()), f"{decoder} uses torch's global RNG"
    assert before_numpy == _numpy_state(), f"{decoder} uses numpy's global RNG"


def _numpy_state() -> str:
    return repr(np.random.get_state())  # noqa: NPY002  (reads the legacy state to prove it is unused)


def check_batch_equals_alone(decoder: Decoder) -> None:
    """Check that an answer is the same alone and in a batch of any size, steps included."""
    pairs = list[_Pair]()
    for temperature in (0.0, 0.9) if decoder.alike_in_batches else (0.0,):
        sampling, models = _sampling(temperature), tables(decoder)
        alone = [generate(decoder, prompt, sampling, models) for prompt in _PROMPTS]
        for batch_size in (2, 3, 8):
            together = Scheduler(decoder, models, sampling, batch_size).run(_PROMPTS)
            when = f"in a batch of {batch_size}"
            for prompt, outcome, expected in zip(_PROMPTS, together, alone, strict=True):
                pairs.append((outcome, expected, f"{decoder} on {prompt}", when))
    _check_same(pairs)


def check_stays_in_the_cache(decoder: Decoder) -> None:
    """Check that prompt and budget may fill the context exactly, but not exceed it by a token."""
    prompt = [1, 2, 3, 4, 5]
    models = tables(decoder, max_length=len(prompt) + 16)
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


def check_lawful_answers_equal_ar(decoder: Decoder) -> None:
    """Check that under a law answers equal AR's, and fail where no token is lawful, as AR's do.

    Sampled answers are checked if the decoder is coupled.
    """
    _check_equals_ar(decoder, [0.0, 0.7] if decoder.coupled else [0.0], _law)


def _law(answer: tuple[int, ...], logits: Tensor) -> Tensor:
    """Forbid a repetition of the last token, and after some answers every token."""
    logits[list(answer[-1:])] = -torch.inf
    return logits - torch.inf if len(answer) > 2 and sum(answer) % 7 == 0 else logits


def _check_equals_ar(decoder: Decoder, temperatures: list[float], law: Law | None = None) -> None:
    models, under = tables(decoder), "" if law is None else " under a law"
    ar = partial(_answer, Autoregressive(), models=models)
    expect = ar if isinstance(decoder, SelfDriven) else _ar_answer
    for temperature, seed, prompt in itertools.product(temperatures, range(5), _PROMPTS):
        sampling, num = replace(_sampling(temperature, seed=seed), law=law), None
        answer = _answer(decoder, prompt, sampling, models)
        expected = expect(tuple(prompt), sampling)
        if isinstance(answer, tuple) and isinstance(expected, tuple):
            pairs = enumerate(zip(answer, expected, strict=False), 1)
            num = next((count for count, (token, other) in pairs if token != other), None)
        where = f"{decoder} on {prompt}{under} at T={temperature}, up to the first difference"
        assert answer == expected, f"{where}: {answer[:num]}, AR: {expected[:num]}"


def _answer(
    decoder: Decoder, prompt: Sequence[int], sampling: Sampling, models: Models
) -> tuple[int, ...] | str:
    """Return an answer's tokens, or the reason why it failed under a law."""
    (outcome,) = Scheduler(decoder, models, sampling).run([prompt])
    if isinstance(outcome, Generation):
        return outcome.tokens
    if sampling.law is None:
        raise outcome
    return str(outcome)


@cache
def _ar_answer(prompt: tuple[int, ...], sampling: Sampling) -> tuple[int, ...] | str:
    return _answer(Autoregressive(), prompt, sampling, tables(Autoregressive()))


def check_distribution(decoder: Decoder) -> None:
    """Check that answers under many fixed seeds follow the exact distribution (level 1e-4)."""
    check_draws(table_draws(decoder, NUM_DISTRIBUTION_DRAWS), str(decoder))


def check_draws(draws: Draws, name: str) -> None:
    """Draw answers and check that they, and their beginnings, follow the exact distribution."""
    draws.draw(0, batch_size=64)
    worst = min(draws.fits, key=lambda fit: fit.p_value)
    p_value = min(1.0, worst.p_value * len(draws.fits))
    assert p_value > DISTRIBUTION_ALPHA, (
        f"{name} does not follow the target's distribution: chi-square {worst.statistic:.1f} at "
        f"{worst.dof} degrees of freedom over {worst.num_draws} draws, p = {p_value:.2g}"
    )


def check_real_tensors(decoder: Decoder) -> None:
    """Check answers of a tiny random Llama, which has inference tensors and a real cache.

    Answers do not depend on earlier prompts or the batch, and equal AR's where they must.
    """
    models, prompts = llamas(decoder), _PROMPTS[:3]
    for temperature in (0.0, 0.9):
        sampling = _sampling(temperature, 16)
        alone = [generate(decoder, prompt, sampling, models) for prompt in prompts]
        for prompt, answer in zip(prompts, alone, strict=True):
            if decoder.lossless and decoder.comparable_to_ar(sampling):
                expected = generate(Autoregressive(), prompt, sampling, models).tokens
                where = f"{decoder} on {prompt} of a tiny Llama at T={temperature}"
                assert answer.tokens == expected, f"{where}: {answer.tokens}, AR: {expected}"
        if sampling.greedy or decoder.alike_in_batches:
            together = Scheduler(decoder, models, sampling, 3).run(prompts[::-1])
            for prompt, outcome, before in zip(prompts, together[::-1], alone, strict=True):
                where = f"{decoder} on {prompt} of a tiny Llama"
                # steps may hold confidences, which calls of another shape round differently
                _check_tokens(outcome, before, where, "in a batch of 3 after other prompts")


def check_perfect_drafts_are_accepted(decoder: Decoder) -> None:
    """Check that drafts equal to the target's are all accepted (slots without u: if greedy)."""
    blind = any(is_masked(variant) for part in decoder.parts for variant in part.variants)
    for temperature in (0.0,) if blind else (0.0, 0.9):
        sampling = _sampling(temperature)
        for prompt in _PROMPTS:
            answer = generate(decoder, prompt, sampling, tables(decoder, agreement=1.0))
            # the cut may fall among the last step's accepted drafts
            for step in answer.steps[:-1]:
                # in a tree the accepted branch may be shorter than the longest branch
                is_chain = step.max_accepted == step.drafted
                all_accepted = step.accepted == step.drafted if is_chain else not step.rejected
                assert all_accepted, f"{decoder} rejected a perfect draft: {_describe_step(step)}"


def check_disjoint_drafts_are_rejected(decoder: Decoder) -> None:
    """Check that no draft is accepted which the target never picks."""
    models = disjoint_tables(decoder)
    for temperature in (0.0, 0.9):
        for prompt in _PROMPTS:
            answer = generate(decoder, prompt, _sampling(temperature), models)
            accepted = sum(step.accepted for step in answer.steps)
            assert accepted == 0, f"{decoder} accepted {accepted} tokens the target never says"
