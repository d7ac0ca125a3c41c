"""The host's Python beside a decoding step stays small: calls of functions of `decoders` a step."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import nullcontext
from types import FrameType
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.types import Sampling
from tests import pretended_cuda
from tests.pretended_cuda import PretendedCuda
from tests.zoo.answers import held_out
from tests.zoo.conftest import ROOT
from tests.zoo.test_pretended_cuda import models

BUDGETS = {("eager", 1): 239, ("eager", 8): 435, ("captured", 1): 69, ("captured", 8): 240}
"""Calls in a step of `ar`, of so many sequences: to be lowered. Before work that is the same for
all rows of a step was done once, they were 266, 690, 123 and 537."""
SLACK = 1.1
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
SHORT, LONG = 8, 24
"""Tokens of two answers: what they differ in is steps alone."""


class Calls:
    """Counts entries to functions of `decoders` (and to generators, at every value).

    Comprehensions do not count, which only some versions of Python call. Nor does what a pretended
    device runs, among it the function of a graph.
    """

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()
        self._depth, self._source = 0, str(ROOT / "decoders")

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "return":
            self._depth -= self._depth > 0
        elif event == "call" and (self._depth or code.co_filename == pretended_cuda.__file__):
            self._depth += 1
        elif event == "call" and code.co_filename.startswith(self._source):
            self.by_name[code.co_qualname] += code.co_name not in COMPREHENSIONS


def calls(models: Models, prompts: list[list[int]], num_tokens: int) -> Counter[str]:
    scheduler = Scheduler(
        Autoregressive(), models, Sampling(max_new_tokens=num_tokens), len(prompts)
    )
    counter = Calls()
    before: Any = sys.getprofile()
    sys.setprofile(counter)
    try:
        outcomes = scheduler.run(prompts)
    finally:
        sys.setprofile(before)
    assert [len(each.tokens) for each in outcomes] == [num_tokens] * len(prompts)  # type: ignore[union-attr]
    return counter.by_name


@pytest.mark.parametrize(("way", "num_sequences"), BUDGETS)
def test_a_step_of_ar_makes_no_more_calls_than_its_budget(
    way: str, num_sequences: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = [prompt[-24:] for prompt in held_out(tokenizer, 2)][:num_sequences]
    device = PretendedCuda()
    captured = way == "captured"
    with device if captured else nullcontext():
        zoo = models("ar", on_cuda=captured, compile=captured)
    with device.captures() if captured else nullcontext():
        calls(zoo, prompts, LONG)  # makes graphs, and what is kept between runs
        more = calls(zoo, prompts, LONG)
        more.subtract(calls(zoo, prompts, SHORT))
    per_step = more.total() / (LONG - SHORT)
    assert per_step <= SLACK * BUDGETS[way, num_sequences], more.most_common(8)
