"""The host's Python beside a decoding step stays small: calls of functions of `decoders` a step."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import nullcontext
from types import FrameType
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.registry import build, parse_spec
from decoders.core.types import Generation, Sampling
from tests import pretended_cuda
from tests.pretended_cuda import PretendedCuda
from tests.zoo.answers import held_out
from tests.zoo.conftest import ROOT
from tests.zoo.test_pretended_cuda import models

EAGLE = "eagle:nodes=6:width=3:depth=5"
BUDGETS = {
    ("ar", "eager", 1): 239,
    ("ar", "eager", 8): 411,
    ("ar", "captured", 1): 62,
    ("ar", "captured", 8): 198,
    ("spec", "captured", 1): 146,
    ("spec", "captured", 8): 423,
    (EAGLE, "captured", 1): 122,
    (EAGLE, "captured", 8): 368,
    ("ptp", "captured", 1): 184,
    ("ptp", "captured", 8): 621,
}
"""Calls in a step of so many sequences: to be lowered. Before work that is the same for all rows of
a step was done once, those of `ar` were 266, 690, 123 and 537. Before a chain of calls was one, and
graphs picked the states of accepted paths, those of `spec` were 313 and 962, of `eagle` 188 and
601, of `ptp` 278 and 1078."""
_SLOW = {(spec, "captured", 8) for spec in ("spec", "ptp", EAGLE)}
"""By default `ar` stands for all others at eight sequences."""
SLACK = 1.1
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")
SHORT, LONG = 8, 24
"""Tokens of two answers of `ar`: what they differ in is steps alone."""
DRAFTED = 64
"""Tokens of the longer answer of a decoder that drafts."""


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


def scheduler_of(spec: str, models: Models, prompts: list[list[int]], num_tokens: int) -> Scheduler:
    sampling = Sampling(max_new_tokens=num_tokens)
    return Scheduler(build(parse_spec(spec)), models, sampling, len(prompts))


def calls(
    spec: str, models: Models, prompts: list[list[int]], num_tokens: int
) -> tuple[Counter[str], int]:
    """Count the calls of functions, and the steps of the answer that has most."""
    scheduler, counter = scheduler_of(spec, models, prompts, num_tokens), Calls()
    before: Any = sys.getprofile()
    sys.setprofile(counter)
    try:
        outcomes = scheduler.run(prompts)
    finally:
        sys.setprofile(before)
    answers = [each for each in outcomes if isinstance(each, Generation)]
    assert [len(each.tokens) for each in answers] == [num_tokens] * len(prompts)
    return counter.by_name, max(len(each.steps) for each in answers)


@pytest.mark.parametrize(
    ("spec", "way", "num_sequences"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each in _SLOW)) for each in BUDGETS],
)
def test_a_step_makes_no_more_calls_than_its_budget(
    spec: str, way: str, num_sequences: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    prompts = [prompt[-24:] for prompt in held_out(tokenizer, 2)][:num_sequences]
    device = PretendedCuda()
    captured, num_tokens = way == "captured", LONG if spec == "ar" else DRAFTED
    with device if captured else nullcontext():
        zoo = models(spec, on_cuda=captured, compile=captured)
    with device.captures() if captured else nullcontext():
        for length in (num_tokens, SHORT):  # makes graphs, and what is kept between runs
            scheduler_of(spec, zoo, prompts, length).run(prompts)
        more, steps = calls(spec, zoo, prompts, num_tokens)
        less, fewer = calls(spec, zoo, prompts, SHORT)
    more.subtract(less)
    per_step = more.total() / (steps - fewer)
    assert per_step <= SLACK * BUDGETS[spec, way, num_sequences], more.most_common(8)
