"""How long an answer may take: asked by the scheduler, kept by somebody who has a clock.

No clock is read on the way of a call. `Patience.due` is a plain flag that is raised now and then
from outside (`bench.patience` does it from a timer); only then are running answers looked at. A
decoder that never comes back between two yields is interrupted where it stands by `OutOfTime`,
which is raised inside it; no `except Exception` of its own swallows that.
"""

from __future__ import annotations

from typing import Protocol


class OutOfTime(BaseException):
    """Raised inside a decoder that is out of time and does not come back by itself."""


class Patience(Protocol):
    """See the module.

    Attributes:
        due: raised from outside when running answers should be looked at; whoever looks lowers it.
        inside: start of the answer whose decoder runs at this moment, None between decoders.
    """

    due: bool
    inside: float | None

    def begin(self) -> float:
        """The moment an answer starts, on the clock of whoever keeps this."""

    def over(self, began: float) -> bool:
        """Whether an answer that started then is out of time."""

    def error(self) -> TimeoutError:
        """What becomes of such an answer."""

    def refuses(self) -> Exception | None:
        """Why no further answer should be begun, if so."""

    def ended(self, outcome: object) -> None:
        """An answer ended, with its outcome."""


class Endless:
    """The patience of whoever sets no limit."""

    due = False
    inside: float | None = None

    def begin(self) -> float:
        """Any moment."""
        return 0.0

    def over(self, began: float) -> bool:
        """Never."""
        del began
        return False

    def error(self) -> TimeoutError:
        """Of no answer."""
        raise AssertionError("no answer is ever out of time")

    def refuses(self) -> Exception | None:
        """Never."""
        return None

    def ended(self, outcome: object) -> None:
        """Nothing to remember."""
