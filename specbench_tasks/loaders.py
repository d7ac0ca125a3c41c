"""Loads conversations from a file, Spec-Bench's questions, or a Hugging Face dataset.

All are tables; `specbench_tasks.tabular` describes the columns and their cells. `datasets` is
imported only to load a dataset.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from specbench_tasks.specbench import (
    DataUnavailable,
    cached_questions,
    check_question,
    existing,
    is_pinned,
    with_qa_answers,
)
from specbench_tasks.tables import NumberedRows, Row, exists, read_table
from specbench_tasks.tabular import Reading, conversations

__all__ = [
    "DataUnavailable",
    "hub_answers",
    "load_file",
    "load_hf",
    "load_specbench",
    "open_dataset",
]

_PREFERRED_SPLITS = ("test", "validation", "train")
_HUB_TIMEOUT_S = 5.0
_MAX_FILES = 2_000
"""Most files and folders in a dataset's folder; in a larger tree `datasets` searches for hours."""


def load_file(path: Path, columns: Mapping[str, str] | None = None) -> Reading:
    """Read every row of a file (`specbench_tasks.tables`) as a conversation, in file order.

    Args:
        path: the file. Its stem prefixes the ids; ``specbench`` does for Spec-Bench's own file.
        columns: column names by key of `tabular.COLUMNS` (for family also a family's name).

    Raises:
        ValueError: no such file, a row that is not an object, no column for the prompt, a named
            column that is missing, or a cell of a wrong type. The message says what was found.
    """
    table = read_table(path)
    if columns:
        return conversations(table, path.stem, columns)
    stem = "specbench" if is_pinned(path) else path.stem
    return conversations(with_qa_answers(table, path.parent), stem, {})


def load_specbench(path: Path | None) -> Reading:
    """Read all questions of Spec-Bench's ``question.jsonl``, in file order.

    Args:
        path: the file, or a folder that holds it; None uses the cached copy, downloaded if it is
            missing. The pinned checksum applies only to the cached copy.

    Raises:
        DataUnavailable: the file cannot be downloaded, or is not the pinned one.
        ValueError: no such file, or a line that is not a Spec-Bench question.
    """
    file = cached_questions() if path is None else existing(path)
    table = read_table(file)
    for number, row in table.rows:
        try:
            check_question(row)
        except ValueError as error:
            raise ValueError(
                f"{table.where} {number} is not a Spec-Bench question ({error}); it needs "
                "question_id, category and turns (for other files leave specbench= out)"
            ) from error
    return conversations(with_qa_answers(table, file.parent), "specbench", {})


def load_hf(dataset: str, columns: Mapping[str, str] | None = None) -> Reading:
    """Read every row of one split of a Hugging Face dataset as a conversation.

    `columns` takes the keys of `load_file`, and ``config`` and ``split`` for `open_dataset`.
    """
    named = dict(columns or {})
    where, rows = open_dataset(dataset, named.pop("config", None), named.pop("split", None))
    return conversations(NumberedRows(where, list(rows)), Path(dataset.rstrip("/")).stem, named)


def open_dataset(
    dataset: str, config: str | None, split: str | None
) -> tuple[str, Iterable[tuple[int, Row]]]:
    """Open one split of a dataset and return its name for errors, and its numbered rows.

    Args:
        dataset: a hub id, a folder, or a data file (whose only split is train).
        config: the dataset's configuration, if it has several.
        split: the split; None is the first of test, validation, train that exists, else the first.

    Raises:
        DataUnavailable: the hub cannot be reached and the dataset is not in the local cache.
        ValueError: no such dataset, configuration or split, or a file that cannot be read.
    """
    path = Path(dataset).expanduser()
    if exists(path) and not path.is_dir():
        table = read_table(path)
        return table.where, _pick_split({"train": table.rows}, dataset, split)
    return f"{dataset}, row", enumerate(_pick_split(_open(dataset, path, config), dataset, split))


def _open(dataset: str, path: Path, config: str | None) -> Any:
    import datasets  # takes 1.3 s, so only to load a dataset

    try:
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            return datasets.load_from_disk(str(path))
        if path.is_dir():
            if len([*itertools.islice(path.rglob("*"), _MAX_FILES + 1)]) > _MAX_FILES:
                line = f"it holds more than {_MAX_FILES:,} files"
                raise ValueError(f"{line}; give a file in it, or the folder of one dataset")
            return datasets.load_dataset(str(path), config)
        with _offline_where_unreachable():
            return datasets.load_dataset(dataset, config)
    except ConnectionError as error:
        raise DataUnavailable(
            f"cannot reach the Hugging Face hub for {dataset!r} and it is not in the local cache; "
            "connect, or pass the path of a local copy"
        ) from error
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot open the dataset {dataset!r}: {reason}") from error


def _pick_split(data: Any, dataset: str, split: str | None) -> Any:
    if not isinstance(data, Mapping):  # a single table, saved by save_to_disk
        return data
    names = list(data)
    choice = split or next((name for name in _PREFERRED_SPLITS if name in data), names[0])
    if choice not in data:
        raise ValueError(f"{dataset!r} has no split {choice!r}; it has {', '.join(names)}")
    return data[choice]


@contextlib.contextmanager
def _offline_where_unreachable() -> Iterator[None]:
    """Use the local cache at once if the hub is unreachable, not after five noisy retries."""
    import datasets
    from huggingface_hub import constants

    if hub_answers():
        yield
        return
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def hub_answers() -> bool:
    """Ask the Hugging Face hub for its first page's head (False offline or without answer)."""
    from huggingface_hub import constants

    stated = os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON")
    if stated or constants.HF_HUB_OFFLINE:
        return False
    try:
        request = urllib.request.Request(str(constants.ENDPOINT), method="HEAD")
        urllib.request.urlopen(request, timeout=_HUB_TIMEOUT_S).close()
    except urllib.error.HTTPError as error:  # the hub answered
        error.close()
    except (OSError, ValueError) as error:
        logging.getLogger(__name__).debug("hub not reachable: %s", error)
        return False
    return True
