"""Scripted acceptance: drafts stand by given chances, whatever the models think of them.

Models with random weights agree on nothing, and cost what trained ones do. Their calls run as ever;
then the verdict on every chain of drafts is replaced (`Scheduler(…, read_out=Scripted(…))`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor

from decoders.core.engine.readout import Readout, read_out
from decoders.core.types import Acceptance, CallResult, Sampling


@dataclass(frozen=True)
class Scripted:
    """Read calls out, and let draft i (from 0) stand with ``chances[i]`` if those before it did.

    The last chance is that of all further drafts. Uniforms of the stream ``accept`` decide, so that
    the same seed gives the same verdicts. Of a tree only a chain can stand (`eagle` of width 1).
    """

    chances: Sequence[float]

    def __call__(
        self, logits: Tensor, readouts: Sequence[Readout], sampling: Sampling
    ) -> Sequence[CallResult]:
        """Do as `read_out`."""
        results = read_out(logits, readouts, sampling)
        pairs = zip(readouts, results, strict=True)
        return [self._judged(each, result, logits.shape[-1]) for each, result in pairs]

    def _judged(self, readout: Readout, result: CallResult, vocab_size: int) -> CallResult:
        call = readout.call
        drafts = call.drafts or (() if call.mask is None else call.tokens[1:])
        if readout.slots or not drafts:
            return result
        tests = zip(range(len(drafts)), readout.outputs, strict=False)
        accepted = sum(1 for _ in takewhile(lambda test: self._stands(readout, *test), tests))
        if result.acceptance is not None:
            return CallResult(acceptance=Acceptance(accepted, result.acceptance.token))
        after = result.picks[accepted]
        if after in drafts[accepted : accepted + 1]:  # it would stand
            after = (after + 1) % vocab_size
        picks = (*drafts[:accepted], after, *result.picks[accepted + 1 :])
        return dataclasses.replace(result, picks=picks)

    def _stands(self, readout: Readout, number: int, output: int) -> bool:
        chance = self.chances[min(number, len(self.chances) - 1)]
        return readout.uniforms.at("accept", output) < chance
