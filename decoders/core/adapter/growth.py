"""Grow trees of drafts from a network's logits, for several sequences at once, on their device.

The likeliest paths are extended, and the likeliest of all drafts stay (EAGLE-2, arXiv 2406.16858).
Drawing without replacement: Jeon et al. 2024 (arXiv 2402.14160).

Letters: B sequences, F rows of a level, R rows of all levels, W words of the logits, C candidates
after a row, M candidates of all levels, D hidden width, V vocabulary.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from decoders.core.device import upload
from decoders.core.masks import ROOT
from decoders.core.sampling import pick, warp
from decoders.core.types import CallResult, DraftShape, Sampling

Step = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Runs a level: states ``[B, F, D]``, ids ``[B, F]`` and the row before each in the last level,
``[B, F]``, to logits ``[B, F, W]`` and states ``[B, F, D]`` after the rows."""


class Trees(NamedTuple):
    """Drafts of B trees on the device.

    Attributes:
        drafts: float64 ``[B, 5, M]``: number, token, number of the draft before, probability of the
            path (0: no draft), and the row of `probs` that the draft was drawn from.
        probs: distributions ``[B, R, W]`` (empty if no draft is drawn).
        levels: number of levels that each tree needed.
    """

    drafts: Tensor
    probs: Tensor
    levels: list[int]


