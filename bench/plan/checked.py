"""Models compared with transformers' own forward when a run opens them. No torch at import time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.errors import UnavailableError
from bench.settings.config import RunConfig

if TYPE_CHECKING:
    from decoders.core.hf.model import HFModel


def checked(config: RunConfig, model: HFModel, role: str) -> list[str]:
    """Compare a model of a run; what was not compared, a line each, for the report.

    Of a model cut over processes the leader compares, and its followers run its calls.

    Raises:
        BenchError: exit 5 where its logits are not those of transformers.
    """
    from decoders.core.hf.self_check import self_check
    from decoders.core.hf.sharded import Ranks

    if not config.self_check:
        return ["not compared with transformers' own forward (--no-self-check)"]
    if config.tensor_parallel > 1 and not Ranks.of_environment().leads:
        return []
    try:
        return self_check(model)
    except ValueError as error:
        line = f"{role} refused: {error} (--no-self-check measures it all the same)"
        raise UnavailableError(line) from error
