"""Fourteen methods once more, in plain Python, held against their decoders step by step.

A reference shares nothing with a decoder but the table of logits and the numbers of `Uniforms`:
it warps, picks, drafts and verifies by itself, without a cache, a tree of rows or a loop in common.
Tables are random, of two to six words; so are options, prompts (of one token, too), budgets, end
tokens and sampling. Compared are the tokens of each step, its drafts, those accepted, and its rows.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.registry import build, parse_spec
from decoders.core.sampling import Uniforms
from decoders.core.testing.table_model import TableModel
from decoders.core.types import NO_UNIFORM, Sampling

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_CASES = 40
Law = Any
"""Probabilities, a NumPy array ``[V]``."""
Round = tuple[Any, ...]
"""Tokens of a step, its drafts, the accepted ones, its rows; then draft calls and their rows, or of
trees the probabilities of the drafts that were tested."""
Branch = tuple[int, ...]


def warped(logits: Any, sampling: Sampling) -> Law:
    """Temperature, top-k, top-p."""
    x = np.asarray(logits.tolist())
    if sampling.greedy:
        return np.eye(len(x))[x.argmax()]
    x = x / sampling.temperature
    if 0 < sampling.top_k < len(x):
        x = np.where(x < sorted(x)[-sampling.top_k], -np.inf, x)
    law = np.exp(x - x.max())
    law /= law.sum()
    mass, kept = 0.0, np.zeros(len(law))
    for token in np.argsort(-law, kind="stable"):
        if mass < sampling.top_p:
            kept[token] = law[token]
        mass += law[token]
    return kept / kept.sum()


def pick(weights: Law, u: float) -> int:
    """The first token whose cumulative weight exceeds u."""
    cdf = np.cumsum(weights)
    return next(i for i, c in enumerate(cdf) if c > u * cdf[-1] and weights[i] > 0)


@dataclass
class Case:
    """A random table with students, a prompt, and how to sample."""

    rng: random.Random
    models: Models
    prompt: list[int]
    sampling: Sampling
    uniforms: Any

    @classmethod
    def of(cls, seed: int) -> Case:
        rng = random.Random(seed)
        size = rng.randint(2, 6)
        scale, order = rng.choice([0.3, 1.5, 4.0]), rng.choice([1, 2, 3])
        target = TableModel(size, rng.randrange(10**6), order=order, scale=scale)
        for variant in ("eagle", "mtp", "medusa", "isd", "refine"):
            target.attach(variant, rng.choice([0, 0.3, 1.0]), variant)

        def smaller() -> TableModel:
            agreement = rng.choice([0, 0.6, 0.95])
            seed = rng.randrange(10**6)
            return TableModel(size, seed, scale=1.5, agree_with=target, agreement=agreement)

        stops = frozenset({rng.randrange(size)}) if size > 2 and rng.random() < 0.4 else frozenset()
        sampling = Sampling(
            temperature=rng.choice([0, 0.7, 1.5]),
            top_k=rng.choice([0, 0, 1, 2, 3]),
            top_p=rng.choice([1.0, 1.0, 0.6, 1e-9]),
            max_new_tokens=rng.choice([1, 2, 3, 5, 9, 17, 30]),
            stop_ids=stops,
            seed=rng.randrange(1000),
        )
        prompt = [rng.randrange(size) for _ in range(rng.choice([1, 1, 2, 3, 7, 12]))]
        models = Models(target=target, draft=smaller(), named={"small": smaller()})
        return cls(rng, models, prompt, sampling, Uniforms(sampling.seed, prompt))

    @property
    def target(self) -> Any:
        return self.models.target

    def at(self, text: Sequence[int]) -> int:
        """The place in the answer of the token after a text."""
        return len(text) - len(self.prompt)

    def left(self, text: Sequence[int]) -> int:
        return self.sampling.max_new_tokens - self.at(text)

    def law(self, text: Sequence[int], model: Any = None) -> Law:
        return warped((model or self.target).logits([*text]), self.sampling)

    def soft(self, logits: Any) -> Law:
        """A drafter's law: at temperature 0 not yet certain."""
        return warped(logits, Sampling(temperature=1.0) if self.sampling.greedy else self.sampling)

    def next(self, text: Sequence[int], model: Any = None) -> int:
        """AR's token."""
        return pick(self.law(text, model), self.uniforms.at("draw", self.at(text)))

    def begun(self) -> tuple[list[int], Round]:
        """The text after the prompt's step, and this step."""
        first = self.next(self.prompt)
        return [*self.prompt, first], ([first], 0, 0, len(self.prompt), 0, 0)

    def cut(self, rounds: Iterator[Round]) -> list[Round]:
        """The rounds up to the budget or an end token."""
        kept, num = list[Round](), 0
        for tokens, drafted, accepted, *rest in rounds:
            stops = self.sampling.stop_ids
            ends = [i + 1 for i, token in enumerate(tokens) if token in stops]
            left = self.sampling.max_new_tokens - num
            size = min([*ends, len(tokens), left])
            num += size
            leading = len(tokens) - accepted - 1  # drafts come behind these
            accepted = max(0, min(accepted, size - leading))
            kept.append((tuple(tokens[:size]), drafted, accepted, *rest))
            if num == self.sampling.max_new_tokens or (ends and size == ends[0]):
                return kept
        raise AssertionError("a reference has no end")

    def picked_path(self, text: Sequence[int], drafts: set[Branch]) -> tuple[list[int], int]:
        """AR's tokens for as long as they are drafts, and one more."""
        tokens = [self.next(text)]
        while tuple(tokens) in drafts:
            tokens.append(self.next([*text, *tokens]))
        return tokens, len(tokens) - 1