def _candidates(
    logits: Tensor, sampling: Sampling, num: int, *, sync: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return distributions ``[…, W]``, and probabilities and indices ``[…, C]`` of the likeliest.

    At temperature 0 the distributions are not warped, because a tree needs its candidates'
    probabilities. Without `sync`, rows that top-p leaves open are NaN (`nucleus`).
    """
    rows = logits.flatten(0, -2)
    probs = torch.softmax(rows, -1) if sampling.greedy else warp(rows, sampling, sync=sync)
    best = probs.topk(min(num, probs.shape[-1]), -1)
    shape = *logits.shape[:-1], -1
    return probs.view(shape), best.values.double().view(shape), best.indices.view(shape)


def draw(probs: Tensor, uniforms: Tensor) -> Tensor:
    """Draw ids ``[B, F, C]`` without replacement, each time by another uniform ``[B, C]``.

    Rows ``[B, F, W]`` of `probs` with fewer possible ids than C are followed by impossible ones.
    """
    left, ids = probs.double().flatten(0, 1), list[Tensor]()
    for u in uniforms.unbind(-1):
        of_rows = u.unsqueeze(-1).expand(-1, probs.shape[1]).flatten()
        token = pick(left, of_rows).clamp(max=probs.shape[-1] - 1)
        left = left.scatter(-1, token.unsqueeze(-1), 0.0)
        ids.append(token)
    return torch.stack(ids, -1).view(*probs.shape[:2], -1)


def grow(
    logits: Tensor,
    states: Tensor,
    step: Step,
    shape: DraftShape,
    sampling: Sampling,
    uniforms: Tensor | None = None,
    *,
    limit: int,
    depths: Tensor | None = None,
    words: Tensor | None = None,
    stops: bool = True,
    sync: bool = True,
) -> Trees:
    """Grow a tree after each text, whose last row has `logits` ``[B, 1, W]`` and `states`.

    Args:
        logits: of the texts' last rows.
        states: of the texts' last rows, ``[B, 1, D]``.
        step: runs the network for a level.
        shape: depth, width and number of nodes; `draws`: every level has an even share of them,
            and the rows to draw from are chosen by probabilities known before the draw.
        sampling: warps the distributions.
        uniforms: float64 ``[B, depth, width]`` for draws.
        limit: number of levels, at most the shape's depth.
        depths: number of levels of each tree, int64 ``[B, 1]``; None: all.
        words: ids ``[W]`` of the logits; None: the vocabulary.
        stops: stop once no deeper draft could be among the likeliest, which waits for the device.
        sync: see `_candidates`.
    """
    num, num_found, device = len(logits), 0, logits.device
    # chances of the paths to a level's rows, which rank them, and those of the tokens drawn
    odds = joint = torch.ones(num, 1, dtype=torch.float64, device=device)
    numbers = torch.full((num, 1), ROOT, device=device)
    ids_of, before, paths_of, laws = list[Tensor](), list[Tensor](), list[Tensor](), list[Tensor]()
    levels, tree_chances = [limit] * num, [list[float]() for _ in range(num)]
    for level in range(limit):
        probs, chances, ids = _candidates(logits, sampling, shape.width, sync=sync)
        num_each = chances.shape[-1]
        paths = (odds.unsqueeze(-1) * chances).flatten(1)
        if depths is not None:
            paths = paths * (level < depths)
        if uniforms is not None:
            ids = draw(probs, uniforms[:, level, :num_each])
            ranked = paths.sort(stable=True, dim=-1, descending=True).indices
            share = ranked[:, : max(1, shape.nodes // shape.depth)]
            paths = paths * torch.zeros_like(paths).scatter(1, share, 1.0)
            laws.append(probs)
            joint = (joint.unsqueeze(-1) * probs.gather(-1, ids)).flatten(1) * (paths > 0)
        ids = (ids if words is None else words[ids]).flatten(1)
        before.append(numbers.unsqueeze(-1).expand(-1, -1, num_each).flatten(1))
        ids_of.append(ids)
        paths_of.append(paths if uniforms is None else joint)
        if stops and level + 1 < limit:
            each_new = zip(tree_chances, paths.tolist(), strict=True)
            pairs = zip(levels, [_gains(*pair, shape) for pair in each_new], strict=True)
            levels = [last if gains else min(last, level + 1) for last, gains in pairs]
        if level + 1 == max(levels):
            break
        odds, best = paths.topk(min(shape.width, paths.shape[1]), -1)
        joint = odds if uniforms is None else joint.gather(1, best)
        if shape.floor:
            odds = odds * (odds.sum(-1, keepdim=True) >= shape.floor)
        parents = best // num_each
        states = states.gather(1, parents.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
        logits, states = step(states, ids.gather(1, best), parents)
        numbers, num_found = best + num_found, num_found + paths.shape[1]
    tokens, all_paths = torch.cat(ids_of, 1), torch.cat(paths_of, 1)
    places = torch.arange(tokens.shape[1], device=device).expand_as(tokens)
    parts = places, tokens, torch.cat(before, 1), all_paths, places // num_each
    drafts = torch.stack([each.double() for each in parts], 1)
    if not shape.draws:  # a selection among drawn drafts would change their distribution
        order = all_paths.sort(stable=True, dim=-1, descending=True).indices[:, : shape.nodes]
        drafts = drafts.gather(2, order.unsqueeze(1).expand(-1, 5, -1))
    return Trees(drafts, torch.cat(laws, 1) if laws else logits.new_empty(num, 0, 0), levels)


def _gains(chances: list[float], new: list[float], shape: DraftShape) -> bool:
    """Add a level's `new` chances to a tree's, and tell whether another level can change it."""
    chances += new
    best, reach = max(new), sum(heapq.nlargest(shape.width, new))
    likeliest = sorted(chances, reverse=True)[shape.nodes - 1 : shape.nodes]
    is_settled = not shape.draws and likeliest and likeliest[0] >= best
    return not (reach < shape.floor or is_settled)


def trees_of_heads(
    logits: Tensor,
    depths: Sequence[int],
    shape: DraftShape,
    sampling: Sampling,
    uniforms: Tensor | None = None,
) -> list[CallResult]:
    """Return each sequence's tree of the likeliest paths through heads.

    Every head's candidates may follow each candidate of the head before.

    Args:
        logits: ``[B, H, W]``.
        depths: number of heads that each tree uses.
        shape: depth, width and number of nodes.
        sampling: warps the distributions.
        uniforms: float64 ``[B, depth, width]`` for draws.
    """
    logits = logits[:, : shape.depth]
    for sync in (logits.device.type == "cpu", True):  # again if top-p left a row open
        probs, chances, ids = _candidates(logits, sampling, shape.width, sync=sync)
        if uniforms is not None:
            uniforms = uniforms[..., : ids.shape[-1]]
            parts = [draw(probs[:, d : d + 1], uniforms[:, d]) for d in range(shape.depth)]
            ids = torch.cat(parts, 1)
        heads = torch.stack((chances, ids.double(), probs.gather(-1, ids).double()), 1).tolist()
        if sync or not any(row[0] != row[0] for odds, *_ in heads for row in odds):
            break
    trees = []
    for (odds, tokens, values), num_heads in zip(heads, depths, strict=True):
        paths, path_chances = likeliest_paths(odds[:num_heads], shape.nodes), [1.0]
        for row, depth, each in paths:
            path_chances.append(path_chances[row] * values[depth][each])
        drafts = [
            (number, tokens[depth][each], row, path_chances[number], depth)
            for number, (row, depth, each) in enumerate(paths, 1)
        ]
        trees.append([*zip(*drafts, strict=True)])
    laws = probs.new_empty(len(probs), 0) if uniforms is None else probs
    return tree_results(trees, laws, None, probs.shape[-1])


def likeliest_paths(chances: Sequence[Sequence[float]], limit: int) -> list[tuple[int, int, int]]:
    """Shape a tree of the likeliest rows, if candidates depend only on the depth.

    Args:
        chances: for each depth, the probabilities of its candidates, descending. A row's
            probability is the product along its path; candidates of probability 0 are left out.
        limit: maximum number of drafts of the tree.

    Returns:
        ``(parent row, depth, candidate)`` of rows 1, 2, …, parents first; depths count from 0.
    """
    shape: list[tuple[int, int, int]] = []
    # chance (negated), order of entry, chance of the parent, parent row, depth, candidate
    heap: list[tuple[float, int, float, int, int, int]] = []
    order, offers = itertools.count(), [(1.0, 0, 0, 0)]
    while True:
        for before, parent, depth, candidate in offers:
            if depth < len(chances) and candidate < len(chances[depth]):
                joint = before * chances[depth][candidate]
                if joint > 0:
                    heapq.heappush(heap, (-joint, next(order), before, parent, depth, candidate))
        if not heap or len(shape) >= limit:
            return shape
        joint, _, before, parent, depth, candidate = heapq.heappop(heap)
        shape.append((parent, depth, candidate))
        offers = [(-joint, len(shape), depth + 1, 0), (before, parent, depth, candidate + 1)]


def tree_results(
    drafts: Sequence[Sequence[Sequence[float]]], probs: Tensor, words: Tensor | None, size: int
) -> list[CallResult]:
    """Return trees as results.

    Args:
        drafts: `Trees.drafts` on the host.
        probs: `Trees.probs`.
        words: ids of the W words; None: the vocabulary.
        size: number of ids of the target's vocabulary.
    """
    trees = [[each for each in zip(*tree, strict=True) if each[3] > 0] for tree in drafts]
    laws: Sequence[Tensor | None] = [None] * len(trees)
    results = list[CallResult]()
    if num := probs.shape[1]:
        rows = [first * num + int(each[4]) for first, kept in enumerate(trees) for each in kept]
        every = probs.flatten(0, 1).index_select(0, upload(rows, probs.device))
        if words is not None:
            every = every.new_zeros(len(rows), size).index_copy_(-1, words, every)
        laws = torch.split(every, [*map(len, trees)])
    for kept, law in zip(trees, laws, strict=True):
        place = {each[0]: number for number, each in enumerate(kept)}
        results.append(
            CallResult(
                picks=tuple([int(each[1]) for each in kept]),
                confidences=tuple([each[3] for each in kept]),
                parents=tuple([place.get(each[2], ROOT) for each in kept]),
                probs=law,
            )
        )
    return results
