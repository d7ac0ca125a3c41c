"""How far any drafter without uniforms could get.

The best single guess, from exact distributions. By hand:

    python -m tests.benchmarks.best_guess RUN [BEAMS]

A drafter that is not told the uniforms proposes the same S tokens after a prefix, whatever AR
samples next. The best it can do is the sequence g of the greatest expected number of leading right
tokens, sum over k of P(g_1 … g_k | prefix), which is found here by beam search in the target's own
distributions. On the answers of RUN (sampled; AR's very tokens) its tokens per step stand
beside those of the run's decoders, which saw the same answers. What a decoder accepts more is the
worth of the uniforms: no training of the control `u = const` can supply it. Each step is the best
by itself; beams that were left out can add little, which another number of BEAMS shows.

Letters: S tokens of a guess, W beams, V vocabulary.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from bench.records.plan import BASELINE
from bench.records.prompts import read_prompts
from bench.records.record import SampleRecord, StepColumns
from bench.records.run_folder import load_run
from decoders.core.adapter.gating import cache_argument
from decoders.core.sampling import warp
from decoders.core.types import Sampling
from tests.benchmarks.acceptance import acceptance, cells_of, difference, shown

ROOT = Path(__file__).parents[2]
NUM_TOKENS = 18
NUM_BEAMS = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """A beam: its last token, the probability of it all, and the beam it extends."""

    token: int
    chance: float
    parent: Node | None


class Guesser:
    """The best single guess after a prefix of one answer."""

    def __init__(self, model: Any, sampling: Sampling, num_beams: int) -> None:
        self._model, self._sampling, self._num_beams = model, sampling, num_beams

    def steps(self, prompt: Sequence[int], answer: Sequence[int]) -> tuple[int, ...]:
        """Tokens that every step emits if the guesses are drafts: the prefill's one, then those."""
        cache = DynamicCache(config=self._model.config)
        self._feed((*prompt, *answer), cache)
        emitted, place = [1], 0
        while place < len(answer) - 1:
            known = copy.deepcopy(cache)
            known.crop(place - len(answer))
            guess = self.guess(answer[place], known)
            rest = answer[place + 1 :]
            pairs = zip(guess, rest, strict=False)
            right = next(
                (i for i, (g, x) in enumerate(pairs) if g != x), min(len(guess), len(rest))
            )
            emitted.append(min(right + 1, len(rest)))
            place += emitted[-1]
        return tuple(emitted)

    def guess(self, last: int, cache: DynamicCache) -> list[int]:
        """The tokens after `last`, whose predecessors are in `cache`: at most S."""
        levels: list[list[Node]] = []
        beams = [Node(last, 1.0, None)]
        for _ in range(NUM_TOKENS):
            distributions = self._feed([beam.token for beam in beams], cache, rows=True)
            chances = torch.tensor([beam.chance for beam in beams])[:, None] * distributions
            best = chances.flatten().topk(min(self._num_beams, int((chances > 0).sum())))
            parents = best.indices // chances.shape[1]
            tokens = (best.indices % chances.shape[1]).tolist()
            found = [
                Node(token, chance, beams[parent])
                for token, chance, parent in zip(
                    tokens, best.values.tolist(), parents.tolist(), strict=True
                )
            ]
            levels.append(found)
            goes_on = [i for i, token in enumerate(tokens) if token not in self._sampling.stop_ids]
            if not goes_on:
                break
            beams = [found[i] for i in goes_on]
            cache.reorder_cache(parents[goes_on])  # type: ignore[arg-type]
        return _best_path(levels)

    def _feed(self, ids: Sequence[int], cache: DynamicCache, rows: bool = False) -> Tensor:
        """Warped distributions ``[W, V]`` after a token of each of W beams, or of one."""
        fed = torch.tensor(ids)[:, None] if rows else torch.tensor(ids)[None]
        logits = self._model(fed, use_cache=True, **{cache_argument(self._model): cache}).logits[
            :, -1
        ]
        return warp(logits, self._sampling)


def _best_path(levels: Sequence[Sequence[Node]]) -> list[int]:
    """The path of the greatest sum of chances through a tree of beams."""
    worth: dict[int, tuple[float, Node | None]] = {}
    for level in reversed(levels):
        for node in level:
            total = node.chance + worth.get(id(node), (0.0, None))[0]
            if node.parent is not None and total > worth.get(id(node.parent), (0.0, None))[0]:
                worth[id(node.parent)] = (total, node)
    assert levels[0][0].parent is not None
    path: list[int] = []
    best = worth[id(levels[0][0].parent)][1]
    while best is not None:
        path.append(best.token)
        best = worth.get(id(best), (0.0, None))[1]
    return path


def guessed(record: SampleRecord, prompt: Sequence[int], guesser: Guesser) -> SampleRecord:
    """An answer of AR as the best guesses would have given it."""
    emitted = guesser.steps(prompt, record.tokens or ())
    none = (0,) * len(emitted)
    steps = StepColumns(
        emitted=emitted,
        drafted=none,
        accepted=none,
        target_calls=none,
        target_rows=none,
        draft_calls=none,
        draft_rows=none,
    )
    return dataclasses.replace(record, decoder="best single guess", steps=steps)


@torch.inference_mode()
def main(path: str, num_beams: str = str(NUM_BEAMS)) -> None:
    """The best guess and every decoder of the run, with paired differences, by family."""
    run = load_run(path)
    prompts = read_prompts(run.path)
    source = run.config["model"]
    folder = ROOT / "zoo" / "target" if source == "zoo" else Path(source)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    stops = model.generation_config.eos_token_id
    sampling = Sampling(
        temperature=run.config["temperature"],
        top_p=run.config["top_p"],
        top_k=run.config["top_k"],
        stop_ids=frozenset([stops] if isinstance(stops, int) else stops),
    )
    guesser = Guesser(model, sampling, int(num_beams))
    timed = [r for r in run.records if r.decoder == BASELINE and r.kind == "timing" and r.tokens]
    bound = [guessed(r, prompts[f"{r.conversation}#{r.turn}"].ids, guesser) for r in timed]
    cells = {"best single guess": bound, **cells_of(run)}
    compared("all families", cells)
    for family in dict.fromkeys(r.family for r in bound):
        of_family = {
            name: [r for r in records if r.family == family] for name, records in cells.items()
        }
        compared(family, of_family)


def compared(title: str, cells: Mapping[str, Sequence[SampleRecord]]) -> None:
    """Print cells, of which the first is the bound of the others."""
    print(title)
    bound = next(iter(cells.values()))
    for name, records in cells.items():
        more = "" if records is bound else f"   less it: {shown(difference(records, bound))}"
        print(f"  {name:22} {shown(acceptance(records))}{more}")


if __name__ == "__main__":
    main(*sys.argv[1:])
