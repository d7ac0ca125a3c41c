"""Sequential (autoregressive) decoding with a KV cache: the baseline of every comparison.

A step is one target call of one row, and emits the token picked from the row's distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.types import Emit


@register("ar")
@dataclass(frozen=True, kw_only=True)
class Autoregressive(Decoder):
    """Emit one token per target call, with a KV cache. Lossless by definition: the reference.

    Args:
        cache: keep the keys and values of earlier tokens. Without a cache, every call feeds the
            prompt and the answer so far again, and all their rows count. The baseline itself
            always has a cache, so give this variant a label: ``ar@nocache:cache=false``.
        rows: rows of a call; only the last is new. ``ar@rows5:rows=5`` feeds the last five tokens
            in every call, like a call that verifies four drafts. If the answers differ from the
            baseline's, only the shape of the calls can be the reason.
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
    drafts = False

    def steps(self, request: Request) -> Steps:
        """Run a prefill, then one new row per step, or without a cache a prefill in every step."""
        target, text = request.target, list(request.prompt_ids)
        result = yield target.call(text)
        for left in reversed(range(request.sampling.max_new_tokens)):
            text += result.picks
            yield Emit(tokens=result.picks)
            fed = text[-self.rows :] if self.cache else text
            target.truncate(len(text) - len(fed))
            result = yield target.call(fed, ahead=left > 1)
