"""Greedy answers of a zoo model in batches, and how they score, family by family.

This is for watching training; `bench` measures quality with its own decoders.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from specbench_tasks.generators import generate
from specbench_tasks.scorers import PRIMARY, corpus_scores
from training.text.data import Encoder

_EVAL_SEED = 4_711


@torch.no_grad()
def _greedy_answers(
    model: Any, encoder: Encoder, prompts: Sequence[list[int]], max_new_tokens: int
) -> list[list[int]]:
    """Return greedy continuations of `prompts` (token ids) up to and without the end token."""
    if not prompts:
        return []
    width = max(map(len, prompts))
    device = next(model.parameters()).device
    ids = torch.tensor([[encoder.pad] * (width - len(p)) + list(p) for p in prompts], device=device)
    out = model.generate(
        input_ids=ids,
        attention_mask=(ids != encoder.pad).long(),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=encoder.end,
        pad_token_id=encoder.pad,
    )
    ends = (encoder.end, encoder.pad)
    return [
        list(itertools.takewhile(lambda token: token not in ends, row))
        for row in out[:, width:].tolist()
    ]


def chat_answers(
    model: Any, encoder: Encoder, turns: Sequence[Sequence[str]], max_new_tokens: int
) -> list[list[str]]:
    """Return greedy answers to every turn of conversations; later turns see these answers."""
    histories: list[list[int]] = [[] for _ in turns]
    answers: list[list[str]] = [[] for _ in turns]
    for depth in range(max(map(len, turns))):
        active = [i for i, texts in enumerate(turns) if len(texts) > depth]
        for i in active:
            histories[i] += [encoder.user, *encoder.text(turns[i][depth]), encoder.assistant]
        prompts = [histories[i] for i in active]
        answered = _greedy_answers(model, encoder, prompts, max_new_tokens)
        for i, ids in zip(active, answered, strict=True):
            histories[i] += [*ids, encoder.end]
            answers[i].append(encoder.tokenizer.decode(ids).strip())
    return answers


def family_scores(
    model: Any, encoder: Encoder, family: str, num: int, max_new_tokens: int
) -> dict[str, float]:
    """Return scores on `num` held-out examples.

    ``exact`` is added where answers are determined.
    """
    examples = list(itertools.islice(generate(family, "test", _EVAL_SEED), num))
    turns = [example.conversation.turns for example in examples]
    answers = chat_answers(model, encoder, turns, max_new_tokens)
    flat = [text for texts in answers for text in texts]
    references = [ref for ex in examples for ref in ex.conversation.references if ref is not None]
    scores = corpus_scores(family, flat, references)
    if family != "mt_bench":
        same = [got[0] == ex.responses[0] for got, ex in zip(answers, examples, strict=True)]
        scores["exact"] = sum(same) / len(same)
    scores["score"] = scores[PRIMARY[family]]
    return scores
