"""The known name nearest to one that is unknown: the one place that says "did you mean".

It stands in the core, which the harness, training and decoders may import; of the core, tasks
import nothing else (pyproject.toml, ``[tool.importlinter]``). No torch here.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, allowed: Iterable[str]) -> str:
    """``"did you mean 'x'? "`` with the closest allowed name, or nothing: before a list of all."""
    near = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? " if near else ""
