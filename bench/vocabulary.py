"""``vocab.json``: the text of every token id that occurs in a run, to read it without a model.

A piece is what an id adds to the text before it, found by decoding it after another token: leading
spaces, which many tokenizers drop at a text's start, survive. Bytes of a character split over
several tokens show as the replacement character.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.files import write_text
from bench.prompts import Prompt
from bench.records import SampleRecord
from bench.workbench import Codec

VOCABULARY = "vocab.json"


def write_vocabulary(
    run_dir: Path,
    tokenizer: Codec,
    records: Iterable[SampleRecord],
    prompts: Sequence[Prompt],
) -> None:
    """Write ``{"id": "piece"}`` for the ids in answers and prompts (errors: `BenchError`, 1)."""
    ids = {token for record in records for token in record.tokens or ()}
    ids |= {token for prompt in prompts for token in prompt.ids}
    pieces = {str(token): piece for token, piece in sorted(vocabulary(tokenizer, ids).items())}
    write_text(run_dir / VOCABULARY, json.dumps(pieces, ensure_ascii=False, indent=0) + "\n")


def vocabulary(tokenizer: Codec, ids: Iterable[int]) -> dict[int, str]:
    """The piece of text each id stands for."""
    anchor = tokenizer.encode("a", add_special_tokens=False, verbose=False)[-1:]
    start = len(str(tokenizer.decode(anchor)))
    return {token: str(tokenizer.decode([*anchor, token]))[start:] for token in ids}
