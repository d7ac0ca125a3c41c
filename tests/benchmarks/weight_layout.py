"""AR by our own forward pass, and by transformers' modules, answer by answer. By hand:

    OMP_NUM_THREADS=2 python -m tests.benchmarks.weight_layout MODEL [PROMPTS [DTYPE]]

One prompt is answered in turn by three models of the same weights: two that run transformers'
modules (the second shows the noise), and one that runs `hf.llama` on joined weights, as all
decoders do.
Ratios are geometric means over prompts of paired ratios of seconds, with 95 % intervals (t).
"""

import sys
import time

import torch

from bench.stats.intervals import Estimate, geometric_mean, mean_log_ratio
from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel
from decoders.core.types import Sampling

PROMPT_TOKENS, NEW_TOKENS = 64, 48
REPEATS = 6


def opened(path: str, dtype: torch.dtype, *, in_place: bool) -> Scheduler:
    """AR on a model; its cache is allocated."""
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    model = HFModel(module, in_place=in_place)
    sampling = Sampling(temperature=0.0, max_new_tokens=NEW_TOKENS)
    return Scheduler(Autoregressive(), Models(target=model), sampling)


def seconds(scheduler: Scheduler, prompt: list[int]) -> float:
    """Of one answer."""
    started = time.perf_counter()
    scheduler.run([prompt])
    return time.perf_counter() - started


def ratios(path: str, num_prompts: int, dtype: torch.dtype) -> tuple[Estimate, Estimate]:
    """Seconds of modules (two models of them) over our own forward, and of one over the other."""
    sides = [opened(path, dtype, in_place=in_place) for in_place in (False, False, True)]
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(10, 1000, (num_prompts, PROMPT_TOKENS), generator=generator).tolist()
    for side in sides:
        seconds(side, prompts[0])
    own: list[float] = []
    noise: list[float] = []
    for number, prompt in enumerate(prompts):
        times: list[list[float]] = [[], [], []]
        for repeat in range(REPEATS):
            for turn in range(3):
                which = (turn + repeat + number) % 3
                times[which].append(seconds(sides[which], prompt))
        plain, again, joined = times
        noise.append(mean_log_ratio(list(zip(plain, again, strict=True))))
        both = [(a * b) ** 0.5 for a, b in zip(plain, again, strict=True)]
        own.append(mean_log_ratio(list(zip(both, joined, strict=True))))
    names = tuple(map(str, range(num_prompts)))
    of_own, of_noise = (geometric_mean(logs, names) for logs in (own, noise))
    return of_own, of_noise


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    path, num_prompts, dtype = given[1], int(given.get(2, "16")), given.get(3, "float32")
    found = ratios(path, num_prompts, getattr(torch, dtype))
    for name, estimate in zip(("modules / own", "modules / modules"), found, strict=True):
        print(
            f"{path}, {dtype}, {torch.get_num_threads()} threads, {name}: "
            f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"
        )
