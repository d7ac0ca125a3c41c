"""Distil a small draft model on the target's own completions: ``bench train draft``.

The draft is a Llama of one to three narrow layers with the target's tokenizer. Its tied embeddings
begin as the target's, projected on their principal directions. The draft learns the target's
likeliest tokens after each prefix of a completion, at the completion's sampling temperature. By an
option of the recipe, it also learns them after each prefix of the prompt, at temperature 1.

Letters: B rows, P taught tokens of a row, M tokens in the loss, T likeliest tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
import torch
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoders.core.hf.checkpoint import weights_sha256
from training.adapter.job import rows_at
from training.adapter.lean_job import GREEDY_TEMPERATURE, Top, WordHead, teacher_loss
from training.forward import fresh_llama, last_states
from training.loop import Best, JudgedJob, Piece, Report, fingerprint, muon_and_adamw
from training.recipe import (
    Count,
    LoopTable,
    ModelTable,
    NotNegative,
    Rate,
    Recipe,
    RecipeTable,
    Seed,
    Share,
)
from training.reporter import TrainingProgress
from training.run import BEST, JobContext, TrainingOptions, open_checkpoint, train_jobs
from training.text.data import PoolSource, Row, learnt, padded, row_hash, worker_groups
from training.text.sources import build_source
from training.workers import worker

_MAX_DRAFTS = 4  # consecutive drafts that an evaluation counts


class DraftTable(RecipeTable):
    """[draft]: sizes of the draft model, and the seed of its initial weights.

    `initial` is the folder of a draft of these sizes whose weights replace fresh ones.
    `stored` is the dtype of the matrices on disk, not of the computation.
    """

    width: Count = 128
    layers: Count = 2
    heads: Count = 4
    intermediate: Count = 384
    seed: Seed = 0
    initial: str | None = None
    stored: Literal["float16", "float8_e4m3fn"] = "float16"


class _DraftRunTable(LoopTable):
    """[run]: see `training.adapter.recipe.AdapterRunTable`.

    Attributes:
        negatives: random words in each loss besides the `head_words`: no word is forgotten.
        prompt_weight: weight of prompt tokens in the loss; answer tokens have weight 1.
    """

    muon_lr: Rate
    max_tokens: Count = 3000
    label_share: Share = 0.3
    teacher_top: Count = 16
    head_words: NotNegative = 0
    negatives: NotNegative = 0
    prompt_weight: float = Field(default=0.0, ge=0, le=1)
    seed: Seed = 1
    eval_steps: Count = 100


class DraftRecipe(Recipe):
    """Define a recipe of a draft model for a Llama target."""

    model: ModelTable
    draft: DraftTable = DraftTable()
    data: dict[str, Any]
    run: _DraftRunTable


def train_draft(
    tables: Mapping[str, Any], output: Path, **options: Unpack[TrainingOptions]
) -> None:
    """Train the draft of a recipe (``training/recipes/smollm2-draft.toml``, `train_jobs`)."""
    train_jobs({"draft": DraftJob}, DraftRecipe.of(tables), output, options)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DraftReport(Report):
    """Hold a draft model's figures, among them the mean number of right drafts in a row."""

    agreement: float
    drafts_that_stand: float
    of_drafts: int = _MAX_DRAFTS
    loss: float
    rows: int

    @property
    def score(self) -> float:
        """Return the mean number of drafts that stand."""
        return self.drafts_that_stand

    def summary(self) -> str:
        """Return one line for the terminal."""
        line = f"{self.drafts_that_stand:.2f} of {self.of_drafts} drafts accepted"
        return f"{line}, agreement {self.agreement:.3f}, loss {self.loss:.3f}"