def prefixes(chains: Any) -> set[Branch]:
    return {tuple(chain[:n]) for chain in chains for n in range(1, len(chain) + 1)}


def by_picks(case: Case, drafts: Callable[..., Any], learn: Any = None) -> Iterator[Round]:
    """Chains that the target's picks verify; `drafts` are asked for with a text and a number."""
    text, first = case.begun()
    yield first
    while True:
        chains = drafts(text, case.left(text) - 1)
        paths = prefixes(chains)
        tokens, accepted = case.picked_path(text, paths)
        if learn:
            learn(text, chains, accepted)
        text = [*text, *tokens]
        yield tokens, len(paths), accepted, 1 + len(paths), 0, 0


def lookup(case: Case) -> tuple[str, Iterator[Round]]:
    n, k = case.rng.randint(1, 3), case.rng.choice([1, 3, 6])
    shortest = case.rng.randint(1, n)

    def drafts(text: list[int], room: int) -> Any:
        for size in range(min(n, len(text)), shortest - 1, -1):
            for start in reversed(range(len(text) - size)):
                if text[start : start + size] == text[-size:]:
                    return [text[start + size :][: min(k, room)]]
        return []

    return f"lookup:n={n}:k={k}:shortest={shortest}", by_picks(case, drafts)


def jacobi(case: Case) -> tuple[str, Iterator[Round]]:
    size, guesses = case.rng.choice([1, 2, 5]), list[int]()

    def drafts(text: list[int], room: int) -> Any:
        fill = guesses[-1] if guesses else text[-1]
        return [[*guesses, *[fill] * size][: min(size - 1, room)]]

    def learn(text: list[int], chains: Any, accepted: int) -> None:
        (chain,) = chains
        picks = [case.next([*text, *chain[:n]]) for n in range(len(chain) + 1)]
        guesses[:] = picks[accepted + 1 :]

    return f"jacobi:block={size}", by_picks(case, drafts, learn)


def recycle(case: Case) -> tuple[str, Iterator[Round]]:
    k, after = case.rng.choice([1, 3, 6]), dict[int, int]()

    def drafts(text: list[int], room: int) -> Any:
        if case.at(text) == 1:
            after.update(itertools.pairwise(text))
        chain = [text[-1]]
        while len(chain) <= k and chain[-1] in after:
            chain.append(after[chain[-1]])
        return [chain[1:][:room]]

    def learn(text: list[int], chains: Any, _: int) -> None:
        rows = [text[-1], *chains[0]]
        for n, row in enumerate(rows):
            after[row] = case.next([*text, *rows[1 : n + 1]])

    return f"{EXAMPLES / 'recycle.py'}:Recycle:k={k}", by_picks(case, drafts, learn)


