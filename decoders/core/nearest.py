"""Suggest the known name closest to an unknown name ("did you mean")."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ``"did you mean 'x'? "`` with a name that begins so or is close, or an empty text."""
    names = list(allowed)
    longer = [each for each in names if len(name) > 1 and each.startswith(name)]
    near = longer or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}? " if near else ""
