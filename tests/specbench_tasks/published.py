"""Rows in the shapes that prompts are published in, and files of every kind that hold them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Published:
    """Rows of one shape, and how they are to be read: the first row's turns, and the notes."""

    rows: Rows
    shape: str
    turns: tuple[str, ...]
    families: str
    replies: tuple[str | None, ...] = (None,)
    answers: tuple[str, ...] | None = None
    system: str | None = None
    unread: str | None = None


def _speed(category: str, **fields: Any) -> dict[str, Any]:
    return {
        "question_id": f"{category}-1", "category": category, "sub_category": "x",
        "source": "https://huggingface.co/datasets/x", "src_id": "7", "difficulty": "easy",
        "multiturn": False, **fields,
    }  # fmt: skip


def _said(role: str, *texts: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


PUBLISHED = {
    "spec-bench": Published(
        rows=[
            {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
            {"question_id": 161, "category": "translation", "turns": ["Übersetze: Hallo , du !"],
             "reference": ["Hello , you !"]},
        ],
        shape="Spec-Bench", turns=("Write.", "Again."), replies=(None, None),
        families="mt_bench 1, translation 1",
    ),
    "mt-bench": Published(
        rows=[{"question_id": 111, "category": "math", "turns": ["1 + 1?", "And 2?"],
               "reference": ["2", ""]}],
        shape="MT-bench", turns=("1 + 1?", "And 2?"), replies=(None, None), answers=("2",),
        families="mt_bench 1",
    ),
    "eagle-gsm8k": Published(
        rows=[{"question_id": 1, "category": "math", "turns": ["How many?"],
               "reference": ["6 + 12 = 18.\n#### 1,018"]}],
        shape="Spec-Bench", turns=("How many?",), answers=("1018",), families="math_reasoning 1",
    ),
    "speed-qualitative": Published(
        rows=[_speed("coding", turns=["Sort a list."]), _speed("qa", turns=["Who?", "When?"])],
        shape="SPEED-Bench qualitative", turns=("Sort a list.",), families="coding 1, qa 1",
        unread="sub_category, source, src_id, difficulty, multiturn",
    ),
    "speed-throughput": Published(
        rows=[_speed("low_entropy", messages=[{"role": "user", "content": "Copy it."}])],
        shape="SPEED-Bench throughput", turns=("Copy it.",), families="low_entropy 1",
        unread="sub_category, source, src_id, difficulty, multiturn",
    ),
    "sharegpt": Published(
        rows=[
            {"id": "a_0", "conversations": [
                {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"},
                {"from": "human", "value": "More"}, {"from": "gpt", "value": "Sure"}]},
            {"id": "b_0", "conversations": [{"from": "gpt", "value": "I go on"}]},
            {"id": "c_0", "conversations": []},
        ],
        shape="ShareGPT", turns=("Hi", "More"), replies=("Hello", "Sure"), answers=("Hello",),
        families="other 1",
    ),
    "messages": Published(
        rows=[{"messages": [
            _said("developer", "Be brief."), _said("user", "Look at this.", "What is it?"),
            _said("assistant", "A cat."), _said("user", "Sure?")]}],
        shape="OpenAI messages", turns=("Look at this.\nWhat is it?", "Sure?"),
        replies=("A cat.", None), answers=("A cat.",), system="Be brief.", families="other 1",
    ),
    "alpaca": Published(
        rows=[
            {"instruction": "Summarize the text.", "input": "It rained.", "output": "Rain."},
            {"instruction": "Count to two.", "input": "", "output": "1 2"},
        ],
        shape="Alpaca", turns=("Summarize the text.\n\nIt rained.",), answers=("Rain.",),
        families="other 2",
    ),
    "human-eval": Published(
        rows=[{"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    pass",
               "test": "assert f", "entry_point": "f"}],
        shape="HumanEval", turns=("def f():\n",), families="other 1",
        unread="task_id, canonical_solution, test, entry_point",
    ),
    "gsm8k": Published(
        rows=[{"question": "How many?", "answer": "6 + 12 = 18.\n#### 18"}],
        shape="GSM8K", turns=("How many?",), answers=("18",), families="math_reasoning 1",
    ),
    "math-500": Published(
        rows=[{"problem": "Simplify.", "solution": "It is $\\frac12$.", "answer": "\\frac{1}{2}",
               "subject": "Algebra", "level": 3, "unique_id": "test/algebra/1.json"}],
        shape="MATH-500", turns=("Simplify.",), answers=("\\frac{1}{2}",),
        families="math_reasoning 1", unread="solution, subject, level, unique_id",
    ),
    "mbpp": Published(
        rows=[{"task_id": 11, "text": "Write a function.", "code": "def f(): pass",
               "test_list": ["assert f"], "test_setup_code": "", "challenge_test_list": []}],
        shape="MBPP", turns=("Write a function.",), families="other 1",
        unread="task_id, code, test_list",
    ),
    "mbpp-sanitized": Published(
        rows=[{"source_file": "a.txt", "task_id": 2, "prompt": "Write a function.",
               "code": "def f(): pass", "test_imports": [], "test_list": ["assert f"]}],
        shape="MBPP", turns=("Write a function.",), families="other 1",
        unread="source_file, task_id, code, test_list",
    ),
    "mt-bench-hub": Published(
        rows=[{"prompt": ["1 + 1?", "And 2?"], "category": "math", "reference": ["2", "4"],
               "prompt_id": 7}],
        shape="MT-bench", turns=("1 + 1?", "And 2?"), replies=(None, None), answers=("2",),
        families="mt_bench 1", unread="prompt_id",
    ),
    "pairs": Published(
        rows=[{"prompt": "Capital of France?", "reference": "Paris", "family": "qa", "id": "007"}],
        shape="prompts in 'prompt'", turns=("Capital of France?",), answers=("Paris",),
        families="qa 1",
    ),
}  # fmt: skip


def write_jsonl(path: Path, rows: Rows) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_json(path: Path, rows: Rows) -> None:
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def write_csv(path: Path, rows: Rows) -> None:
    """Lists as JSON; ``.tsv`` has tabs."""
    with path.open("w", encoding="utf-8", newline="") as file:
        separator = "\t" if path.suffix == ".tsv" else ","
        table = csv.DictWriter(file, list(_columns(rows)), delimiter=separator)
        table.writeheader()
        for row in rows:
            table.writerow({k: v if isinstance(v, str) else json.dumps(v) for k, v in row.items()})


def write_parquet(path: Path, rows: Rows) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(_whole(rows)), path)


def write_saved(path: Path, rows: Rows) -> None:
    from datasets import Dataset

    Dataset.from_list(_whole(rows)).save_to_disk(str(path))


def _columns(rows: Rows) -> dict[str, None]:
    return dict.fromkeys(name for row in rows for name in row)


def _whole(rows: Rows) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in _columns(rows)} for row in rows]


WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    "rows.jsonl": write_jsonl,
    "rows.json": write_json,
    "rows.csv": write_csv,
    "rows.tsv": write_csv,
    "rows.parquet": write_parquet,
    "rows": write_saved,
}
