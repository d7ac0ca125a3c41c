"""Paired measurements behind the claims in docs/log.md. Run by hand, on an idle machine:

    python tests/benchmarks/measure.py transformers   # ar against generate(), spec against assisted
    python tests/benchmarks/measure.py batching       # tokens/s of ar at batch 8 against batch 1
    python tests/benchmarks/measure.py overhead       # share of decode time outside the model
    python tests/benchmarks/measure.py sweep          # spec's k: speed-up over ar, greedy and T=0.8
    python tests/benchmarks/measure.py slots          # what 16 slots cost beside 16 plain rows
    python tests/benchmarks/measure.py ptp            # ptp's modes and options at T=0.7 and greedy
    python tests/benchmarks/measure.py half           # ptp in bfloat16, and where it parts from ar
    python tests/benchmarks/measure.py stamps         # what stamping the end of every step costs

Every figure is a ratio of measurements interleaved in one process, prompt by prompt, order swapped
from one to the next; the interval is Student's t on log-ratios over prompts
(bench/stats/intervals.py).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import itertools
import math
import statistics
import sys
import time
import timeit
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch

from bench.machine.clock import Clock, Stopwatch
from bench.stats.intervals import cluster_mean
from decoders.ar import Autoregressive
from decoders.core.adapter.module import SlotAdapter
from decoders.core.decoder import Decoder
from decoders.core.engine.forward import forward
from decoders.core.engine.models import Models
from decoders.core.engine.readout import read_out
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel, load_tokenizer, stop_ids
from decoders.core.model import Session
from decoders.core.sampling import Uniforms, warp
from decoders.core.types import Generation, Sampling, Slots
from decoders.ptp import ParallelTokenPrediction
from decoders.spec import Speculative
from specbench_tasks.generators import zoo_conversations
from specbench_tasks.task import FAMILIES

ZOO = Path(__file__).parents[2] / "zoo"
MAX_NEW_TOKENS = 160


class Bench:
    """The zoo on the CPU, its held-out prompts, and what both sides stop at."""

    def __init__(self, num_prompts: int, dtype: torch.dtype = torch.float32) -> None:
        load = functools.partial(HFModel.load, dtype=dtype, device="cpu")
        self.target, self.draft = load(ZOO / "target"), load(ZOO / "draft")
        self.models = Models(target=self.target, draft=self.draft)
        tokenizer = load_tokenizer(ZOO / "target")
        self.stops = stop_ids(self.target, tokenizer)
        per_family = -(-num_prompts // len(FAMILIES))
        by_family = [zoo_conversations(family)[:per_family] for family in FAMILIES]
        mixed = itertools.chain.from_iterable(zip(*by_family, strict=True))
        self.prompts: list[list[int]] = [
            cast(
                "list[int]",
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": conversation.turns[0]}],
                    add_generation_prompt=True,
                    return_dict=False,
                ),
            )
            for conversation in mixed
        ][:num_prompts]

    def run(
        self, decoder: Decoder, prompt: Sequence[int], temperature: float = 0.0, **parts: Any
    ) -> list[int]:
        sampling = Sampling(
            temperature=temperature, max_new_tokens=MAX_NEW_TOKENS, stop_ids=self.stops
        )
        (outcome,) = Scheduler(decoder, self.models, sampling, **parts).run([prompt])
        assert isinstance(outcome, Generation), outcome
        return list(outcome.tokens)

    def generate(self, prompt: Sequence[int], **options: object) -> list[int]:
        ids = torch.tensor([list(prompt)])
        out = self.target.module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=MAX_NEW_TOKENS,
            eos_token_id=sorted(self.stops),
            pad_token_id=0,
            **options,
        )
        return out[0, len(prompt) :].tolist()


def seconds_per_token(run: Callable[[], Sequence[int]]) -> tuple[float, list[int]]:
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    tokens = list(run())
    elapsed = time.perf_counter() - start
    gc.enable()
    return elapsed / len(tokens), tokens


def paired(
    name: str,
    prompts: Sequence[Sequence[int]],
    ours: Callable[[Sequence[int]], list[int]],
    theirs: Callable[[Sequence[int]], list[int]],
) -> None:
    """Print the geometric mean of theirs / ours in seconds per token, with its interval."""
    for prompt in prompts[:3]:  # warm-up
        ours(prompt)
        theirs(prompt)
    logs, same = [], 0
    for turn, prompt in enumerate(prompts):
        runs = [lambda p=prompt: ours(p), lambda p=prompt: theirs(p)]
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        times = {side: seconds_per_token(runs[side]) for side in order}
        logs.append(math.log(times[1][0] / times[0][0]))
        same += times[0][1] == times[1][1]
    estimate = cluster_mean(logs, [str(index) for index in range(len(logs))])
    low, value, high = (math.exp(x or 0) for x in (estimate.low, estimate.value, estimate.high))
    print(
        f"{name}: {value:.3f} [{low:.3f}, {high:.3f}] over {len(prompts)} prompts, "
        f"same tokens on {same}"
    )


def against_transformers() -> None:
    setup = Bench(50)
    warnings.simplefilter("ignore")
    paired(
        "ar / generate(): times as fast",
        setup.prompts,
        lambda p: setup.run(Autoregressive(), p),
        lambda p: setup.generate(p),
    )
    for k in (Speculative().k, 5):
        setup.draft.module.generation_config.num_assistant_tokens = k
        setup.draft.module.generation_config.num_assistant_tokens_schedule = "constant"
        setup.draft.module.generation_config.assistant_confidence_threshold = 0.0
        paired(
            f"spec k={k} / assisted generation: times as fast",
            setup.prompts,
            functools.partial(setup.run, Speculative(k=k)),
            lambda p: setup.generate(p, assistant_model=setup.draft.module),
        )


def batching() -> None:
    setup = Bench(64)
    sampling = Sampling(max_new_tokens=MAX_NEW_TOKENS, stop_ids=setup.stops)
    ratios = []
    for turn in range(6):  # the first is the warm-up
        rates = {}
        for size in (1, 8) if turn % 2 == 0 else (8, 1):
            scheduler = Scheduler(Autoregressive(), setup.models, sampling, size)
            start = time.perf_counter()
            outcomes = scheduler.run(setup.prompts)
            elapsed = time.perf_counter() - start
            tokens = [o.tokens for o in outcomes if isinstance(o, Generation)]
            rates[size] = (sum(map(len, tokens)) / elapsed, tokens)
        assert rates[1][1] == rates[8][1]
        if turn:
            ratios.append(rates[8][0] / rates[1][0])
            print(f"batch 1: {rates[1][0]:.0f} tokens/s, batch 8: {rates[8][0]:.0f} tokens/s")
    print(f"batch 8 / batch 1: {sorted(ratios)[len(ratios) // 2]:.2f} {sorted(ratios)}")


def overhead() -> None:
    """Time outside `Model.forward` and the warp/pick of its logits, as a share of the whole."""
    setup = Bench(30)
    inside = [0.0]

    def timed(function: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*args: object, **kwargs: object) -> object:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            inside[0] += time.perf_counter() - start
            return result

        return wrapper

    parts: dict[str, Any] = {"forward": timed(forward), "read_out": timed(read_out)}
    for decoder in (Autoregressive(), Speculative()):
        for prompt in setup.prompts[:3]:
            setup.run(decoder, prompt, **parts)
        inside[0], start = 0.0, time.perf_counter()
        num_tokens = sum(len(setup.run(decoder, prompt, **parts)) for prompt in setup.prompts)
        whole = time.perf_counter() - start
        share = 1 - inside[0] / whole
        print(
            f"{decoder.name}: scheduler {share:.2%} of {whole / num_tokens * 1e3:.2f} ms per token"
        )


def slots() -> None:
    """Calls of 1 row, of 17 plain rows and of 1 + 16 slots, interleaved, in calls of one row."""
    setup = Bench(1)
    session = _warm_session(setup)
    anchor, start = setup.prompts[0][-1], session.length
    carried = Slots(
        adapter="ptp",
        uniforms=tuple((s + 0.5) / 16 for s in range(16)),
        sizes=(16,),
        anchors=(anchor,),
        read=tuple(range(16)),
        warp=(0.7, 0.95),
    )
    calls = {
        "one row": lambda: session.call([anchor]),
        "17 rows": lambda: session.call([anchor] * 17, read=range(17)),
        "1 + 16 slots": lambda: session.call([anchor], slots=carried),
        "16 rows": lambda: session.call([anchor] * 16, read=range(16)),
        "16 slots alone": lambda: session.call(
            [], slots=carried, positions=range(start, start + 16)
        ),
    }
    logs: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(400):
        times = {}
        for name, call in calls.items():
            began = time.perf_counter()
            setup.target.forward([call()])
            times[name] = time.perf_counter() - began
            session.truncate(len(setup.prompts[0]))
        for name, elapsed in times.items():
            logs[name].append(elapsed / times["one row"])
    found = {name: statistics.median(values) for name, values in logs.items()}
    print(", ".join(f"{name} {value:.2f}" for name, value in found.items()))
    beside = found["1 + 16 slots"] - found["17 rows"]
    alone = found["16 slots alone"] - found["16 rows"]
    print(f"16 slots beyond 16 rows, in one-row calls: {alone:.2f}, beside a token {beside:.2f}")


def _warm_session(setup: Bench) -> Session:
    setup.target.attach("ptp", SlotAdapter.load(ZOO / "ptp"))
    setup.models.reserve(1, 512)
    session = setup.target.open()
    setup.target.forward([session.call(setup.prompts[0])])
    return session


def ptp() -> None:
    """Speed-up over ar and tokens per step of ptp's options."""
    setup = Bench(48)
    setup.target.attach("ptp", SlotAdapter.load(ZOO / "ptp"))
    options: list[dict[str, Any]] = [
        {"mode": "sequential", "slots": count} for count in (8, 12, 16, 18)
    ]
    options += [{"mode": "sequential", "row_cost": cost} for cost in (0.0, 0.04)]
    options += [{"mode": "pqd", "budget": budget} for budget in (12, 20, 32, 48)]
    options += [{"mode": "pqd", "row_cost": cost} for cost in (0.0, 0.04)]
    for temperature in (0.7, 0.0):
        sampling = Sampling(
            temperature=temperature,
            top_p=0.95 if temperature else 1.0,
            max_new_tokens=MAX_NEW_TOKENS,
            stop_ids=setup.stops,
        )
        for option in options:
            _compare(setup, ParallelTokenPrediction(**option), sampling, f"{option}")