def lookahead(case: Case) -> tuple[str, Iterator[Round]]:
    """Columns of the window are ``[level][column]``; a guess sees level 0 up to its column."""
    rng = case.rng
    width, n, kept, reads = rng.choice([1, 3]), rng.choice([2, 3, 4]), rng.choice([1, 2, 4]), "true"
    if rng.random() < 0.5:
        reads = "false"
    pool: dict[int, list[Branch]] = {}

    def gather(ngram: Sequence[int]) -> None:
        after = [each for each in pool.get(ngram[0], []) if each != tuple(ngram[1:])]
        pool[ngram[0]] = [*after, tuple(ngram[1:])][-kept:]

    def rounds() -> Iterator[Round]:
        text, first = case.begun()
        yield first
        for start in range(len(text) - n + 1 if reads == "true" else 0):
            gather(text[start : start + n])
        levels = [(case.prompt * width)[-width:]]
        while True:
            room = max(0, case.left(text) - 1)
            paths = prefixes([chain[:room] for chain in pool.get(text[-1], [])])
            guesses = [
                case.next([*text, *levels[0][: c + 1], *(level[c] for level in levels[1:])])
                for c in range(width)
            ]
            tokens, accepted = case.picked_path(text, paths)
            yield tokens, len(paths), accepted, 1 + len(paths) + width * len(levels), 0, 0
            text = [*text, *tokens]
            levels.append(guesses)
            if len(levels) == n:
                for column in zip(*levels, strict=True):
                    gather(column)
                del levels[0]

    spec = f"lookahead:window={width}:n={n}:candidates={kept}:from_prompt={reads}"
    return spec, rounds()


def suffix(case: Case) -> tuple[str, Iterator[Round]]:
    """Counts by searching the text; equally likely drafts by their parents, then by id."""
    rng = case.rng
    factor, least = rng.choice([1, 2, 4]), rng.choice([0.011, 0.11, 0.41])
    branches = rng.random() < 0.5

    def drafts(text: list[int], room: int) -> Any:
        def shares(run: Sequence[int]) -> dict[int, float]:
            starts = range(len(text) - len(run))
            after = [text[i + len(run)] for i in starts if text[i : i + len(run)] == [*run]]
            return {token: after.count(token) / len(after) for token in after}

        best, score = list[Branch](), 0.0
        for length in range(1, min(24, len(text)) + 1):
            run, sum_chances = text[-length:], 0.0
            taken: list[Branch] = [()]
            ready: list[tuple[float, int, int, Branch]] = []
            chance = 1.0
            while len(taken) <= max(1, factor * length):
                path, row = taken[-1], len(taken) - 1
                options = [
                    (-chance * share, row, token, (*path, token))
                    for token, share in shares([*run, *path]).items()
                    if len(path) < room and chance * share >= least - 1e-12
                ]
                ready += options if branches else sorted(options)[:1]
                if not ready:
                    break
                ready.sort()
                negated, _, _, path = ready.pop(0)
                chance = -negated
                taken.append(path)
                sum_chances += chance
            if len(taken) > 1 and sum_chances >= score - 1e-12:
                best, score = taken[1:], sum_chances
        return best

    spec = f"suffix:answers=false:factor={factor}:chance={least}:branches={str(branches).lower()}"
    return spec, by_picks(case, drafts)


def verified(
    case: Case, text: list[int], drafts: list[int], laws: list[Law], rule: str, u: Any, model: Any
) -> tuple[list[int], int]:
    """Leviathan's Algorithm 1, Algorithm 2 of block verification, or picks; tokens and accepted."""
    place, num = case.at(text), len(drafts)
    p = [case.law([*text, *drafts[:n]], model) for n in range(num + 1)]
    if rule == "coupled" or case.sampling.greedy:
        accepted = 0
        while accepted < num and drafts[accepted] == case.next([*text, *drafts[:accepted]], model):
            accepted += 1
        return [*drafts[:accepted], case.next([*text, *drafts[:accepted]], model)], accepted
    accepted, share, shares, rest = 0, 1.0, [1.0], p[num]
    for n, (draft, q) in enumerate(zip(drafts, laws, strict=True)):
        share = min(1.0, share * p[n][draft] / q[draft])
        shares.append(share)
        test = u.at("accept", place + n)
        if rule == "block":
            mass = 0.0
            if n + 1 < num:
                mass = np.maximum(share * p[n + 1] - laws[n + 1], 0).sum()
            chance = share if n + 1 == num or share == 1 else mass / (mass + 1 - share)
            accepted = n + 1 if test < chance else accepted
        elif test < p[n][draft] / q[draft]:
            accepted = n + 1
        else:
            break
    if accepted < num:
        scale = shares[accepted] if rule == "block" else 1.0
        rest = np.maximum(scale * p[accepted] - laws[accepted], 0)
        rest = rest if rest.sum() > 1e-9 else p[accepted]
    return [*drafts[:accepted], pick(rest, u.at("recover", place + accepted))], accepted


