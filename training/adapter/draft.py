"""A small draft model, distilled on the target's own completions: ``bench train draft``.

A Llama of one to three narrow layers with the target's tokenizer and tied embeddings, which begin
as the target's own, projected on their principal directions. It learns the target's likeliest
tokens after each prefix of its completions, at the temperature they were sampled at, and, where the
recipe says so, after each prefix of the prompts, at temperature 1.

Letters: B rows, S places, P taught places of a row, M places that count, D width, V vocabulary.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from decoders.core.hf.checkpoint import weights_sha256
from training.adapter.best import Best
from training.adapter.job import rows_at
from training.adapter.lean_llama import LeanLlama
from training.adapter.lean_loss import GREEDY_TEMPERATURE, ShortHead, taught_loss
from training.adapter.teacher_cache import TeacherCache, Top
from training.adapter.train import open_checkpoint
from training.forward import hidden_states
from training.loop import Loop, Piece, Schedule, TrainingProgress, fingerprint_of, muon_and_adamw
from training.recipe import Count, Rate, Recipe, RecipeTable, Seed, Share
from training.reporter import Reporter
from training.text.data import Row, groups
from training.text.pool import PoolSource
from training.text.sources import source_of
from training.workers import keep_memory, worker

BEST = "best.pt"
MOST_DRAFTS = 4
"""How many drafts in a row an evaluation looks at."""


class TargetTable(RecipeTable):
    """[model]: the target, a Llama, as for `bench run --model`, and the dtype it is asked in."""

    path: str
    dtype: Literal["float32", "bfloat16"] = "float32"


class DraftTable(RecipeTable):
    """[draft]: sizes of the draft model, and the seed of its first weights.

    Attributes:
        initial: folder of a draft of these sizes to begin as, in place of fresh weights.
    """

    width: Count = 128
    layers: Count = 2
    heads: Count = 4
    intermediate: Count = 384
    seed: Seed = 0
    initial: str | None = None


class DraftRunTable(RecipeTable):
    """[run]: see `training.adapter.recipe.RunTable`.

    Attributes:
        negatives: random words in each loss beside the `head_words`, so that none is forgotten.
        prompt_weight: of a prompt's tokens in the loss, where those of an answer weigh 1.
    """

    num_steps: Count
    warmup_steps: int = Field(default=60, ge=0)
    decay: Share = 0.9
    muon_lr: Rate
    adamw_lr: Rate
    max_tokens: Count = 3000
    label_share: Share = 0.3
    teacher_top: Count = 16
    head_words: int = Field(default=0, ge=0)
    negatives: int = Field(default=0, ge=0)
    prompt_weight: float = Field(default=0.0, ge=0, le=1)
    seed: Seed = 1
    eval_steps: Count = 100
    eval_rows: Count = 60
    checkpoint_minutes: float = Field(default=4.0, ge=0)


class DraftRecipe(Recipe):
    """A recipe of `training.adapter.draft`."""

    model: TargetTable
    draft: DraftTable = DraftTable()
    data: dict[str, Any]
    run: DraftRunTable

    def decisive(self) -> dict[str, Any]:
        """What decides a run's steps."""
        free = {"num_steps", "checkpoint_minutes", "eval_steps", "eval_rows"}
        return self.model_dump(mode="json", exclude={"run": free})


def train_draft(
    tables: Mapping[str, Any],
    output: Path,
    *,
    resume: bool = True,
    progress: str = "auto",
    stop_after_s: float | None = None,
    locate: Callable[[str], str] = str,
) -> TrainingProgress:
    """Trains what a recipe says into `output`; continues from the last checkpoint.

    Args:
        tables: a recipe, as in ``training/recipes/smollm2-draft.toml``.
        output: folder of the draft model; ``output/.training`` holds resumable state.
        resume: continue from the last checkpoint; False starts over.
        progress: ``auto``, ``rich``, ``plain`` or ``none``.
        stop_after_s: stop early (after a checkpoint) once this many seconds of training passed.
        locate: where the target lies, by what the recipe calls it.

    Raises:
        ValueError: an impossible recipe, or a checkpoint of another recipe.
    """
    keep_memory()
    recipe = DraftRecipe.of(tables)
    state = output / ".training"
    state.mkdir(parents=True, exist_ok=True)
    deadline = None if stop_after_s is None else time.monotonic() + stop_after_s
    with Reporter(progress, "draft", state / "draft.jsonl", "tokens") as reporter:
        job = DraftJob(recipe, state, reporter, locate(recipe.model.path))
        if not resume:
            for name in ("draft.pt", "draft.jsonl", BEST):
                (state / name).unlink(missing_ok=True)
        run = recipe.run
        matrices = [p for p in job.trained.model.layers.parameters() if p.ndim == 2]
        loop = Loop(
            job,
            muon_and_adamw(
                job.trained, matrices, muon_lr=run.muon_lr, adamw_lr=run.adamw_lr, weight_decay=0.01
            ),
            Schedule(num_steps=run.num_steps, warmup_steps=run.warmup_steps, decay=run.decay),
            state / "draft.pt",
            fingerprint_of(recipe.decisive(), job.taught_by, job.source.facts),
            reporter,
            eval_steps=run.eval_steps,
            checkpoint_minutes=run.checkpoint_minutes,
        )
        if loop.train(deadline):
            job.export(output)
            if (state / "draft.jsonl").exists():
                shutil.copyfile(state / "draft.jsonl", output / "training_log.jsonl")
    return loop.progress


