"""A scheduler that charges its time to phases, for the second pass alone (see `bench.phases`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bench.phases import PhaseClock
from decoders.core.decoder import Request, Steps
from decoders.core.scheduler import Scheduler

if TYPE_CHECKING:
    from torch import Tensor

    from bench.workbench import Arm
    from decoders.core.readout import Readout
    from decoders.core.types import Call, CallResult, Sampling


class PhasedScheduler(Scheduler):
    """Runs an arm like `Scheduler`, with every phase around what belongs to it."""

    def __init__(self, arm: Arm, sampling: Sampling, batch_size: int, clock: PhaseClock) -> None:
        """Errors: as `Scheduler`."""
        super().__init__(_PhasedDecoder(arm.decoder, clock), arm.models, sampling, batch_size)  # type: ignore[arg-type]
        self._clock = clock

    def _forward(self, calls: Sequence[Call]) -> Tensor:
        with self._clock.within(self._phase(calls[0])):
            return super()._forward(calls)

    def _read_out(self, logits: Tensor, parts: Sequence[Readout]) -> Sequence[CallResult]:
        with self._clock.within("sampling"):
            return super()._read_out(logits, parts)

    def _phase(self, call: Call) -> str:
        if call.session.model is not self._models.target:
            return "draft"
        if call.session.length == 0:
            return "prefill"
        return "verify" if call.read else "draft"


class _PhasedDecoder:
    """A decoder whose own code is charged to ``other``; in all else the decoder it wraps."""

    def __init__(self, decoder: Any, clock: PhaseClock) -> None:
        self._decoder, self._clock = decoder, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def steps(self, request: Request) -> Steps:
        """The decoder's own steps, the clock switched whenever they run."""
        inner, clock = self._decoder.steps(request), self._clock
        try:
            with clock.within("other"):
                item = next(inner)
            while True:
                result = yield item
                with clock.within("other"):
                    item = inner.send(result)
        except StopIteration:
            return
        finally:
            inner.close()