def chain(
    case: Case, model: Any, text: Sequence[int], room: int, u: Any, stop: float = 0.0
) -> tuple[list[int], list[Law]]:
    """Tokens drawn one by one, the last of them the first below `stop`."""
    drafts, laws = list[int](), list[Law]()
    while len(drafts) < room:
        context = [*text, *drafts]
        laws.append(case.law(context, model))
        drafts.append(pick(laws[-1], u.at("draw", case.at(context))))
        if case.soft(model.logits(context))[drafts[-1]] < stop:
            break
    return drafts, laws


def spec(case: Case) -> tuple[str, Iterator[Round]]:
    rule, k = case.rng.choice(["rejection", "coupled", "block"]), case.rng.choice([1, 2, 4, 7])
    stop = case.rng.choice([0, 0.3, 0.7])

    def rounds() -> Iterator[Round]:
        text, first = case.begun()
        yield first
        fed, u = 0, case.uniforms
        for step in itertools.count(1):
            if rule == "block":
                u = case.uniforms.at_step(step)
            room = min(k, case.left(text) - 1)
            drafts, laws = chain(case, case.models.draft, text, room, u, stop)
            num_rows = len(text) - fed + len(drafts) - 1 if drafts else 0
            fed += num_rows
            tokens, accepted = verified(case, text, drafts, laws, rule, u, None)
            fed = min(fed, len(text) + accepted)
            text = [*text, *tokens]
            yield tokens, len(drafts), accepted, 1 + len(drafts), len(drafts), num_rows

    return f"spec:k={k}:stop={stop}:verify={rule}", rounds()


def cascade(case: Case) -> tuple[str, Iterator[Round]]:
    """The draft model verifies a smaller one's drafts; its tokens are drafts from its own law."""
    rule, k = case.rng.choice(["rejection", "coupled", "block"]), case.rng.choice([1, 2, 4, 7])
    most = case.rng.choice([1, 2, 4])
    inner = "coupled" if rule == "coupled" else "rejection"

    def rounds() -> Iterator[Round]:
        text, first = case.begun()
        yield first
        model, small, u = case.models.draft, case.models.named["small"], case.uniforms
        for step in itertools.count(1):
            if rule == "block":
                u = case.uniforms.at_step(step)
            drawn = inner == "rejection" and not case.sampling.greedy
            inside = case.uniforms.at_step((1 << 30) + case.at(text)) if drawn else case.uniforms
            drafts, laws, calls = list[int](), list[Law](), 0
            while (room := min(k, case.left(text) - 1) - len(drafts)) > 0:
                context = [*text, *drafts]
                new, of_new = chain(case, small, context, min(most, room - 1), inside)
                tokens, _ = verified(case, context, new, of_new, inner, inside, model)
                laws += [case.law([*context, *tokens[:n]], model) for n in range(len(tokens))]
                drafts, calls = [*drafts, *tokens], calls + len(new) + 1
            tokens, accepted = verified(case, text, drafts, laws, rule, u, None)
            text = [*text, *tokens]
            yield tokens, len(drafts), accepted, 1 + len(drafts), calls

    return f"spec:k={k}:cascade=small:cascade_k={most}:verify={rule}", rounds()


Tree = tuple[dict[Branch, list[int]], Callable[[Branch], Law]]
"""The tokens drafted after each path, in order, and the law that they come from."""


