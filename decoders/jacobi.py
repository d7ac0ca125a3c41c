"""Jacobi decoding (Santilli et al. 2023, arXiv 2305.10427): guesses that settle by themselves.

A window of guesses follows the last token. One call picks what the target says after each of them:
guesses that already were so are final, the others are replaced by these picks, and the window
slides on. No draft model and no adapter; AR's tokens for the same seed, at any temperature.

Letters: B rows of a call, the last token and B - 1 guesses.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.verification import settle
from decoders.core.registry import register
from decoders.core.sampling import verify_picks
from decoders.core.types import Emit


@register("jacobi")
@dataclass(frozen=True, kw_only=True)
class Jacobi(Decoder):
    """Guess a window of tokens and replace it by the target's picks until it stands. Lossless.

    A run that names no decoders leaves it out (`by_default`): it is measured where it is asked for.

    Args:
        block: B.
    """

    block: int = 16

    by_default = False

    def __post_init__(self) -> None:
        """`ValueError` on an option out of range."""
        self.demand(self.block >= 1, "block", "1 or above")

    @property
    def coupled(self) -> bool:
        """Every token is the target's own pick for its uniform."""
        return True

    def steps(self, request: Request) -> Steps:
        """Replace guesses by what the target says after them; the window slides as they settle."""
        target = request.target
        fed, left = request.prompt_ids, request.sampling.max_new_tokens
        guesses: tuple[int, ...] = ()
        while True:
            result = yield target.call((*fed, *guesses), read=range(-1 - len(guesses), 0))
            acceptance = verify_picks(result.picks, guesses)
            emitted = settle(target, guesses, acceptance)
            yield Emit(
                tokens=emitted,
                drafted=len(guesses),
                accepted=acceptance.accepted,
                rejected=guesses[acceptance.accepted :],
            )
            left -= len(emitted)
            fed = emitted[-1:]
            size = min(self.block, left) - 1
            later = result.picks[acceptance.accepted + 1 :]
            guesses = (*later, *[(*fed, *later)[-1]] * size)[:size]
