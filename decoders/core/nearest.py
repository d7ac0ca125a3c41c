"""Suggest the known name closest to an unknown name ("did you mean")."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` with the closest allowed name, or an empty text."""
    near = difflib.get_close_matches(name, list(allowed), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? " if near else ""
