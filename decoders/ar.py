"""Sequential (autoregressive) decoding with a KV cache: the baseline of every comparison.

A step is one target call of one row, and emits the one token picked from its distribution. Without
the cache (``cache=false``) a step feeds the whole text: what decoding costs where nothing is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.types import Emit


@register("ar")
@dataclass(frozen=True, kw_only=True)
class Autoregressive(Decoder):
    """One token per target call, KV cache. Lossless by definition: it is what others equal.

    Args:
        cache: whether the keys and values of earlier tokens are kept. Without, every call feeds
            prompt and answer so far anew, and all those rows are counted; the baseline itself
            always has it, so give it a label: ``ar@nocache:cache=false``.
        rows: rows of a call, of which the last is new: ``ar@rows5:rows=5`` feeds its last five
            tokens again in every call, as a call that verifies four drafts does. Where its answers
            leave those of the baseline, the shape of a call alone is the reason.
    """

    cache: bool = True
    rows: int = 1

    def __post_init__(self) -> None:
        if self.rows < 1 or (self.rows > 1 and not self.cache):
            raise ValueError(
                f"option 'rows' of decoder 'ar' is {self.rows} with cache={self.cache}; allowed: "
                "1, or more with a cache"
            )

    coupled = True

    def steps(self, request: Request) -> Steps:
        """Prefill, then one new row per step; without a cache a prefill per step."""
        target, text = request.target, list(request.prompt_ids)
        result = yield target.call(text)
        while True:
            text += result.picks
            yield Emit(tokens=result.picks)
            fed = text[-self.rows :] if self.cache else text
            target.truncate(len(text) - len(fed))
            result = yield target.call(fed)
