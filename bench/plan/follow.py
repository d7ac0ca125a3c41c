"""The role of this process among torchrun's: the run itself, or a follower of its calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.settings.config import RunConfig


@contextmanager
def is_rank_zero(config: RunConfig) -> Iterator[bool]:
    """Yield whether this process is the run; a follower has run the leader's calls by then.

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
    from bench.plan.select import choose_decoders
    from bench.plan.setup import open_setup
    from decoders.core.hf.sharded import ShardedModel, follow

    setup = open_setup(choose_decoders(config, lambda _: None))
    models = (setup.models.target, setup.models.draft)
    follow([model for model in models if isinstance(model, ShardedModel)])
