"""``vocab.json``: the text of every token id that occurs in a run, to read it without a model.

A piece is what an id adds to the text before it, found by decoding it after another token: leading
spaces, which many tokenizers drop at a text's start, survive. Bytes of a character split over
several tokens show as the replacement character.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from bench.records.files import write_text
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord

VOCABULARY = "vocab.json"


Message = dict[str, str]


def write_vocabulary(
    run_dir: Path,
    tokenizer: Codec,
    records: Iterable[SampleRecord],
    prompts: Sequence[Prompt],
) -> None:
    """Write ``{"id": "piece"}`` for the ids in answers and prompts.

    Raises:
        BenchError: exit 1.
    """
    ids = {token for record in records for token in record.tokens or ()}
    ids |= {token for prompt in prompts for token in prompt.ids}
    pieces = {str(token): piece for token, piece in sorted(vocabulary(tokenizer, ids).items())}
    write_text(run_dir / VOCABULARY, json.dumps(pieces, ensure_ascii=False, indent=0) + "\n")


def vocabulary(tokenizer: Codec, ids: Iterable[int]) -> dict[int, str]:
    """The piece of text each id stands for."""
    anchor = tokenizer.encode("a", add_special_tokens=False, verbose=False)[-1:]
    start = len(str(tokenizer.decode(anchor)))
    return {token: str(tokenizer.decode([*anchor, token]))[start:] for token in ids}


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any
    bos_token_id: int | None

    def apply_chat_template(
        self, conversation: list[Message], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        """The conversation as one text (``tokenize=False``), ready for the next answer."""

    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool) -> list[int]:
        """Token ids of a text (``verbose=False``: no log line about texts past the context)."""


class Codec(Tokenizer, Protocol):
    """A tokenizer that also turns ids into text."""

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> Any:
        """The text of token ids."""
