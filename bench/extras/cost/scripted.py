"""Script acceptance: drafts are accepted with set probabilities, whatever models predict.

Models with random weights cost as much as trained ones but agree on nothing. Their calls run as
usual; then the verdict on each chain of drafts is replaced (`Scheduler(…, read_out=Scripted(…))`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from decoders.core.engine.readout import read_out
from decoders.core.engine.reads import Readout
from decoders.core.types import Acceptance, CallResult, Sampling


@dataclass(frozen=True)
class Scripted:
    """Read out calls, and accept draft i (from 0), after accepted drafts, with ``chances[i]``.

    The last chance applies to all further drafts. Uniforms of the stream ``accept`` decide, so that
    the same seed gives the same verdicts. A tree must be a chain (`eagle` of width 1).
    """

    chances: Sequence[float]

    def __call__(
        self, logits: Tensor, readouts: Sequence[Readout], sampling: Sampling
    ) -> Sequence[CallResult]:
        """Return results as `read_out` does, with scripted verdicts."""
        results = read_out(logits, readouts, sampling)
        pairs = zip(readouts, results, strict=True)
        return [self._judge(each, result, logits.shape[-1]) for each, result in pairs]

    def _judge(self, readout: Readout, result: CallResult, vocab_size: int) -> CallResult:
        call = readout.call
        drafts = call.drafts or (() if call.mask is None else call.tokens[1:])
        if readout.slots or not drafts:
            return result
        chances = itertools.chain(self.chances, itertools.repeat(self.chances[-1]))
        uniforms = (readout.uniforms.at("accept", output) for output in readout.outputs)
        tests = zip(range(len(drafts)), uniforms, chances, strict=False)
        accepted = sum(1 for _ in itertools.takewhile(lambda test: test[1] < test[2], tests))
        if result.acceptance is not None:
            acceptance = Acceptance(accepted, result.acceptance.token)
            return dataclasses.replace(result, acceptance=acceptance)
        after = result.picks[accepted]
        if after in drafts[accepted : accepted + 1]:  # it would be accepted
            after = (after + 1) % vocab_size
        picks = (*drafts[:accepted], after, *result.picks[accepted + 1 :])
        return dataclasses.replace(result, picks=picks)
