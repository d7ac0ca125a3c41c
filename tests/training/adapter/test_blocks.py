"""Blocks of a refining adapter: what they hide, and that each is run as if it were alone.

Letters: B rows, S places of a row, Q slots of a row, n slots of a block.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from decoders.core.types import MASKED, NO_UNIFORM
from tests.tiny_models import fresh, slot_adapter
from tests.training.adapter.test_objectives import judge
from tests.training.adapter.test_student import gap, gated_by_hooks
from training.adapter.objectives import run, slot_loss
from training.adapter.student import Student
from training.adapter.windows import BlockRules, Windows, WindowSampling, draw_windows
from training.text.data import Row

STOP, LONGEST = 50, 6
ROWS = [
    Row(
        [*range(1, 15), STOP, 60, 61, 17, 18, STOP],
        [False] * 4 + [True] * 11 + [False] * 2 + [True] * 3,
    ),
    Row([*range(20, 30)], [False] * 3 + [True] * 7),  # cut off: it ends without a stop
    Row([3, 4], [False, False]),
    Row([5, STOP], [False, True]),  # a stop alone has nothing behind it
]
ENDS = {0: [15, 20], 1: [10]}
"""Where the answers of rows end."""


def blocks_of(seed: int = 0, rows: list[Row] = ROWS, **options: Any) -> Windows:
    rules = {"stops": frozenset({STOP}), **options}
    return draw_windows(
        rows,
        num_slots=15,
        length=LONGEST,
        sampling=WindowSampling(),
        pad=0,
        rng=np.random.default_rng(seed),
        variant="refine",
        blocks=BlockRules(**rules),
    )


def each_block(windows: Windows) -> list[tuple[int, list[int]]]:
    """Row and slots of every block."""
    found = []
    for b, numbers in enumerate(windows.number.tolist()):
        for n in sorted(set(numbers) - {-1}):
            found.append((b, [q for q, number in enumerate(numbers) if number == n]))
    return found


def tokens_of(b: int, start: int, size: int) -> list[int]:
    """The answer from `start` on, and its stop again and again."""
    end = min(end for end in ENDS[b] if end > start)
    return (ROWS[b].ids[start:end] + [STOP] * size)[:size]


@pytest.mark.parametrize("own", [0.0, 0.5])
def test_blocks_hide_and_predict_as_defined(own: float) -> None:
    hidden, starts, lengths = Counter[bool](), Counter[tuple[int, int]](), Counter[int]()
    for seed in range(60):
        windows = blocks_of(seed, own=own)
        blocks = windows.blocks
        assert blocks is not None
        for b, where in each_block(windows):
            start, size = int(windows.start[b, where[0]]), len(where)
            starts[b, start] += 1
            lengths[size] += 1
            expected = tokens_of(b, start, size)
            shown = blocks.shown[b, where].tolist()
            everything = shown == [MASKED] * size
            hidden[everything] += 1
            assert everything or shown[0] == expected[0]
            assert all(got in (MASKED, token) for got, token in zip(shown, expected, strict=True))
            assert windows.index[b, where].tolist() == [*range(start + 1, start + 1 + size)]
            assert windows.depth[b, where].tolist() == [*range(1, size + 1)]
            mine = blocks.is_own[b, where].tolist()
            assert not mine[0]
            assert not any(m for m, token in zip(mine, shown, strict=True) if token == MASKED)
            end = min(end for end in ENDS[b] if end > start)
            for r, q in enumerate(where[:-1]):  # the last slot predicts the next block's first
                assert int(blocks.target[b, q]) == expected[r + 1]
                assert bool(blocks.learn[b, q]) == (shown[r + 1] == MASKED or mine[r + 1])
                assert bool(blocks.inside[b, q]) == (start + r + 1 < end)
            assert not blocks.learn[b, where[-1]]
        assert not blocks.learn[2:].any()
        assert (blocks.shown[windows.number < 0] == MASKED).all()
    assert abs(hidden[True] / hidden.total() - 0.2) < 0.1
    assert {start for b, start in starts if b == 0} == {*range(4, 14), 17, 18}
    assert {start for b, start in starts if b == 1} == {*range(3, 9)}
    assert set(lengths) == {*range(1, LONGEST + 1)}  # the last block of a row is cut to fit


def test_a_block_continues_past_a_stop_token_but_not_past_truncated_text() -> None:
    for seed in range(20):
        windows = blocks_of(seed)
        for b, where in each_block(windows):
            start, cut = int(windows.start[b, where[0]]), where[-1] == 14
            full = LONGEST if b == 0 else min(LONGEST, 10 - start)
            assert len(where) == full or (cut and len(where) < full)


def test_slot_positions_stay_within_the_models_context() -> None:
    stood = [blocks_of(seed, room=22).index[0] - 1 for seed in range(20)]
    assert max(int(places.max()) for places in stood) == 21


def test_an_answer_within_a_row_ends_at_its_first_stop() -> None:
    row = Row([1, 2, 3, STOP, 5, 6, 7], [False] + [True] * 6)
    for seed in range(10):
        windows = blocks_of(seed, [row], hidden=1.0)
        assert windows.blocks is not None
        for b, where in each_block(windows):
            start = int(windows.start[b, where[0]])
            if start < 3:
                said = windows.blocks.target[b, where[:-1]].tolist()
                assert said == [2, 3, STOP, STOP, STOP, STOP, STOP][start : start + len(where) - 1]


def test_block_sizes_and_mask_ratios_are_drawn_as_configured() -> None:
    row = Row([*range(1, 40)], [False] * 2 + [True] * 37)
    sizes, masked = Counter[int](), Counter[int]()
    for seed in range(200):
        windows = blocks_of(seed, [row], sizes=(3, 5), hidden=0.0, ratios=(0.5, 0.5))
        assert windows.blocks is not None
        for b, where in each_block(windows):
            if where[-1] < 14 and int(windows.start[b, where[0]]) < 34:
                sizes[len(where)] += 1
                shown = windows.blocks.shown[b, where]
                assert int((shown == MASKED).sum()) == (len(where) - 1) // 2
    assert set(sizes) == {3, 5}
    assert abs(sizes[3] / sizes.total() - 0.5) < 0.15
    for seed in range(300):  # any number of masks is as likely
        windows = blocks_of(seed, [row], hidden=0.0)
        assert windows.blocks is not None
        for b, where in each_block(windows):
            if len(where) == LONGEST:
                masked[int((windows.blocks.shown[b, where] == MASKED).sum())] += 1
    assert set(masked) == {1, 2, 3, 4, 5}
    assert all(abs(count / masked.total() - 0.2) < 0.06 for count in masked.values())


def test_slots_see_the_text_before_their_block_and_all_of_the_block() -> None:
    windows = blocks_of()
    seen, width = windows.mask(), windows.ids.shape[1]
    for b, where in each_block(windows):
        expected = {*range(int(windows.start[b, where[0]])), *(width + q for q in where)}
        for q in where:
            assert set(seen[b, q].nonzero().flatten().tolist()) == expected
    for b, q in (windows.number < 0).nonzero().tolist():
        assert seen[b, q].nonzero().flatten().tolist() == [0]


# Running them.


def student_of(name: str) -> Student:
    module = fresh(name)
    adapter = slot_adapter(module, variant="refine", code="constant", numbered=True, anchored=True)
    return Student(module, adapter.requires_grad_(True))


@torch.no_grad()
def alone(student: Student, name: str, ids: list[int], shown: list[int]) -> Tensor:
    """Logits ``[n, V]`` of a block after the tokens `ids`, by plain weights and a dense mask."""
    module, adapter = fresh(name), student.adapter
    tokens, count = module.get_input_embeddings(), len(shown)
    assert adapter.numbers is not None
    rows = []
    for r, token in enumerate(shown):
        row = adapter.embedding.blank if token == MASKED else tokens(torch.tensor(token))
        row = row + adapter.numbers[min(r, len(adapter.numbers) - 1)]
        rows.append(row + tokens(torch.tensor(ids[-1])) if r == 0 else row)
    embedded = torch.cat([tokens(torch.tensor([ids])), torch.stack(rows)[None]], 1)
    total = len(ids) + count
    mask = torch.full((1, 1, total, total), torch.finfo(torch.float32).min).triu(1)
    mask[..., len(ids) :, len(ids) :] = 0
    with gated_by_hooks(module, adapter, len(ids)):
        out = module.base_model(
            inputs_embeds=embedded,
            position_ids=torch.arange(total)[None],
            attention_mask=mask,
            use_cache=False,
        )
    found: Tensor = module.get_output_embeddings()(out.last_hidden_state[0, len(ids) :])
    return found


@pytest.mark.parametrize("name", ["llama", "gpt-neox", "gpt2"])
def test_blocks_run_together_give_the_logits_of_each_block_alone(name: str) -> None:
    student, windows = student_of(name), blocks_of(4, own=0.8)
    outcome = run(student, windows, 0)
    blocks, ran = windows.blocks, outcome.windows.blocks
    assert blocks is not None
    assert ran is not None
    assert torch.equal(outcome.usable, blocks.learn)
    logits = {
        tuple(at): row
        for at, row in zip(outcome.usable.nonzero().tolist(), outcome.logits, strict=True)
    }
    checked, replaced = 0, 0
    for b, where in each_block(windows):
        text = ROWS[b].ids[: int(windows.start[b, where[0]])]
        shown, mine = blocks.shown[b, where].tolist(), blocks.is_own[b, where].tolist()
        first = [MASKED if own else token for token, own in zip(shown, mine, strict=True)]
        if any(mine):  # what the student says of these places while they are masks
            said = alone(student, name, text, first).argmax(-1).tolist()
            for r in range(1, len(where)):
                if mine[r]:
                    replaced += shown[r] != said[r - 1]
                    shown[r] = said[r - 1]
        assert ran.shown[b, where].tolist() == shown
        expected = alone(student, name, text, shown)
        for r, q in enumerate(where):
            if (b, q) in logits:
                assert gap(logits[b, q], expected[r]) < 1e-4
                checked += 1
    assert checked == len(logits) > 8
    assert replaced > 0


def test_the_loss_is_the_cross_entropy_of_masked_tokens_and_reaches_the_whole_adapter() -> None:
    student, windows = student_of("llama"), blocks_of(1)
    outcome = run(student, windows, 0)
    blocks = windows.blocks
    assert blocks is not None
    expected = -sum(
        float(row.log_softmax(-1)[int(blocks.target[b, q])])
        for row, (b, q) in zip(
            outcome.logits.detach(), outcome.usable.nonzero().tolist(), strict=True
        )
    )
    loss = slot_loss(student, outcome, "one-hot")
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in student.adapter.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-6, name
    assert all(parameter.grad is None for parameter in student.module.parameters())


def test_positions_after_the_end_of_an_answer_are_learnt_but_not_scored() -> None:
    student, windows = student_of("llama"), blocks_of(2, hidden=1.0)
    outcome = run(student, windows, 0)
    some = outcome.logits.detach().clone()
    some[::2].scatter_(1, outcome.target[::2, None], 50.0)
    judged = judge(student, dataclasses.replace(outcome, logits=some), 0)
    blocks = windows.blocks
    assert blocks is not None
    assert judged.counts.tolist() == blocks.inside[blocks.learn].tolist()
    assert 0 < int(judged.counts.sum()) < len(outcome.target)
    assert judged.right.tolist() == [
        int(row.argmax()) == target for row, target in zip(some, outcome.target, strict=True)
    ]


def test_slots_of_blocks_carry_no_uniform() -> None:
    student, windows = student_of("llama"), blocks_of()
    u = torch.full(windows.index.shape, NO_UNIFORM, dtype=torch.float64)
    assert torch.equal(student.embed(u, windows), student.embed(u + 1.5, windows))


@pytest.mark.parametrize(("share", "num"), [(0.0, 1), (0.1, 1), (0.5, 2), (0.51, 3), (1.0, 4)])
def test_a_partly_masked_block_hides_at_least_one_token_and_never_its_first(
    share: float, num: int
) -> None:
    rules = BlockRules(hidden=0.0, ratios=(share, share))
    masked = rules.masked(5, np.random.default_rng(0))
    assert (masked[0], masked.sum()) == (False, num)