def by_tree(case: Case, rule: str, make: Callable[[list[int], int], Tree]) -> Iterator[Round]:
    """SpecInfer's Algorithm 3 for drafts drawn without replacement, or the target's picks."""
    text, first = case.begun()
    yield (*first[:4], [])
    while True:
        room = case.left(text) - 1
        children, law = make(text, room) if room > 0 else ({}, case.law)
        paths = {(*path, token) for path, tokens in children.items() for token in tokens}
        tokens, accepted = case.picked_path(text, paths)
        if rule == "rejection" and not case.sampling.greedy:
            tokens = drawn_path(case, text, children, law)
            accepted = len(tokens) - 1
        tested = [tuple(tokens[:n]) for n in range(accepted + 1)]
        sure = [float(law(path)[token]) for path in tested for token in children.get(path, ())]
        text = [*text, *tokens]
        yield tokens, len(paths), accepted, 1 + len(paths), sorted(sure)


def drawn_path(
    case: Case, text: list[int], children: Mapping[Branch, list[int]], law: Any
) -> list[int]:
    path: Branch = ()
    while True:
        p, place = case.law([*text, *path]), case.at(text) + len(path)
        q = law(path) if path in children else p
        for number, token in enumerate(children.get(path, ())):
            q = q / q.sum()
            if case.uniforms.at("accept", place, number) * q[token] < p[token]:
                path = (*path, token)
                break
            rest = np.maximum(p - q, 0)
            p = rest / rest.sum() if rest.sum() > 1e-9 else p
            q = np.where(np.arange(len(q)) == token, 0, q)
        else:
            return [*path, pick(p, case.uniforms.at("recover", place))]


def candidates(case: Case, law: Law, width: int, place: int, draws: bool) -> list[Any]:
    """Pairs of a chance and a token: the likeliest, or tokens drawn without replacement.

    Drawn tokens go with the chances of the likeliest: which of them stay is decided before.
    """
    order = [int(token) for token in np.argsort(-law, kind="stable") if law[token] > 0][:width]
    tokens, left = order, law.copy()
    if draws:
        tokens = []
        for number in range(len(order)):
            tokens.append(pick(left, case.uniforms.at("draw", place, number)))
            left[tokens[-1]] = 0
    return [(law[likely], token) for likely, token in zip(order, tokens, strict=True)]


