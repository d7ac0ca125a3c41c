"""Figures of the zoo's model card: held-out loss, scores per family, and draft agreement.

``python -m training.zoo.measure zoo`` measures the saved half-precision checkpoints in fp32 on the
first 40 of the zoo's fixed test conversations per family and writes ``zoo/scores.json``.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch

from specbench_tasks.generators import generate, zoo_conversations
from specbench_tasks.scorers import corpus_scores
from specbench_tasks.task import FAMILIES
from training.text.data import Encoder, groups
from training.zoo.evaluate import chat_answers
from training.zoo.train import rows_loss

_NUM_PROMPTS = 40
_LOSS_SEED = 90_001


def _measure_zoo(zoo: Path, num: int = _NUM_PROMPTS) -> dict[str, Any]:
    """Score target and draft on `num` test conversations per family, and their agreement."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    encoder = Encoder(AutoTokenizer.from_pretrained(zoo / "target"))
    models: dict[str, Any] = {
        name: AutoModelForCausalLM.from_pretrained(
            zoo / name, dtype=torch.float32, use_safetensors=True
        )
        for name in ("target", "draft")
    }
    result: dict[str, Any] = {"prompts_per_family": num}
    asked = {family: zoo_conversations(family, num) for family in FAMILIES}
    answers: dict[str, dict[str, list[list[str]]]] = {}
    for name, model in models.items():
        scores, answers[name] = {}, {}
        for family, conversations in asked.items():
            answered = chat_answers(model, encoder, [c.turns for c in conversations])
            answers[name][family] = answered
            references = [r for c in conversations for r in c.references if r is not None]
            texts = [text for texts in answered for text in texts]
            scores[family] = corpus_scores(family, texts, references)
        loss = {family: _held_out_loss(model, encoder, family) for family in FAMILIES}
        parameters = sum(p.numel() for p in model.parameters())
        result[name] = {"parameters": parameters, "held_out_loss": loss, "scores": scores}
    result["agreement"] = {
        family: agreement(models["draft"], encoder, family, answers["target"][family])
        for family in FAMILIES
    }
    return result


@torch.no_grad()
def _held_out_loss(model: Any, encoder: Encoder, family: str, num: int = 200) -> float:
    """Return mean cross-entropy in nats per answer token over `num` held-out examples."""
    examples = itertools.islice(generate(family, "test", _LOSS_SEED), num)
    total, count = 0.0, 0
    for group in groups(map(encoder.row, examples), 4000):
        loss, num = rows_loss(model, group, encoder.pad, torch.float32, torch.device("cpu"))
        total, count = total + loss.item(), count + num
    return total / count


@torch.no_grad()
def agreement(draft: Any, encoder: Encoder, family: str, answers: list[list[str]]) -> float:
    """Return the share of tokens of the target's greedy answers that are the draft's argmax."""
    same: list[bool] = []
    for conversation, texts in zip(zoo_conversations(family, len(answers)), answers, strict=True):
        ids: list[int] = []
        indices: list[int] = []
        for turn, text in zip(conversation.turns, texts, strict=True):
            ids += [encoder.user, *encoder.text(turn), encoder.assistant]
            answer = [*encoder.text(text), encoder.end]
            indices += range(len(ids), len(ids) + len(answer))
            ids += answer
        guesses = draft(torch.tensor([ids])).logits[0].argmax(-1).tolist()
        same += [guesses[index - 1] == ids[index] for index in indices]
    return sum(same) / len(same)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    text = json.dumps(_measure_zoo(folder), indent=1)
    (folder / "scores.json").write_text(text + "\n", encoding="utf-8")
