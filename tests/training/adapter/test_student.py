"""`Student` against a cold oracle: each window alone, plain weights, no cache, gated LoRA by hooks.

Weights are random and larger than usual, so that a wrong mask, position or gate moves hidden states
by far more than the tolerance; negative controls check that it does.

Letters: B rows, S places of a row, Q slots of a row, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from decoders.core.adapter.gating import GatedModule, layer_shapes, layer_weight
from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import AdapterConfig
from decoders.core.types import NO_UNIFORM
from tests.tiny_models import GQA, SIZES, VOCAB, WIDTH, fresh
from training.adapter.student import Student, gather_rows
from training.adapter.windows import Windows, WindowSampling, draw_windows
from training.text.data import Row

TOLERANCE = 2e-5
MODELS = ("llama", "llama-gqa", "llama-bias", "qwen2", "qwen3", "mistral", "gpt-neox", "gpt2")
ROWS = [
    Row(list(range(3, 17)), [False] * 5 + [True] * 6 + [False, True, True]),
    Row(list(range(30, 38)), [False] * 3 + [True] * 5),
    Row([7], [True]),  # no window fits: its slots are all padding
]


def adapter_for(module: Any, rank: int = 4) -> SlotAdapter:
    """An adapter whose delta matters."""
    config = AdapterConfig(layers=layer_shapes(module), width=WIDTH, rank=rank, alpha=6.0)
    adapter = SlotAdapter(config, seed=3)
    generator = torch.Generator().manual_seed(4)
    for high in adapter.lora_b.values():
        high.data = 0.1 * torch.randn(high.shape, generator=generator)
    return adapter


def student_of(name: str, rank: int = 4, **options: Any) -> Student:
    module = fresh(name)
    return Student(module, adapter_for(module, rank), **options)


def windows_of(seed: int = 0, rows: list[Row] = ROWS, **options: Any) -> Windows:
    rng = np.random.default_rng(seed)
    return draw_windows(
        rows, num_slots=13, length=4, sampling=WindowSampling(), pad=0, rng=rng, **options
    )


def inputs(student: Student, windows: Windows) -> tuple[Tensor, Tensor]:
    """Slot inputs ``[B, Q, D]`` (some blank) and positions ``[B, Q]``."""
    u = torch.rand(windows.index.shape, generator=torch.Generator().manual_seed(9)).double()
    u[:, ::5] = NO_UNIFORM
    return student.embed(u, windows), (windows.index - 1).clamp(min=0)


def run(student: Student, windows: Windows) -> Tensor:
    _, cache = student.context(windows.ids)
    return student.slots(cache, *inputs(student, windows), windows.mask())


@contextmanager
def gated_by_hooks(module: Any, adapter: SlotAdapter, first: int) -> Iterator[None]:
    """Rows from `first` on get ``x (scale B A)^T`` added in every adapted layer."""

    def adding(delta: Tensor) -> Any:
        def hook(_module: Any, args: tuple[Tensor], y: Tensor) -> Tensor:
            gate = (torch.arange(y.shape[1]) >= first).float()[None, :, None]
            return y + gate * (args[0] @ delta.T)

        return hook

    named = dict(module.named_modules())
    config, hooks = adapter.config, []
    for name in config.layers:
        key = name.replace(".", "/")
        high = adapter.lora_b[key].detach()
        delta = high
        if config.rank:
            delta = config.alpha / config.rank * high @ adapter.lora_a[key].detach()
        hooks.append(named[name].register_forward_hook(adding(delta)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def cold(module: Any, adapter: SlotAdapter, ids: list[int], embedded: Tensor, first: int) -> Tensor:
    """Hidden states ``[N, D]`` of N slots after the tokens `ids`, the first at position `first`."""
    num_tokens, num_slots = len(ids), len(embedded)
    tokens = module.get_input_embeddings()(torch.tensor([ids]))
    positions = [*range(num_tokens), *range(first, first + num_slots)]
    total = num_tokens + num_slots
    mask = torch.full((1, 1, total, total), torch.finfo(torch.float32).min).triu(1)
    with gated_by_hooks(module, adapter, num_tokens):
        out = module.base_model(
            inputs_embeds=torch.cat([tokens, embedded[None]], 1),
            position_ids=torch.tensor([positions]),
            attention_mask=mask,
            use_cache=False,
        )
    hidden: Tensor = out.last_hidden_state[0, num_tokens:]
    return hidden


def gap(got: Tensor, expected: Tensor) -> float:
    assert got.shape == expected.shape
    return (got - expected).abs().max().item()


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("variant", ["o-ptp", "c-ptp"])
def test_slots_of_all_windows_run_together_equal_each_window_run_alone(
    name: str, variant: str
) -> None:
    student, module = student_of(name), fresh(name)
    windows = windows_of(variant=variant)
    embedded, _ = inputs(student, windows)
    embedded = embedded.detach()
    with torch.no_grad():
        got = run(student, windows)
    checked = 0
    for b, row in enumerate(ROWS):
        for index in range(int(windows.number[b].max()) + 1):
            where = windows.number[b] == index
            start, place = int(windows.start[b, where][0]), int(windows.index[b, where][0])
            assert place == start + (variant == "c-ptp")
            alone = cold(module, student.adapter, row.ids[:start], embedded[b, where], place - 1)
            assert gap(got[b, where], alone) < TOLERANCE
            checked += int(where.sum())
    assert checked == 2 * 13


def test_the_oracle_notices_a_wrong_position_gate_or_context() -> None:
    student, module = student_of("llama"), fresh("llama")
    embedded = inputs(student, windows_of())[0][0, :3].detach()
    ids, adapter = ROWS[0].ids[:6], student.adapter
    right = cold(module, adapter, ids, embedded, 5)
    assert gap(cold(module, adapter, ids, embedded, 6), right) > 0.01
    assert gap(cold(module, adapter, ids[:5], embedded, 5), right) > 0.01
    with torch.no_grad():
        for high in adapter.lora_b.values():
            high.zero_()
    assert gap(cold(module, adapter, ids, embedded, 5), right) > 0.1


def test_context_states_and_logits_equal_those_of_the_base_model(name: str) -> None:
    student, module = student_of(name), fresh(name)
    ids = windows_of().ids
    places = torch.tensor([[0, 4, 13], [3, 7, 0], [0, 0, 0]])
    hidden, cache = student.context(ids)
    teacher = student.teacher(ids, hidden)
    logits = student.logits(gather_rows(teacher, places))
    assert not hidden.requires_grad
    assert not teacher.requires_grad
    assert cache.get_seq_length() == ids.shape[1] == 14
    for b, row in enumerate(ROWS):  # each alone and unpadded
        with torch.no_grad():
            base = module.base_model(torch.tensor([row.ids])).last_hidden_state[0]
            alone = module(torch.tensor([row.ids])).logits[0]
        assert gap(hidden[b, : len(row.ids)], base) < TOLERANCE
        assert gap(logits[b], alone[places[b]]) < TOLERANCE
        assert gap(student.logits(hidden)[b, : len(row.ids)], alone) < TOLERANCE


def gradients(student: Student, merged: bool) -> tuple[Tensor, dict[str, Tensor]]:
    student.merged = merged
    student.adapter.zero_grad()
    windows = windows_of()
    hidden = run(student, windows)
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(5))
    (hidden * weights).mean().backward()
    named = student.adapter.named_parameters()
    return hidden.detach(), {n: p.grad.clone() for n, p in named if p.grad is not None}


@pytest.mark.parametrize("rank", [4, 0])
def test_merged_and_unmerged_training_agree_in_values_and_gradients(name: str, rank: int) -> None:
    student = student_of(name, rank)
    hidden, found = gradients(student, merged=True)
    other, others = gradients(student, merged=False)
    assert gap(hidden, other) < TOLERANCE
    every = {n for n, _ in student.adapter.named_parameters()}
    assert set(found) == set(others) == every  # A, B, the embedding and the blank vector
    for key, gradient in found.items():
        assert gradient.abs().max() > 0, key
        torch.testing.assert_close(gradient, others[key], rtol=1e-3, atol=1e-6)
    assert all(p.grad is None and not p.requires_grad for p in student.module.parameters())


@pytest.mark.parametrize("name", ["llama", "gpt-neox"])
def test_deltas_are_merged_unless_their_rank_is_low(name: str) -> None:
    assert [student_of(name, rank).merged for rank in (0, 1, 2, 8)] == [True, False, False, True]


def test_gradients_equal_finite_differences() -> None:
    student = student_of("llama-gqa")
    _, found = gradients(student, merged=True)
    for key, step in [("lora_a", 3e-3), ("lora_b", 3e-3), ("embedding", 3e-3)]:
        name, parameter = next(
            (n, p) for n, p in student.adapter.named_parameters() if n.startswith(key)
        )
        direction = found[name] / found[name].norm()
        losses = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter.add_(sign * step * direction)
                hidden = run(student, windows_of())
                weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(5))
                losses.append((hidden * weights).double().mean().item())
                parameter.sub_(sign * step * direction)
        slope = (losses[0] - losses[1]) / (2 * step)
        assert slope == pytest.approx(found[name].norm().item(), rel=0.02)


def test_padding_never_changes_slots_or_contexts(name: str) -> None:
    student = student_of(name)
    windows = windows_of(rows=ROWS[:2])
    before = run(student, windows)
    length = len(ROWS[1].ids)
    windows.ids[1, length:] = 60
    hidden, _ = student.context(windows.ids)
    assert torch.equal(run(student, windows), before)
    windows.ids[1, length:] = 0
    assert torch.equal(student.context(windows.ids)[0][1, :length], hidden[1, :length])
    windows.ids[1, 0] = 60  # but real tokens do
    assert gap(run(student, windows)[1], before[1]) > 0.01


def test_windows_of_a_row_do_not_see_each_other() -> None:
    student, windows = student_of("llama"), windows_of()
    embedded, positions = inputs(student, windows)
    _, cache = student.context(windows.ids)
    before = student.slots(cache, embedded, positions, windows.mask())
    changed = embedded.clone()
    second = windows.number[0] == 1
    changed[0, second] += 1
    after = student.slots(cache, changed, positions, windows.mask())
    assert torch.equal(after[0, ~second], before[0, ~second])
    assert torch.equal(after[1:], before[1:])
    assert ((after - before)[0, second].abs().amax(-1) > 0.01).all()


def test_a_fresh_adapter_leaves_slots_on_the_base_weights(name: str) -> None:
    module = fresh(name)
    student = Student(module, SlotAdapter(AdapterConfig(layers=layer_shapes(module), width=WIDTH)))
    assert student.merged
    windows = windows_of()
    with torch.no_grad():
        merged = run(student, windows)
        student.merged = False
        assert gap(merged, run(student, windows)) < TOLERANCE
        tokens = module.get_input_embeddings()(windows.ids[:1, :3])
        _, cache = student.context(windows.ids[:1, :5])
        # slots that are fed tokens continue the context as the base model would
        seen = torch.cat([torch.ones(3, 5), torch.ones(3, 3).tril()], 1).bool()[None]
        got = student.slots(cache, tokens, torch.tensor([[5, 6, 7]]), seen)
        whole = torch.cat([windows.ids[:1, :5], windows.ids[:1, :3]], 1)
        assert gap(got, fresh(name).base_model(whole).last_hidden_state[:, 5:]) < TOLERANCE


def test_a_separate_teacher_gives_the_teacher_states_and_the_student_its_context_states() -> None:
    taught = student_of("llama", teacher=fresh("llama-gqa"))
    ids = windows_of().ids
    hidden, _ = taught.context(ids)
    states = taught.teacher(ids, hidden)
    with torch.no_grad():
        assert gap(states, fresh("llama-gqa").base_model(ids).last_hidden_state) < TOLERANCE
        assert gap(taught.teacher_logits(states), fresh("llama-gqa")(ids).logits) < TOLERANCE
        assert gap(hidden, fresh("llama").base_model(ids).last_hidden_state) < TOLERANCE
    assert not states.requires_grad


def test_a_teacher_with_another_vocabulary_or_a_head_that_is_not_plain_is_refused() -> None:
    student = student_of("llama")
    larger = fresh("gpt2")
    larger.resize_token_embeddings(VOCAB + 3, mean_resizing=False)
    with pytest.raises(ValueError, match=r"vocabulary has 100 tokens, the model's 97"):
        Student(fresh("llama"), student.adapter, teacher=larger)
    with pytest.raises(ValueError, match="plain heads only"):
        Student(fresh("llama"), student.adapter, teacher=fresh("gemma2-window"))


def test_a_model_that_decoded_with_an_adapter_keeps_one_copy_of_its_weights() -> None:
    module = fresh("llama")
    gated = GatedModule(module)  # as a rehearsal leaves it
    student = Student(module, adapter_for(module))
    assert student.weights is not None
    joined = {part.weight.untyped_storage().data_ptr() for part in student.linears}
    weights = map(layer_weight, gated.layers.values())
    assert {weight.untyped_storage().data_ptr() for weight in weights} == joined


def test_gather_rows_takes_the_states_at_each_rows_places() -> None:
    states = torch.arange(24.0).view(2, 4, 3)
    got = gather_rows(states, torch.tensor([[3, 0], [1, 1]]))
    assert torch.equal(got, torch.stack([states[0, [3, 0]], states[1, [1, 1]]]))


def test_rows_longer_than_a_sliding_window_are_refused() -> None:
    config = MistralConfig(**SIZES, **GQA, sliding_window=12)
    module = MistralForCausalLM(config).eval()
    ids = torch.arange(13)[None]
    expected = module.base_model(ids[:, :12]).last_hidden_state
    student = Student(module, adapter_for(module))
    hidden, cache = student.context(ids[:, :12])
    assert gap(hidden, expected) < TOLERANCE
    with pytest.raises(ValueError, match=r"rows of 13 tokens exceed .* window of 12"):
        student.context(ids)
    # a slot stands within its row, so it may see the whole row and the slots before it
    slot, seen = torch.zeros(1, 1, WIDTH), torch.ones(1, 1, 13, dtype=torch.bool)
    assert student.slots(cache, slot, ids[:, 11:12], seen).isfinite().all()


def test_attention_is_checked_on_tokens_of_the_whole_vocabulary() -> None:
    """The first ids are special: side by side, SmolLM2's bfloat16 states differ by 76 %."""
    module, seen = fresh("llama"), list[Tensor | None]()
    module.base_model.register_forward_pre_hook(
        lambda _, __, named: seen.append(named.get("input_ids")), with_kwargs=True
    )
    Student(module, adapter_for(module))
    ids = next(each[0] for each in seen if each is not None and each.shape[1] == 9)
    assert ids[0] >= VOCAB // 10
    assert ids[-1] == VOCAB - 1
    assert len(ids.unique()) == len(ids)


def test_an_adapter_of_another_model_and_a_capped_head_are_refused() -> None:
    with pytest.raises(ValueError, match="made for another model"):
        Student(fresh("llama-gqa"), adapter_for(fresh("llama")))
    config = Gemma2Config(
        **SIZES,
        **GQA,
        head_dim=8,
        attn_implementation="eager",  # type: ignore[call-arg]
    )
    capped = Gemma2ForCausalLM(config)
    with pytest.raises(ValueError, match="plain heads only"):
        Student(capped, adapter_for(capped))
