"""Runs whose models are cut over the processes of torchrun: who leads, who follows, and how.

All processes are started with the same command. The one of rank 0 is the run; the others load their
part of the models, run what it tells them (`decoders.core.hf.sharded`) and write nothing.
No torch at import time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.errors import UsageError
from bench.settings.config import RunConfig

if TYPE_CHECKING:
    import torch

    from decoders.core.hf.sharded import ShardedModel


def join_ranks(config: RunConfig, device: torch.device) -> torch.device:
    """Join the process group where models are cut; the device of this process.

    Raises:
        BenchError: exit 2 where torchrun did not start as many processes as the models are cut
            into, or an option does not go with it.
    """
    if config.tensor_parallel == 1:
        return device
    from decoders.core.hf.sharded import Ranks

    ranks = Ranks.of_environment()
    if ranks.count != config.tensor_parallel:
        line = (
            f"--tensor-parallel {config.tensor_parallel} needs as many processes and there are "
            f"{ranks.count}; start it as `torchrun --nproc-per-node {config.tensor_parallel} "
            "-m bench …`"
        )
        raise UsageError(line)
    for option, given in (("--compile", config.compile), ("--quantize", config.quantize)):
        if given:
            line = f"{option} does not go with --tensor-parallel; leave one of them out"
            raise UsageError(line)
    return ranks.join(device)


def load_part(
    config: RunConfig, source: str, role: str, dtype: torch.dtype, device: torch.device
) -> ShardedModel:
    """This process's part of a model (raises as `ShardedModel.load_part`)."""
    from decoders.core.hf.sharded import Ranks, ShardedModel

    return ShardedModel.load_part(
        source,
        name=role,
        ranks=Ranks.of_environment(),
        dtype=dtype,
        device=device,
        attn_implementation=config.attention,
    )
