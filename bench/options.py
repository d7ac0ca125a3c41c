"""Options that several verbs of the command line share. Nothing heavy at module level."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

RESULTS = Path("results")
"""Where runs lie unless told otherwise."""


class Shown(StrEnum):
    """How progress is shown."""

    auto = "auto"
    rich = "rich"
    plain = "plain"
    none = "none"


Output = Annotated[Path, typer.Option("--output", "-o", help="Parent of run folders.")]
Progressing = Annotated[Shown, typer.Option(help="Live bar, plain lines, or nothing.")]
