"""One call of a model again and again without the Python around it: how fast it could be.

Letters: N rows of the call, V vocabulary.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from decoders.core.adapter.gating import text_model
from decoders.core.hf import compiled
from decoders.core.hf.model import HFModel
from decoders.core.types import Call

Replay = Callable[[], Tensor]
"""Runs the call; logits ``[B * N, V]`` in the model's dtype."""
_WARM = 3
_COMPILERS = ("g++", "clang++", "c++")


def missing_compiler() -> str | None:
    """Explain why `torch.compile` cannot make code for a CPU here; None: it can."""
    given = os.environ.get("CXX")
    wanted = (given,) if given else _COMPILERS
    if any(shutil.which(name) for name in wanted):
        return None
    return f"no C++ compiler ({', '.join(wanted)}) for torch.compile on a CPU"


@torch.inference_mode()
def capture(model: HFModel, calls: Sequence[Call], backend: str = "inductor") -> Replay:
    """Run calls that read all of their rows, and return their work: a graph, or compiled.

    It holds as long as the model's cache is not allocated anew.
    """
    module, base = model.module, text_model(model.module)
    hidden = model.architecture.reads_hidden
    fed: dict[str, Any] = {}

    def keep(_module: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        fed.update(kwargs)

    with (base if hidden else module).register_forward_pre_hook(keep, with_kwargs=True):
        model.forward(calls)
    head = module.get_output_embeddings()

    def work() -> Tensor:
        if not hidden:
            logits: Tensor = module(**fed).logits.flatten(0, 1)
            return logits
        states: Tensor = base(**fed).last_hidden_state.flatten(0, 1)
        return torch.as_tensor(head(states))

    if model.device.type == "cuda":
        return compiled.capture(work)
    replay: Replay = torch.inference_mode()(torch.compile(work, dynamic=False, backend=backend))
    for _ in range(_WARM):
        replay()
    return replay
