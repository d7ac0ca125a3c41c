"""A decoder to start from: run it, then put a rule of your own into `_propose`.

    bench run --decoders starter.py:Starter:k=6
    pytest test_starter.py

A step proposes tokens, one call of the target looks at all of them at once, and those stand that it
would have said itself. So whatever is proposed, the answer is AR's for the same seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.sampling import verify_picks
from decoders.core.types import Emit


@dataclass(frozen=True, kw_only=True)
class Starter(Decoder):
    """Propose what followed the last token where it stood before. Lossless, training-free.

    Args:
        k: tokens proposed a step.
    """

    # Options are the fields, each with a default: `starter.py:Starter:k=6` sets this one.
    k: int = 4

    # The interface this file is written against; `bench` says so where it knows it no longer.
    interface = 1

    def __post_init__(self) -> None:
        """`ValueError` on an option out of range."""
        self.demand(self.k >= 1, "k", "1 or above")

    @property
    def coupled(self) -> bool:
        """The same seed gives AR's very tokens, at any temperature: `bench` holds it to that."""
        return True

    def steps(self, request: Request) -> Steps:
        """Yield a `Call` to have the model run, and an `Emit` to end a step; never return."""
        target = request.target
        # The first step is the prompt's: feed it, emit the token the target picks after it.
        result = yield target.call(request.prompt_ids)
        text = [*request.prompt_ids, *result.picks]
        yield Emit(tokens=result.picks)
        while True:
            # The verifying call adds a token itself: propose no more than the budget still holds.
            left = request.sampling.max_new_tokens - (len(text) - len(request.prompt_ids))
            drafts = self._propose(text)[: left - 1]
            # The last token has not been fed yet. Read every row: each is a pick of the target's.
            rows = (text[-1], *drafts)
            result = yield target.call(rows, read=range(len(rows)))
            # A draft is accepted where it is the pick of the row before it; one more token follows.
            acceptance = verify_picks(result.picks, drafts)
            emitted = (*drafts[: acceptance.accepted], acceptance.token)
            text += emitted
            # All rows are in the cache now: forget those of drafts that fell.
            target.truncate(len(text) - 1)
            yield Emit(
                tokens=emitted,
                drafted=len(drafts),
                accepted=acceptance.accepted,
                rejected=tuple(drafts[acceptance.accepted :]),
            )

    def _propose(self, text: Sequence[int]) -> list[int]:
        """Up to k tokens that may come next: yours to change. An empty list is allowed."""
        for place in range(len(text) - 2, -1, -1):
            if text[place] == text[-1]:
                return list(text[place + 1 : place + 1 + self.k])
        return []
