"""What the model card of the zoo says: held-out loss, scores per family, and draft agreement.

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
from training.text.data import Encoder, group_rows
from training.zoo.evaluate import chat_answers
from training.zoo.job import batch_loss

_NUM_PROMPTS = 40
_LOSS_SEED = 90_001


def _measure_zoo(zoo: Path, num: int = _NUM_PROMPTS) -> dict[str, Any]:
    """Scores of target and draft on `num` test conversations per family, and their agreement."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    encoder = Encoder(AutoTokenizer.from_pretrained(zoo / "target"))
    models = {
        name: AutoModelForCausalLM.from_pretrained(
            zoo / name, dtype=torch.float32, use_safetensors=True
        )
        for name in ("target", "draft")
    }
    result: dict[str, Any] = {"prompts_per_family": num}
    answers: dict[str, list[list[str]]] = {}
    for name, model in models.items():
        scores = {}
        for family in FAMILIES:
            conversations = zoo_conversations(family, num)
            answered = chat_answers(model, encoder, [c.turns for c in conversations])
            if name == "target":
                answers[family] = answered
            references = [r for c in conversations for r in c.references if r is not None]
            texts = [text for texts in answered for text in texts]
            scores[family] = corpus_scores(family, texts, references)
        result[name] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "held_out_loss": {
                family: _held_out_loss(model, encoder, family) for family in FAMILIES
            },
            "scores": scores,
        }
    result["agreement"] = {
        family: agreement(models, encoder, family, answers[family]) for family in FAMILIES
    }
    return result


@torch.no_grad()
def _held_out_loss(model: Any, encoder: Encoder, family: str, num: int = 200) -> float:
    """Mean cross-entropy in nats per answer token over `num` held-out examples."""
    examples = itertools.islice(generate(family, "test", _LOSS_SEED), num)
    batches = group_rows([encoder.row(example) for example in examples], encoder.pad, 4000)
    device = torch.device("cpu")
    total = sum(batch_loss(model, batch, torch.float32, device).item() for batch in batches)
    return total / sum(len(batch.targets) for batch in batches)


@torch.no_grad()
def agreement(
    models: dict[str, Any], encoder: Encoder, family: str, answers: list[list[str]]
) -> float:
    """Share of positions of the target's greedy answers where the draft's argmax is that token."""
    same = total = 0
    for conversation, texts in zip(zoo_conversations(family, len(answers)), answers, strict=True):
        ids: list[int] = []
        places: list[int] = []
        for turn, text in zip(conversation.turns, texts, strict=True):
            ids += [encoder.user, *encoder.text(turn), encoder.assistant]
            answer = [*encoder.text(text), encoder.end]
            places += range(len(ids), len(ids) + len(answer))
            ids += answer
        row = torch.tensor([ids])
        guesses = models["draft"](row).logits[0].argmax(-1)
        chosen = torch.tensor(places)
        same += int((guesses[chosen - 1] == row[0, chosen]).sum())
        total += len(places)
    return same / total


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    text = json.dumps(_measure_zoo(folder), indent=1)
    (folder / "scores.json").write_text(text + "\n", encoding="utf-8")