class DraftJob:
    """Answers of the source's rows, one group of rows after another."""

    def __init__(self, recipe: DraftRecipe, state: Path, reporter: Reporter, folder: str) -> None:
        """Opens the target in `folder` and the data (raises as `train_draft`)."""
        self.run, self.reporter, self.taught_by = recipe.run, reporter, weights_sha256(folder)
        self._best, self._stood = Best(state / BEST), 0.0
        dtype = getattr(torch, recipe.model.dtype)
        target = open_checkpoint(folder, "AutoModelForCausalLM", dtype=dtype)
        tokenizer = open_checkpoint(folder, "AutoTokenizer")
        self._target, self._head = LeanLlama(target, 0), target.get_output_embeddings()
        self.source = source_of(
            recipe.data,
            tokenizer=tokenizer,
            max_length=target.config.max_position_embeddings,
            folder=state,
        )
        if not isinstance(self.source, PoolSource) or self.source.facts["kind"] != "completions":
            raise ValueError("recipe: a draft is trained on [data] of kind 'completions'")
        self.trained = fresh_draft(target, recipe.draft)
        everywhere = "-prompts" if recipe.run.prompt_weight else ""
        self._cache = TeacherCache(
            state / f"teacher-{(self.taught_by or 'unknown')[-12:]}{everywhere}",
            self._logits,
            recipe.run.teacher_top,
        )
        frequent = self.source.frequent(recipe.run.head_words)
        self._frequent = torch.tensor(frequent, dtype=torch.int64)

    @torch.no_grad()
    def _logits(self, row: Row) -> Tensor:
        hidden, _ = self._target.context(torch.tensor([row.ids]))
        logits: Tensor = self._head(hidden[0, self._taught(row) - 1])
        return logits

    def _taught(self, row: Row) -> Tensor:
        """Places of the tokens that are learnt: the answer's, and the prompt's where it counts."""
        return torch.arange(1, len(row.ids)) if self.run.prompt_weight else _answer(row)

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Losses of this worker's groups of a step."""
        rows = sorted(self.source.rows(progress.step), key=lambda row: len(row.ids))
        rank, world = worker()
        rng = np.random.default_rng([self.run.seed, progress.step, rank])
        words_of = self.trained.lm_head.weight
        for group in groups(rows[rank::world], self.run.max_tokens):
            others = torch.from_numpy(rng.choice(len(words_of), self.run.negatives, replace=False))
            words = torch.unique(torch.cat([self._frequent, others]))
            head = ShortHead(words_of, words if self.run.head_words else words[:0])
            asked = self.run.label_share < 1  # labels alone need no teacher
            tops = [self._cache.top(row) for row in group] if asked else []
            places = [self._taught(row) for row in group]
            states, target = self._states(group, places)
            temperature, weight = self._importance(group, places)
            loss = taught_loss(
                states,
                head,
                target,
                _joined(tops) if asked else None,
                temperature,
                weight,
                label_share=self.run.label_share,
                overlap_share=0.0,
            )
            yield loss, len(target), sum(len(row.ids) for row in group)

    def _states(self, rows: Sequence[Row], places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Hidden states ``[M, D]`` before the tokens at each row's `places`, and those tokens."""
        width = max(len(row.ids) for row in rows)
        ids = torch.tensor([row.ids + [0] * (width - len(row.ids)) for row in rows])
        hidden = hidden_states(self.trained, ids, torch.float32)
        counts = torch.tensor([len(part) for part in places])
        line, place = torch.arange(len(rows)).repeat_interleave(counts), torch.cat(list(places))
        return hidden[line, place - 1], ids[line, place]

    def _importance(self, rows: Sequence[Row], places: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Temperatures and weights ``[M]`` of the tokens at each row's `places`."""
        temperatures, weights = [], []
        for row, part in zip(rows, places, strict=True):
            own = torch.tensor(row.learn)[part]
            of_answer = row.temperature or GREEDY_TEMPERATURE
            temperatures.append(torch.where(own, of_answer, 1.0))
            weights.append(torch.where(own, 1.0, self.run.prompt_weight))
        return torch.cat(temperatures), torch.cat(weights)

    @torch.no_grad()
    def evaluate(self, progress: TrainingProgress) -> None:
        """Held-out drafts that stand where the target's text is greedy, and how sure it is."""
        rows = rows_at(self.source.held_out(self.run.eval_rows), 0.0)
        stood, loss, count = [], 0.0, 0
        for row in rows:
            states, target = self._states([row], [_answer(row)])
            logits = self.trained.lm_head(states)
            loss += torch.nn.functional.cross_entropy(logits, target, reduction="sum").item()
            count += len(target)
            stood += leading_runs((logits.argmax(-1) == target).tolist())
        record = {
            "held_out": {
                "agreement": round(sum(run > 0 for run in stood) / max(1, count), 4),
                "drafts_that_stand": round(sum(stood) / max(1, count), 4),
                "of_drafts": MOST_DRAFTS,
                "loss": round(loss / max(1, count), 4),
                "rows": len(rows),
            },
            "parameters": sum(p.numel() for p in self.trained.parameters()),
        }
        held = record["held_out"]
        assert isinstance(held, dict)
        line = f"of {MOST_DRAFTS} drafts {held['drafts_that_stand']:.2f} stand, "
        line += f"agreement {held['agreement']:.3f}, loss {held['loss']:.3f}"
        self.reporter.evaluation(progress, line, record)
        self._stood = sum(stood) / max(1, count)
        self._best.offer(progress.step, self._stood, self.trained)

    def export(self, output: Path) -> None:
        """Writes the best model in float16, and whom it learnt from; its tokenizer is the target's.

        The best evaluation's: the one with the most drafts that stood.
        """
        output.mkdir(parents=True, exist_ok=True)
        fresh = type(self.trained)(self.trained.config)
        best = self._best.better_than(self._stood)
        fresh.load_state_dict(self.trained.state_dict() if best is None else best)
        fresh.to(torch.float16).save_pretrained(output)
        facts = {"target_weights_sha256": self.taught_by}
        (output / "draft.json").write_text(f"{json.dumps(facts)}\n", encoding="utf-8")


def fresh_draft(target: Any, table: DraftTable) -> Any:
    """A Llama of the recipe's sizes; its embeddings are the target's, projected to its width.

    Raises:
        ValueError: the draft to begin as has other sizes.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    of = target.config
    config = LlamaConfig(
        vocab_size=of.vocab_size,
        hidden_size=table.width,
        intermediate_size=table.intermediate,
        num_hidden_layers=table.layers,
        num_attention_heads=table.heads,
        num_key_value_heads=table.heads,
        max_position_embeddings=of.max_position_embeddings,
        rope_parameters=of.rope_parameters,
        tie_word_embeddings=True,
        bos_token_id=of.bos_token_id,
        eos_token_id=of.eos_token_id,
        pad_token_id=of.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(table.seed)  # noqa: TID251 - transformers draws from it; forked
        draft = LlamaForCausalLM(config)
    if table.initial is not None:
        _begin_as(draft, table.initial)
        return draft
    words = target.get_input_embeddings().weight.detach().float()
    _, directions = torch.linalg.eigh(words.T @ words)  # ascending
    projected = words @ directions[:, -table.width :]
    with torch.no_grad():
        scale = projected.square().mean().sqrt()
        draft.model.embed_tokens.weight.copy_(projected * (config.initializer_range / scale))
    return draft


def _begin_as(draft: Any, folder: str) -> None:
    weights = open_checkpoint(folder, "AutoModelForCausalLM").state_dict()
    sizes = {name: weight.shape for name, weight in draft.state_dict().items()}
    if {name: weight.shape for name, weight in weights.items()} != sizes:
        raise ValueError(f"recipe: draft.initial {folder} has other sizes than [draft] says")
    draft.load_state_dict(weights)


def leading_runs(right: Sequence[bool]) -> list[int]:
    """From each place on, how many of the next `MOST_DRAFTS` are right before the first wrong."""
    runs, run = [], 0
    for hit in reversed(right):
        run = run + 1 if hit else 0
        runs.append(min(run, MOST_DRAFTS))
    return runs[::-1]


def _answer(row: Row) -> Tensor:
    """Places of the learnt tokens of a row, its first token excepted."""
    return torch.tensor([place for place in range(1, len(row.ids)) if row.learn[place]])


def _joined(tops: Sequence[Top]) -> Top:
    return torch.cat([ids for ids, _ in tops]), torch.cat([logits for _, logits in tops])
