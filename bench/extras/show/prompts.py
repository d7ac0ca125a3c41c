"""Print the prompts of a run that is not run (`bench show-prompts`)."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.text import Text

from bench.text import shortened
from specbench_tasks.registry import TaskSet


def show_prompts(task_set: TaskSet, console: Console, limit: int | None = None) -> None:
    """Print every turn of (at most `limit`) timed conversations, with its reference."""
    for note in task_set.notes:
        console.print(Text(note, style="dim"))
    conversations = task_set.timing[:limit]
    for conversation in conversations:
        console.print(Text(f"{conversation.id}  {conversation.family}", style="bold"))
        if conversation.system is not None:
            console.print(Text(f"  system: {shortened(conversation.system)}", style="dim"))
        pairs = zip(conversation.turns, conversation.references, strict=True)
        for turn, (text, reference) in enumerate(pairs, start=1):
            console.print(Text(f"  #{turn} {shortened(text)}"))
            expected = "no reference"
            if reference is not None:
                parts = [shortened(answer) for answer in reference.answers]
                parts += [f"{each.kind}: {each.value}" for each in reference.constraints]
                expected = " | ".join(parts)
            console.print(Text(f"     = {expected}", style="green"))
        console.print()
    counts = Counter(c.family for c in task_set.timing)
    per_family = ", ".join(f"{family} {counts[family]}" for family in task_set.families)
    line = (
        f"{task_set.name}: {len(conversations)} of {len(task_set.timing)} timed conversations "
        f"shown ({per_family}); {len(task_set.quality)} for quality"
    )
    console.print(Text(line, style="dim"))
