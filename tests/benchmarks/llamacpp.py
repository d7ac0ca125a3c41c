"""`ar`, transformers' `generate()` and llama.cpp on the same weights, answer by answer. By hand:

    python -m tests.benchmarks.llamacpp smollm2-135m [--prompts 12] [--tokens 64] [--threads 2]

needs the extras `gguf` and `llamacpp`. The named model is a file of 4-bit weights; the other arms
have them dequantised to bfloat16, llama.cpp in a file written here. `generate()` also runs with its
static cache and `torch.compile`. Each prompt is answered by all arms in random order; ratios of
seconds are geometric means over prompts, paired, with 95 % intervals (t).
"""

from __future__ import annotations

import argparse
import importlib
import math
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import CompileConfig

from bench.extras.external.engine import Answerer, Settings
from bench.extras.external.llamacpp import llamacpp
from bench.plan.sources import named, package_file, resolve
from bench.stats.intervals import geometric_mean
from bench.text import factor
from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.loading import library_copy
from decoders.core.hf.model import HFModel
from decoders.core.types import Sampling

_PROMPT_TOKENS = 96
_BFLOAT16 = 32
"""llama.cpp's number of a file of bfloat16 weights."""


def write_bfloat16(file: Path, folder: Path) -> Path:
    """Write a GGUF file anew with its weights dequantised to bfloat16; vectors keep float32."""
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

    reader, made = GGUFReader(file), folder / "bfloat16.gguf"
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(made, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = _BFLOAT16 if name == "general.file_type" else field.contents()
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, value, field.types[0], inner)
    kind = GGMLQuantizationType.BF16
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim > 1:
            writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return made


def main() -> None:
    """Print tokens per second of every arm, and our speed over each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="name of a model with a GGUF file, as smollm2-135m")
    for name, default in (("prompts", 12), ("tokens", 64), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    known = named(given.model)
    assert known is not None, f"{given.model} is no named model"
    file = package_file(known)
    assert file is not None, f"{given.model} has no GGUF file here"

    plain = HFModel.load(resolve(given.model), dtype=torch.bfloat16)
    model = HFModel.load(resolve(given.model), dtype=torch.bfloat16, compile=True)
    sampling = Sampling(temperature=0.0, max_new_tokens=given.tokens, stop_ids=frozenset())
    generator = torch.Generator().manual_seed(0)
    shape = given.prompts, _PROMPT_TOKENS
    prompts = torch.randint(1000, 20_000, shape, generator=generator).tolist()
    arms: dict[str, Callable[[list[int]], Any]] = {}
    for name, own in (("ar, compiled", model), ("ar, eager", plain)):
        scheduler = Scheduler(Autoregressive(), Models(target=own), sampling)
        arms[name] = partial(_ours, scheduler)
    library, budget = plain.library_module, given.tokens
    arms["generate()"] = partial(_generated, library, budget, {})
    everywhere: Any = CompileConfig()
    everywhere._compile_all_devices = True
    static = {"cache_implementation": "static", "compile_config": everywhere}
    arms["generate(), compiled"] = partial(_generated, library_copy(library), budget, static)
    module = importlib.import_module("llama_cpp")
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        files = {"4 bits": file, "bfloat16": write_bfloat16(file, Path(scratch))}
        for name, weights in files.items():
            request = Settings(
                model=str(weights),
                budget=budget,
                stop_ids=frozenset(),
                fixed_length=True,
                longest_prompt=_PROMPT_TOKENS,
                threads=given.threads,
            )
            engine = stack.enter_context(llamacpp(10, 2).open(module, None, request))
            arms[f"llama.cpp, {name}"] = partial(_theirs, engine, budget)
        _measure(arms, prompts, budget)


def _ours(scheduler: Scheduler, prompt: list[int]) -> int:
    (answer,) = scheduler.run([prompt])
    assert not isinstance(answer, Exception), answer
    return len(answer.tokens)


def _generated(module: Any, budget: int, options: dict[str, Any], prompt: list[int]) -> int:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = module.generate(
            ids,
            **options,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=budget,
            max_new_tokens=budget,
        )
    return len(out[0]) - len(prompt)


def _theirs(answer: Answerer, budget: int, prompt: list[int]) -> int:
    return len(answer(prompt, budget).tokens)


def _measure(
    arms: dict[str, Callable[[list[int]], int]], prompts: list[list[int]], budget: int
) -> None:
    for each in arms.values():
        each(prompts[0])
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    order = random.Random(0)
    for prompt in prompts:
        for name in order.sample(list(arms), len(arms)):
            started = time.perf_counter()
            num = arms[name](prompt)
            seconds[name].append(time.perf_counter() - started)
            assert num == budget, f"{name} gave {num} of {budget} tokens"
    base, *_ = seconds.values()
    for name, own in seconds.items():
        logs = tuple(math.log(other / mine) for mine, other in zip(base, own, strict=True))
        ratio = geometric_mean(logs, [*map(str, range(len(own)))])
        rate = budget * len(own) / sum(own)
        interval = f"[{factor(ratio.low, '')}, {factor(ratio.high, '')}]"
        print(f"{name:20} {rate:6.1f} tokens/s, ar is {factor(ratio.value)} {interval} as fast")


if __name__ == "__main__":
    main()
