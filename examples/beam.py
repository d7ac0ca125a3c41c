"""Beam search in one file: the hypotheses of an answer are sequences of one pass.

    bench run --decoders lookup,examples/beam.py:Beam:width=4

A step keeps the `width` likeliest texts, finished ones included; tokens that all share are final.
Probabilities only fall, so a finished text that is the likeliest ends the answer. A text's score is
its log-probability, without a penalty for length (Graves 2012, arXiv 1211.3711, section 2.5).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.types import Emit


@register("beam")
@dataclass(frozen=True, kw_only=True)
class Beam(Decoder):
    """Keep the likeliest texts of each length. Lossy, training-free."""

    width: int = 4

    lossless = drafts = False

    @property
    def sequences(self) -> int:
        return self.width

    def steps(self, request: Request) -> Steps:
        stops, num_final = request.sampling.stop_ids, 0
        beams: list[tuple[float, tuple[int, ...], Any]] = [(0.0, (), request.target)]
        calls = [request.target.call(request.prompt_ids, output="logits")]
        while True:
            results: Any = yield calls
            texts = [beam for beam in beams if beam[2] is None]  # finished ones have no session
            growing = [beam for beam in beams if beam[2] is not None]
            for (score, text, session), result in zip(growing, results, strict=True):
                top = result.logits[0].log_softmax(-1).topk(min(self.width, result.logits.shape[1]))
                for log, token in zip(top.values.tolist(), top.indices.tolist(), strict=True):
                    next_session = None if token in stops else session
                    texts.append((score + log, (*text, token), next_session))
            kept = sorted(texts, key=lambda beam: -beam[0])[: self.width]
            used = [session for _, _, session in kept]
            for session in (beam[2] for beam in growing if beam[2] not in used):
                session.close()
            for i, (score, text, session) in enumerate(kept):
                if session is not None and session in used[:i]:  # the first continues, others copy
                    kept[i] = score, text, session.fork()
            (_, best, session), beams = kept[0], kept
            ended = session is None or len(best) == request.sampling.max_new_tokens
            columns = zip(*([best] if ended else [text for _, text, _ in kept]), strict=False)
            final = [column[0] for column in itertools.takewhile(lambda c: len({*c}) == 1, columns)]
            yield Emit(tokens=tuple(final[num_final:]))
            num_final = len(final)
            calls = [own.call(text[-1:], output="logits") for _, text, own in beams if own]
