"""One zoo model's training run: build, step, evaluate, checkpoint, export."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from specbench_tasks.task import FAMILIES
from training.data import Encoder
from training.evaluate import family_scores
from training.loop import (
    Progress,
    Schedule,
    load_checkpoint,
    optimizers,
    save_checkpoint,
    step_batches,
    train_step,
    worker,
)
from training.progress import Reporter

Recipe = dict[str, Any]


def saved_progress(path: Path) -> Progress:
    """Where the run of a checkpoint stands; a fresh `Progress` if there is none."""
    if not path.exists():
        return Progress()
    return Progress(**torch.load(path, map_location="cpu", weights_only=True)["progress"])


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


class Run:
    """One model's training: state, loop, and export."""

    def __init__(
        self,
        recipe: Recipe,
        name: str,
        tokenizer: Any,
        output: Path,
        device: torch.device,
        reporter: Reporter,
    ) -> None:
        self.recipe, self.name, self.output, self.device = recipe, name, output, device
        self.section, self.data, self.run = recipe[name], recipe["data"], recipe["run"]
        self.tokenizer, self.encoder, self.reporter = tokenizer, Encoder(tokenizer), reporter
        self.model = build_model(self.section, len(tokenizer), self.encoder).to(device)
        self.moves = optimizers(self.model, 1.0, 1.0)
        self.rates = [self.section["muon_lr"], self.section["adamw_lr"]]
        self.schedule = Schedule(
            num_steps=self.section["num_steps"],
            warmup_steps=self.section["warmup_steps"],
            decay=self.section["decay"],
        )
        self.path = output / ".training" / f"{name}.pt"
        self.progress = Progress(counts=dict(self.data["counts"]))
        if self.path.exists():
            self.progress = load_checkpoint(self.path, self.model, self.moves, self.fingerprint())

    def fingerprint(self) -> str:
        """What a checkpoint must share with the recipe to be continued (the length may change)."""
        section = {key: value for key, value in self.section.items() if key != "num_steps"}
        run = {key: value for key, value in self.run.items() if key != "checkpoint_minutes"}
        parts = [self.recipe["tokenizer"], self.data, section, run]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def train(self, deadline: float | None) -> bool:
        """Steps until the schedule ends (True) or the deadline passes (False)."""
        self.reporter.start(self.section["num_steps"], self.progress)
        saved = self._agreed_time()
        while self.progress.step < self.section["num_steps"]:
            self._step()
            # By steps, not by the clock: an evaluation adapts the mix of later steps.
            if self.progress.step % self.run["eval_steps"] == 0:
                self.evaluate()
            now = self._agreed_time()
            if now - saved > 60 * self.run["checkpoint_minutes"]:
                self.save()
                saved = now
            if deadline is not None and now > deadline:
                self.save()
                return False
        if not self.path.exists() or saved_progress(self.path).step < self.progress.step:
            self.evaluate()
            self.save()
        return True

    def _step(self) -> None:
        started = time.monotonic()
        step, section = self.progress.step, self.section
        fade = 1 - step / section["repeated_steps"] if section["repeated_steps"] else 0.0
        repeated = round(section["num_repeated"] * max(0.0, fade))
        batches = step_batches(
            self.encoder,
            self.progress.counts,
            repeated,
            self.data["seed"],
            step,
            self.data["max_tokens"],
        )
        loss, tokens = train_step(
            self.model,
            self.moves,
            self.rates,
            self.schedule.scale(step),
            batches,
            torch.bfloat16,
            self.device,
        )
        self.progress.step += 1
        self.progress.tokens += tokens
        self.progress.seconds += time.monotonic() - started
        self.reporter.step(loss, self.progress)

    def _agreed_time(self) -> float:
        """The first worker's clock, so that all workers evaluate and stop at the same step."""
        now = torch.tensor([time.monotonic()], dtype=torch.float64)
        if worker()[1] > 1:
            dist.broadcast(now, src=0)
        return now.item()

    def evaluate(self) -> None:
        """Scores every family (shared out over the workers) and adapts the mix."""
        rank, world = worker()
        mine: dict[str, Any] = {}
        for index, family in enumerate(FAMILIES):
            if index % world == rank:
                row, pairs = family_scores(
                    self.model,
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
        found = {family: value for part in gathered for family, value in part.items()}
        scores: dict[str, dict[str, float]] = {f: found[f][0] for f in FAMILIES}
        self.reporter.evaluation(self.progress, scores, {f: found[f][1] for f in FAMILIES})
        if self.data["adaptive"]:
            self.progress.counts = adapted_counts(
                self.data["counts"],
                {f: row.get("exact", row["score"]) for f, row in scores.items()},
            )

    def save(self) -> None:
        """Writes a checkpoint (first worker only; the others hold the same state)."""
        if worker()[0] == 0:
            save_checkpoint(self.path, self.model, self.moves, self.progress, self.fingerprint())
        if worker()[1] > 1:
            dist.barrier()

    def export(self) -> None:
        """Writes the Hugging Face checkpoint in bfloat16 with its tokenizer."""
        folder = self.output / self.name
        folder.mkdir(parents=True, exist_ok=True)
        # Tied weights are shared tensors; a copy keeps the fp32 master untouched.
        fresh = build_model(self.section, len(self.tokenizer), self.encoder)
        fresh.load_state_dict(self.model.state_dict())
        fresh.to(torch.bfloat16).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def adapted_counts(base: dict[str, int], scores: dict[str, float]) -> dict[str, int]:
    """Rows per family for the next stretch: the same total, weighted by what still fails.

    A family's weight is ``base * (0.4 + 1 - score)``, and each keeps at least two rows.
    """
    weights = {family: base[family] * (1.4 - scores[family]) for family in base}
    factor = sum(base.values()) / sum(weights.values())
    return {family: max(2, round(weight * factor)) for family, weight in weights.items()}
