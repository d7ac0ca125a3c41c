"""Anyone's prompts as conversations: a JSONL file, or a Hugging Face dataset.

Both are tables; `specbench_tasks.tabular` says which columns are read and what a cell may be.
`datasets` is imported only where a dataset is asked for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specbench_tasks.specbench import DataUnavailable, load_specbench, read_jsonl
from specbench_tasks.tabular import conversations
from specbench_tasks.task import Conversation

__all__ = ["DataUnavailable", "load_hf", "load_jsonl", "load_specbench"]

_PREFERRED_SPLITS = ("test", "validation", "train")
_FILE_KINDS = {".parquet": "parquet", ".json": "json", ".jsonl": "json", ".csv": "csv"}
_HUB_TIMEOUT_S = 5.0


def load_jsonl(path: Path, columns: Mapping[str, str] | None = None) -> list[Conversation]:
    """Every line of a JSONL file as a conversation, in file order.

    Args:
        path: the file; its stem prefixes the ids.
        columns: keys of `tabular.COLUMNS` to column names (family: or a family's own name).

    Raises:
        ValueError: no such file, a line that is no object, no column to take the prompt from, a
            named column that is missing, or a cell of a wrong kind. The line says what is there.
    """
    rows = read_jsonl(path)
    return conversations(rows, path.stem, f"{path}, line", columns or {})


def load_hf(
    dataset: str,
    columns: Mapping[str, str] | None = None,
    split: str | None = None,
    config: str | None = None,
) -> list[Conversation]:
    """Every row of one split of a Hugging Face dataset as a conversation.

    Args:
        dataset: a hub id, a folder (parquet, JSON or `save_to_disk`), or a data file.
        columns: as in `load_jsonl`.
        split: default the first of test, validation, train that exists, else the first.
        config: the dataset's configuration, where it has several.

    Raises:
        DataUnavailable: the hub cannot be reached and the dataset is not in the local cache.
        ValueError: no such dataset, configuration, split or column.
    """
    table = _split_of(_open_dataset(dataset, config), dataset, split)
    stem = Path(dataset.rstrip("/")).stem
    return conversations(enumerate(table), stem, f"{dataset}, row", columns or {})


# ---------------------------------------------------------------- the hub


def _open_dataset(dataset: str, config: str | None) -> Any:
    import datasets  # 1.3 s: only where a dataset is asked for

    path = Path(dataset).expanduser()
    try:
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            return datasets.load_from_disk(str(path))
        if path.is_file():
            return datasets.load_dataset(_kind_of(path), data_files=str(path))
        if path.is_dir():
            return datasets.load_dataset(str(path), config)
        with _offline_where_unreachable():
            return datasets.load_dataset(dataset, config)
    except ConnectionError as error:
        raise DataUnavailable(
            f"cannot reach the Hugging Face hub for {dataset!r} and it is not in the local cache; "
            "connect, or pass hf=PATH of a local copy, or jsonl=PATH"
        ) from error
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"cannot open the dataset {dataset!r}: {reason}") from error


def _kind_of(file: Path) -> str:
    if file.suffix not in _FILE_KINDS:
        raise ValueError(f"{file.name} is none of {', '.join(_FILE_KINDS)}")
    return _FILE_KINDS[file.suffix]


def _split_of(opened: Any, dataset: str, split: str | None) -> Any:
    if not isinstance(opened, Mapping):  # a single table, saved by save_to_disk
        return opened
    names = list(opened)
    wanted = split or next((name for name in _PREFERRED_SPLITS if name in opened), names[0])
    if wanted not in opened:
        raise ValueError(f"{dataset!r} has no split {wanted!r}; it has {', '.join(names)}")
    return opened[wanted]


@contextlib.contextmanager
def _offline_where_unreachable() -> Iterator[None]:
    """Without a hub, answer from the local cache at once instead of after five noisy retries."""
    import datasets
    from huggingface_hub import constants

    if _reachable(str(constants.ENDPOINT)):
        yield
        return
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _reachable(endpoint: str) -> bool:
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    try:
        urllib.request.urlopen(
            urllib.request.Request(endpoint, method="HEAD"), timeout=_HUB_TIMEOUT_S
        ).close()
    except urllib.error.HTTPError as error:  # it answered
        error.close()
    except OSError as error:
        logging.getLogger(__name__).debug("hub not reachable: %s", error)
        return False
    return True
