"""Read documents and conversations from files and datasets, as training rows and as prompts.

A record (a row of a file or dataset) has a conversation in ``messages`` or ``conversations`` (the
formats of OpenAI and ShareGPT, `specbench_tasks.shapes`), or a document in ``text``. Where only
prompts are read, it may have the fields of a file for ``--tasks`` instead.

A conversation is rendered with the tokenizer's chat template. The assistant's tokens are learnt, up
to the token that ends each answer. Rendering the prompt of every answer locates them, with any
template. Without a template (texts are then joined by newlines, as in `bench`) or without answers,
everything but the first token is learnt, as in a document.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.plan.template import TemplateEndless, chat_template
from specbench_tasks.loaders import open_dataset
from specbench_tasks.shapes import Message, read_messages, read_prompt
from specbench_tasks.tables import read_table, short
from training.text.data import Row

_CONVERSATIONS = ("messages", "conversations")
BLOCK_CHARACTERS = 2**20
"""Size of a block of whole lines. A long document is tokenised by block to bound the memory."""

_DATE = "2026-01-01"
"""The date that every chat template writes: tomorrow's run has the same rows, and resumes."""

T = TypeVar("T")
Document = str | list[Message]


def read_documents(
    kind: str,
    use: Callable[[Document], T],
    *,
    path: str,
    config: str | None = None,
    split: str = "train",
    limit: int | None = None,
    prompts_only: bool = False,
) -> Iterator[T]:
    """Yield `use(document)` for every document of a file or a dataset, in order.

    Args:
        kind: ``text``: a file; ``dataset``: a hub id, folder or file.
        use: function of a document; its `ValueError` gets the document's place.
        path: the file or dataset. A file of text whose name ends in ``.txt`` is one document;
            everything else has one per row.
        config: configuration of a dataset that has several.
        split: split of a dataset.
        limit: number of rows to read, from the first on; None: all.
        prompts_only: let rows be prompts, and each non-blank line of a ``.txt`` file a document.

    Raises:
        ValueError: the source is missing, empty, of another kind or not UTF-8.
    """
    file = Path(path).expanduser()
    if kind == "text" and file.suffix == ".txt":
        yield from map(use, _read_texts(file, by_line=prompts_only))
        return
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; it must be 1 or above (rows of the dataset)")
    where, rows = read_table(file) if kind == "text" else open_dataset(path, config, split)
    for number, record in itertools.islice(rows, limit):
        try:
            used = use(_document(record, prompts_only))
        except ValueError as error:
            raise ValueError(f"{where} {number}: {error}") from error
        yield used


def _read_texts(file: Path, *, by_line: bool) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}; give an existing file") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error.reason} at {error.start})") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{file} is empty; give a file with text")
    return lines if by_line else [text]


def cut_rows(document: Document, tokenizer: Any, max_tokens: int) -> list[Row]:
    """Return rows of at most `max_tokens` tokens.

    A document too short to learn gives no rows. A document is cut into consecutive rows. Each
    begins with the BOS token if the tokenizer puts one before a text. A conversation is truncated.
    If the chat template refuses the conversation, raise `ValueError`.
    """
    if not isinstance(document, str):
        if not tokenizer.chat_template:
            text = "\n".join(message["content"] for message in document)
            return cut_rows(text, tokenizer, max_tokens)
        return [_chat_row(document, tokenizer, max_tokens)]
    opening = _opening(tokenizer)
    body = [token for block in _blocks(document) for token in _encode(tokenizer, block)]
    size = max_tokens - len(opening)
    cuts = [opening + body[start : start + size] for start in range(0, len(body), size)]
    return [_learnt_whole(ids) for ids in cuts if len(ids) > 1]


def first_prompt(document: Document, tokenizer: Any) -> list[int]:
    """Return a document's ids, or a conversation's ids up to the first answer, as a prompt."""
    if isinstance(document, str):
        return _opening(tokenizer) + _encode(tokenizer, document)
    users = (i for i, message in enumerate(document) if message["role"] == "user")
    prompt = document[: next(users, len(document) - 1) + 1]
    if tokenizer.chat_template:
        return _rendered(prompt, tokenizer, ask=True)
    return first_prompt("\n".join(message["content"] for message in prompt), tokenizer)


def _document(record: Mapping[str, Any], prompts_only: bool) -> Document:
    for field in _CONVERSATIONS:
        if record.get(field) is not None:
            return read_messages(field, record[field])
    if isinstance(text := record.get("text"), str):
        return text
    if text is not None:
        raise ValueError(f"text is {short(text)}; it must be a text")
    if prompts_only:
        prompt = read_prompt(record, None)
        system = "\n".join(str(text) for text in (record.get("system"), prompt.system) if text)
        opening = [{"role": "system", "content": system}] if system else []
        return [*opening, {"role": "user", "content": prompt.turns[0]}]
    raise ValueError(
        f"none of {', '.join(_CONVERSATIONS)}, text in it; it has {', '.join(record) or 'nothing'}"
    )


def _chat_row(messages: list[Message], tokenizer: Any, max_tokens: int) -> Row:
    """Return one conversation as a row, with learnt answers.

    An answer starts after the ids that its rendered prompt shares with the whole conversation (a
    template may render earlier turns differently, e.g. without reasoning). It ends at the
    tokenizer's end token or, without one, at the end of the conversation up to that answer.
    """
    ids = _rendered(messages, tokenizer, ask=False)
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not answers:
        return _learnt_whole(ids[:max_tokens])
    starts, fallbacks = [], []
    for i in answers:
        prompt = _rendered(messages[:i], tokenizer, ask=True) if i else []
        through = _rendered(messages[: i + 1], tokenizer, ask=False)
        starts.append(_num_common(prompt, ids))
        fallbacks.append(_num_common(through, ids))
    learn = [False] * len(ids)
    for start, limit, fallback in zip(starts, [*starts[1:], len(ids)], fallbacks, strict=True):
        ends = (index + 1 for index in range(start, limit) if ids[index] == tokenizer.eos_token_id)
        for index in range(max(start, 1), next(ends, fallback)):
            learn[index] = True
    return Row(ids[:max_tokens], learn[:max_tokens])


def _rendered(messages: list[Message], tokenizer: Any, *, ask: bool) -> list[int]:
    template = chat_template(tokenizer, {}, _DATE)
    try:
        if template is None:
            options = {"add_generation_prompt": ask}
            text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
        else:
            text = template.render(messages, ask=ask)
    except TemplateEndless:
        raise
    except Exception as error:  # a template can raise anything
        raise ValueError(f"the chat template refuses a conversation: {error}") from error
    return _encode(tokenizer, text)


def _encode(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False, verbose=False)
    return ids


def _opening(tokenizer: Any) -> list[int]:
    """Return the BOS token as a list if the tokenizer adds one before a text, else []."""
    bos = tokenizer.bos_token_id
    return [bos] if bos is not None and tokenizer.encode("a")[0] == bos else []


def _blocks(text: str) -> Iterator[str]:
    """Yield whole lines of `text`, about `BLOCK_CHARACTERS` at a time."""
    block: list[str] = []
    size = 0
    for line in text.splitlines(keepends=True):
        block.append(line)
        size += len(line)
        if size >= BLOCK_CHARACTERS:
            yield "".join(block)
            block, size = [], 0
    yield "".join(block)


def _learnt_whole(ids: list[int]) -> Row:
    return Row(ids, [index > 0 for index in range(len(ids))])


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))
