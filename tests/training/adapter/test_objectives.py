"""Losses and predictions of slots against slow loops over windows, on a tiny random Llama.

The loops ask an untouched copy of the model for the teacher's distributions, draw every u by hand,
and run each window alone.

Letters: B rows, S places of a row, Q slots of a row, M slots that count, V vocabulary.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence
from transformers import LlamaConfig, LlamaForCausalLM

from decoders.core.adapter.embedding import NUM_BITS
from decoders.core.adapter.gating import layer_shapes
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig, Variant
from decoders.core.sampling import pick, warp
from decoders.core.types import NO_UNIFORM, Sampling
from tests.tiny_models import embedded_slots
from training.adapter.objectives import ObjectiveName, Outcome, predictions, run, slot_loss
from training.adapter.student import Student
from training.adapter.windows import MIN_MASS, Windows, WindowSampling, draw_windows
from training.text.data import Row

VOCAB, WIDTH, TOP_K = 29, 32, 7
MIXED = WindowSampling(temperatures=(0.6, 1.4), top_ps=(0.8, 1.0), greedy=0.5)
LOSS_NAMES: tuple[ObjectiveName, ...] = ("one-hot", "kl", "reverse-kl")
TOLERANCE: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}


class Judgement(NamedTuple):
    right: Tensor
    confidence: Tensor
    counts: Tensor


def judge(student: Student, outcome: Outcome, top_k: int) -> Judgement:
    return Judgement(*predictions(student, outcome, top_k))


@functools.cache
def plain() -> Any:
    """The teacher alone; its distributions are neither flat nor certain."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.25,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        module: Any = LlamaForCausalLM(config)
    return module.eval()


