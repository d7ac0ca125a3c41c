"""Eight decoders of a few lines, one for each special need of a decoder (docs/interface.md).

bench run --decoders lookup,examples/short.py:Again,examples/short.py:Recycling
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from decoders.core.decoder import Decoder, Request, Steps
from decoders.core.drafting.drafter import Drafter
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.drafting.tree import DraftTree
from decoders.core.drafting.verification import Rule
from decoders.core.types import Emit
from decoders.spec import Speculative


class Typical(Rule):
    """Accept a draft that is likely enough, given how uncertain the target is (Medusa)."""

    lossless = False

    def output(self, sampling: Any, *, branches: bool) -> Any:
        return "probs"

    def decide(self, turn: Any) -> Any:
        probs, path = turn.result.probs, [0]
        while children := turn.tree.children(path[-1]):
            law = probs[path[-1]]
            threshold = min(0.09, 0.3 * float((law * law.clamp(min=1e-9).log()).sum().exp()))
            likely = [row for token, row in children.items() if float(law[token]) > threshold]
            if not likely:
                break
            path.append(likely[0])
        return path, turn.recover(probs[path[-1]], len(path) - 1)


@dataclass(frozen=True, kw_only=True)
class TypicalSpec(Speculative):
    """A verification rule: typical acceptance (arXiv 2401.10774, section 2.3.1). Lossy."""

    verification = Typical()


class Successors(Drafter):
    """Draft a tree of the target's two likeliest successors of each token, or the sure one."""

    branches, outputs = True, ("topk:2", "entropy")

    def __init__(self) -> None:
        self.after: dict[int, Any] = {}

    def propose(self, text: Any, most: int) -> DraftTree:
        tree, rows = DraftTree(text.last), [0]
        for _ in range(min(most, 3)):
            places = [(row, t) for row in rows for t in self.after.get(tree.tokens[row], ())]
            rows = [tree.draft(token, row) for row, token in places]
        return tree

    def observe(self, text: Any, verdict: Any) -> None:
        result = verdict.result
        rows = zip(verdict.tree.tokens, result.top_ids, result.entropies, strict=True)
        for token, ids, nats in rows:
            self.after[token] = ids if nats > 0.5 else ids[:1]


@dataclass(frozen=True, kw_only=True)
class Recycling(DraftAndVerify):
    """Several outputs of a row: likeliest tokens and entropy. Lossless, training-free."""

    def drafter(self, request: Request) -> Drafter:
        return Successors()


@dataclass(frozen=True, kw_only=True)
class NoEcho(Decoder):
    """Barred ids: never the same token twice in a row. Lossy."""

    lossless = drafts = False

    def steps(self, request: Request) -> Steps:
        tokens = request.prompt_ids
        while True:
            result = yield request.target.call(tokens, barred={tokens[-1]})
            tokens = result.picks
            yield Emit(tokens=tokens)


class Nearest(Drafter):
    """Draft what followed the earlier state, in the middle of the model, most like the last."""

    hidden = 256

    def __init__(self, request: Request) -> None:
        self.hidden_layers = (request.target.model.num_layers // 2,)
        self.states: list[Any] = []

    def observe(self, text: Any, verdict: Any) -> None:
        self.states += torch.nn.functional.normalize(verdict.states[:, 0], dim=-1)

    def propose(self, text: Any, most: int) -> Any:
        *earlier, last = self.states  # the states before the text's last tokens
        if not earlier:
            return []
        place = int((torch.stack(earlier) @ last).argmax()) - len(self.states)
        return text.tokens[place + 1 :][:4]


@dataclass(frozen=True, kw_only=True)
class ByState(DraftAndVerify):
    """States of layers. Lossless, training-free."""

    def drafter(self, request: Request) -> Drafter:
        return Nearest(request)


@dataclass(frozen=True, kw_only=True)
class Surer(Decoder):
    """Several sequences: of two likely tokens, take the one with a surer successor. Lossy."""

    sequences = 2
    lossless = drafts = False

    def steps(self, request: Request) -> Steps:
        session: Any = request.target
        result: Any = yield session.call(request.prompt_ids, output="logits")
        while True:
            tokens = result.logits[0].topk(2).indices.tolist()
            both = session, session.fork()
            calls = [each.call([t], output="logits") for each, t in zip(both, tokens, strict=True)]
            results: Any = yield calls
            best = max((0, 1), key=lambda i: float(results[i].logits.log_softmax(-1).max()))
            both[1 - best].close()
            session, result = both[best], results[best]
            yield Emit(tokens=(tokens[best],))


@dataclass(frozen=True, kw_only=True)
class Judged(Decoder):
    """A further model: of the two likeliest tokens, take the one that it prefers. Lossy."""

    needs = ("model:judge",)
    lossless = drafts = False

    def steps(self, request: Request) -> Steps:
        target, judge, tokens = request.target, request.models["judge"], request.prompt_ids
        while True:
            result: Any = yield target.call(tokens, output="logits")
            opinion: Any = yield judge.call(tokens, output="logits")
            likeliest = result.logits[0].topk(2).indices
            tokens = (int(likeliest[opinion.logits[0, likeliest].argmax()]),)
            yield Emit(tokens=tokens)


class Repeats(Drafter):
    """Draft the earlier answer that begins as the present one: at most eight tokens."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def propose(self, text: Any, most: int) -> Any:
        answer = tuple(text.tokens[text.num_prompt :])
        for _, tokens in reversed(self.memory):
            if tokens[: len(answer)] == answer:
                return tokens[len(answer) :][:8]
        return []


@dataclass(frozen=True, kw_only=True)
class Again(DraftAndVerify):
    """A memory of earlier answers. Lossless, training-free."""

    remembers = "answers"

    def drafter(self, request: Request) -> Drafter:
        return Repeats(request.memory)


@dataclass(frozen=True, kw_only=True)
class TwoPasses(Decoder):
    """A target that predicts masks: fill in one block after another, in two passes each. Lossy."""

    block: int = 4
    target_kind = "masked"
    lossless = drafts = False

    def steps(self, request: Request) -> Steps:
        target: Any = request.target
        form, text = target.model.masked, list(request.prompt_ids)
        while True:
            first, block = len(text), [form.mask_id] * self.block
            for done in (self.block // 2, self.block):
                rows = text[target.length :] + block
                result = yield target.call(
                    rows,
                    output="draws",
                    read=[row - form.shifted for row in range(-self.block, 0)],
                    mask=torch.ones(len(rows), len(rows), dtype=torch.bool),
                )
                target.truncate(0)
                block = [*result.picks[:done], *block[done:]]
            text += block
            yield Emit(tokens=tuple(text[first:]), passes=2)
