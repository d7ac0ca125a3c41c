"""Drawn trees verified all rows at once: as a walk on the host does it, with the target's law."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from decoders.core.drafting.tree import DraftTree
from decoders.core.engine import acceptances
from decoders.core.engine.readout import read_out
from decoders.core.engine.reads import Readout, readouts
from decoders.core.joint_verification import verify_tree
from decoders.core.sampling import Uniforms, pick, warp
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Sampling
from tests.core.drafting.test_tree import ByPrefix, draw_candidates, made, prefix
from tests.enumeration import Distribution, integrated
from tests.pretended_cuda import PretendedCuda, place

VOCAB, PROMPT = 6, 5
Shape = Sequence[tuple[int, int, int]]


def walk(
    tree: DraftTree, target: Tensor, laws: Mapping[int, Tensor], uniforms: Any, output: int
) -> tuple[list[int], int]:
    """The accepted path of a tree and the token after it, from row to row and draft to draft."""
    path = [0]
    while True:
        left, position = target[path[-1]].double(), output + len(path) - 1
        children = tree.children(path[-1])
        law = laws[path[-1]].double().clone() if children else left
        for candidate, (token, child) in enumerate(children.items()):
            law = law / law.sum()
            if uniforms.at("accept", position, candidate) * law[token] < left[token]:
                path.append(child)
                break
            residual = (left - law).clamp(min=0)
            if residual.sum() > 0:
                left = residual / residual.sum()
            law = law.index_fill(0, torch.tensor(token), 0.0)
        else:
            u = torch.tensor([uniforms.at("recover", position)], dtype=torch.float64)
            return path, int(pick(left[None], u))


def children_of(tree: DraftTree) -> list[list[int]]:
    """The rows of the drafts after each row but the last, padded to as many."""
    after = [[*tree.children(row).values()] for row in range(len(tree) - 1)]
    return [(each + [0] * max(map(len, after)))[: max(map(len, after))] for each in after]


def verified(
    tree: DraftTree, target: Tensor, laws: Mapping[int, Tensor], uniforms: Any, output: int
) -> tuple[list[int], int]:
    """What `walk` returns, by tensors."""
    drafts, places = children_of(tree), [output + depth for depth in tree.depths]
    accept = [
        [uniforms.at("accept", place, number) for number in range(len(each))]
        for place, each in zip(places, drafts, strict=False)
    ]
    recover = [uniforms.at("recover", each) for each in places]
    proposed = torch.stack([laws.get(row, target[0]) for row in range(len(drafts))])
    numbers = [torch.tensor([each]) for each in (tree.tokens, drafts)]
    values = [torch.tensor([each], dtype=torch.float64) for each in (accept, recover)]
    each = [part.flatten(1) for part in (*numbers, *values)]
    *found, token = verify_tree(target[None], proposed[None], *each)[0].tolist()
    return [*dict.fromkeys(found)], token


def drawn_tree(seed: int, size: int) -> DraftTree:
    """A tree of up to `size` drafts, siblings being drawn without replacement, with its laws."""
    generator = torch.Generator().manual_seed(seed)
    tree, laws = DraftTree(0), dict[int, Tensor]()
    for _ in range(size):
        row = int(torch.randint(len(tree), (1,), generator=generator))
        if row not in laws:
            logits = 3 * torch.randn(VOCAB, generator=generator)
            laws[row] = logits.masked_fill(logits < -2, -math.inf).softmax(-1)
        others = torch.tensor([*tree.children(row)], dtype=torch.int64)
        left = laws[row].index_fill(0, others, 0)
        if left.sum() > 0:
            tree.draft(int(torch.multinomial(left, 1, generator=generator)), row)
    tree.probs = {row: law for row, law in laws.items() if tree.children(row)}
    return tree


def readouts_of(trees: Sequence[DraftTree], on: Any = lambda it: it) -> list[Readout]:
    model, parts = TableModel(VOCAB), list[Readout]()
    model.reserve(len(trees), 100)
    for number, tree in enumerate(trees):
        session = model.open()
        session.length = PROMPT + number
        call = session.call(
            tree.tokens,
            output="tree",
            read=range(len(tree)),
            positions=tree.positions(session.length),
            mask=tree.mask,
            drafts=tree.tokens[1:],
            draft_probs=[on(law) for law in tree.draft_probs or ()] or None,
        )
        parts += readouts(call, Uniforms(number, range(PROMPT)), PROMPT)
    return parts


@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("seed", range(12))
def test_batched_tree_verification_equals_walking_each_tree(
    seed: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees of all sizes are padded to the largest, and one has no draft."""
    trees = [drawn_tree(seed * 10 + size, size) for size in (4, 0, 1, 9, 6, 13, 0, 3)]
    sizes, sampling = [*map(len, trees)], Sampling(temperature=0.9, top_k=5)
    logits = 2 * torch.randn(sum(sizes), VOCAB, generator=torch.Generator().manual_seed(seed))
    near = [tree.probs.get(row) for tree in trees for row in range(len(tree))]
    for row, law in enumerate(near):  # some rows agree with their drafts' law, all but or exactly
        if law is not None and row % 3:
            logits[row] = 0.9 * (law + (0.0, 0.0, 0.05)[row % 3]).log()
    monkeypatch.setattr(acceptances, "MAX_VALUES", max(sizes) * VOCAB * 8 // parts)
    expected, targets = list[Any](), warp(logits, sampling).split(sizes)
    for number, (tree, target) in enumerate(zip(trees, targets, strict=True)):
        uniforms = Uniforms(number, range(PROMPT))
        path, token = walk(tree, target, tree.probs, uniforms, number + 1)
        expected.append(((*path,), (token,)))
    found = read_out(logits, readouts_of(trees), sampling)
    assert [(each.path, each.picks) for each in found] == expected
    with PretendedCuda() as device:
        on_gpu = readouts_of(trees, place)
        device.waits.clear()
        found = read_out(place(logits), on_gpu, sampling)
        assert sum(device.waits.values()) == 1  # the read
    assert [(each.path, each.picks) for each in found] == expected


def test_random_trees_accept_drafts_of_every_depth_and_every_candidate() -> None:
    """The cases above are worth something only if drafts of all ranks stand."""
    seen = set[tuple[int, int]]()
    for seed in range(60):
        tree = drawn_tree(seed, 12)
        logits = torch.randn(len(tree), VOCAB, generator=torch.Generator().manual_seed(seed))
        path, _ = verified(tree, logits.softmax(-1), tree.probs, Uniforms(seed, [1]), 3)
        for row, child in itertools.pairwise(path):
            seen.add((tree.depths[row], [*tree.children(row).values()].index(child)))
    assert seen >= {(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0)}


@pytest.mark.parametrize("beside", [0, 5])
def test_without_draft_distributions_the_first_draft_behind_a_row_counts_as_certain(
    beside: int,
) -> None:
    """Also beside a tree that has laws; all other drafts behind the row have no chance."""
    tree, sampling = drawn_tree(3, 9), Sampling(temperature=1.0)
    firsts = {row: [*tree.children(row)][:1] for row in range(len(tree)) if tree.children(row)}
    laws, tree.probs = {row: torch.eye(VOCAB)[token].sum(0) for row, token in firsts.items()}, {}
    logits = torch.randn(40, VOCAB, generator=torch.Generator().manual_seed(4))
    other = drawn_tree(8, beside)
    logits = logits[: len(tree) + len(other)]
    found, _ = read_out(logits, readouts_of([tree, other]), sampling)
    target, uniforms = logits.softmax(-1), Uniforms(0, range(PROMPT))
    path, token = walk(tree, target, laws, uniforms, 1)
    assert (found.path, found.picks) == ((*path,), (token,))


def test_rows_that_are_not_numbers_fail_only_the_answers_that_reach_them() -> None:
    tree = made([1, 2])
    tree.probs = {0: torch.eye(VOCAB)[1], 1: torch.eye(VOCAB)[2]}
    logits = 99 * torch.eye(VOCAB)[[1, 2, 3]]
    for row, accepted in ((0, [0]), (1, [0, 1]), (2, [0, 1, 2])):
        (result,) = read_out(
            logits.index_fill(0, torch.tensor(row), math.nan),
            readouts_of([tree]),
            Sampling(temperature=1.0),
        )
        assert (result.path, result.picks) == ((*accepted,), (VOCAB,))


# ---------------------------------------------------------------- exact distributions


def distribution_of_a_step(p: Any, q: Tensor, shape: Shape, grid: int) -> Distribution:
    """The exact distribution of a step's tokens, of a tree of this shape drawn from q.

    p is the target's distribution by the tokens before, q that of each depth. Candidates have the
    distribution that `draw_candidates` was held to; the tests' uniforms run over a grid, each
    combination of them being one sequence of a batch.
    """
    middles = (torch.arange(grid, dtype=torch.float64) + 0.5) / grid
    distribution: defaultdict[Any, float] = defaultdict(float)
    for candidates in itertools.product(*(orders(row.tolist()) for row in q)):
        chance = math.prod(chance for _, chance in candidates)
        tree, rows = DraftTree(0), [0]
        for parent, depth, candidate in shape:
            rows.append(tree.draft(candidates[depth][0][candidate], rows[parent]))
        probs = torch.stack([p[tuple(prefix(tree, row))] for row in range(len(tree))])
        drafts, depths = children_of(tree), tree.depths
        pairs = zip(depths, drafts, strict=False)
        tests = [(depth, rank) for depth, line in pairs for rank in range(len(line))]
        used = [each for each, row in zip(tests, itertools.chain(*drafts), strict=True) if row]
        addresses = [*dict.fromkeys([*used, *depths])]
        u = torch.cartesian_prod(*[middles] * len(addresses))
        place = {address: number for number, address in enumerate(addresses)}
        accept = u[:, [place.get(each, 0) for each in tests]]
        laws = torch.stack([q[min(depth, len(q) - 1)] for depth in depths[:-1]])
        numbers = (tree.tokens, list(itertools.chain(*drafts)))
        arguments = (probs, laws, *map(torch.tensor, numbers))
        every = [each.expand(len(u), *each.shape) for each in arguments]
        every += [accept, u[:, [place[depth] for depth in depths]]]
        steps = verify_tree(*every)
        for (*rows, last), count in zip(
            *[each.tolist() for each in steps.unique(dim=0, return_counts=True)], strict=True
        ):
            tokens = (*(tree.tokens[row] for row in dict.fromkeys(rows) if row), last)
            distribution[tokens] += chance * count / len(u)
    return dict(distribution)


def orders(q: Sequence[float]) -> list[tuple[tuple[int, ...], float]]:
    """Two tokens drawn from q without replacement, with the chance of each order."""
    pairs = itertools.permutations([token for token, mass in enumerate(q) if mass], 2)
    return [((a, b), q[a] * q[b] / (1 - q[a])) for a, b in pairs]


@pytest.mark.parametrize(
    ("p", "q"),
    [
        # thresholds of the first and of the second test, and what is left: multiples of 1/12
        ([6, 4, 2], [3, 3, 6]),
        ([2, 2, 8], [3, 3, 6]),
        ([0, 6, 6], [3, 3, 6]),
        ([12, 0, 0], [6, 6, 0]),
        ([3, 3, 6], [3, 3, 6]),
    ],
)
@pytest.mark.parametrize("num_children", [1, 2])
def test_rejection_of_siblings_keeps_the_targets_distribution(
    p: list[int], q: list[int], num_children: int
) -> None:
    probs = ByPrefix({(): torch.tensor(p) / 12, (0,): torch.eye(3)[0], (1,): torch.eye(3)[0]})
    probs[(2,)] = torch.eye(3)[0]
    shape = [(0, 0, candidate) for candidate in range(num_children)]
    distribution = distribution_of_a_step(probs, torch.tensor([q]) / 12, shape, 12)
    first: defaultdict[int, float] = defaultdict(float)
    for tokens, mass in distribution.items():
        first[tokens[0]] += mass
        assert all(token == 0 for token in tokens[1:])
    for token, weight in enumerate(p):
        assert first[token] == pytest.approx(weight / 12, abs=1e-9)


@pytest.mark.parametrize(
    ("p", "q", "sizes"),
    [
        # both siblings may fall, and two tokens are left then
        ([5, 5, 1, 1], [3, 3, 3, 3], {"draw": (4, 3), "accept": (3, 3), "recover": (2,)}),
        # what the first leaves of p exceeds, as it is, what the second is drawn from
        ([4, 2, 2, 0], [1, 1, 2, 4], {"draw": (8, 4), "accept": (2, 2), "recover": (2,)}),
    ],
)
def test_drawing_and_testing_two_candidates_gives_the_targets_distribution(
    p: list[int], q: list[int], sizes: dict[str, tuple[int, ...]]
) -> None:
    """All uniforms are integrated over, those of the draws among them: none decides twice."""
    target, drafted = torch.tensor(p) / sum(p), torch.tensor(q) / sum(q)

    def first(uniforms: Any) -> int:
        tree = DraftTree(0)
        for token in draw_candidates(drafted, 2, uniforms, 3):
            tree.draft(token, 0)
        after = torch.stack([target, *torch.eye(4)[[0] * (len(tree) - 1)]])
        path, token = verified(tree, after, {0: drafted}, uniforms, 3)
        return tree.tokens[path[1]] if len(path) > 1 else token

    found = integrated(first, lambda stream, _, candidate: sizes[stream][candidate])
    for token, mass in enumerate(target.tolist()):
        assert found.get(token, 0.0) == pytest.approx(mass, abs=1e-6)


def test_rejection_of_a_tree_of_two_depths_keeps_the_targets_distribution() -> None:
    """Two tokens, in quarters: of the first two, those after a step being drawn."""
    probs = ByPrefix({(): torch.tensor([1, 3]) / 4, (0,): torch.tensor([3, 1]) / 4})
    probs[(1,)] = torch.tensor([1, 1]) / 2
    q = torch.tensor([[2, 2], [2, 2]]) / 4
    for shape in ([(0, 0, 0), (0, 0, 1), (1, 1, 0), (1, 1, 1)], [(0, 0, 0), (1, 1, 0), (0, 0, 1)]):
        two: defaultdict[tuple[int, int], float] = defaultdict(float)
        for tokens, mass in distribution_of_a_step(probs, q, shape, 4).items():
            if len(tokens) > 1:
                two[tokens[:2]] += mass
            else:  # the next step's first token follows the target in any case
                for token in (0, 1):
                    two[(tokens[0], token)] += mass * probs[tokens][token].item()
        for first, second in itertools.product((0, 1), repeat=2):
            expected = probs[()][first].item() * probs[(first,)][second].item()
            assert two[(first, second)] == pytest.approx(expected, abs=1e-9)


def test_certain_drafts_are_accepted_and_impossible_drafts_are_rejected() -> None:
    tree = made([1, 2])
    p = torch.eye(4)[[1, 2, 3]]

    class Any1:
        def at(self, *_: Any) -> float:
            return 0.999

    assert verified(tree, p, {0: p[0], 1: p[1]}, Any1(), 0) == ([0, 1, 2], 3)
    other = torch.eye(4)[[0, 2, 3]]
    assert verified(tree, other, {0: p[0], 1: p[1]}, Any1(), 0) == ([0], 0)
