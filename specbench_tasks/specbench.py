"""Spec-Bench's 480 questions (github.com/hemingkx/Spec-Bench, arXiv 2401.07851) as conversations.

MT-bench's eight categories become the family ``mt_bench``; the other five families keep their
names. The instruction is already part of a turn's text. References are kept where the file has
them: hints for 39 MT-bench questions, the gold text for translation and summarization, the final
number for math_reasoning, every accepted answer for rag. Gold translations are tokenised in the
file ("a word , a word ."), unlike any answer, so they are detokenised. qa has no references; a file
``qa_references*.json`` in the same folder adds them by question: ``{"321": {"answer": ["…"]}}``.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from decoders.core.hf.checkpoint import cache_folder
from specbench_tasks.tables import NumberedRows, Row
from specbench_tasks.task import FAMILIES

URL = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"
SHA256 = "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04"
NUM_QUESTIONS = 480
_TIMEOUT_S = 20.0
MT_BENCH = (
    *("writing", "roleplay", "reasoning", "math"),
    *("coding", "extraction", "stem", "humanities"),
)
FAMILY_OF = {name: name for name in FAMILIES} | dict.fromkeys(MT_BENCH, "mt_bench")
"""Family of every value of Spec-Bench's ``category``."""


class DataUnavailable(ValueError):
    """Data that is missing and cannot be downloaded: offline, gone, or not the pinned file."""


def check_question(row: Row) -> None:
    """Raise ``ValueError`` for a row that is not a question of Spec-Bench."""
    if missing := [key for key in ("question_id", "category", "turns") if key not in row]:
        raise ValueError(f"it lacks {missing[0]}")
    category, turns = row["category"], row["turns"]
    if not isinstance(category, str) or category not in FAMILY_OF:
        raise ValueError(f"category {category!r}")
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"turns {turns!r}")


def with_qa_answers(table: NumberedRows, folder: Path) -> NumberedRows:
    """Add the gold answers of a folder's ``qa_references*.json`` to a table's qa questions.

    Raises:
        ValueError: such a file has another form.
    """
    if not any(map(_is_open, (row for _, row in table.rows))):
        return table
    answers = _qa_answers(folder)
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


def detokenised(text: str) -> str:
    """Detokenise English text by the rules of Moses."""
    written: str = _detokenizer().detokenize(text.split())
    return written


@functools.cache
def _detokenizer() -> Any:
    from sacremoses import MosesDetokenizer

    return MosesDetokenizer(lang="en")


def _qa_answers(folder: Path) -> dict[str, list[str]]:
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
    return answers


def existing(path: Path) -> Path:
    """Return the file of questions at a path or in a folder, or raise ``ValueError``."""
    file = path / "question.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(
            f"no file {file}; give specbench=PATH of Spec-Bench's question.jsonl, or plain "
            "specbench to download it"
        )
    return file


def cached_questions() -> Path:
    """Return the pinned ``question.jsonl`` from the user's cache, downloading it if missing.

    Raises:
        DataUnavailable: no network, or the download is not the pinned file (nothing is kept).
    """
    file = cache_folder() / "spec_bench" / "question.jsonl"
    if file.is_file() and is_pinned(file):
        return file
    data = _download(URL)
    if _sha256(data) != SHA256:
        raise DataUnavailable(
            f"{URL} has sha256 {_sha256(data)[:16]}…, but {SHA256[:16]}… is pinned; nothing was "
            "kept. Pass specbench=PATH of a copy you trust"
        )
    try:
        _write_atomically(file, data)
    except OSError as error:
        raise DataUnavailable(
            f"cannot write {file} ({error.strerror}); set DECODING_BENCH_CACHE to a folder that "
            "can be written, or pass specbench=PATH"
        ) from error
    return file


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            data: bytes = response.read()
    except (OSError, urllib.error.URLError) as error:  # URLError is an OSError, named for readers
        reason = getattr(error, "reason", None) or error
        raise DataUnavailable(
            f"cannot download Spec-Bench's question.jsonl ({reason}); offline, pass "
            f"specbench=PATH of a copy (source: {url})"
        ) from error
    return data


def is_pinned(file: Path) -> bool:
    """Return whether a file is exactly the one that Spec-Bench publishes."""
    return _sha256(file.read_bytes()) == SHA256


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write_atomically(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        scratch.write_bytes(data)
        scratch.replace(file)
    finally:
        scratch.unlink(missing_ok=True)
