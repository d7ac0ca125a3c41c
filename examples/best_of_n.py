"""Best of n in one file: n samples of an answer are sequences of one pass.

    bench run --decoders examples/best_of_n.py:BestOf:n=4 --temperature 0.8

The samples have uniforms of their own; the first has those of the sequence, so it is AR's answer.
The answer is the sample with the highest mean log-probability of its tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.types import Emit


@register("best-of-n")
@dataclass(frozen=True, kw_only=True)
class BestOf(Decoder):
    """Draw n answers and give the likeliest per token. Lossy, training-free."""

    n: int = 4

    lossless = drafts = False

    @property
    def sequences(self) -> int:
        return self.n

    def steps(self, request: Request) -> Steps:
        target, (*begin, last) = request.target, request.prompt_ids
        if begin:
            yield target.call(begin, read=())
        sessions = [target, *(target.fork() for _ in range(self.n - 1))]
        uniforms = [request.uniforms.at_step(number) for number in range(self.n)]
        texts, scores, live = [[last] for _ in sessions], [0.0] * self.n, [*range(self.n)]
        while live:
            results: Any = yield [
                sessions[i].call(texts[i][-1:], output="probs", uniforms=uniforms[i]) for i in live
            ]
            for i, result in zip([*live], results, strict=True):
                token = result.picks[0]
                texts[i].append(token)
                scores[i] += math.log(result.probs[0, token])
                full = len(texts[i]) > request.sampling.max_new_tokens
                if full or token in request.sampling.stop_ids:
                    sessions[i].close()
                    live.remove(i)
            yield Emit()
        best = max(range(self.n), key=lambda i: scores[i] / (len(texts[i]) - 1))
        yield Emit(tokens=tuple(texts[best][1:]))
