"""``vocab.json``: the text of every token id in a run, for reading a run without a model.

A piece is the text that an id adds after another token. It keeps leading spaces, which many
tokenizers drop at the start of a text. Bytes of a split character become the replacement character.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bench.records.files import write_json
from bench.records.json_file import read_json
from bench.records.prompts import Prompt
from bench.records.record import SampleRecord
from bench.text import printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VOCABULARY = "vocab.json"


def write_vocabulary(
    run_dir: Path,
    tokenizer: PreTrainedTokenizerBase,
    records: Iterable[SampleRecord],
    prompts: Sequence[Prompt],
) -> None:
    """Write `pieces_in` of a run to vocab.json."""
    write_json(run_dir / VOCABULARY, pieces_in(tokenizer, records, prompts), indent=0)


def pieces_in(
    tokenizer: PreTrainedTokenizerBase, records: Iterable[SampleRecord], prompts: Iterable[Prompt]
) -> dict[str, str]:
    """Return ``{"id": "piece"}`` for the ids in answers, rejected drafts and prompts."""
    ids = answered_ids(records).union(*(prompt.ids for prompt in prompts))
    return {str(token): piece for token, piece in sorted(vocabulary(tokenizer, ids).items())}


def answered_ids(records: Iterable[SampleRecord]) -> set[int]:
    """Return the ids in answers and in rejected drafts."""
    ids: set[int] = set()
    for record in records:
        ids.update(record.tokens or (), *(record.steps.rejected if record.steps else ()))
    return ids


def vocabulary(tokenizer: PreTrainedTokenizerBase, ids: Iterable[int]) -> dict[int, str]:
    """Return the piece of text of each id."""
    anchor = tokenizer.encode("a", add_special_tokens=False, verbose=False)[-1:]
    start = len(str(tokenizer.decode(anchor)))
    return {token: str(tokenizer.decode([*anchor, token]))[start:] for token in ids}


def read_pieces(run_dir: Path) -> Callable[[int], str]:
    """Return a function from id to printable text, <id> if unknown (`InvalidRunError`)."""
    pieces = read_json(run_dir / VOCABULARY) or {}
    return cache(lambda token: printable(str(pieces.get(str(token), f"<{token}>"))))
