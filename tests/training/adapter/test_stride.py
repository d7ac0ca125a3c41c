"""`Student` of windows drawn with a stride, whose slots may enter late: against decoding itself,
against the mask of all slots, and against transformers' modules.

Weights are random and larger than usual, so that a wrong mask, position or gate moves hidden states
by far more than the tolerance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from decoders.core.adapter.module import SlotAdapter
from decoders.core.hf.model import HFModel
from decoders.core.types import NO_UNIFORM, Slots
from tests.tiny_models import GQA, SIZES, fresh, slot_adapter
from training.adapter.student import Student
from training.adapter.windows import BlockRules, Windows, WindowSampling, draw_windows
from training.text.data import Row

TOLERANCE = 2e-5
LENGTH = 4
ROWS = [
    Row(list(range(3, 27)), [False] * 5 + [True] * 19),
    Row(list(range(30, 42)), [False] * 3 + [True] * 9),
    Row([7], [True]),  # no window fits: its slots are all padding
]
FAMILY = ("llama", "llama-gqa", "llama-bias", "qwen2", "qwen3", "mistral")
KINDS: dict[str, dict[str, Any]] = {
    "isd": {"variant": "isd", "code": "constant", "numbered": True},
    "c-ptp": {"variant": "c-ptp"},
    "o-ptp": {"variant": "o-ptp", "anchored": True},
    "refine": {"variant": "refine", "code": "constant"},
}


def deep(name: str) -> Any:
    """A Llama of four layers, with or without grouped keys."""
    torch.manual_seed(5)
    extra = GQA if name == "gqa" else {}
    config = LlamaConfig(**{**SIZES, "num_hidden_layers": 4}, **extra, tie_word_embeddings=True)
    return LlamaForCausalLM(config).eval()


def trained(adapter: SlotAdapter) -> SlotAdapter:
    return adapter.train().requires_grad_(True)


def windows_of(
    variant: Any,
    seed: int = 0,
    num_slots: int = 23,
    rows: Sequence[Row] = ROWS,
    standalone: bool = False,
) -> Windows:
    return draw_windows(
        rows,
        num_slots=num_slots,
        length=LENGTH,
        sampling=WindowSampling(),
        pad=0,
        rng=np.random.default_rng(seed),
        variant=variant,
        blocks=BlockRules(sizes=(3, 4)) if variant == "refine" else None,
        standalone=standalone,
        stride=LENGTH,
    )


def uniforms(windows: Windows) -> Tensor:
    u = torch.rand(windows.index.shape, generator=torch.Generator().manual_seed(9)).double()
    u[:, ::5] = NO_UNIFORM
    return u


def run(student: Student, windows: Windows) -> Tensor:
    _, cache = student.context(windows.ids)
    states = student.states(cache, uniforms(windows), windows)
    return states[windows.number >= 0]


def gradients(student: Student, windows: Windows) -> tuple[Tensor, dict[str, Tensor]]:
    student.adapter.zero_grad()
    states = run(student, windows)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(5))
    (states * weights).mean().backward()
    named = student.adapter.named_parameters()
    return states.detach(), {n: p.grad.clone() for n, p in named if p.grad is not None}


def gap(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape
    return (got - expected).abs().max().item()


def by_modules(module: Any) -> Any:
    """The same model with an attention that `hf.llama` does not compute."""
    module.set_attn_implementation("eager")
    return module


def agree(got: tuple[Tensor, dict[str, Tensor]], expected: tuple[Tensor, Any]) -> None:
    """Hold states and gradients to a relative distance of 1e-5."""
    assert len(got[0]) > 20
    assert set(got[1]) == set(expected[1])
    for name, each in {"states": expected[0], **expected[1]}.items():
        distance = (got[1].get(name, got[0]) - each).norm() / each.norm()
        assert distance < 1e-5, (name, distance)


@pytest.mark.parametrize("stride", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FAMILY)
def test_states_and_gradients_equal_those_of_transformers_modules(
    name: str, kind: str, stride: bool
) -> None:
    windows = windows_of(KINDS[kind]["variant"])
    if not stride:
        windows = dataclasses.replace(windows, stride=0)
    module = fresh(name)
    student = Student(module, trained(slot_adapter(module, **KINDS[kind])))
    other = by_modules(fresh(name))
    modules = Student(other, trained(slot_adapter(other, **KINDS[kind])))
    assert student.weights is not None
    assert modules.weights is None
    agree(gradients(student, windows), gradients(modules, windows))


@pytest.mark.parametrize("merged", [True, False])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["plain", "gqa"])
def test_windows_run_separately_equal_windows_run_under_one_mask(
    name: str, kind: str, merged: bool
) -> None:
    module, windows = deep(name), windows_of(KINDS[kind]["variant"])
    student = Student(module, trained(slot_adapter(module, **KINDS[kind])))
    student.merged = merged
    expected = gradients(student, dataclasses.replace(windows, stride=0))
    agree(gradients(student, windows), expected)


@pytest.mark.parametrize("options", [{"rank": 0}, {"anchored": True, "standalone": True}])
def test_full_rank_and_standalone_windows_run_separately_equal_those_under_one_mask(
    options: Any,
) -> None:
    module = deep("gqa")
    student = Student(module, trained(slot_adapter(module, **options)))
    windows = windows_of("o-ptp", standalone=options.get("standalone", False))
    expected = gradients(student, dataclasses.replace(windows, stride=0))
    agree(gradients(student, windows), expected)
    if windows.standalone:
        seeing = dataclasses.replace(windows, standalone=False)
        assert gap(run(student, seeing), run(student, windows)) > 0.01


@pytest.mark.parametrize("name", ["plain", "gqa"])
def test_a_row_run_alone_gives_the_states_of_that_row_in_a_batch(name: str) -> None:
    module, windows = deep(name), windows_of("c-ptp", rows=ROWS[:1])
    student = Student(module, slot_adapter(module, variant="c-ptp"))
    together = run(student, windows_of("c-ptp"))
    assert gap(run(student, windows), together[: int((windows.number >= 0).sum())]) < TOLERANCE


@pytest.mark.parametrize("kind", ["isd", "c-ptp"])
def test_bfloat16_gradients_point_in_the_direction_of_float32_gradients(kind: str) -> None:
    windows = windows_of(KINDS[kind]["variant"])
    module = deep("gqa")
    exact = Student(module, trained(slot_adapter(module, **KINDS[kind], enter=1)))
    rounded = Student(deep("gqa").bfloat16(), trained(slot_adapter(module, **KINDS[kind], enter=1)))
    expected, gradients_expected = gradients(exact, windows)
    got, gradients_got = gradients(rounded, windows)
    assert got.dtype == torch.bfloat16
    assert gap(got.float(), expected) < 0.05 * expected.abs().max().item()
    for key, gradient in gradients_expected.items():
        assert gradients_got[key].dtype == torch.float32  # what is trained stays exact
        alike = torch.cosine_similarity(gradients_got[key].flatten(), gradient.flatten(), dim=0)
        assert alike > 0.99, key


def test_context_states_and_logits_equal_those_of_the_base_model() -> None:
    module = deep("gqa")
    student = Student(module, slot_adapter(module))
    ids = windows_of("c-ptp").ids
    hidden, _ = student.context(ids)
    for b, row in enumerate(ROWS):
        with torch.no_grad():
            alone = deep("gqa")(torch.tensor([row.ids])).logits[0]
        assert gap(student.logits(hidden)[b, : len(row.ids)], alone) < 1e-4


def decoded(model: HFModel, text: list[int], u: list[float]) -> Tensor:
    """Logits of slots that follow a text in a call, as isd and C-PTP place them."""
    model.reserve(1, 100)
    session = model.open()
    model.forward([session.call(text[:-2])])
    slots = Slots(
        adapter="a",
        uniforms=tuple(u),
        sizes=(len(u),),
        anchors=(text[-1],),
        read=tuple(range(len(u))),
    )
    tokens = text[-2:]
    places = range(len(text) - 2, len(text) + len(u))
    call = session.call(tokens, read=(), slots=slots, positions=tuple(places))
    logits = model.forward([call])
    model.close(session)
    return logits


@pytest.mark.parametrize("enter", [0, 1, 3])
@pytest.mark.parametrize("kind", ["isd", "c-ptp"])
def test_logits_of_training_slots_equal_those_of_decoding(kind: str, enter: int) -> None:
    module = deep("gqa")
    adapter = slot_adapter(module, **KINDS[kind], enter=enter)
    student = Student(module, trained(adapter))
    windows = windows_of(KINDS[kind]["variant"])
    u = (uniforms(windows) * 4096).floor().add(0.5).div(4096)  # where the decoder's table is exact
    u[:, ::5] = NO_UNIFORM
    _, cache = student.context(windows.ids)
    with torch.no_grad():
        got = student.logits(student.states(cache, u, windows))
    model = HFModel(deep("gqa"))
    model.attach("a", slot_adapter(module, **KINDS[kind], enter=enter))
    checked = 0
    for b, row in enumerate(ROWS):
        for number in range(int(windows.number[b].max()) + 1):
            where = windows.number[b] == number
            start = int(windows.start[b, where][0])
            if start < 3:
                continue
            expected = decoded(model, row.ids[:start], u[b, where].tolist())
            assert gap(got[b, where], expected) < 1e-4
            checked += 1
    assert checked >= 8


def test_the_layer_where_slots_enter_changes_their_states() -> None:
    module, windows = deep("gqa"), windows_of("isd")
    found = [
        run(Student(deep("gqa"), slot_adapter(module, **KINDS["isd"], enter=enter)), windows)
        for enter in (0, 1, 3)
    ]
    assert gap(found[0], found[1]) > 0.01
    assert gap(found[1], found[2]) > 0.01


def test_the_gradient_reaches_the_scale_of_the_slots_initial_states() -> None:
    module = deep("gqa")
    student = Student(module, trained(slot_adapter(module, **KINDS["isd"], enter=2)))
    windows = windows_of("isd")
    _, found = gradients(student, windows)
    carried, direction = student.adapter.carried, found["carried"] / found["carried"].norm()
    assert carried is not None
    weights = torch.randn(run(student, windows).shape, generator=torch.Generator().manual_seed(5))
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            carried.add_(sign * 3e-3 * direction)
            losses.append((run(student, windows) * weights).double().mean().item())
            carried.sub_(sign * 3e-3 * direction)
    slope = (losses[0] - losses[1]) / 6e-3
    assert slope == pytest.approx(found["carried"].norm().item(), rel=0.02)


def test_padding_never_reaches_slots() -> None:
    module = deep("plain")
    student = Student(module, slot_adapter(module, **KINDS["c-ptp"], enter=1))
    windows = windows_of("c-ptp")
    before = run(student, windows)
    windows.ids[1, len(ROWS[1].ids) :] = 60
    assert torch.equal(run(student, windows), before)
    windows.ids[1, 0] = 60
    assert gap(run(student, windows), before) > 0.01


def test_windows_with_a_stride_take_each_start_once_and_leave_gaps() -> None:
    windows = windows_of("isd", num_slots=4 * 17)
    assert windows.stride == LENGTH
    by_window = windows.number.view(3, -1, LENGTH)
    for b in (0, 1):
        starts = [
            int(windows.start[b].view(-1, LENGTH)[w, 0])
            for w in range(17)
            if by_window[b, w, 0] >= 0
        ]
        num_different = len(ROWS[b].ids) - 2 - sum(not x for x in ROWS[b].learn) + 1
        assert len(starts) == 17
        assert len(set(starts)) == min(17, num_different)
    assert ((by_window == by_window[..., :1]) | (by_window == -1)).all()
    short = (by_window[:2, :, 0] >= 0) & (by_window[:2, :, -1] < 0)
    assert short.any()  # a window that ends with its answer


def test_windows_use_the_temperature_of_their_answer() -> None:
    rows = [dataclasses.replace(ROWS[0], temperature=t) for t in (0.0, 0.7)]
    windows = draw_windows(
        rows,
        num_slots=8,
        length=4,
        sampling=WindowSampling(temperatures=(1.0, 1.0), greedy=0.5),
        pad=0,
        rng=np.random.default_rng(0),
        stride=4,
    )
    assert windows.greedy.tolist() == [[True] * 8, [False] * 8]
    assert windows.warp[1, :, 0].tolist() == pytest.approx([0.7] * 8)


def test_windows_run_by_modules_share_one_mask_and_must_enter_at_the_first_layer() -> None:
    module = fresh("gpt-neox")
    student = Student(module, slot_adapter(module, variant="c-ptp"))
    windows = windows_of("c-ptp")
    plain = run(student, dataclasses.replace(windows, stride=0))
    assert torch.equal(run(student, windows), plain)
    with pytest.raises(ValueError, match=r"enter is 1; in GPTNeoXForCausalLM .* use 0 \("):
        Student(module, slot_adapter(module, variant="c-ptp", enter=1))
