"""A decoder in one file: drafts are what the target last said after each token.

    bench run --decoders lookup,examples/recycle.py:Recycle:k=6

A call says what the target puts after each of its rows, after drafts that fall as well. The latest
such successor of every token is kept, and the chain of them that starts at the last token is
proposed: one branch of the tree of Token Recycling (Luo et al. 2024, arXiv 2408.08696). One target
call verifies it against the target's own picks, so the output is AR's for the same seed.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.registry import register
from decoders.core.sampling import verify_picks
from decoders.core.types import Emit


@register("recycle")
@dataclass(frozen=True, kw_only=True)
class Recycle(Decoder):
    """Propose the target's own successors of each token. Lossless, training-free."""

    k: int = 4

    @property
    def coupled(self) -> bool:
        return True

    def steps(self, request: Request) -> Steps:
        target = request.target
        result = yield target.call(request.prompt_ids)
        text = [*request.prompt_ids, *result.picks]
        yield Emit(tokens=result.picks)
        successors = dict(itertools.pairwise(text))
        while True:
            left = request.sampling.max_new_tokens - (len(text) - len(request.prompt_ids))
            drafts = self._chain(successors, text[-1])[: left - 1]
            rows = (text[-1], *drafts)
            result = yield target.call(rows, read=range(len(rows)))
            successors.update(zip(rows, result.picks, strict=True))
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

    def _chain(self, successors: dict[int, int], last: int) -> list[int]:
        """Up to k tokens, each the successor of the one before."""
        chain = [last]
        while len(chain) <= self.k and chain[-1] in successors:
            chain.append(successors[chain[-1]])
        return chain[1:]
