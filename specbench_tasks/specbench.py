"""Spec-Bench's 480 questions (github.com/hemingkx/Spec-Bench, arXiv 2401.07851) as conversations.

MT-bench's eight categories become the family ``mt_bench``; the other five families keep their
names. The instruction is already part of a turn's text. References are kept where the file has
them: hints for 39 MT-bench questions, the gold text for translation and summarization, the final
number for math_reasoning, every accepted answer for rag. Translations are tokenised there ("a word
, a word ."), which an answer never is: they are detokenised. qa has none; a file beside it whose
name is ``qa_references*.json`` gives them, as ``{"321": {"answer": ["…"]}}`` by question.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench_tasks.task import FAMILIES, Conversation, GoldAnswer

URL = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"
SHA256 = "4b6d33e79484f9841c487ee87d1cf6aa8c6066f61d5d482ff09e5a007fafdf04"
NUM_QUESTIONS = 480
_TIMEOUT_S = 20.0
_MT_BENCH_CATEGORIES = (
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
)
FAMILY_OF = {name: name for name in FAMILIES} | dict.fromkeys(_MT_BENCH_CATEGORIES, "mt_bench")
"""Family of every value that Spec-Bench's ``category`` takes."""

_GSM8K_FINAL = re.compile(r"####\s*(-?[\d,]*\.?\d+)\s*$")


class DataUnavailable(ValueError):
    """Data that is not here and cannot be had now: offline, gone, or not what was pinned."""


def load_specbench(path: Path | None = None) -> list[Conversation]:
    """All questions of Spec-Bench's ``question.jsonl``, in file order, as ``specbench-<id>``.

    Args:
        path: the file, or a folder that holds it; None takes the cached copy and downloads it
            when there is none. Only the download is held against the pinned checksum.

    Raises:
        DataUnavailable: the file cannot be downloaded, or is not the pinned one.
        ValueError: no such file, or a line that is no Spec-Bench question.
    """
    file = _cached_questions() if path is None else _existing(path)
    answers = _qa_answers(file.parent)
    conversations = []
    for number, row in read_jsonl(file):
        try:
            if row.get("category") == "qa" and not row.get("reference"):
                row = {**row, "reference": [answers.get(str(row["question_id"]))]}
            conversations.append(_question(row))
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{file}, line {number} is no Spec-Bench question ({error}); it needs question_id, "
                "category and turns (for other files use jsonl=PATH)"
            ) from error
    return conversations


def read_jsonl(path: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """The objects of a JSONL file with their line numbers (from 1); blank lines are passed over.

    Raises:
        ValueError: no such file, or a line that is no JSON object, or holds text that is none.
    """
    if not path.is_file():
        raise ValueError(f"no file {path}; give the path of an existing JSONL file")
    rows: list[tuple[int, Mapping[str, Any]]] = []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at {error.start})") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number} is a {type(row).__name__}, not an object")
        half = _half_character(row)
        if half:
            raise ValueError(
                f"{path}, line {number} holds half a character (the lone surrogate {half}), which "
                "no model can be given; write the whole character, or leave it out"
            )
        rows.append((number, row))
    if not rows:
        raise ValueError(f"{path} holds no rows")
    return rows


def _half_character(row: Mapping[str, Any]) -> str:
    r"""The first lone surrogate in a row as its escape, e.g. ``\ud83d``; empty: there is none."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        return f"\\u{ord(error.object[error.start]):04x}"
    return ""


def detokenised(text: str) -> str:
    """English text with spaces where a writer puts them, by the rules of Moses's detokeniser.

    Raises:
        ImportError: sacremoses is not installed.
    """
    written: str = _detokenizer().detokenize(text.split())
    return written


@functools.cache
def _detokenizer() -> Any:
    try:
        from sacremoses import MosesDetokenizer
    except ImportError as error:
        raise ImportError(
            "reading Spec-Bench's translations needs the package sacremoses: pip install sacremoses"
        ) from error
    return MosesDetokenizer(lang="en")


def _qa_answers(folder: Path) -> dict[str, list[str]]:
    """Gold answers by question id of the files ``qa_references*.json`` in a folder.

    Raises:
        ValueError: such a file is not of that form.
    """
    answers: dict[str, list[str]] = {}
    for file in sorted(folder.glob("qa_references*.json")):
        try:
            entries = json.loads(file.read_text(encoding="utf-8"))
            given = {str(number): list(entry["answer"]) for number, entry in entries.items()}
            if not all(isinstance(text, str) for texts in given.values() for text in texts):
                raise TypeError("an answer that is no text")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file} gives no gold answers ({error}); it must be JSON such as "
                '{"321": {"answer": ["…", "…"]}}, or lie elsewhere'
            ) from error
        answers |= given
    return answers


def gsm8k_answer(text: str) -> str:
    """The number after ``####`` where an answer ends in one (GSM8K's format), else the text."""
    match = _GSM8K_FINAL.search(text)
    return match[1].replace(",", "") if match else text


def _existing(path: Path) -> Path:
    file = path / "question.jsonl" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(
            f"no file {file}; give specbench=PATH of Spec-Bench's question.jsonl, or plain "
            "specbench to download it"
        )
    return file


def _question(row: Mapping[str, Any]) -> Conversation:
    category, turns = row["category"], row["turns"]
    if category not in FAMILY_OF:
        raise KeyError(f"category {category!r}")
    if not isinstance(turns, list) or not all(isinstance(turn, str) for turn in turns):
        raise TypeError(f"turns {turns!r}")
    given = row.get("reference") or []
    padded = [*given, *([None] * (len(turns) - len(given)))]
    return Conversation(
        id=f"specbench-{row['question_id']}",
        family=FAMILY_OF[category],
        turns=tuple(turns),
        references=tuple(_reference(category, item) for item in padded[: len(turns)]),
    )


def _reference(category: str, item: str | list[str] | None) -> GoldAnswer | None:
    answers = [item] if isinstance(item, str) else item or []
    if category == "math_reasoning":
        answers = [gsm8k_answer(answer) for answer in answers]
    if category == "translation":
        answers = [detokenised(answer) for answer in answers]
    kept = tuple(answer for answer in answers if answer.strip())
    return GoldAnswer(answers=kept) if kept else None


# ---------------------------------------------------------------- download


def _cached_questions() -> Path:
    """The pinned ``question.jsonl`` in the user's cache, downloaded first if it is not there.

    Raises:
        DataUnavailable: no network, or the download is not the pinned file (nothing is kept).
    """
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    file = Path(root) / "decoding-bench" / "spec_bench" / "question.jsonl"
    if file.is_file() and _sha256(file.read_bytes()) == SHA256:
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
            f"cannot write {file} ({error.strerror}); set XDG_CACHE_HOME to a folder that can be "
            "written, or pass specbench=PATH"
        ) from error
    return file


def _download(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
            data: bytes = response.read()
    except (OSError, urllib.error.URLError) as error:  # URLError is an OSError; say so for readers
        reason = getattr(error, "reason", None) or error
        raise DataUnavailable(
            f"cannot download Spec-Bench's question.jsonl ({reason}); offline, pass "
            f"specbench=PATH of a copy (source: {url})"
        ) from error
    return data


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
