"""Reading many rows of a large vocabulary: few waits of the host, bounded memory, same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from decoders.core.adapter.growth import trees_of_heads
from decoders.core.engine.readout import read_out
from decoders.core.engine.reads import Readout, readouts
from decoders.core.sampling import Uniforms, pick, warp
from decoders.core.testing.table_model import TableModel
from decoders.core.types import (
    EXACT,
    AcceptanceRule,
    CallResult,
    DraftShape,
    Output,
    Sampling,
)
from tests.pretended_cuda import PretendedCuda, place

VOCAB, PROMPT, DRAFTS = 300, 5, (3, 1, 3, 0)
NUCLEUS = Sampling(temperature=0.8, top_p=0.9)
FORMS: Sequence[Output] = ("picks", "probs", "acceptance")


def rows_of(num: int, scale: float = 6.0) -> Tensor:
    return torch.randn(num, VOCAB, generator=torch.Generator().manual_seed(1)) * scale


def verifying(output: Output, *, lenient: bool = False, on: Any = lambda it: it) -> list[Readout]:
    """Readouts of four sequences that verify so many drafts, drawn from distributions."""
    model, parts = TableModel(VOCAB), list[Readout]()
    rule = AcceptanceRule(lenience=0.5, top=9) if lenient else EXACT
    model.reserve(len(DRAFTS), 100)
    for number, num_drafts in enumerate(DRAFTS):
        session = model.open()
        session.length = PROMPT
        drafts = [17 * number + 5 * draft for draft in range(num_drafts)]
        probs = rows_of(4).softmax(-1)
        call = session.call(
            [1, *drafts],
            output=output,
            read=range(num_drafts + 1),
            drafts=drafts,
            draft_probs=tuple(on(probs[n]) for n in range(num_drafts)) or None,
            acceptance_rule=rule,
        )
        parts += readouts(call, Uniforms(number, range(PROMPT)), PROMPT)
    return parts


def same(found: Sequence[CallResult], expected: Sequence[CallResult]) -> bool:
    """Bit for bit, and on the host."""
    for one, other in zip(found, expected, strict=True):
        if one.probs is not None:
            assert other.probs is not None
            assert one.probs.numpy().tobytes() == other.probs.numpy().tobytes()
        for name in ("picks", "acceptance", "confidences"):
            assert repr(getattr(one, name)) == repr(getattr(other, name))
    return True


class Largest(TorchFunctionMode):
    """Notes the most values of one float64 tensor, and of any that a function made."""

    doubles = values = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.values = max(self.values, made.numel())
            if made.dtype == torch.float64:
                self.doubles = max(self.doubles, made.numel())
        return made


@pytest.mark.parametrize("sampling", [Sampling(temperature=0.8), NUCLEUS], ids=["plain", "top-p"])
@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("output", FORMS)
def test_rows_read_in_parts_give_the_very_numbers_of_rows_read_at_once(
    output: Output, lenient: bool, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = rows_of(sum(DRAFTS) + len(DRAFTS))
    with Largest() as whole:
        expected = read_out(logits, verifying(output, lenient=lenient), sampling)
    for module in ("decoders.core.sampling", "decoders.core.engine.acceptances"):
        monkeypatch.setattr(f"{module}.MAX_VALUES", 4 * VOCAB)
    with Largest() as parted:
        found = read_out(logits, verifying(output, lenient=lenient), sampling)
    assert same(found, expected)
    assert parted.doubles <= 4 * VOCAB < whole.values
    if output != "probs":  # which keeps its distributions
        assert parted.values <= 4 * VOCAB


def test_an_open_nucleus_is_read_twice_on_a_gpu_and_a_closed_one_once() -> None:
    for scale, waits in ((6.0, 1), (0.1, 3)):  # a read; a read, the question, a read
        logits = rows_of(11, scale)
        sums = logits.softmax(-1).topk(64).values.sum(-1)
        assert bool((sums < 0.9).any()) == (waits == 3)
        for output in FORMS:
            expected = read_out(logits, verifying(output), NUCLEUS)
            with PretendedCuda() as device:
                parts = verifying(output, on=place)
                device.waits.clear()
                found = read_out(place(logits), parts, NUCLEUS)
                num = sum(device.waits.values()) - sum(
                    n for where, n in device.waits.items() if "by a mask" in where
                )
            assert num == waits, device.waits
            assert same(found, expected)


def test_a_gpu_and_the_cpu_draft_the_same_candidates_from_an_open_nucleus() -> None:
    for scale in (6.0, 0.1):
        logits = rows_of(5, scale)
        shape = DraftShape(depth=5, width=3, nodes=9)
        (expected,) = trees_of_heads(logits[None], [5], shape, NUCLEUS)
        with PretendedCuda():
            (found,) = trees_of_heads(place(logits[None]), [5], shape, NUCLEUS)
        assert expected.picks
        assert (found.picks, found.parents) == (expected.picks, expected.parents)
        assert found.confidences == expected.confidences


def test_warping_without_a_sync_marks_only_rows_with_an_open_nucleus() -> None:
    logits = torch.cat([rows_of(2), rows_of(2, 0.1)])
    asked, marked = warp(logits, NUCLEUS), warp(logits, NUCLEUS, sync=False)
    assert torch.equal(asked[:2], marked[:2])
    assert bool(marked[2:].isnan().all())
    assert pick(marked, torch.full((4,), 0.5, dtype=torch.float64))[2:].tolist() == [VOCAB] * 2
