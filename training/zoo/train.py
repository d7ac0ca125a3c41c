"""Train the zoo's tokenizer, target and draft from one recipe: ``bench train zoo`` (resumable).

Writes finished models to ``OUTPUT/target`` and ``OUTPUT/draft`` as Hugging Face checkpoints.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import AutoTokenizer

from specbench_tasks.generators import generate
from specbench_tasks.scorers import PRIMARY, corpus_bleu, score
from specbench_tasks.task import FAMILIES
from training.forward import fresh_llama, last_states
from training.loop import Piece, fingerprint, muon_and_adamw
from training.recipe import Count, LoopTable, NotNegative, Rate, Recipe, RecipeTable, Seed, Share
from training.reporter import TrainingProgress
from training.run import JobContext, TrainingOptions, train_jobs
from training.text.data import Encoder, learnt, padded, worker_groups
from training.text.tokenizer import build_tokenizer
from training.workers import worker


class _TokenizerTable(RecipeTable):
    """[tokenizer]: see `training.text.tokenizer.build_tokenizer`."""

    num_examples: Count
    num_merges: NotNegative
    seed: Seed


class _DataTable(RecipeTable):
    """[data]: rows per step and family, more for families that still fail if `adaptive`."""

    seed: Seed
    max_tokens: Count
    adaptive: bool
    counts: dict[str, NotNegative]


class _ZooRunTable(RecipeTable):
    """[run]: settings of both models (see `LoopTable`), with `eval_prompts` per family."""

    workers: Count
    eval_steps: Count
    eval_prompts: Count
    eval_max_new_tokens: Count
    checkpoint_minutes: float


class SizeTable(RecipeTable):
    """[target] and [draft]: sizes, training length and learning rates of a model.

    `num_repeated` repeated random sequences per step fade out over `repeated_steps` steps.
    """

    width: Count
    layers: Count
    heads: Count
    intermediate: Count
    num_steps: Count
    warmup_steps: NotNegative
    decay: Share
    muon_lr: Rate
    adamw_lr: Rate
    num_repeated: NotNegative
    repeated_steps: NotNegative
    seed: Seed


class ZooRecipe(Recipe):
    """Define a recipe of `training.zoo.train`."""

    tokenizer: _TokenizerTable
    data: _DataTable
    run: _ZooRunTable
    target: SizeTable
    draft: SizeTable


class ZooJob:
    """Train one model on fresh conversations from the grammars."""

    def __init__(self, name: str, recipe: ZooRecipe, context: JobContext) -> None:
        self.sizes: SizeTable = getattr(recipe, name)
        self.name, self.data, self.settings = name, recipe.data, recipe.run
        self.device, self.reporter = context.device, context.reporter
        self.run = LoopTable(
            **self.sizes.model_dump(include={"num_steps", "warmup_steps", "decay", "adamw_lr"}),
            **recipe.run.model_dump(include={"eval_steps", "checkpoint_minutes"}),
        )
        self.tokenizer = AutoTokenizer.from_pretrained(context.output / ".training" / "tokenizer")
        self.encoder = Encoder(self.tokenizer)
        self.trained = build_model(self.sizes, len(self.tokenizer), self.encoder).to(self.device)
        free: Any = {name: {"num_steps"}, "run": {"checkpoint_minutes"}}
        decisive = recipe.model_dump(include={"tokenizer", "data", "run", name}, exclude=free)
        self.fingerprint = fingerprint(decisive)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return Muon for the layers' matrices, AdamW for embeddings and norms."""
        matrices = self.trained.model.layers.parameters()
        return muon_and_adamw(self.trained, matrices, self.sizes, weight_decay=0.01)

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Yield the losses of this worker's groups of a step."""
        step, sizes = progress.step, self.sizes
        fade = 1 - step / sizes.repeated_steps if sizes.repeated_steps else 0.0
        repeated = round(sizes.num_repeated * max(0.0, fade))
        rows = self.encoder.rows(progress.counts or self.data.counts, self.data.seed, step)
        rows += self.encoder.repeated(repeated, self.data.seed, step)
        for group in worker_groups(rows, self.data.max_tokens):
            ids = padded(group, self.encoder.pad).to(self.device)
            targets = learnt(group).to(self.device)
            with torch.autocast(self.device.type, torch.bfloat16):
                states = last_states(self.trained, input_ids=ids)[:, :-1][targets[:, 1:]]
                logits = self.trained.lm_head(states)
            labels = ids[targets]
            loss = F.cross_entropy(logits.float(), labels, reduction="sum")
            yield loss, len(labels), len(group) * len(group[-1].ids)

    def evaluate(self, progress: TrainingProgress) -> None:
        """Score every family (split among the workers) and adapt the mix of families."""
        rank, world = worker()
        options = self.settings.eval_prompts, self.settings.eval_max_new_tokens
        part_scores = {
            family: _family_scores(self.trained, self.encoder, family, *options)
            for family in FAMILIES[rank::world]
        }
        gathered: list[Any] = [part_scores]
        if world > 1:
            gathered = [None] * world
            dist.all_gather_object(gathered, part_scores)
        by_family = {family: value for part in gathered for family, value in part.items()}
        scores: dict[str, dict[str, float]] = {family: by_family[family] for family in FAMILIES}
        shown = [
            f"{family} {row['score']:.2f}" + (f"/{row['exact']:.2f}" if "exact" in row else "")
            for family, row in scores.items()
        ]
        record = {"scores": scores, "counts": progress.counts or self.data.counts}
        self.reporter.evaluation(progress, f"score/exact: {', '.join(shown)}", record)
        if self.data.adaptive:
            shares = {family: row.get("exact", row["score"]) for family, row in scores.items()}
            progress.counts = adapted_counts(self.data.counts, shares)

    def export(self, output: Path) -> None:
        """Write the model in bfloat16 and its tokenizer as a Hugging Face checkpoint."""
        folder = output / self.name
        # The cast is in place and tied weights are shared; a copy keeps the float32 weights.
        fresh = build_model(self.sizes, len(self.tokenizer), self.encoder)
        fresh.load_state_dict(self.trained.state_dict())
        fresh.to(torch.bfloat16).save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def build_model(sizes: SizeTable, vocab_size: int, encoder: Encoder) -> Any:
    """Return a fresh `LlamaForCausalLM` with the sizes and seed of [target] or [draft]."""
    ids = {"bos_token_id": None, "eos_token_id": encoder.end, "pad_token_id": encoder.pad}
    return fresh_llama(sizes, vocab_size=vocab_size, max_position_embeddings=1024, **ids)


