"""Load conversations from a file, Spec-Bench's questions, or a Hugging Face dataset.

All are tables; `specbench_tasks.tabular` describes the columns and their cells. `datasets` is
imported only to load a dataset.

*Spec-Bench* has 480 questions (github.com/hemingkx/Spec-Bench, arXiv 2401.07851). MT-bench's eight
categories become the family ``mt_bench``; the other five families keep their names. The instruction
is already part of a turn's text. References are kept where the file has them: hints for 39 MT-bench
questions, the gold text for translation and summarization, the final number for math_reasoning,
every accepted answer for rag. Gold translations are tokenised in the file ("a word , a word ."),
unlike any answer, so they are detokenised. qa has no references; a file ``qa_references*.json`` in
the same folder adds them by question: ``{"321": {"answer": ["…"]}}``.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from decoders.core.hf.checkpoint import cache_folder, hub_answers
from specbench_tasks.shapes import SPEC
from specbench_tasks.tables import NumberedRows, Row, exists, read_table
from specbench_tasks.tabular import conversations
from specbench_tasks.task import DataUnavailable, Reading

URL = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"
SHA256 = "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04"
_TIMEOUT_S = 20.0
_PREFERRED_SPLITS = ("test", "validation", "train")
_MAX_FILES = 2_000
"""Limit of files and folders in a dataset's folder: `datasets` searches larger trees for hours."""


def load_file(path: Path, columns: Mapping[str, str] | None = None) -> Reading:
    """Read every row of a file (`specbench_tasks.tables`) as a conversation, in file order.

    Args:
        path: the file. Its stem prefixes the ids; ``specbench`` does for Spec-Bench's own file.
        columns: column names by key of `tabular.COLUMNS` (for family also a family's name).

    Raises:
        ValueError: no such file, a row that is not an object, no column for the prompt, a named
            column that is missing, or a cell of a wrong type. The message names what the file has.
    """
    table = read_table(path)
    if columns:
        return conversations(table, path.stem, columns)
    stem = "specbench" if is_pinned(path) else path.stem
    return conversations(_with_qa_answers(table, path.parent), stem, {})


def load_path(path: Path, columns: Mapping[str, str]) -> Reading:
    """Read a file, a folder with Spec-Bench's questions, or the folder of a dataset."""
    questions = path / "question.jsonl"
    if path.is_dir() and not questions.is_file():
        return load_hf(str(path), columns)
    return load_file(questions if path.is_dir() else path, columns)


def load_specbench(path: Path | None) -> Reading:
    """Read all questions of Spec-Bench's ``question.jsonl``, in file order.

    Args:
        path: the file, or a folder that holds it; None uses the cached copy, downloaded if it is
            missing. The pinned checksum applies only to the cached copy.

    Raises:
        DataUnavailable: the file cannot be downloaded, or is not the pinned one.
        ValueError: no such file, or a row of another shape.
    """
    file = path or _cached_questions()
    file = file / "question.jsonl" if file.is_dir() else file
    table = read_table(file)
    return conversations(_with_qa_answers(table, file.parent), "specbench", {}, (SPEC,))


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
    import datasets  # takes 1.3 s: only to load a dataset

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


def _with_qa_answers(table: NumberedRows, folder: Path) -> NumberedRows:
    """Add the gold answers of a folder's ``qa_references*.json`` to a table's qa questions.

    Raises:
        ValueError: such a file has another form.
    """
    if not any(map(_is_open, (row for _, row in table.rows))):
        return table
    answers: dict[str, list[str]] = {}
    for file in sorted(folder.glob("qa_references*.json")):
        try:
            entries = json.loads(file.read_text(encoding="utf-8"))
            by_number = {str(number): list(entry["answer"]) for number, entry in entries.items()}
            if not all(isinstance(text, str) for texts in by_number.values() for text in texts):
                raise TypeError("an answer is not text")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file} gives no gold answers ({error}); it must be JSON such as "
                '{"321": {"answer": ["…", "…"]}}, or be in another folder'
            ) from error
        answers |= by_number
    rows = [
        (number, {**row, "reference": [answers.get(str(row["question_id"]))]})
        if _is_open(row)
        else (number, row)
        for number, row in table.rows
    ]
    return NumberedRows(table.where, rows)


def _is_open(row: Row) -> bool:
    asks = row.keys() >= {"question_id", "turns"} and row.get("category") == "qa"
    return asks and not row.get("reference")


def _cached_questions() -> Path:
    """Return the pinned ``question.jsonl`` from the user's cache, downloading it if missing.

    Raises:
        DataUnavailable: no network, or the download is not the pinned file (nothing is kept).
    """
    file = cache_folder() / "spec_bench" / "question.jsonl"
    if is_pinned(file):
        return file
    try:
        with urllib.request.urlopen(URL, timeout=_TIMEOUT_S) as response:
            data: bytes = response.read()
    except OSError as error:
        reason = getattr(error, "reason", None) or error
        raise DataUnavailable(
            f"cannot download Spec-Bench's question.jsonl ({reason}); offline, pass "
            f"specbench=PATH of a copy (source: {URL})"
        ) from error
    if (digest := hashlib.sha256(data).hexdigest()) != SHA256:
        raise DataUnavailable(
            f"{URL} has sha256 {digest[:16]}…, but {SHA256[:16]}… is pinned; nothing was "
            "kept. Pass specbench=PATH of a copy you trust"
        )
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(data)
        scratch.replace(file)
    except OSError as error:
        raise DataUnavailable(
            f"cannot write {file} ({error.strerror}); set DECODING_BENCH_CACHE to a folder that "
            "can be written, or pass specbench=PATH"
        ) from error
    return file


def is_pinned(path: Path) -> bool:
    """Return whether a path is of exactly the file that Spec-Bench publishes, or of its folder."""
    file = path / "question.jsonl" if path.is_dir() else path
    return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == SHA256
