"""Adapters, heads and drafts trained on a pretended GPU: one device, and the CPU's losses.

Both devices attend by kernels of their own, so losses agree to 1e-3 and not bit for bit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.pretended_cuda import PretendedCuda
from tests.tiny_recipe import RUN
from training.adapters import train_adapter, train_heads
from training.draft import train_draft
from training.text.completions import Completion, write_completions

MASKS = {
    "variant": "isd", "code": "constant", "rank": 4, "alpha": 4.0, "num_slots": 4,
    "anchored": True, "numbered": True, "seed": 3,
}  # fmt: skip
SAMPLED = {
    "kind": "on-policy", "num_completions": 24, "max_new_tokens": 20, "max_tokens": 40,
    "temperatures": [0.7], "rows_per_step": 6, "seed": 1,
}  # fmt: skip
STEPS = {"num_steps": 4, "warmup_steps": 1, "eval_steps": 2, "max_tokens": 80, "eval_rows": 8}
LEAN = {"lean": True, "label_share": 0.3, "head_words": 12, "teacher_top": 4, "stored": "float32"}
KINDS: Mapping[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "ptp": (train_adapter, {}),
    "isd": (train_adapter, {"adapter": MASKS, "sampling": {}, "run": RUN | {"objective": "kl"}}),
    "refine": (
        train_adapter,
        {
            "adapter": MASKS | {"variant": "refine", "num_slots": 7},
            "sampling": {},
            "blocks": {"sizes": [4, 7], "own": 0.5},
        },
    ),
    "lean": (
        train_adapter,
        {
            "adapter": {key: MASKS[key] for key in MASKS if key != "anchored"} | {"enter": 1},
            "sampling": {},
            "data": {"kind": "completions", "path": "answers", "rows_per_step": 6},
            "run": RUN | LEAN | {"objective": "kl"},
        },
    ),
    "medusa": (
        train_heads,
        {
            "heads": {"num_heads": 3, "rank": 16, "seed": 1},
            "data": SAMPLED,
            "run": STEPS | {"adamw_lr": 0.03},
        },
    ),
    "eagle": (
        train_heads,
        {
            "layer": {"unroll": 3, "rank": 16, "num_heads": 2, "seed": 1},
            "data": SAMPLED,
            "run": STEPS | {"adamw_lr": 0.03},
        },
    ),
    "drafter": (
        train_heads,
        {
            "drafter": {"num_slots": 3, "rank": 16, "num_heads": 2, "bias_rank": 4, "seed": 1},
            "data": {"kind": "completions", "path": "answers", "rows_per_step": 6},
            "run": STEPS | {"adamw_lr": 0.03, "muon_lr": 0.01, "anchors_per_row": 4},
        },
    ),
    "draft": (
        train_draft,
        {
            "draft": {"width": 16, "layers": 1, "heads": 2, "intermediate": 24, "seed": 1},
            "data": {"kind": "completions", "path": "answers", "rows_per_step": 8},
            "run": STEPS
            | {"muon_lr": 0.02, "adamw_lr": 0.01, "head_words": 10, "negatives": 5}
            | {"teacher_top": 4},
        },
    ),
}


def recipe_of(recipe: dict[str, Any], kind: str, home: Path, folder: Path) -> dict[str, Any]:
    """The tiny recipe with a kind's tables; heads and drafts have none of an adapter's."""
    train, changed = KINDS[kind]
    if train is train_heads:  # its texts begin with a BOS token
        recipe = {"model": {"path": str(home / "letters")}}
    elif train is train_draft:
        recipe = {"model": {"path": str(home / "zoo")}}
    made = recipe | {name: dict(table) for name, table in changed.items()}
    if made["data"].get("path") == "answers":
        made["data"]["path"] = answers(folder / "answers.jsonl")
    return made


def answers(file: Path) -> str:
    generator = torch.Generator().manual_seed(1)
    made = [
        Completion(
            number=number,
            temperature=(0.0, 0.7, 1.0)[number % 3],
            prompt=(4, 5 + number // 3),
            tokens=tuple(torch.randint(3, 30, (12,), generator=generator).tolist()),
        )
        for number in range(72)
    ]
    write_completions(file, made)
    return str(file)


def losses(folder: Path) -> list[float]:
    records = map(json.loads, (folder / "training_log.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if "loss" in record]


QUICK = ("ptp", "medusa", "drafter", "draft")
"""One of each job; the other variants are slow."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS],
)
def test_training_on_a_pretended_gpu_has_the_losses_of_the_cpu(
    kind: str,
    recipe: dict[str, Any],
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("training.reporter.LOG_EVERY", 1)
    tables, train = recipe_of(recipe, kind, home, tmp_path), KINDS[kind][0]
    train(tables, tmp_path / "cpu", progress="none")
    with PretendedCuda() as device:
        train(tables, tmp_path / "cuda", progress="none", device="cuda")
    expected = losses(tmp_path / "cpu")
    assert len(expected) >= 4
    assert losses(tmp_path / "cuda") == pytest.approx(expected, rel=1e-3)
    assert device.waits  # it was there