MARGIN = 0.02
"""How near a tie is in bfloat16: of u to a border of the CDF, of a mass to the nucleus's edge."""


def half() -> None:
    """ptp against ar in bfloat16, and how near a tie every first divergence is."""
    setup = Bench(48, torch.bfloat16)
    exact = copy.deepcopy(setup.target.module).double()  # before its layers are wrapped
    setup.target.attach("ptp", SlotAdapter.load(ZOO / "ptp"))
    modes: tuple[Literal["sequential", "pqd"], ...] = ("sequential", "pqd")
    for mode, temperature in itertools.product(modes, (0.7, 0.0)):
        sampling = Sampling(
            temperature=temperature,
            top_p=0.95 if temperature else 1.0,
            max_new_tokens=MAX_NEW_TOKENS,
            stop_ids=setup.stops,
        )
        decoder = ParallelTokenPrediction(mode=mode)
        pairs = _compare(setup, decoder, sampling, f"bfloat16 {mode}")
        ties = [
            _tie(exact, prompt, pair, sampling)
            for prompt, pair in zip(setup.prompts, pairs, strict=True)
            if pair[0] != pair[1]
        ]
        near = sum(tie <= MARGIN for tie in ties)
        print(f"  {near} of {len(ties)} divergences are near-ties", [round(t, 4) for t in ties])


