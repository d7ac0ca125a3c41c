"""Answers of decoders that run their models themselves (`SelfDriven`), a group at a time.

There is nothing to schedule: such a decoder is asked once and comes back when it is through. What
it tells on the way is cut and counted by `RunningSequence`, like what coroutines yield.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from decoders.core.decoder import Answer
from decoders.core.engine.deadline import Deadline
from decoders.core.engine.sequence import RunningSequence, as_exception

_Ask = Callable[[Sequence[Answer]], None]


def answer_group(ask: _Ask, group: Sequence[RunningSequence], deadline: Deadline) -> None:
    """Give every sequence of a group its outcome; the time of the first is that of all."""
    first = group[0]
    deadline.guard(first, _answer, ask, group)
    for job in group:
        if job.outcome is None:  # the group is out of time
            assert isinstance(first.outcome, TimeoutError)
            job.fail(first.outcome)


def _answer(ask: _Ask, group: Sequence[RunningSequence]) -> None:
    """Ask once for all; where that fails those without an answer are asked for one by one.

    So whoever's fault it was not has its answer.
    """
    try:
        ask(group)
    except (Exception, SystemExit) as error:
        if len(group) == 1:
            group[0].fail(as_exception(error))
            return
        for job in [job for job in group if job.outcome is None]:
            job.restart()
            _answer(ask, [job])
        return
    for job in group:
        if job.outcome is None:
            job.fail(RuntimeError("decoder returned before EOS or budget; go on until cut"))