@functools.cache
def rows() -> tuple[Row, ...]:
    """Text that the teacher finds likely, sometimes its very argmax; two answers in the first."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, VOCAB, (4, 3), generator=generator)
    while ids.shape[1] < 15:
        with torch.no_grad():
            distribution = plain()(ids).logits[:, -1].softmax(-1)
        drawn = distribution.multinomial(1, generator=generator)
        drawn[2:] = distribution[2:].argmax(-1, keepdim=True)
        ids = torch.cat([ids, drawn], 1)
    ids[3, 8] = (ids[3, 8] + 1) % VOCAB  # here the argmax's chain breaks
    learn = [False] * 3 + [True] * 12
    gap = [False] * 3 + [True] * 4 + [False] + [True] * 7
    of_rows = [Row(r, learn if b else gap) for b, r in enumerate(ids.tolist())]
    return (*of_rows, Row([4, 5], [False, True]))


def student_of(variant: Variant, **options: Any) -> Student:
    """A student whose adapter matters in every part."""
    module = copy.deepcopy(plain())
    embedded: dict[str, Any] = {"embedding_hidden": 8, "conditioned": True}
    config = AdapterConfig(
        layers=layer_shapes(module),
        width=WIDTH,
        variant=variant,
        rank=4,
        alpha=6.0,
        num_slots=5,
        anchored=True,
        numbered=True,
        **({"code": "constant"} if variant == "isd" else embedded),
    )
    adapter = SlotAdapter(config, seed=3)
    generator = torch.Generator().manual_seed(4)
    for high in (*adapter.lora_b.values(), adapter.numbers):
        assert high is not None
        high.data = 0.2 * torch.randn(high.shape, generator=generator)
    net: Any = adapter.embedding.net
    if net is not None:
        net[0].weight.data[:, :NUM_BITS] = 0  # rounding must not flip a bit of u
    return Student(module, adapter, **options)


def windows_of(variant: Variant, sampling: WindowSampling = MIXED, seed: int = 0) -> Windows:
    rng = np.random.default_rng(seed)
    return draw_windows(
        rows(),
        num_slots=41,
        length=5,
        sampling=sampling,
        pad=0,
        rng=rng,
        variant=variant,
        aligned=True,
    )


@functools.cache
def teacher_logits() -> list[Tensor]:
    """``[S, V]`` of each row; entry p - 1 is about the token at place p."""
    with torch.no_grad():
        return [plain()(torch.tensor([row.ids])).logits[0] for row in rows()]


def distribution_of(logits: Tensor, settings: list[float], top_k: int) -> Tensor:
    temperature, top_p = settings
    return warp(logits[None], Sampling(temperature=temperature, top_p=top_p, top_k=top_k))[0]


Slot = tuple[tuple[int, int], Tensor, int]
"""(b, q) of a slot that counts, its logits ``[V]``, the token it is trained on."""


def slow(student: Student, windows: Windows, top_k: int) -> list[Slot]:
    """Every slot that counts, window by window, in order of (b, q)."""
    shift, found = int(student.adapter.config.variant != "o-ptp"), []
    for b, row in enumerate(rows()):
        distributions = teacher_logits()[b]
        for n in range(int(windows.number[b].max()) + 1):
            where = (windows.number[b] == n).nonzero().flatten().tolist()
            start, greedy = int(windows.start[b, where[0]]), bool(windows.greedy[b, where[0]])
            settings = windows.warp[b, where[0]].tolist()
            us, counting, whole = [], [], True
            for j, q in enumerate(where):
                carried = start + j
                distribution, token = (
                    distribution_of(distributions[carried - 1], settings, top_k),
                    row.ids[carried],
                )
                edge = distribution[:token].sum().item()
                us.append(
                    NO_UNIFORM
                    if greedy
                    else edge + distribution[token].item() * windows.noise[b, q]
                )
                argmax = int(distributions[carried - 1].argmax())
                agrees = token == argmax if greedy else distribution[token] > MIN_MASS
                if shift:
                    counting.append((whole and bool(agrees), row.ids[carried + 1]))
                else:
                    counting.append((whole and bool(agrees or greedy), argmax if greedy else token))
                whole = whole and bool(agrees)
            logits = alone(student, row.ids[:start], us, settings, start - 1 + shift)
            found += [
                ((b, q), logits[j], counting[j][1]) for j, q in enumerate(where) if counting[j][0]
            ]
    return found


def alone(
    student: Student, ids: list[int], us: list[Any], settings: list[float], position: int
) -> Tensor:
    """Logits ``[N, V]`` of one window's slots after its context."""
    num = len(us)
    context = torch.tensor([ids])
    anchors = student.module.get_input_embeddings()(context[0, -1:]).expand(num, -1)
    warps, numbers = torch.tensor([settings] * num), torch.arange(num)
    u = torch.tensor([float(x) for x in us], dtype=torch.float64)
    embedded = embedded_slots(student.adapter, u, warps, numbers, anchors)[None]
    mask = torch.ones(1, num, len(ids) + num, dtype=torch.bool).tril(len(ids))
    _, cache = student.context(context)
    positions = position + torch.arange(num)[None]
    return student.logits(student.slots(cache, embedded, positions, mask))[0]


def teacher_at(outcome: Outcome) -> Tensor:
    """``[M, V]``: the untouched model's logits for the token that each counting slot predicts."""
    found = outcome.usable.nonzero().tolist()
    return torch.stack(
        [teacher_logits()[b][int(outcome.windows.index[b, q]) - 1] for b, q in found]
    )


@pytest.mark.parametrize("top_k", [0, TOP_K])
@pytest.mark.parametrize("variant", ["o-ptp", "c-ptp", "isd"])
def test_the_one_hot_loss_is_the_cross_entropy_of_each_window_alone(
    variant: Variant, top_k: int
) -> None:
    student, windows = student_of(variant), windows_of(variant)
    outcome = run(student, windows, top_k)
    expected = slow(student, windows, top_k)
    assert outcome.usable.nonzero().tolist() == [[b, q] for (b, q), _, _ in expected]
    greedy = windows.greedy[outcome.usable]
    real = int((windows.number >= 0).sum())
    assert 0 < int(greedy.sum()) < len(expected) < real  # both kinds, and some chains end early
    assert outcome.target.tolist() == [target for _, _, target in expected]
    logits = torch.stack([logits for _, logits, _ in expected]).detach()
    torch.testing.assert_close(outcome.logits, logits, **TOLERANCE)
    chances = [
        distribution.softmax(-1)[target]
        for distribution, (_, _, target) in zip(logits, expected, strict=True)
    ]
    by_hand = -sum(math.log(chance) for chance in chances)
    got = slot_loss(student, outcome, "one-hot")
    assert got.item() == pytest.approx(by_hand, rel=1e-4)


