"""Case 01: in half precision, a run tells rounding from a decoder that is wrong."""

from __future__ import annotations

import pytest

from bench.records.run_folder import load_run
from tests.cases.conftest import Case

RUNNER = '''
"""A decoder that takes the runner-up wherever it lies within `gap` logits."""
from dataclasses import dataclass
from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.types import Emit

@register("runner")
@dataclass(frozen=True, kw_only=True)
class Runner(Decoder):
    """Claims to be lossless."""
    gap: float = 0.9
    drafts = False
    def steps(self, request: Request) -> Steps:
        target, feed = request.target, request.prompt_ids
        while True:
            result = yield target.call(feed, output="logits")
            top = result.logits[-1].topk(2)
            token = int(top.indices[int(float(top.values[0] - top.values[1]) < self.gap)])
            yield Emit(tokens=(token,))
            feed = (token,)
'''
HALF = ("--dtype", "bfloat16", "--quality-limit", 0, "--max-new-tokens", 16)


@pytest.mark.parametrize("name", ["", pytest.param("small_logits", marks=pytest.mark.slow)])
def test_a_decoder_that_takes_the_runner_up_is_wrong(case: Case, stories, variant, name):
    file = case.folder / "runner.py"
    file.write_text(RUNNER)
    model = variant(name) if name else stories
    done = case.run(model, *HALF, decoders=f"{file}:Runner@runner,jacobi")
    status = load_run(case.latest()).status
    assert (status.verdict, done.code) == ("WRONG", 3), done.err
    assert [(c.rpartition("@")[2], what) for c, what in status.guarantees.items()] == [
        ("runner", "WRONG")
    ]


@pytest.mark.slow
def test_right_decoders_are_valid_and_verified(case: Case, stories):
    done = case.run(stories, *HALF, decoders="jacobi,ar@rows5:rows=5")
    status = load_run(case.latest()).status
    assert (status.verdict, done.code) == ("VALID", 0), done.err
    assert status.guarantees == {}
