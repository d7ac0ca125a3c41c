"""Sequential (autoregressive) decoding with a KV cache: the baseline of every comparison.

A step is one target call of one row, and emits the one token picked from its distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.types import Emit


@register("ar")
@dataclass(frozen=True, kw_only=True)
class Autoregressive(Decoder):
    """One token per target call, KV cache. Lossless by definition: it is what others equal."""

    @property
    def coupled(self) -> bool:
        """AR is the reference of coupling."""
        return True

    def steps(self, request: Request) -> Steps:
        """Prefill, then one row per step."""
        target = request.target
        result = yield target.call(request.prompt_ids)
        while True:
            (token,) = result.picks
            yield Emit(tokens=(token,))
            result = yield target.call((token,))
