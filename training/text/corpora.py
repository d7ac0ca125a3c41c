"""Given text as training rows: a file, or a Hugging Face dataset.

What a line of a file or a row of a dataset may hold stands in `training.text.documents`.
`read_file` and `read_dataset` serve rows and prompts alike: they hand every document to a function.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from specbench_tasks.loaders import DataUnavailable, open_dataset
from specbench_tasks.tables import read_table
from training.text.data import Row
from training.text.documents import Document, read_records, rows_of
from training.text.pool import PoolSource

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
        """Read and encode the file.

        Raises:
            ValueError: a file that is missing, of another kind, not UTF-8, or too small; a row
                that holds none of the fields.
        """
        super().__init__(
            _rows(read_file(path, columns or {}, lambda d: rows_of(d, tokenizer, max_tokens))),
            kind="text",
            name=Path(path).name,
            rows_per_step=rows_per_step,
            seed=seed,
        )


class DatasetSource(PoolSource):
    """One split of a Hugging Face dataset: a hub id, or a local folder or file."""

    def __init__(
        self,
        path: str,
        *,
        tokenizer: Any,
        max_tokens: int,
        config: str | None = None,
        split: str = "train",
        columns: Mapping[str, str] | None = None,
        limit: int | None = None,
        rows_per_step: int = 16,
        seed: int = 0,
    ) -> None:
        """Read and encode the split, or its first `limit` rows.

        Raises:
            ValueError: a dataset that is not here and cannot be had, has no such split, or is too
                small; a row that holds none of the fields.
        """

        def use(document: Document) -> list[Row]:
            return rows_of(document, tokenizer, max_tokens)

        super().__init__(
            _rows(read_dataset(path, config, split, columns or {}, limit, use)),
            kind="dataset",
            name=Path(path).name if Path(path).expanduser().exists() else path,
            rows_per_step=rows_per_step,
            seed=seed,
        )


def read_file(
    path: str | Path,
    columns: Mapping[str, str],
    use: Callable[[Document], T],
    *,
    by_line: bool = False,
) -> Iterator[T]:
    """What `use` makes of every document of a file, in order.

    Args:
        path: a ``.txt`` file, or one of rows (`specbench_tasks.tables`).
        columns: see `read_records`.
        use: called with every document or conversation.
        by_line: each line of a ``.txt`` file is a document; blank ones are passed over.

    Raises:
        ValueError: see `TextSource`; too small is only an empty file.
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
    config: str | None,
    split: str,
    columns: Mapping[str, str],
    limit: int | None,
    use: Callable[[Document], T],
) -> Iterator[T]:
    """What `use` makes of every row of a dataset's split, or of the first `limit` ones, in order.

    Raises:
        ValueError: see `DatasetSource`.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; it must be 1 or above (rows of the dataset)")
    try:
        where, rows = open_dataset(path, config, split)
    except DataUnavailable as error:
        raise ValueError(str(error)) from error
    return read_records(itertools.islice(rows, limit), where, columns, use)


def _rows(cuts: Iterable[list[Row]]) -> Iterator[Row]:
    return itertools.chain.from_iterable(cuts)
