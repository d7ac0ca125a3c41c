"""Make the row-to-row masks of one call, by pure functions.

Each returns a bool tensor ``[N, N]`` for `Session.call(mask=…)`: entry (i, j) is True where row i
sees row j. Every row also sees the committed cache, which is not part of a mask.

Letters: N rows of a call, S rows of a stem.

    causal(3)      tree((-1, 0, 0))   block(3, stem=1)
    ■ ⬚ ⬚          ■ ⬚ ⬚              ■ ⬚ ⬚ ⬚  stem
    ■ ■ ⬚          ■ ■ ⬚              ■ ■ ■ ■  block
    ■ ■ ■          ■ ⬚ ■              ■ ■ ■ ■  block
                                      ■ ■ ■ ■  block
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

ROOT = -1
"""The parent of a tree row that continues the committed cache directly."""


def causal(num_rows: int) -> Tensor:
    """Let every row see itself and the rows before it, a call's default: bool ``[N, N]``."""
    return torch.ones(num_rows, num_rows, dtype=torch.bool).tril_()


def tree(parents: Sequence[int]) -> Tensor:
    """Let every row see itself and its ancestors: bool ``[N, N]``.

    `parents` gives, for each row, the earlier row that it continues, or `ROOT`.
    """
    seen: list[list[bool]] = []
    for row, parent in enumerate(parents):
        assert ROOT <= parent < row, f"row {row} needs an earlier parent, got {parent}"
        line = [False] * len(parents) if parent == ROOT else seen[parent].copy()
        line[row] = True
        seen.append(line)
    return torch.tensor(seen, dtype=torch.bool).view(len(parents), len(parents))


shared_tree = functools.lru_cache(512)(tree)
"""The mask of a `tree` by a tuple of parents, cached for each shape: do not change it."""


def depths(parents: Sequence[int]) -> tuple[int, ...]:
    """Count the ancestors of each row of a `tree`: the row's position is length + this depth."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent == ROOT else depths[parent] + 1)
    return tuple(depths)


def branches(sizes: Sequence[int], standalone: bool = False) -> Tensor:
    """Make a causal stem of ``len(sizes)`` tokens, and after each of them a branch of slots.

    Branch m has ``sizes[m]`` rows (may be 0). Each row sees the tokens up to m (`standalone`: up to
    m - 1, as the branch replaces token m itself) and the earlier rows of its own branch. Branches
    follow the stem in order: bool ``[N, N]`` with N = ``len(sizes) + sum(sizes)``.

    Source: Partial Quadratic Decoding of PTP (arXiv 2512.21323).
    """
    stem, max_size = len(sizes), max(sizes, default=0)
    depth = 1 << max(max_size - 1, 0).bit_length()  # rounded up, so that few templates exist
    width = 1 << max(stem - 1, 0).bit_length()
    rows = list(range(stem))
    for m, size in enumerate(sizes):
        rows += range(width + m * depth, width + m * depth + size)
    index = torch.tensor(rows)
    return _branch_template(width, depth, standalone).index_select(0, index).index_select(1, index)


@functools.lru_cache(maxsize=32)
def _branch_template(stem: int, depth: int, standalone: bool) -> Tensor:
    owner = torch.cat([torch.arange(stem), torch.arange(stem).repeat_interleave(depth)])
    is_slot = torch.arange(len(owner)) >= stem
    last = owner - (is_slot & standalone).long()
    sees_token = ~is_slot[None, :] & (owner[None, :] <= last[:, None])
    same = is_slot[:, None] & is_slot[None, :] & (owner[:, None] == owner[None, :])
    return sees_token | (same & causal(len(owner)))


def block(num_rows: int, stem: int = 0) -> Tensor:
    """Make a causal stem of S rows, then a block whose rows see each other and the stem.

    Returns bool ``[N, N]`` with N = S + `num_rows`.
    """
    mask = causal(stem + num_rows)
    mask[stem:, stem:] = True
    return mask
