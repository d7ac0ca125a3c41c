"""A recipe of adapter training that takes a second, in parts that tests change."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from training.loop import Loop, read_state

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
RUN: dict[str, Any] = {
    "objective": "one-hot",
    "workers": 1,
    "num_steps": 6,
    "warmup_steps": 2,
    "decay": 0.5,
    "muon_lr": 0.02,
    "adamw_lr": 0.003,
    "slots_per_row": 12,
    "max_tokens": 600,
    "seed": 5,
    "eval_steps": 4,
    "eval_rows": 3,
    "checkpoint_minutes": 1000,
}
ADAPTER: dict[str, Any] = {
    "rank": 4,
    "alpha": 4.0,
    "num_slots": 4,
    "embedding_hidden": 8,
    "conditioned": True,
    "anchored": True,
    "numbered": True,
    "seed": 3,
}


def trained_steps(folder: Path, name: str = "adapter") -> int:
    """The steps of a job's checkpoint in the folder of a training."""
    step: int = read_state(folder / ".training" / f"{name}.pt")["progress"]["step"]
    return step


@contextmanager
def stopped() -> Iterator[None]:
    """End a training as Ctrl-C does, after its first step and a checkpoint."""
    step = Loop._step

    def last_step(loop: Loop, seconds: float) -> None:
        step(loop, seconds)
        loop.save()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loop, "_step", last_step)
        with pytest.raises(KeyboardInterrupt):
            yield


def whole_and_parts(
    train: Callable[..., Any], tables: dict[str, Any], folder: Path
) -> tuple[Path, Path]:
    """Train four steps at once, and in a run that is stopped after one; return both folders."""
    tables["run"]["num_steps"] = 4
    train(tables, folder / "whole", progress="none")
    with stopped():
        train(tables, folder / "parts", progress="none")
    assert {each.name for each in (folder / "parts").iterdir()} == {".training"}
    train(tables, folder / "parts", progress="none")
    return folder / "whole", folder / "parts"


def toml_of(tables: dict[str, Any]) -> str:
    """A recipe as TOML, whose values are JSON's but for tables."""
    lines = []
    for name, table in tables.items():
        inner = {key: value for key, value in table.items() if isinstance(value, dict)}
        lines += [f"[{name}]", *(f"{k} = {json.dumps(table[k])}" for k in table if k not in inner)]
        for key, value in inner.items():
            lines += [f"[{name}.{key}]", *(f"{k} = {json.dumps(v)}" for k, v in value.items())]
    return "\n".join(lines) + "\n"