def layer(case: Case) -> tuple[str, Iterator[Round]]:
    """EAGLE-2's tree (drawn: an even share of drafts a level), or the chain of an MTP layer."""
    rng = case.rng
    rule, name = rng.choice(["rejection", "coupled"]), rng.choice(["eagle", "mtp"])
    nodes, width, depth = rng.choice([1, 2, 5, 8, 12]), rng.choice([1, 2, 3, 7]), rng.choice([1, 3])
    spec = f"eagle:nodes={nodes}:width={width}:depth={depth}:verify={rule}"
    if name == "mtp":
        nodes, width, spec = depth, 1, f"mtp:k={depth}:verify={rule}"
    draws, table = rule == "rejection" and not case.sampling.greedy, case.target

    def make(text: list[int], room: int) -> Tree:
        def law(path: Branch) -> Law:
            context = [*text, *path]
            wrong = table._errs(context, "drafted", table.errors[name])
            return case.soft(table.logits(context).roll(int(wrong) * (table.vocab_size // 2)))

        rows, every = list[tuple[float, Branch]]([(1.0, ())]), list[tuple[float, Branch]]()
        for level in range(min(depth, room)):
            new: list[tuple[float, Branch]] = [
                (chance * odds, (*path, token))
                for chance, path in rows
                for odds, token in candidates(case, law(path), width, case.at(text) + level, draws)
            ]
            ranked = sorted(new, key=lambda each: -each[0])
            if draws:
                ranked = ranked[: max(1, nodes // depth)]
                new = [each for each in new if each in ranked]
            every, rows = every + new, ranked[:width]
        kept = every if draws else sorted(every, key=lambda each: -each[0])[:nodes]
        return tree_of(path for _, path in kept), law

    return spec, by_tree(case, rule, make)


def tree_of(paths: Any) -> dict[Branch, list[int]]:
    children: dict[Branch, list[int]] = {}
    for path in paths:
        children.setdefault(path[:-1], []).append(path[-1])
    return children


def medusa(case: Case) -> tuple[str, Iterator[Round]]:
    """The likeliest paths through all heads' candidates, of which each head has one list."""
    rng, table = case.rng, case.target
    rule, nodes = rng.choice(["rejection", "coupled"]), rng.choice([1, 2, 5, 12])
    width, heads = rng.choice([1, 2, 3, 7]), rng.choice([1, 2, 4])
    draws = rule == "rejection" and not case.sampling.greedy

    def make(text: list[int], room: int) -> Tree:
        logits = table._proposed("medusa", table._hidden([text[:-1]])[0], heads)
        laws = [case.soft(each) for each in logits][:room]
        of_heads = [
            candidates(case, law, width, case.at(text) + head, draws)
            for head, law in enumerate(laws)
        ]
        every = [
            (math.prod(chance for chance, _ in pairs), tuple(token for _, token in pairs))
            for depth in range(1, len(laws) + 1)
            for pairs in itertools.product(*of_heads[:depth])
        ]
        kept = sorted(every, key=lambda each: (-each[0], len(each[1])))[:nodes]
        return tree_of(path for _, path in kept), lambda path: laws[len(path)]

    return f"medusa:nodes={nodes}:width={width}:heads={heads}:verify={rule}", by_tree(
        case, rule, make
    )


def student(case: Case, context: Sequence[int], shown: Sequence[int | None], name: str) -> Any:
    """Logits after masks (None, which a table takes for its likeliest) or shown tokens."""
    seen, table = [*context], case.target
    for token in shown:
        seen.append(int(table.logits(seen).argmax()) if token is None else token)
    wrong = table._chance(repr((table._seed, seen, NO_UNIFORM))) < table.errors[name]
    return table.logits(seen).roll(int(wrong) * (table.vocab_size // 2))


def isd(case: Case) -> tuple[str, Iterator[Round]]:
    """Rounds as I-DLM's algorithm has them; with `all`, masks also follow every spec."""
    rng = case.rng
    stride, where = rng.choice([2, 3, 4, 9]), rng.choice(["end", "all"])
    rule, proposal = rng.choice(["rejection", "coupled"]), rng.choice(["sample", "argmax"])
    masks, certain = min(stride - 1, 6), proposal == "argmax" or case.sampling.greedy

    def rounds() -> Iterator[Round]:
        text, specs, laws, fed = case.prompt, list[int](), list[Law](), len(case.prompt)
        while True:
            # behind m accepted specs, m + 1 tokens are emitted, and the next call adds one
            sizes = [max(0, min(masks, case.left(text) - m - 2)) for m in range(len(specs) + 1)]
            num_rows = fed + len(specs) + (sum(sizes) if where == "all" else sizes[-1])
            tokens, accepted = verified(case, text, specs, laws, rule, case.uniforms, None)
            yield tokens, len(specs), accepted, num_rows, 0, 0
            context, fed, cold = [*text, *tokens[:-1]], 1, accepted < len(specs)
            specs, laws = [], []
            for number in range(sizes[accepted] if where == "all" or not cold else 0):
                logits = student(case, context, [None] * (number + 1), "isd")
                law = warped(logits, case.sampling)
                laws.append(np.eye(len(law))[int(logits.argmax())] if certain else law)
                u = case.uniforms.at("draw", case.at(context) + 1 + number)
                specs.append(pick(laws[-1], u))
            text = [*text, *tokens]

    return f"isd:stride={stride}:branches={where}:verify={rule}:proposal={proposal}", rounds()


def nar(case: Case) -> tuple[str, Iterator[Round]]:
    size, argmax = case.rng.choice([1, 2, 3, 5, 9]), case.rng.random() < 0.5

    def rounds() -> Iterator[Round]:
        text, fed = case.prompt, len(case.prompt)
        while True:
            block, num = [case.next(text)], min(size, case.left(text))
            for slot in range(num - 1):
                logits = student(case, text, [None] * (slot + 1), "refine")
                u = case.uniforms.at("draw", case.at(text) + 1 + slot)
                law = np.eye(len(logits))[int(logits.argmax())]
                block.append(pick(law if argmax else warped(logits, case.sampling), u))
            yield block, 0, 0, fed + (num if num > 1 else 0), 0, 0
            text, fed = [*text, *block], len(block)

    return f"nar:block={size}:picks={'argmax' if argmax else 'law'}", rounds()


def refine(case: Case) -> tuple[str, Iterator[Round]]:
    """Mask-Predict, LLaDA's quota, or a threshold, on whole blocks that masks fill at first."""
    rng = case.rng
    size, passes, least = (
        rng.choice([1, 2, 3, 5, 9]),
        rng.choice([1, 2, 3, 5]),
        rng.choice([0.2, 0.9]),
    )
    commit, schedule = rng.choice(["quota", "cmlm", "threshold"]), rng.choice(["linear", "cosine"])

    def fill(text: list[int], num: int) -> Iterator[list[int | None]]:
        """The tokens of a block after each pass."""
        block: list[int | None] = [None] * num
        sure = [0.0] * num
        for done in range(1, (1 if num == 1 else passes) + 1):
            guesses = {}
            for slot in range(num - 1):
                logits = student(case, text, block[: slot + 1], "refine")
                law = case.soft(logits)
                u = case.uniforms.at("draw", case.at(text) + 1 + slot)
                token = pick(warped(logits, case.sampling), u)
                guesses[slot + 1] = law[token], token
            block[0] = case.next(text)
            masked = [i for i in range(1, num) if block[i] is None]
            last, filled = done == passes, [*block]
            for i in masked:
                filled[i] = guesses[i][1]
            ends = [i for i in range(1, num) if filled[i] in case.sampling.stop_ids]
            end = min(ends, default=num - 1)  # of the answer
            share = (passes - done) / passes
            count = share if schedule == "linear" else math.cos(math.pi / 2 * done / passes)
            count = math.floor(end * count + 1e-9)
            inside = sorted((i for i in masked if i <= end), key=lambda i: -guesses[i][0])
            if commit == "quota":
                inside = inside[: max(1, len(inside) - count)]
            elif commit == "threshold":
                inside = inside[: max(1, sum(guesses[i][0] >= least for i in inside))]
            for i in masked if last or commit == "cmlm" else inside:
                sure[i], block[i] = guesses[i]
            if commit == "cmlm" and not last:
                for i in sorted(range(1, end + 1), key=lambda i: (sure[i], -i))[:count]:
                    block[i] = None
            ends = [i for i in range(num) if block[i] in case.sampling.stop_ids]
            yield block
            if None not in block[: min(ends, default=num)]:
                return

    def rounds() -> Iterator[Round]:
        text, fed = case.prompt, len(case.prompt)
        while True:
            num, emitted = min(size, case.left(text)), 0
            states = [[*block] for block in fill(text, num)]
            for number, block in enumerate(states, 1):
                whole = [*itertools.takewhile(lambda token: token is not None, block)]
                new = whole[emitted:] if number == len(states) else block[emitted:1]
                yield new, 0, 0, fed + (num if num > 1 else 0), 0, 0
                emitted, fed = emitted + len(new), 0
            text, fed = [*text, *whole], len(whole)  # type: ignore[list-item]

    option = f"threshold={least}" if commit == "threshold" else f"schedule={schedule}"
    classical = "revise=none:prefix=block:tail=fill"
    return f"idlm:block={size}:max_passes={passes}:commit={commit}:{option}:{classical}", rounds()


def proposals(case: Case, table: Any, text: Sequence[int], num: int, name: str) -> list[int]:
    """Proposals of slots that follow a text, each with the uniform of its place.

    A table's student follows the table's own picks. In O-PTP slot s predicts the token that its u
    picks, in C-PTP it draws the token after that.
    """
    sampling, seen, proposed = case.sampling, [*text], list[int]()
    for _ in range(num):
        place, logits = case.at(seen), table.logits(seen)
        u = NO_UNIFORM if sampling.greedy else case.uniforms.at("draw", place)
        token = int(logits.argmax())
        if not sampling.greedy:
            alone = Sampling(temperature=sampling.temperature, top_p=sampling.top_p)
            token = pick(warped(logits, alone), u)
        seen.append(token)
        wrong = table._chance(repr((table._seed, seen, u))) < table.errors[name]
        if table.adapters[name].variant == "o-ptp":
            proposed.append((token + wrong) % table.vocab_size)
            continue
        law = warped(table.logits(seen).roll(int(wrong) * (table.vocab_size // 2)), sampling)
        proposed.append(pick(law, case.uniforms.at("draw", place + 1)))
    return proposed


def with_slots(case: Case, model: Any, name: str) -> tuple[int, int, bool]:
    """Attach a student without top-k, and return its slots by option and in fact, if O-PTP."""
    is_o = case.rng.random() < 0.5
    model.attach(name, case.rng.choice([0, 0.2, 0.6, 1]), "o-ptp" if is_o else "c-ptp")
    case.sampling = dataclasses.replace(case.sampling, top_k=0)
    option = case.rng.choice([0, 1, 2, 4])
    return option, option or 6, is_o


def ptp(case: Case) -> tuple[str, Iterator[Round]]:
    """Slots behind the last token, whose own row gives the token that O-PTP's first slot predicts.

    The prompt's call proposes too. Then one call proposes, and another one verifies.
    """
    option, num_slots, is_o = with_slots(case, case.target, "ptp")

    def propose(text: list[int]) -> tuple[list[int], int]:
        # this call's token and the verifying one's are not proposed
        num = min(num_slots, case.left(text) - 2 + is_o)
        num = num if num > is_o else 0
        return proposals(case, case.target, text, num, "ptp")[is_o:], num

    def rounds() -> Iterator[Round]:
        text, first = case.begun()
        drafts, num = propose(case.prompt)
        yield (*first[:3], len(case.prompt) + num, 0, 0)
        num_rows, leading = 0, list[int]()
        while True:
            paths = prefixes([drafts[: max(0, case.left(text) - 1)]])
            tokens, accepted = case.picked_path(text, paths)
            ended = leading and (case.left(text) == 0 or {*leading} & case.sampling.stop_ids)
            if ended:
                yield leading, 0, 0, num_rows, 0, 0
            yield [*leading, *tokens], len(paths), accepted, num_rows + 1 + len(paths), 0, 0
            text = [*text, *tokens]
            leading = [case.next(text)]
            drafts, num = propose(text)
            num_rows = 1 + num
            text.append(leading[0])

    return f"ptp:slots={option}:row_cost=0", rounds()


def ptp_spec(case: Case) -> tuple[str, Iterator[Round]]:
    """As PTP, on the draft model, whose row of the last token only guesses the next (C-PTP)."""
    model: Any = case.models.draft
    option, num_slots, is_o = with_slots(case, model, "ptp-draft")

    def rounds() -> Iterator[Round]:
        text, first = case.begun()
        yield first
        fed = 0
        while True:
            room, drafts, calls = case.left(text) - 1, list[int](), (0, 0)
            if room:
                num = min(num_slots, room - (not is_o))
                drafts = [] if is_o else [case.next(text, model)]
                drafts += proposals(case, model, text, num, "ptp-draft")
                calls, fed = (1, len(text) - fed + num), len(text)
            paths = prefixes([drafts])
            tokens, accepted = case.picked_path(text, paths)
            text = [*text, *tokens]
            yield tokens, len(paths), accepted, 1 + len(paths), *calls

    return f"ptp_spec:slots={option}:row_cost=0", rounds()


METHODS = {
    method.__name__: method
    for method in (
        *(lookup, jacobi, recycle, lookahead, suffix, spec, cascade),
        *(layer, medusa, isd, nar, refine, ptp, ptp_spec),
    )
}


@pytest.mark.parametrize("name", METHODS)
def test_a_decoders_steps_are_those_of_its_plain_reference(name: str) -> None:
    num_accepted = 0
    for seed in range(NUM_CASES):
        case = Case.of(seed)
        options, rounds = METHODS[name](case)
        answer = generate(build(parse_spec(options)), case.prompt, case.sampling, case.models)
        expected = case.cut(rounds)
        got = [
            (s.tokens, s.drafted, s.accepted, s.target_rows, s.draft_calls, s.draft_rows)
            for s in answer.steps
        ]
        of_trees = name in ("layer", "medusa")
        fields = 4 if of_trees else 5 if name == "cascade" else 6
        assert [step[:fields] for step in got] == [step[:fields] for step in expected], options
        for step, (*_, sure) in zip(answer.steps, expected if of_trees else (), strict=of_trees):
            assert sorted(chance for chance, _ in step.confidences) == pytest.approx(sure)
        assert all(step.target_calls == 1 + (step.num_leading > 0) for step in answer.steps)
        num_accepted += sum(step.accepted for step in answer.steps)
    assert (num_accepted > 0) == (name not in ("nar", "refine"))