def test_slots_learn_the_picks_of_a_separate_teacher() -> None:
    other = copy.deepcopy(plain())
    with torch.no_grad():
        other.get_output_embeddings().weight.neg_()
    windows = windows_of("o-ptp")
    taught = run(student_of("o-ptp", teacher=other), windows, 0)
    own = run(student_of("o-ptp"), windows, 0)
    greedy = windows.greedy[taught.usable]
    before = (windows.index - 1)[taught.usable]
    rows = taught.usable.nonzero()[:, 0]
    for index in greedy.nonzero().flatten().tolist():
        distribution = teacher_logits()[int(rows[index])][int(before[index])]
        assert int(taught.target[index]) == int(distribution.argmin())  # the other way round
    assert not torch.equal(taught.usable, own.usable)
    # at places that both explain, the student is told other uniforms of the same token
    both = taught.usable & own.usable & ~windows.greedy
    assert both.any()
    gaps = taught.logits[both[taught.usable]] - own.logits[both[own.usable]]
    assert gaps.abs().max() > 1e-3


@pytest.mark.parametrize("variant", ["c-ptp", "isd"])
@pytest.mark.parametrize("objective", ["kl", "reverse-kl"])
def test_divergence_losses_equal_direct_divergences_and_greedy_slots_learn_the_argmax(
    objective: ObjectiveName, variant: Variant
) -> None:
    student = student_of(variant)
    outcome = run(student, windows_of(variant), TOP_K)
    teacher, greedy = teacher_at(outcome), outcome.windows.greedy[outcome.usable]
    assert 0 < int(greedy.sum()) < len(greedy)
    assert (teacher.argmax(-1) != outcome.target)[greedy].any()  # the text is not what is learnt
    expected = 0.0
    for known, said, certain in zip(teacher, outcome.logits.detach(), greedy.tolist(), strict=True):
        distributions = Categorical(logits=known), Categorical(logits=said)
        if certain:
            expected -= float(said.log_softmax(-1)[known.argmax()])
        else:
            expected += float(
                kl_divergence(*(distributions if objective == "kl" else distributions[::-1]))
            )
    got = slot_loss(student, outcome, objective)
    assert got.item() == pytest.approx(expected, rel=1e-4)


def overlap_of(known: Tensor, said: Tensor) -> float:
    return sum(min(p, q) for p, q in zip(known.tolist(), said.tolist(), strict=True))


def test_the_accuracy_of_an_isd_slot_is_the_overlap_of_the_warped_distributions() -> None:
    student = student_of("isd")
    outcome = run(student, windows_of("isd"), TOP_K)
    windows, teacher, kinds = outcome.windows, teacher_at(outcome), set()
    near = teacher + 0.5 * torch.randn(teacher.shape, generator=torch.Generator().manual_seed(1))
    judged = judge(student, dataclasses.replace(outcome, logits=near), TOP_K)
    assert judged.counts.all()
    for m, (b, q) in enumerate(outcome.usable.nonzero().tolist()):
        if windows.greedy[b, q]:
            right = float(int(near[m].argmax()) == int(teacher[m].argmax()))
            kinds.add(right)
        else:
            settings = windows.warp[b, q].tolist()
            right = overlap_of(
                *(distribution_of(row[m], settings, TOP_K) for row in (teacher, near))
            )
            assert 0 < right < 1
        assert float(judged.right[m]) == pytest.approx(right, abs=1e-5)
    assert kinds == {0.0, 1.0}


@pytest.mark.parametrize("objective", ["kl", "reverse-kl"])
def test_a_student_with_the_teachers_distribution_has_no_divergence(
    objective: ObjectiveName,
) -> None:
    student = student_of("c-ptp")
    outcome = run(student, windows_of("c-ptp", WindowSampling()), 0)
    same = dataclasses.replace(outcome, logits=teacher_at(outcome) + 3.0)  # a shift is no change
    assert slot_loss(student, same, objective).item() == pytest.approx(0, abs=1e-3)
    assert slot_loss(student, outcome, objective).item() > 1