def _tie(
    exact: Any, prompt: list[int], pair: tuple[tuple[int, ...], ...], sampling: Sampling
) -> float:
    """How far u is from the interval of the token that ptp emitted, at nucleus sizes around top-p.

    At temperature 0: by how much probability the exact distribution prefers one of the two tokens.
    """
    ars, ours = pair
    place = next(i for i, (a, b) in enumerate(zip(ars, ours, strict=False)) if a != b)
    logits = exact(torch.tensor([[*prompt, *ars[:place]]])).logits[0, -1]
    if sampling.greedy:
        distribution = logits.softmax(-1)
        return float((distribution[ars[place]] - distribution[ours[place]]).abs())
    u = Uniforms(sampling.seed, prompt).at("draw", place)
    found = 1.0
    for shift in (-MARGIN, 0.0, MARGIN):
        near = dataclasses.replace(sampling, top_p=min(1.0, sampling.top_p + shift))
        distribution = warp(logits[None], near)[0]
        right = distribution.cumsum(-1)[ours[place]]
        left = right - distribution[ours[place]]
        if distribution[ours[place]] > 0:
            found = min(found, max(0.0, float(left - u), float(u - right)))
    return found


def _compare(
    setup: Bench, decoder: Decoder, sampling: Sampling, name: str
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """One line: a decoder against ar, prompt by prompt. Returns both answers to every prompt."""
    logs, emitted, steps, rows = [], 0, 0, 0
    pairs = []
    arms = (Autoregressive(), decoder)
    for turn, prompt in enumerate(setup.prompts):
        answers: dict[int, Generation] = {}
        times: dict[int, float] = {}
        for arm in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            answers[arm] = generate(arms[arm], prompt, sampling, setup.models)
            times[arm] = (time.perf_counter() - start) / len(answers[arm].tokens)
        pairs.append((answers[0].tokens, answers[1].tokens))
        emitted += sum(len(step.tokens) for step in answers[1].steps[1:])
        rows += sum(step.target_rows for step in answers[1].steps[1:])
        steps += len(answers[1].steps) - 1
        if turn >= 3:  # warm-up
            logs.append(math.log(times[0] / times[1]))
    estimate = cluster_mean(logs, [str(index) for index in range(len(logs))])
    low, value, high = (math.exp(x or 0) for x in (estimate.low, estimate.value, estimate.high))
    print(
        f"T={sampling.temperature} {name}: {value:.2f} [{low:.2f}, {high:.2f}], "
        f"{emitted / steps:.2f} tokens and {rows / steps:.1f} rows a step, "
        f"same on {sum(ars == ours for ars, ours in pairs)}/{len(pairs)}",
        flush=True,
    )
    return pairs


def sweep() -> None:
    setup = Bench(24)
    for temperature, k in itertools.product((0.0, 0.8), (2, 3, 4, 5, 6, 8)):
        paired(
            f"T={temperature} spec k={k} / ar: times as fast",
            setup.prompts,
            functools.partial(setup.run, Speculative(k=k), temperature=temperature),
            functools.partial(setup.run, Autoregressive(), temperature=temperature),
        )


def stamps() -> None:
    """Every step's end stamped, as the timing pass does, against the first one's alone."""
    setup = Bench(60)
    setup.target.attach("ptp", SlotAdapter.load(ZOO / "ptp"))
    for decoder in (Speculative(), ParallelTokenPrediction()):
        sampling = Sampling(max_new_tokens=MAX_NEW_TOKENS, stop_ids=setup.stops)
        scheduler = Scheduler(decoder, setup.models, sampling)

        def run(
            prompt: Sequence[int], *, every: bool, scheduler: Scheduler = scheduler
        ) -> list[int]:
            with Stopwatch(Clock()) as watch:

                def first(index: int, number: int) -> None:
                    if not number:
                        watch.emitted(index, number)

                (outcome,) = scheduler.run([prompt], on_emit=watch.emitted if every else first)
            assert isinstance(outcome, Generation), outcome
            return list(outcome.tokens)

        paired(
            f"{decoder.name}, first stamp / all stamps: times as fast",
            setup.prompts * 4,
            functools.partial(run, every=True),
            functools.partial(run, every=False),
        )
    clock = Clock()
    with Stopwatch(clock) as watch:
        spent_s = timeit.timeit(lambda: watch.emitted(0, 1), number=100_000)
    print(f"one stamp: {spent_s * 1e4:.0f} ns")


if __name__ == "__main__":
    jobs = {
        "transformers": against_transformers,
        "batching": batching,
        "overhead": overhead,
        "sweep": sweep,
        "slots": slots,
        "ptp": ptp,
        "half": half,
        "stamps": stamps,
    }
    if len(sys.argv) != 2 or sys.argv[1] not in jobs:
        raise SystemExit(f"usage: measure.py {'|'.join(jobs)}")
    jobs[sys.argv[1]]()
