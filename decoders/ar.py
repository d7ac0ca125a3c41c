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
    """

    cache: bool = True

    coupled = True

    def steps(self, request: Request) -> Steps:
        """Prefill, then one row per step; without a cache a prefill per step."""
        target, text = request.target, request.prompt_ids
        result = yield target.call(text)
        while True:
            (token,) = result.picks
            yield Emit(tokens=(token,))
            if self.cache:
                result = yield target.call((token,))
            else:
                text = (*text, token)
                target.truncate(0)
                result = yield target.call(text)
