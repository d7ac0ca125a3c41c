"""A decoder in one file: drafts copied from the text so far, verified by the target.

    bench run --decoders examples/ngram.py:NGram:n=3:k=8

Where the last n tokens occurred before, the tokens that followed them are proposed; one target call
verifies them against the target's own picks, so the output is AR's for the same seed. Known as
prompt lookup decoding (Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding).
"""

from __future__ import annotations

from dataclasses import dataclass

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.sampling import verify_picks
from decoders.core.types import Emit


@register("ngram")
@dataclass(frozen=True, kw_only=True)
class NGram(Decoder):
    """Copy what followed the last n tokens earlier in the text. Lossless, training-free."""

    n: int = 2
    k: int = 6

    @property
    def coupled(self) -> bool:
        return True

    def steps(self, request: Request) -> Steps:
        target = request.target
        result = yield target.call(request.prompt_ids)
        text = [*request.prompt_ids, *result.picks]
        yield Emit(tokens=result.picks)
        while True:
            left = request.sampling.max_new_tokens - (len(text) - len(request.prompt_ids))
            drafts = self._lookup(text)[: left - 1]
            result = yield target.call((text[-1], *drafts), read=range(len(drafts) + 1))
            acceptance = verify_picks(result.picks, drafts)
            emitted = (*drafts[: acceptance.accepted], acceptance.token)
            text += emitted
            target.truncate(len(text) - 1)
            yield Emit(
                tokens=emitted,
                drafted=len(drafts),
                accepted=acceptance.accepted,
                rejected=tuple(drafts[acceptance.accepted :]),
            )

    def _lookup(self, text: list[int]) -> list[int]:
        """The tokens after the latest earlier occurrence of the last n tokens."""
        key = text[-self.n :]
        for start in range(len(text) - self.n - 1, -1, -1):
            if text[start : start + self.n] == key:
                return text[start + self.n : start + self.n + self.k]
        return []
