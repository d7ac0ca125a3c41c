"""The training loop shared by the zoo's models: optimisers, schedule, checkpoints, worker sync.

One step draws rows by (seed, step), splits them over the workers, and sums their gradients once, so
a run is a pure function of its recipe (up to the machine's arithmetic), and a resumed run ends in
the weights of an uninterrupted one. Workers are processes of one thread each: on a CPU that scales
better than threads inside each operation, and bears other load. Muon (Jordan et al. 2024) moves the
hidden matrices, AdamW the rest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from training.data import Batch, Encoder, group_rows, step_rows
from training.forward import hidden_states

KEEP_CHECKPOINT = "the checkpoint was made by another recipe; delete it or use that recipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Warm-up, plateau, linear decay to `final` of the peak over the last `decay` share."""

    num_steps: int
    warmup_steps: int
    decay: float
    final: float = 0.02

    def scale(self, step: int) -> float:
        """The factor on every learning rate at `step` (0-based)."""
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        start = self.num_steps * (1 - self.decay)
        left = (self.num_steps - step) / max(1.0, self.num_steps - start)
        return warm * max(self.final, min(1.0, left))


@dataclass(slots=True, kw_only=True)
class Progress:
    """Where a run stands: what a checkpoint holds beside weights and optimiser state."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)


def optimizers(model: Any, muon_lr: float, adamw_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the 2-D matrices of the layers, AdamW for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    known = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in known]
    return [
        torch.optim.Muon(matrices, lr=muon_lr, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=adamw_lr, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def step_batches(
    encoder: Encoder,
    counts: dict[str, int],
    num_repeated: int,
    seed: int,
    step: int,
    max_tokens: int,
) -> list[Batch]:
    """This worker's groups of a step: every n-th row, longest spread evenly."""
    rows = step_rows(encoder, counts, num_repeated, seed, step)
    rows.sort(key=lambda row: len(row.ids))
    rank, world = worker()
    return group_rows(rows[rank::world], encoder.pad, max_tokens)


def batch_loss(model: Any, batch: Batch, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Summed cross-entropy in nats over the batch's answer tokens."""
    states = hidden_states(model, batch.ids.to(device), dtype)
    chosen = states.flatten(0, 1)[batch.places.to(device)]
    logits = chosen @ model.lm_head.weight.to(dtype).T
    return F.cross_entropy(logits.float(), batch.targets.to(device), reduction="sum")


def train_step(
    model: Any,
    moves: list[torch.optim.Optimizer],
    base_lrs: list[float],
    scale: float,
    batches: list[Batch],
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[float, int]:
    """One update from summed gradients of all workers; mean loss (nats) and tokens seen."""
    total = torch.zeros(3, dtype=torch.float64)
    for batch in batches:
        loss = batch_loss(model, batch, dtype, device)
        loss.backward()  # type: ignore[no-untyped-call]
        total += torch.tensor([loss.item(), len(batch.targets), batch.ids.numel()])
    parameters = [p for p in model.parameters() if p.grad is not None]
    if worker()[1] > 1:
        dist.all_reduce(total)
        flat = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(flat)
        pieces = torch.split(flat, [p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.grad = piece.view_as(parameter)
    for parameter in parameters:
        parameter.grad /= total[1].item()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for move, rate in zip(moves, base_lrs, strict=True):
        for group in move.param_groups:
            group["lr"] = rate * scale
        move.step()
        move.zero_grad(set_to_none=True)
    return total[0].item() / total[1].item(), int(total[2].item())


def worker() -> tuple[int, int]:
    """This process's rank and the number of workers (0 and 1 outside a group)."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def save_checkpoint(
    path: Path,
    model: Any,
    moves: list[torch.optim.Optimizer],
    progress: Progress,
    fingerprint: str,
) -> None:
    """Writes weights, optimiser state and progress in one atomic replacement."""
    state = {
        "fingerprint": fingerprint,
        "model": model.state_dict(),
        "optimizers": [move.state_dict() for move in moves],
        "progress": {name: getattr(progress, name) for name in Progress.__slots__},
    }
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def load_checkpoint(
    path: Path, model: Any, moves: list[torch.optim.Optimizer], fingerprint: str
) -> Progress:
    """Restores a run and says where it stands.

    Raises:
        ValueError: the checkpoint belongs to another recipe.
    """
    state = torch.load(path, map_location="cpu", weights_only=True)
    if state["fingerprint"] != fingerprint:
        raise ValueError(f"{path}: {KEEP_CHECKPOINT}")
    model.load_state_dict(state["model"])
    for move, saved in zip(moves, state["optimizers"], strict=True):
        move.load_state_dict(saved)
    return Progress(**state["progress"])