class DraftJob(JudgedJob):
    """Train a draft model on the answers of a source's rows, one group of rows at a time."""

    def __init__(self, recipe: DraftRecipe, context: JobContext) -> None:
        """Open the target and the data, raising the errors of `train_jobs`."""
        output, device, reporter, locate = context
        self.device = device
        state, folder = output / ".training", locate(recipe.model.path)
        self.run, self.reporter, self.taught_by = recipe.run, reporter, weights_sha256(folder)
        self.best = Best(state / BEST)
        dtype = getattr(torch, recipe.model.dtype)
        target = open_checkpoint(folder, "AutoModelForCausalLM", dtype=dtype).to(device)
        self._target, self._head = target, target.get_output_embeddings()
        source = build_source(
            recipe.data,
            tokenizer=open_checkpoint(folder, "AutoTokenizer"),
            max_length=target.config.max_position_embeddings,
            folder=state,
        )
        if not isinstance(source, PoolSource) or source.kind != "completions":
            raise ValueError(f"a draft trains on data of kind 'completions', not {source.kind!r}")
        self.source = source
        self.fingerprint = fingerprint(recipe.decisive(), self.taught_by, source.digest)
        self.trained = fresh_draft(target, recipe.draft).to(device)
        self.storage_dtype: torch.dtype = getattr(torch, recipe.draft.stored)
        everywhere = "-prompts" if recipe.run.prompt_weight else ""
        self._kept = state / f"teacher-{(self.taught_by or 'unknown')[-12:]}{everywhere}"
        self._frequent = torch.tensor(self.source.frequent(recipe.run.head_words)).long()

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return Muon for the layers' matrices, AdamW for embeddings and norms."""
        matrices = self.trained.model.layers.parameters()
        return muon_and_adamw(self.trained, matrices, self.run, weight_decay=0.01)

    def _mask(self, rows: Sequence[Row]) -> Tensor:
        """Return a mask ``[B, T]`` of taught tokens: of answers, and of prompts if weighted."""
        whole = (dataclasses.replace(row, learn=[True] * len(row.ids)) for row in rows)
        return learnt([*whole] if self.run.prompt_weight else rows)

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Yield the losses of this worker's groups of a step."""
        run, words_of = self.run, self.trained.lm_head.weight
        rng = np.random.default_rng([run.seed, progress.step, worker()[0]])
        for group in worker_groups(self.source.rows(progress.step), run.max_tokens):
            sample = torch.from_numpy(rng.choice(len(words_of), run.negatives, replace=False))
            words = torch.unique(torch.cat([self._frequent, sample])).to(self.device)
            head = WordHead(words_of, words if run.head_words else words[:0])
            top = None
            if run.label_share < 1:  # labels alone need no teacher
                ids, logits = zip(*map(self._likeliest, group), strict=True)
                top = torch.cat(ids).to(self.device), torch.cat(logits).to(self.device)
            mask, learn = self._mask(group), learnt(group)
            states, target = self._states(group, mask)
            warm = torch.tensor([[row.temperature or GREEDY_TEMPERATURE] for row in group])
            temperature = torch.where(learn, warm, 1.0)[mask].to(self.device)
            weight = torch.where(learn, 1.0, run.prompt_weight)[mask].to(self.device)
            read = head.read(states, target, top)
            loss = teacher_loss(*read, temperature, weight, label_share=run.label_share)
            yield loss, len(target), sum(len(row.ids) for row in group)

    @torch.no_grad()
    def _likeliest(self, row: Row) -> Top:
        """Return the target's likeliest tokens and their logits, ``[P, T]`` each.

        The first call for a row runs the target, which takes a second on one core for 100 answer
        tokens. A file per row (here 10 kB) caches the result, because a small model sees its rows
        many times.
        """
        num_top = self.run.teacher_top
        path = self._kept / f"top{num_top}" / f"{row_hash(row):016x}.npz"
        if not path.exists():
            ids = torch.tensor([row.ids]).to(self.device)
            mask = self._mask([row]).to(self.device)
            logits = self._head(last_states(self._target, input_ids=ids)[:, :-1][mask[:, 1:]])
            values, words = logits.topk(num_top)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            with partial.open("wb") as file:
                np.savez(file, ids=words.int().cpu().numpy(), logits=values.half().cpu().numpy())
            partial.replace(path)
        with np.load(path) as kept:
            return torch.from_numpy(kept["ids"]).long(), torch.from_numpy(kept["logits"]).float()

    def _states(self, rows: Sequence[Row], mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden states ``[M, D]`` that predict the masked tokens, and these tokens."""
        ids, mask = padded(rows).to(self.device), mask.to(self.device)
        return last_states(self.trained, input_ids=ids)[:, :-1][mask[:, 1:]], ids[mask]

    @torch.no_grad()
    def held_out(self) -> DraftReport:
        """Return the loss and the accepted drafts on held-out greedy text of the target."""
        rows = rows_at(self.source.held_out(self.run.eval_rows), 0.0)
        runs, loss = [], 0.0
        for row in rows:
            states, target = self._states([row], learnt([row]))
            logits = self.trained.lm_head(states)
            loss += torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
            runs += leading_runs((logits.argmax(-1) == target).tolist())
        count = max(1, len(runs))
        return DraftReport(
            agreement=round(sum(run > 0 for run in runs) / count, 4),
            drafts_that_stand=round(sum(runs) / count, 4),
            loss=round(loss / count, 4),
            rows=len(rows),
        )

    def export(self, output: Path) -> None:
        """Write the model with the most accepted drafts, and its target's hash."""
        self.take_best()
        output.mkdir(parents=True, exist_ok=True)
        fresh = type(self.trained)(self.trained.config)
        fresh.load_state_dict(self.trained.state_dict())
        fresh.to(torch.float16).save_pretrained(output)
        file = output / "model.safetensors"
        weights = load_file(file)
        for name, weight in weights.items():
            if weight.dim() == 2:
                weights[name] = weight.to(self.storage_dtype)
        save_file(weights, file, metadata={"format": "pt"})
        facts = {"target_weights_sha256": self.taught_by}
        (output / "draft.json").write_text(f"{json.dumps(facts)}\n", encoding="utf-8")


def fresh_draft(target: Any, table: DraftTable) -> Any:
    """Return a Llama of the recipe's sizes.

    Its embeddings are the target's, projected. Other sizes in `table.initial` raise `ValueError`.
    """
    copied = ["vocab_size", "max_position_embeddings", "rope_parameters"]
    copied += ["bos_token_id", "eos_token_id", "pad_token_id"]
    draft = fresh_llama(table, **{name: getattr(target.config, name) for name in copied})
    if table.initial is not None:
        weights = open_checkpoint(table.initial, "AutoModelForCausalLM").state_dict()
        sizes = {name: weight.shape for name, weight in draft.state_dict().items()}
        if {name: weight.shape for name, weight in weights.items()} != sizes:
            raise ValueError(f"recipe: draft.initial {table.initial} has other sizes than [draft]")
        draft.load_state_dict(weights)
        return draft
    words = target.get_input_embeddings().weight.detach().float()
    _, directions = torch.linalg.eigh(words.T @ words)  # ascending
    projected = words @ directions[:, -table.width :]
    with torch.no_grad():
        scale = draft.config.initializer_range / projected.square().mean().sqrt()
        draft.model.embed_tokens.weight.copy_(projected * scale)
    return draft


def leading_runs(right: Sequence[bool]) -> list[int]:
    """Return, from each token on, the number of right drafts before the first wrong draft."""
    runs, run = [], 0
    for hit in reversed(right):
        run = run + 1 if hit else 0
        runs.append(min(run, _MAX_DRAFTS))
    return runs[::-1]
