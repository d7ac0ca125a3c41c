"""What training feeds for a stride or a block is, row by row, what decoding feeds for that text.

Decoders run on a model that remembers its calls: the text they follow, the embedded inputs,
positions and logits of their slots. Training's windows on that text must give the same.

Letters: n slots of a call, D width, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel
from decoders.core.model import Call
from decoders.core.types import MASKED, NO_UNIFORM, Sampling, Slots
from decoders.idlm import Refinement
from decoders.isd import StridedDecoding
from decoders.nar import NonAutoregressive
from tests.tiny_models import fresh, slot_adapter
from training.adapter.student import Student
from training.adapter.windows import BlockRules, Windows, WindowSampling, draw_windows
from training.text.data import Row

PROMPT = [5, 11, 3, 42, 7]
MODELS = ("llama", "llama-gqa", "gpt2", "gpt-neox")
WHOLE = {"prefix": "block", "tail": "fill"}
DECODERS: dict[str, Decoder] = {
    "isd": StridedDecoding(stride=4),
    "refine": Refinement(block=6, max_passes=3, commit="quota", early_exit=False, **WHOLE),  # type: ignore[arg-type]
    "remask": Refinement(block=5, max_passes=4, commit="cmlm", **WHOLE),  # type: ignore[arg-type]
    "nar": NonAutoregressive(block=5),
}


@dataclass(frozen=True)
class Heard:
    """A call with slots: text before its slots, inputs ``[n, D]``, places, logits of those read."""

    text: list[int]
    slots: Slots
    embedded: Tensor
    places: list[int]
    logits: Tensor


class Listening(HFModel):
    """Remembers its calls with slots; one sequence at a time."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.heard: list[Heard] = []
        self._text: list[int] = []
        self._fed: dict[str, Any] = {}
        run = self._runner._states

        def noted(name: Any, inputs: Any, *rest: Any, **options: Any) -> list[Tensor]:
            self._fed = inputs
            return run(name, inputs, *rest, **options)

        self._runner._states = noted  # type: ignore[method-assign]

    def forward(self, calls: Sequence[Call]) -> Tensor:
        (call,) = calls
        self._text = [*self._text[: call.session.length], *call.tokens]
        logits = super().forward(calls)
        if call.slots is not None:
            count = len(call.slots.uniforms)
            self.heard.append(
                Heard(
                    text=self._text,
                    slots=call.slots,
                    embedded=self._fed["embeds"][0, -count:].clone(),
                    places=self._fed["positions"][0, -count:].tolist(),
                    logits=logits[len(call.read) :].clone(),
                )
            )
        return logits


def trained_on(call: Heard, variant: Any) -> tuple[Windows, Tensor]:
    """A training row's windows of which one stands where the call's slots do, and its slots."""
    count = len(call.slots.uniforms)
    behind = [*range(20, 20 + count + int(variant == "isd"))]  # what follows is never looked at
    row = Row([*call.text, *behind], [False] * len(call.text) + [True] * len(behind))
    windows = draw_windows(
        [row, Row([*range(1, 41)], [False] * 3 + [True] * 37)],
        num_slots=20 * count,
        length=count,
        sampling=WindowSampling(),
        pad=0,
        rng=np.random.default_rng(0),
        variant=variant,
        aligned=True,
        blocks=BlockRules() if variant == "refine" else None,
    )
    real = windows.number[0] >= 0
    number = windows.number[0, real & (windows.start[0] == len(call.text))][0]
    where = windows.number[0] == number
    assert int(where.sum()) == count
    if windows.blocks is not None:
        shown = windows.blocks.shown.clone()
        shown[0, where] = torch.tensor(call.slots.slot_tokens or [MASKED] * count)
        windows = dataclasses.replace(
            windows, blocks=dataclasses.replace(windows.blocks, shown=shown)
        )
    return windows, where


@torch.no_grad()
def fed_by_training(
    student: Student, windows: Windows, where: Tensor
) -> tuple[Tensor, list[int], Tensor]:
    """Inputs, places and logits of the slots `where` of the first row."""
    _, cache = student.context(windows.ids)
    u = torch.full(windows.index.shape, NO_UNIFORM, dtype=torch.float64)
    embedded, places = student.embed(u, windows), (windows.index - 1).clamp(min=0)
    states = student.slots(cache, embedded, places, windows.mask())
    return embedded[0, where], places[0, where].tolist(), student.logits(states[0, where])


def heard_and_student(name: str, decoder: Decoder) -> tuple[list[Heard], Student]:
    variant = decoder.variants[0]
    made: dict[str, Any] = {
        "variant": variant, "code": "constant", "numbered": True, "anchored": True,
        "rank": 3 if name == "llama-gqa" else 32,
    }  # fmt: skip
    model = Listening(fresh(name))
    model.attach(decoder.adapter_name or "", slot_adapter(model.module, **made))
    sampling = Sampling(temperature=1.0, max_new_tokens=18, seed=3)
    generate(decoder, PROMPT, sampling, Models(target=model))
    module = fresh(name)
    return model.heard, Student(module, slot_adapter(module, **made))


@pytest.mark.parametrize("what", DECODERS)
@pytest.mark.parametrize("name", MODELS)
def test_slots_of_a_decoder_equal_those_that_training_feeds_for_the_same_text(
    name: str, what: str
) -> None:
    decoder = DECODERS[what]
    heard, student = heard_and_student(name, decoder)
    assert len(heard) >= 4
    for call in heard:
        windows, where = trained_on(call, decoder.variants[0])
        embedded, places, logits = fed_by_training(student, windows, where)
        torch.testing.assert_close(embedded, call.embedded, rtol=0, atol=1e-6)
        assert places == call.places
        torch.testing.assert_close(logits[: len(call.logits)], call.logits, rtol=1e-3, atol=1e-4)
    kinds = {bool(call.slots.slot_tokens) for call in heard}
    assert kinds == ({False, True} if what in ("refine", "remask") else {False})


def test_decoders_show_and_read_slots_as_training_draws_and_learns_them() -> None:
    for what in ("refine", "remask", "nar"):
        heard, _ = heard_and_student("llama", DECODERS[what])
        for call in heard:  # a first token is hidden in fully masked blocks alone
            assert not call.slots.slot_tokens or call.slots.slot_tokens[0] != MASKED
            windows, where = trained_on(call, "refine")
            assert windows.blocks is not None
            learnable = windows.blocks.inside[0, where]
            assert call.slots.read == tuple(learnable.nonzero().flatten().tolist())
    heard, _ = heard_and_student("llama", DECODERS["isd"])
    assert all(call.slots.read == tuple(range(len(call.places))) for call in heard)


def test_the_comparison_detects_a_stride_or_block_shifted_by_one_token() -> None:
    for what in ("isd", "refine"):
        decoder = DECODERS[what]
        heard, student = heard_and_student("llama", decoder)
        call = heard[0]
        moved = dataclasses.replace(call, text=[*call.text, 20])
        windows, where = trained_on(moved, decoder.variants[0])
        _, places, logits = fed_by_training(student, windows, where)
        assert places == [place + 1 for place in call.places]
        assert (logits[: len(call.logits)] - call.logits).abs().max() > 0.05
