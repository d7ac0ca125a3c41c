"""Who of torchrun's processes is the run, and what the others do meanwhile. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.settings.config import RunConfig


@contextmanager
def is_rank_zero(config: RunConfig) -> Iterator[bool]:
    """Whether this process is to go on; a follower has done its part when it is told.

    When the leader leaves, well or not, its followers end.
    """
    if config.tensor_parallel == 1:
        yield True
        return
    from decoders.core.hf.sharded import Ranks, dismiss

    if Ranks.of_environment().leads:
        try:
            yield True
        finally:
            dismiss()
        return
    _follow(config)
    yield False


def _follow(config: RunConfig) -> None:
    """Open what the leader opens, in the same order, and run its calls until it ends."""
    from bench.plan.select import choose_decoders
    from bench.plan.setup import open_setup
    from decoders.core.hf.sharded import ShardedModel, follow

    setup = open_setup(choose_decoders(config, lambda _: None))
    models = (setup.models.target, setup.models.draft)
    follow([model for model in models if isinstance(model, ShardedModel)])
