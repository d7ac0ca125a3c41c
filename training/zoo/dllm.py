"""Train a block-diffusion model on the zoo's text: ``bench train dllm`` (resumable).

A row is one turn with its history, filled up with end tokens to whole blocks. The model reads the
clean row and two noisy copies of the blocks with answer tokens. A noisy block sees itself and the
clean blocks before it, as in decoding (BD3LM, arXiv 2503.09573, section 3). Each copy shows the
tokens that the other copy masks (complementary masks, Fast-dLLM v2, arXiv 2509.26328).

Letters: B rows, T positions, M noisy positions of a copy, N = T + 2 M rows of the pass, S block.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specbench_tasks.generators import generate
from specbench_tasks.task import FAMILIES
from training.forward import additive, last_states
from training.loop import Piece
from training.recipe import Count, RecipeTable, Share
from training.reporter import TrainingProgress
from training.run import JobContext, TrainingOptions, train_jobs
from training.text.data import Row, padded, worker_groups
from training.workers import worker
from training.zoo.train import EVAL_SEED, SizeTable, ZooJob, ZooRecipe, write_tokenizer

MASK = "<|mask|>"


class _MasksTable(RecipeTable):
    """[masks]: tokens of a block, and the share of blocks that one copy masks completely."""

    block: Count
    hidden: Share


class MaskedRecipe(ZooRecipe):
    """Define a recipe of `training.zoo.dllm`: the zoo's recipe, with a further model."""

    dllm: SizeTable
    masks: _MasksTable


class MaskedJob(ZooJob):
    """Train a model that predicts masked tokens of a block, each in its row."""

    def __init__(self, recipe: MaskedRecipe, context: JobContext) -> None:
        super().__init__("dllm", recipe, context)
        self.masks = recipe.masks
        self.mask_id: Any = self.tokenizer.convert_tokens_to_ids(MASK)
        self.fingerprint += f"-{recipe.masks.block}-{recipe.masks.hidden}"

    def pieces(self, progress: TrainingProgress) -> Iterator[Piece]:
        """Yield the losses of this worker's groups of a step."""
        rows = self.encoder.rows(self.data.counts, self.data.seed, progress.step)
        rng = np.random.default_rng([self.data.seed, progress.step, worker()[0]])
        for group in worker_groups(self._turns(rows), self.data.max_tokens):
            logits, labels = self._predictions(group, rng)
            yield F.cross_entropy(logits, labels, reduction="sum"), len(labels), logits.shape[0]

    def _turns(self, rows: Iterable[Row]) -> list[Row]:
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
        learn = pad_sequence([torch.tensor(row.learn) for row in rows], batch_first=True)
        starts = [row.learn.index(True) // size * size for row in rows]
        noisy = [torch.arange(s, len(row.ids)) for s, row in zip(starts, rows, strict=True)]
        places = pad_sequence(noisy, batch_first=True, padding_value=-size)  # [B, M]
        at = places.clamp(min=0)
        ratios = rng.random((len(rows), ids.shape[1] // size))
        ratios[rng.random(ratios.shape) < self.masks.hidden] = 1.0
        ratio = torch.from_numpy(ratios).gather(1, at // size)
        hidden = torch.from_numpy(rng.random(at.shape)) < ratio
        learnt = learn.gather(1, at) & (places >= 0)
        masked = torch.cat([learnt & hidden, learnt & ~hidden], 1)
        tokens = ids.gather(1, at).repeat(1, 2)
        shown = torch.cat([ids, tokens.masked_fill(masked, self.mask_id)], 1)
        whole = torch.arange(ids.shape[1]).expand(len(rows), -1)
        positions = torch.cat([whole, places, places], 1)
        block = positions // size
        counts = torch.tensor([ids.shape[1], *[places.shape[1]] * 2])
        copy = torch.arange(3).repeat_interleave(counts)  # 0: the clean row
        same = (copy[:, None] == copy) & (block[:, :, None] == block[:, None])
        visible = same | ((copy == 0) & (block[:, None] < block[:, :, None]))
        with torch.autocast(self.device.type, torch.bfloat16):
            states = last_states(
                self.trained,
                input_ids=shown.to(self.device),
                position_ids=positions.clamp(min=0).to(self.device),
                attention_mask=additive(~visible[:, None], torch.float32).to(self.device),
            )
            logits = self.trained.lm_head(states[:, ids.shape[1] :][masked.to(self.device)])
        return logits.float(), tokens[masked].to(self.device)

    @torch.no_grad()
    def evaluate(self, progress: TrainingProgress) -> None:
        """Report loss and accuracy on held-out text, under masks as in training."""
        record, num = dict[str, Any](), self.settings.eval_prompts
        for family in FAMILIES:
            texts = itertools.islice(generate(family, "test", EVAL_SEED), num)
            rows, rng = self._turns(map(self.encoder.row, texts)), np.random.default_rng(EVAL_SEED)
            parts = [self._predictions([row], rng) for row in rows]
            logits, labels = (torch.cat(each) for each in zip(*parts, strict=True))
            right = (logits.argmax(-1) == labels).float().mean().item()
            loss = F.cross_entropy(logits, labels).item()
            record[family] = {"accuracy": round(right, 4), "loss": round(loss, 4)}
        line = ", ".join(f"{family} {row['accuracy']:.3f}" for family, row in record.items())
        self.reporter.evaluation(progress, f"accuracy of masks: {line}", {"held_out": record})

    def export(self, output: Path) -> None:
        """Write the checkpoint, whose configuration has the model's form (`masked_form`)."""
        super().export(output)
        file = output / self.name / "config.json"
        facts = {"is_causal": False, "mask_token_id": self.mask_id, "block_size": self.masks.block}
        facts = json.loads(file.read_text(encoding="utf-8")) | facts
        file.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def train_masked(tables: dict[str, Any], output: Path, **options: Unpack[TrainingOptions]) -> None:
    """Train a recipe's masked model into ``output/dllm``."""
    recipe = MaskedRecipe.of(tables)
    write_tokenizer(recipe, output, MASK)
    train_jobs({"dllm": MaskedJob}, recipe, output, options)
