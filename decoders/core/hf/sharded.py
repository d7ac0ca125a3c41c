"""A causal LM with weights sharded over processes: a leader, and followers that repeat its calls.

All processes run the same forward passes in the same order; transformers' tensor-parallel plans
join partial results in a pass. Only the leader runs decoders, sampling, clocks and file access.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from decoders.core.hf.model import Attention, HFModel
from decoders.core.model import Session
from decoders.core.types import Call

_WAIT = datetime.timedelta(days=1)
"""Longest wait of a follower for the leader, which may be scoring or writing."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process among those that torchrun started, and their count."""

    rank: int
    count: int

    @classmethod
    def of_environment(cls) -> Ranks:
        """Read torchrun's ``RANK`` and ``WORLD_SIZE``; without them, there is one process."""
        return cls(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")))

    @property
    def leads(self) -> bool:
        """True in the process that decodes."""
        return self.rank == 0

    def join(self, device: torch.device) -> torch.device:
        """Join the process group and return this process's device: the GPU of its local rank."""
        on_gpu = device.type == "cuda"
        if on_gpu:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
            dist.init_process_group(backend, timeout=_WAIT)
        return device


def send(message: object) -> None:
    """Send a message from the leader to all followers."""
    dist.broadcast_object_list([message], src=0, device=torch.device("cpu"))


def receive() -> Any:
    """Receive the leader's next message."""
    received: list[Any] = [None]
    dist.broadcast_object_list(received, src=0, device=torch.device("cpu"))
    return received[0]


def follow(models: Sequence[ShardedModel]) -> None:
    """Repeat every call of the leader until the leader ends."""
    by_name = {model.name: model for model in models}
    while (message := receive()) is not None:
        name, what, arguments = message
        by_name[name].obey(what, arguments)


def dismiss() -> None:
    """Leave the process group as its leader, even after an error, and let the followers end."""
    if dist.is_initialized():
        with contextlib.suppress(RuntimeError):  # followers may be interrupted too
            send(None)
        dist.destroy_process_group()


class ShardedModel(HFModel):
    """An `HFModel` of which this process holds a shard; `name` identifies it in all processes."""

    name: str
    _ranks: Ranks
    cut = ("split over processes", "--tensor-parallel")

    @classmethod
    def load_part(
        cls,
        path_or_id: str | Path,
        *,
        name: str,
        ranks: Ranks,
        dtype: torch.dtype,
        device: torch.device,
        attn_implementation: Attention | None = None,
    ) -> Self:
        """Load this process's shard while all others load theirs; errors as in `HFModel.load`."""
        model = cls.load(
            path_or_id,
            dtype=dtype,
            device=device,
            attn_implementation=attn_implementation,
            shards=ranks.count,
        )
        model.name, model._ranks = name, ranks
        return model

    @property
    def facts(self) -> dict[str, str | int]:
        """Facts of the whole model, and the number of shards."""
        return {**super().facts, "shards": self._ranks.count}

    @property
    def library_module(self) -> Any:
        """Raises `ValueError`, because a loop of transformers would run in one process only."""
        raise ValueError(
            "loops of transformers (hf) do not run on a model that is split over processes; leave "
            "out --tensor-parallel, or the decoder"
        )

    # run by all processes: the leader announces a call, then every process runs it

    def _announce(self, what: str, *arguments: object) -> None:
        if self._ranks.leads:
            send((self.name, what, arguments))

    def reserve(self, num_rows: int, capacity: int) -> None:
        """See `Model.reserve`."""
        self._announce("reserve", num_rows, capacity)
        super().reserve(num_rows, capacity)

    def open(self) -> Session:
        """See `Model.open`."""
        self._announce("open")
        return super().open()

    def close(self, session: Session) -> None:
        """See `Model.close`."""
        self._announce("close", session.row)
        super().close(session)

    def gather(self, session: Session, sources: Sequence[int], start: int) -> None:
        """See `Model.gather`."""
        self._announce("gather", session.row, tuple(sources), start)
        super().gather(session, sources, start)

    def forward(self, calls: Sequence[Call]) -> Tensor:
        """See `Model.forward`."""
        self._announce("forward", [_packed(call) for call in calls])
        return super().forward(calls)

    def own_logits(self, tokens: Sequence[int], num_rows: int) -> Tensor:
        """See `HFModel.own_logits`."""
        self._announce("own_logits", tuple(tokens), num_rows)
        return super().own_logits(tokens, num_rows)

    def obey(self, what: str, arguments: tuple[Any, ...]) -> None:
        """Run an announced call of the leader on a follower."""
        if what == "forward":
            (calls,) = arguments
            self.forward([self._unpacked(*packed) for packed in calls])
        elif what in ("close", "gather"):
            row, *rest = arguments
            getattr(self, what)(self._open[row], *rest)
        else:
            getattr(self, what)(*arguments)

    def _unpacked(self, row: int, length: int, fields: dict[str, Any]) -> Call:
        session = self._open[row]
        session.length = length
        return Call(session=session, output="logits", **fields)


def _packed(call: Call) -> tuple[int, int, dict[str, Any]]:
    names = ("tokens", "read", "positions", "mask", "hidden")
    return call.session.row, call.session.length, {name: getattr(call, name) for name in names}
