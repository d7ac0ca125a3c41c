"""The known name nearest to an unknown one: the only "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` with the closest allowed name, or nothing."""
    near = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? " if near else ""