@pytest.mark.parametrize("objective", LOSS_NAMES)
def test_gradients_reach_every_part_of_the_adapter_and_nothing_else(
    objective: ObjectiveName,
) -> None:
    student = student_of("o-ptp" if objective == "one-hot" else "c-ptp")
    variant = student.adapter.config.variant
    outcome = run(student, windows_of(variant), TOP_K)
    slot_loss(student, outcome, objective).backward()  # type: ignore[no-untyped-call]
    for name, parameter in student.adapter.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-6, name
    assert all(parameter.grad is None for parameter in student.module.parameters())


def test_an_o_ptp_slot_proposes_its_likeliest_token() -> None:
    student = student_of("o-ptp")
    outcome = run(student, windows_of("o-ptp"), TOP_K)
    some = outcome.logits.detach().clone()
    some[::2].scatter_(1, outcome.target[::2, None], 50.0)  # every other slot is right
    judged = judge(student, dataclasses.replace(outcome, logits=some), TOP_K)
    distribution = some.softmax(-1)
    assert judged.right.tolist() == [
        int(p.argmax()) == t for p, t in zip(distribution, outcome.target.tolist(), strict=True)
    ]
    assert judged.right[::2].all()
    assert not judged.right.all()
    torch.testing.assert_close(judged.confidence, distribution.amax(-1))
    assert judged.counts.all()


@pytest.mark.parametrize("seed", range(3))
def test_a_c_ptp_slot_draws_from_its_own_warped_distribution(seed: int) -> None:
    student = student_of("c-ptp")
    outcome = run(student, windows_of("c-ptp", seed=seed), TOP_K)
    teacher, windows = teacher_at(outcome), outcome.windows
    near = teacher + 0.5 * torch.randn(teacher.shape, generator=torch.Generator().manual_seed(seed))
    judged = judge(student, dataclasses.replace(outcome, logits=near), TOP_K)
    kinds = set()
    for m, (b, q) in enumerate(outcome.usable.nonzero().tolist()):
        settings, greedy = windows.warp[b, q].tolist(), bool(windows.greedy[b, q])
        token = rows()[b].ids[int(windows.index[b, q])]
        if greedy:
            right = int(near[m].argmax()) == int(teacher[m].argmax())
            confidence, counts = near[m].softmax(-1).max(), True
        else:
            known, said = (
                distribution_of(logits[m], settings, TOP_K) for logits in (teacher, near)
            )
            u = known[:token].sum().double() + known[token].double() * (1 - windows.noise[b, q])
            drawn = int(pick(said[None], u[None]))
            counts = bool(known[token] > MIN_MASS)
            right, confidence = drawn == token, said[drawn]
        kinds.add((greedy, counts, right))
        assert bool(judged.counts[m]) == counts
        if counts:
            assert bool(judged.right[m]) == right
            torch.testing.assert_close(judged.confidence[m], confidence)
    assert {(False, True, True), (False, True, False), (True, True, True)} <= kinds
    assert any(not counts for _, counts, _ in kinds)


def test_a_c_ptp_student_that_is_the_teacher_is_always_right() -> None:
    student = student_of("c-ptp")
    outcome = run(student, windows_of("c-ptp"), TOP_K)
    perfect = dataclasses.replace(outcome, logits=teacher_at(outcome))
    judged = judge(student, perfect, TOP_K)
    assert judged.right[judged.counts].all()
    assert not judged.counts.all()


def test_windows_without_usable_slots_give_a_loss_of_zero() -> None:
    student = student_of("c-ptp")
    windows = windows_of("c-ptp")
    nothing = dataclasses.replace(windows, number=torch.full_like(windows.number, -1))
    outcome = run(student, nothing, 0)
    assert not outcome.usable.any()
    for name in LOSS_NAMES:
        assert slot_loss(student, outcome, name).item() == 0
    judged = judge(student, outcome, 0)
    assert len(judged.right) == len(judged.confidence) == len(judged.counts) == 0
