"""Loads a law of the logits (``--law FILE.py:NAME``), such as a grammar or a contrast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.plan.code import law_file
from decoders.core.registry import import_file, innermost_place
from decoders.core.types import Law


def load_law(text: str, tokenizer: Any) -> Law:
    """Make the law that a configuration names, by calling NAME with the tokenizer.

    Raises:
        UsageError: there is no such file or name, or it fails.
    """
    file, name = Path(law_file(text)), text.rpartition(":")[2]
    if not file.is_file():
        raise UsageError(f"--law {text}: there is no file {file}")
    try:
        make: Any = getattr(import_file(file, f"bench_law_{file.stem}"), name)
        law: Law = make(tokenizer)
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        line = f"--law {text} fails: {type(error).__name__}: {error}"
        place = innermost_place(error, {str(file.absolute())})
        raise UsageError(f"{line} ({place})" if place else line) from error
    if not callable(law):
        raise UsageError(f"--law {text}: {name}(tokenizer) gives no function of answer and logits")
    return law
