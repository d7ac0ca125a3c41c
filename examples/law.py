"""A law of the logits in one file: no three tokens of an answer occur twice in it.

    bench run --decoders lookup,spec --law examples/law.py:NoRepeats

The law changes what `ar` samples from, so every lossless decoder follows it, too: the rows that
verify drafts pass through the same function. In transformers it is ``no_repeat_ngram_size=3``,
whose own processor is a law as well (`of_library`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class NoRepeats:
    """Forbid each token that would repeat three tokens of the answer. Keeps no state."""

    def __init__(self, tokenizer: Any) -> None:
        """Take the tokenizer, by which a grammar finds the texts of tokens."""
        self.tokenizer = tokenizer

    def __call__(self, answer: tuple[int, ...], logits: Tensor) -> Tensor:
        """Return the logits ``[V]`` after an answer's ids so far."""
        last = answer[-2:]
        starts = range(len(answer) - 2)
        repeated = [answer[i + 2] for i in starts if len(last) == 2 and answer[i : i + 2] == last]
        logits[repeated] = float("-inf")
        return logits


def of_library(tokenizer: Any) -> Any:
    """Make the same law of a library's processor, as grammars are usually offered."""
    from transformers import NoRepeatNGramLogitsProcessor

    processor = NoRepeatNGramLogitsProcessor(3)
    return lambda answer, logits: processor(torch.tensor([answer]).long(), logits[None])[0]
