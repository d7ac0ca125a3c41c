"""``bench show-prompts``: the prompts of a run, without running it."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.extras.show.prompts import show_prompts
from specbench_tasks.registry import load_tasks
from specbench_tasks.task import Conversation


def test_prompts_are_shown_with_every_turn_and_reference() -> None:
    console = Console(file=io.StringIO(), width=1000)
    tasks = load_tasks(limit=6)
    show_prompts(tasks, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for conversation in tasks.timing:
        assert conversation.id in text
        assert all(turn in text for turn in conversation.turns)
    assert "contains: " in text
    assert "zoo: 6 of 6 timed conversations shown (mt_bench 1, translation 1" in text


def test_shown_prompts_can_be_limited_and_brackets_are_no_markup(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    rows = [{"prompt": f"[bold]{i}[/nonsense]" + "x" * 2000, "answer": "[red]"} for i in range(3)]
    file.write_text("\n".join(map(json.dumps, rows)))
    console = Console(file=io.StringIO(), width=1000)
    show_prompts(load_tasks(f"jsonl={file}"), console, limit=1)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("[/nonsense]") == 1
    assert "[red]" in text
    assert "[… 1418 characters …]" in text


def test_a_missing_reference_of_a_turn_is_shown() -> None:
    console = Console(file=io.StringIO())
    chat = Conversation(id="c", family="qa", turns=("Hi",), references=(None,), system="S")
    show_prompts(replace(load_tasks("qa"), timing=(chat,)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "system: S" in text
    assert "no reference" in text