def adapted_counts(base: dict[str, int], scores: dict[str, float]) -> dict[str, int]:
    """Return rows per family until the next evaluation, with more for families that still fail.

    The total stays about the same. A family's weight is ``base * (0.4 + 1 - score)``, and each
    family keeps at least two rows.
    """
    weights = {family: base[family] * (1.4 - scores[family]) for family in base}
    factor = sum(base.values()) / sum(weights.values())
    return {family: max(2, round(weight * factor)) for family, weight in weights.items()}


def write_tokenizer(recipe: ZooRecipe, output: Path, *specials: str) -> None:
    """Write the recipe's tokenizer, with further special tokens, to where its jobs read it."""
    tokenizer = build_tokenizer(**recipe.tokenizer.model_dump())
    tokenizer.add_special_tokens({"additional_special_tokens": [*specials]})
    tokenizer.save_pretrained(output / ".training" / "tokenizer")


MODELS = ("target", "draft")


def train_zoo(tables: dict[str, Any], output: Path, **options: Unpack[TrainingOptions]) -> None:
    """Train the models of a recipe into `output`. Resuming does not retrain finished models."""
    recipe = ZooRecipe.of(tables)
    write_tokenizer(recipe, output)
    builds = {name: partial(ZooJob, name) for name in MODELS}
    train_jobs(builds, recipe, output, options)


EVAL_SEED = 4_711


@torch.no_grad()
def _chat_answers(
    model: Any, encoder: Encoder, turns: Sequence[Sequence[str]], max_new_tokens: int
) -> list[list[str]]:
    """Return greedy answers to every turn of conversations, each with the answers before."""
    histories: list[list[int]] = [[] for _ in turns]
    answers: list[list[str]] = [[] for _ in turns]
    device, ends = next(model.parameters()).device, (encoder.end, encoder.pad)
    for depth in range(max(map(len, turns))):
        active = [i for i, texts in enumerate(turns) if len(texts) > depth]
        for i in active:
            histories[i] += [encoder.user, *encoder.text(turns[i][depth]), encoder.assistant]
        width = max(len(histories[i]) for i in active)
        prompts = [[encoder.pad] * (width - len(histories[i])) + histories[i] for i in active]
        ids = torch.tensor(prompts, device=device)
        out = model.generate(
            input_ids=ids,
            attention_mask=(ids != encoder.pad).long(),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            eos_token_id=encoder.end,
            pad_token_id=encoder.pad,
        )
        for i, row in zip(active, out[:, width:].tolist(), strict=True):
            answer = list(itertools.takewhile(lambda token: token not in ends, row))
            histories[i] += [*answer, encoder.end]
            answers[i].append(encoder.tokenizer.decode(answer).strip())
    return answers


def _family_scores(
    model: Any, encoder: Encoder, family: str, num: int, max_new_tokens: int
) -> dict[str, float]:
    """Return scores on `num` held-out examples, with ``exact`` if the family has fixed answers."""
    examples = list(itertools.islice(generate(family, "test", EVAL_SEED), num))
    answers = _chat_answers(model, encoder, [each.turns for each in examples], max_new_tokens)
    flat = [text for texts in answers for text in texts]
    references = [ref for ex in examples for ref in ex.references if ref is not None]
    pairs = [*zip(flat, references, strict=True)]
    rows = [score(family, *pair) for pair in pairs]
    scores = {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}
    if family == "translation":
        scores["bleu"] = corpus_bleu([(text, gold.answers) for text, gold in pairs])
    if family != "mt_bench":
        same = [answer[0] == ex.responses[0] for answer, ex in zip(answers, examples, strict=True)]
        scores["exact"] = sum(same) / len(same)
    scores["score"] = scores[PRIMARY[family]]
    return scores
