"""Train a block-diffusion model on the zoo's text: ``bench train dllm`` (resumable).

A row is one turn with its history, filled up with end tokens to whole blocks. The model reads the
clean row and two noisy copies of the blocks with answer tokens. A noisy block sees itself and the
clean blocks before it, as in decoding (BD3LM, arXiv 2503.09573, section 3). What one copy masks,
the other shows (complementary masks, Fast-dLLM v2, arXiv 2509.26328).

Letters: B rows, T positions, M noisy positions of a copy, N = T + 2 M rows of the pass, S block.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specbench_tasks.generators import generate
from specbench_tasks.task import FAMILIES
from training.forward import additive
from training.loop import Piece
from training.recipe import Count, RecipeTable, Share
from training.reporter import TrainingProgress
from training.run import TrainingOptions, train_recipe
from training.text.data import Row, padded, step_rows, worker_groups
from training.text.tokenizer import build_tokenizer
from training.workers import worker
from training.zoo.train import EVAL_SEED, SizeTable, ZooJob, ZooRecipe

MASK = "<|mask|>"


class _MasksTable(RecipeTable):
    """[masks]: tokens of a block, and the share of blocks that one copy masks whole."""

    block: Count
    hidden: Share


class MaskedRecipe(ZooRecipe):
    """A recipe of `training.zoo.dllm`: the zoo's, with a further model."""

    dllm: SizeTable
    masks: _MasksTable


class MaskedJob(ZooJob):
    """Trains a model that predicts masked tokens of a block, each in its row."""

    def __init__(self, recipe: MaskedRecipe, output: Path, *arguments: Any) -> None:
        super().__init__("dllm", recipe, output, *arguments)
        self.masks = recipe.masks
        self.mask_id: Any = self.tokenizer.convert_tokens_to_ids(MASK)
        self.fingerprint += f"-{recipe.masks.block}-{recipe.masks.hidden}"

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Yield the losses of this worker's groups of a step."""
        rows = step_rows(self.encoder, self.data.counts, 0, self.data.seed, progress.step)
        rng = np.random.default_rng([self.data.seed, progress.step, worker()[0]])
        for group in worker_groups(self._turns(rows), self.data.max_tokens):
            logits, labels = self._predictions(group, rng)
            yield F.cross_entropy(logits, labels, reduction="sum"), len(labels), logits.shape[0]

    def _turns(self, rows: Sequence[Row]) -> list[Row]:
        """Return a row per answer, with whole blocks and only this answer learnt."""
        turns = []
        for row in rows:
            for stop in (i + 1 for i, token in enumerate(row.ids) if token == self.encoder.end):
                start = stop - row.learn[:stop][::-1].index(False)
                filler = -stop % self.masks.block
                ids = row.ids[:stop] + [self.encoder.end] * filler
                turns.append(Row(ids, [False] * start + [True] * (len(ids) - start)))
        return turns

    def _predictions(self, rows: Sequence[Row], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Return logits ``[L, V]`` of the masked tokens of `rows`, and these tokens ``[L]``."""
        size, ids = self.masks.block, padded(rows, self.encoder.end)
        first = [row.learn.index(True) // size * size for row in rows]
        places = pad_sequence(
            [torch.arange(start, len(row.ids)) for start, row in zip(first, rows, strict=True)],
            batch_first=True,
            padding_value=-size,
        )
        learn = pad_sequence([torch.tensor(row.learn) for row in rows], batch_first=True)
        learn = learn.gather(1, places.clamp(min=0)) & (places >= 0)
        tokens = ids.gather(1, places.clamp(min=0))
        ratios = torch.from_numpy(rng.random((len(rows), ids.shape[1] // size)))
        ratios[torch.from_numpy(rng.random(ratios.shape)) < self.masks.hidden] = 1.0
        ratio = ratios.gather(1, places.clamp(min=0) // size)
        hidden = torch.from_numpy(rng.random(places.shape)) < ratio
        masked = torch.cat([learn & hidden, learn & ~hidden], 1)
        twice = torch.cat([tokens, tokens], 1)
        noisy = twice.masked_fill(masked, self.mask_id)
        columns = torch.arange(ids.shape[1]).expand(len(rows), -1)
        positions = torch.cat([columns, places, places], 1)
        copy = torch.tensor([0, 1, 2]).repeat_interleave(
            torch.tensor([ids.shape[1], places.shape[1], places.shape[1]])
        )
        block = positions // size
        same = (copy[:, None] == copy) & (block[:, :, None] == block[:, None])
        visible = same | ((copy == 0) & (block[:, None] < block[:, :, None]))
        with torch.autocast(self.device.type, torch.bfloat16):
            states = self.trained.model(
                input_ids=torch.cat([ids, noisy], 1).to(self.device),
                position_ids=positions.clamp(min=0).to(self.device),
                attention_mask=additive(~visible[:, None], torch.float32).to(self.device),
                use_cache=False,
            ).last_hidden_state
            logits = self.trained.lm_head(states[:, ids.shape[1] :][masked.to(self.device)])
        return logits.float(), twice[masked].to(self.device)

    @torch.no_grad()
    def evaluate(self, progress: TrainingProgress) -> None:
        """Report loss and accuracy on held-out text, under masks as in training."""
        record: dict[str, Any] = {}
        for family in FAMILIES:
            texts = itertools.islice(
                generate(family, "test", EVAL_SEED), self.settings.eval_prompts
            )
            rng = np.random.default_rng(EVAL_SEED)
            loss, right, count = 0.0, 0, 0
            for group in worker_groups(
                self._turns([*map(self.encoder.row, texts)]), self.data.max_tokens
            ):
                logits, labels = self._predictions(group, rng)
                loss += F.cross_entropy(logits, labels, reduction="sum").item()
                right += int((logits.argmax(-1) == labels).sum())
                count += len(labels)
            record[family] = {"accuracy": round(right / count, 4), "loss": round(loss / count, 4)}
        line = ", ".join(f"{family} {row['accuracy']:.3f}" for family, row in record.items())
        self.reporter.evaluation(progress, f"accuracy of masks: {line}", {"held_out": record})

    def export(self, output: Path) -> None:
        """Write the checkpoint, whose configuration says what it is (`decoders.core.hf.masked`)."""
        super().export(output)
        file = output / self.name / "config.json"
        facts = {"is_causal": False, "mask_token_id": self.mask_id, "block_size": self.masks.block}
        config = json.loads(file.read_text(encoding="utf-8")) | facts
        file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def train_masked(
    tables: dict[str, Any], output: Path, **options: Unpack[TrainingOptions]
) -> TrainingProgress:
    """Train a recipe's masked model into ``output/dllm`` and return its progress."""
    recipe, tokenizer = MaskedRecipe.of(tables), output / ".training" / "tokenizer"
    if not tokenizer.exists():
        built = build_tokenizer(**recipe.tokenizer.model_dump())
        built.add_special_tokens({"additional_special_tokens": [MASK]})
        built.save_pretrained(tokenizer)
    return train_recipe("dllm", recipe, MaskedJob, output, options)
