"""Seeded damage to files: bits, cuts, copies, and JSON with another value somewhere.

Everything follows from the seed, so that a failure is one number.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1e308, -0.5, 2**31, 2**63, float("nan"), float("inf")),
    *("", "x", "../..", "a\nb", "\ud83d", "\u202e", "9" * 400, [], {}, [[]], [None] * 5, {"a": {}}),
)
_WORDS = (
    b"\0",
    b"\xff",
    b"-1",
    b"null",
    b"1e999",
    b'"',
    b"{",
    b"]",
    b"=",
    b"\n",
    b"\xc3\x28",
    b"[[",
)


def damaged(data: bytes, seed: str) -> bytes:
    """`data` with one to four changes."""
    rng = random.Random(seed)
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = _changed(data, rng)
    return data


def _changed(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.5 and (other := _other_json(data, rng)) is not None:
        return other
    place, length = rng.randrange(len(data) + 1), rng.choice((1, 2, 8, 64))
    kind = rng.randrange(6)
    if kind == 0:  # a bit
        place = min(place, len(data) - 1)
        flipped = bytes([data[place] ^ 1 << rng.randrange(8)]) if data else b""
        return data[:place] + flipped + data[place + 1 :]
    if kind == 1:  # left out
        return data[:place] + data[place + length :]
    if kind == 2:  # twice
        return data[:place] + data[max(0, place - length) : place] + data[place:]
    if kind == 3:  # something else
        return data[:place] + rng.choice(_WORDS) + data[place + rng.choice((0, 1)) :]
    if kind == 4:  # cut off
        return data[:place]
    return data[:place] + rng.randbytes(length) + data[place + length :]


def _other_json(data: bytes, rng: random.Random) -> bytes | None:
    """One value of the text, or of a line of it, replaced, removed or renamed; None: no JSON."""
    for lines in ([data], data.split(b"\n")):
        number = rng.randrange(len(lines))
        try:
            tree = json.loads(lines[number])
        except (ValueError, RecursionError):
            continue
        places = list(_places(tree))
        if not places:
            continue
        holder, key = rng.choice(places)
        if rng.random() < 0.2:
            del holder[key]
        elif isinstance(holder, dict) and rng.random() < 0.2:
            holder[f"{key}x"] = holder.pop(key)
        else:
            holder[key] = rng.choice(STRANGE)
        lines[number] = json.dumps(tree).encode()
        return b"\n".join(lines)
    return None


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys, outermost first; long lists by their ends."""
    keys: list[Any] = []
    if isinstance(tree, dict):
        keys = list(tree)
    elif isinstance(tree, list):
        keys = list(range(len(tree)))
        keys = keys if len(keys) < 20 else [*keys[:10], *keys[-10:]]
    for key in keys:
        yield tree, key
        yield from _places(tree[key])
