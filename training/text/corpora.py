"""Given text as training rows: a file, or a Hugging Face dataset.

Fields of a line or a row are those of `training.text.documents`. `read_file` and `read_dataset`
serve rows and prompts alike: they hand every document to a function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from specbench_tasks.loaders import DataUnavailable, open_dataset
from specbench_tasks.tables import read_table
from training.text.data import PoolSource
from training.text.documents import Document, read_records, rows_of

T = TypeVar("T")


class TextSource(PoolSource):
    """A file: ``.txt`` is one document, any other a document or conversation per row."""

    def __init__(
        self,
        path: str | Path,
        *,
        tokenizer: Any,
        max_tokens: int,
        columns: Mapping[str, str] | None = None,
        rows_per_step: int = 16,
        seed: int = 0,
    ) -> None:
        """Read and encode the file; a missing, foreign or too small one raises `ValueError`."""
        cuts = read_file(path, columns or {}, lambda d: rows_of(d, tokenizer, max_tokens))
        rows, name = itertools.chain.from_iterable(cuts), Path(path).name
        super().__init__(rows, kind="text", name=name, rows_per_step=rows_per_step, seed=seed)


class DatasetSource(PoolSource):
    """One split of a Hugging Face dataset: a hub id, or a local folder or file."""

    def __init__(
        self,
        path: str,
        *,
        tokenizer: Any,
        max_tokens: int,
        rows_per_step: int = 16,
        seed: int = 0,
        **chosen: Any,
    ) -> None:
        """Read and encode what `read_dataset` chooses of the split."""
        cuts = read_dataset(path, lambda d: rows_of(d, tokenizer, max_tokens), **chosen)
        rows = itertools.chain.from_iterable(cuts)
        name = Path(path).name if Path(path).expanduser().exists() else path
        super().__init__(rows, kind="dataset", name=name, rows_per_step=rows_per_step, seed=seed)


def read_file(
    path: str | Path,
    columns: Mapping[str, str],
    use: Callable[[Document], T],
    *,
    by_line: bool = False,
) -> Iterator[T]:
    """Yield `use(document)` of every document of a ``.txt`` file or one of rows, in order.

    With `by_line`, each line of a ``.txt`` file is a document; blank ones are passed over. A file
    that is missing, empty, of another kind or not UTF-8 raises `ValueError`.
    """
    file = Path(path).expanduser()
    if file.suffix != ".txt":
        table = read_table(file)
        return read_records(table.rows, table.where, columns, use)
    if columns:
        raise ValueError(f"{file} has no columns; leave columns out, or give a file with rows")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}; give an existing file") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not UTF-8 text ({error.reason} at {error.start})") from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{file} is empty; give a file with text")
    return map(use, lines if by_line else [text])


def read_dataset(
    path: str,
    use: Callable[[Document], T],
    *,
    config: str | None = None,
    split: str = "train",
    columns: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> Iterator[T]:
    """Yield `use(document)` of every row of a dataset's split, or of the first `limit` ones."""
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; it must be 1 or above (rows of the dataset)")
    try:
        where, rows = open_dataset(path, config, split)
    except DataUnavailable as error:
        raise ValueError(str(error)) from error
    return read_records(itertools.islice(rows, limit), where, columns or {}, use)
