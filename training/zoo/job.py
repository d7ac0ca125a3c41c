"""One zoo model's training: build, losses, evaluation, export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from specbench_tasks.task import FAMILIES
from training.forward import hidden_states
from training.loop import Loop, Piece, Schedule, TrainingProgress, fingerprint_of, muon_and_adamw
from training.reporter import Reporter
from training.text.data import Batch, Encoder, group_rows, step_rows
from training.workers import worker
from training.zoo.evaluate import family_scores


def build_model(section: dict[str, Any], vocab_size: int, encoder: Encoder) -> Any:
    """A fresh `LlamaForCausalLM` of a recipe's [target] or [draft] section, from its seed."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=section["width"],
        intermediate_size=section["intermediate"],
        num_hidden_layers=section["layers"],
        num_attention_heads=section["heads"],
        num_key_value_heads=section["heads"],
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=encoder.end,
        pad_token_id=encoder.pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(section["seed"])  # noqa: TID251 - transformers draws from it; forked
        return LlamaForCausalLM(config)


class ZooJob:
    """One model's training: its losses, its evaluations, its export."""

    def __init__(
        self,
        recipe: dict[str, Any],
        name: str,
        tokenizer: Any,
        output: Path,
        device: torch.device,
        reporter: Reporter,
    ) -> None:
        self.name, self.output, self.device = name, output, device
        self.section, self.data, self.run = recipe[name], recipe["data"], recipe["run"]
        self.tokenizer, self.encoder, self.reporter = tokenizer, Encoder(tokenizer), reporter
        self.trained = build_model(self.section, len(tokenizer), self.encoder).to(device)
        section = {key: value for key, value in self.section.items() if key != "num_steps"}
        settings = {key: value for key, value in self.run.items() if key != "checkpoint_minutes"}
        self.loop = Loop(
            self,
            optimizers(self.trained, self.section["muon_lr"], self.section["adamw_lr"]),
            Schedule(
                num_steps=self.section["num_steps"],
                warmup_steps=self.section["warmup_steps"],
                decay=self.section["decay"],
            ),
            output / ".training" / f"{name}.pt",
            fingerprint_of(recipe["tokenizer"], self.data, section, settings),
            reporter,
            eval_steps=self.run["eval_steps"],
            checkpoint_minutes=self.run["checkpoint_minutes"],
            progress=TrainingProgress(counts=dict(self.data["counts"])),
        )

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Losses of this worker's groups of a step."""
        step, section = progress.step, self.section
        fade = 1 - step / section["repeated_steps"] if section["repeated_steps"] else 0.0
        repeated = round(section["num_repeated"] * max(0.0, fade))
        rows = step_rows(self.encoder, progress.counts, repeated, self.data["seed"], step)
        rows.sort(key=lambda row: len(row.ids))
        rank, world = worker()  # every n-th row, so that long ones are spread evenly
        for batch in group_rows(rows[rank::world], self.encoder.pad, self.data["max_tokens"]):
            loss = batch_loss(self.trained, batch, torch.bfloat16, self.device)
            yield loss, len(batch.targets), batch.ids.numel()

    def evaluate(self, progress: TrainingProgress) -> None:
        """Scores every family (shared out over the workers) and adapts the mix."""
        rank, world = worker()
        mine: dict[str, Any] = {}
        for index, family in enumerate(FAMILIES):
            if index % world == rank:
                row, pairs = family_scores(
                    self.trained,
                    self.encoder,
                    family,
                    self.run["eval_prompts"],
                    self.run["eval_max_new_tokens"],
                )
                mine[family] = (row, pairs[:3])
        gathered: list[Any] = [mine]
        if world > 1:
            gathered = [None] * world
            dist.all_gather_object(gathered, mine)
        by_family = {family: value for part in gathered for family, value in part.items()}
        scores: dict[str, dict[str, float]] = {f: by_family[f][0] for f in FAMILIES}
        self.reporter.evaluation(
            progress, _scores_line(scores), {"scores": scores, "counts": progress.counts}
        )
        self.reporter.look(progress, {f: by_family[f][1] for f in FAMILIES})
        if self.data["adaptive"]:
            progress.counts = adapted_counts(
                self.data["counts"],
                {f: row.get("exact", row["score"]) for f, row in scores.items()},
            )

    def export(self) -> None:
        """Writes the Hugging Face checkpoint in bfloat16 with its tokenizer."""
        folder = self.output / self.name
        folder.mkdir(parents=True, exist_ok=True)
        # Tied weights are shared tensors; a copy keeps the fp32 master untouched.
        fresh = build_model(self.section, len(self.tokenizer), self.encoder)
        fresh.load_state_dict(self.trained.state_dict())
        fresh.to(torch.bfloat16).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def optimizers(model: Any, muon_lr: float, adamw_lr: float) -> list[torch.optim.Optimizer]:
    """Muon for the 2-D matrices of the layers, AdamW for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    return muon_and_adamw(model, matrices, muon_lr=muon_lr, adamw_lr=adamw_lr, weight_decay=0.01)


def batch_loss(model: Any, batch: Batch, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Summed cross-entropy in nats over the batch's answer tokens."""
    states = hidden_states(model, batch.ids.to(device), dtype)
    chosen = states.flatten(0, 1)[batch.places.to(device)]
    logits = chosen @ model.lm_head.weight.to(dtype).T
    return F.cross_entropy(logits.float(), batch.targets.to(device), reduction="sum")


def adapted_counts(base: dict[str, int], scores: dict[str, float]) -> dict[str, int]:
    """Rows per family for the next stretch: the same total, weighted by what still fails.

    A family's weight is ``base * (0.4 + 1 - score)``, and each keeps at least two rows.
    """
    weights = {family: base[family] * (1.4 - scores[family]) for family in base}
    factor = sum(base.values()) / sum(weights.values())
    return {family: max(2, round(weight * factor)) for family, weight in weights.items()}


def _scores_line(scores: dict[str, dict[str, float]]) -> str:
    parts = [
        f"{family} {row['score']:.2f}" + (f"/{row['exact']:.2f}" if "exact" in row else "")
        for family, row in scores.items()
    ]
    return f"score/exact: {', '.join(parts)}"
