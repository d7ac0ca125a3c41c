"""Let another engine answer a run's prompts: same ids, same budget, greedily, one at a time.

Every answer is on disk before the next begins; a failed answer is a line with its error. Modes that
fit into memory together answer each prompt in turn, in a seeded random order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.errors import UnavailableError, UsageError, optional
from bench.extras.external.engine import Answerer, Engine, Settings
from bench.extras.external.table import ExternalAnswer, append_external, next_session, read_external
from bench.machine.clock import Clock, Stopwatch
from bench.measure.timing import warm_up_prompt
from bench.plan.sources import named, package_file, resolve
from bench.progress import Progress
from bench.records.plan import BASELINE
from bench.records.prompts import Prompt, read_prompts
from bench.records.run_folder import Run, load_run, refuse_read_only

_PLAIN = (str, int, float, bool, type(None))
"""Types of options that are recorded unchanged. Any other option is recorded as text."""
_WARM_UP = 16
"""Number of tokens of the warm-up answer in every mode, which is not recorded."""


def measure_external(
    run_dir: Path, engine: Engine, model: str | None, progress: Progress, limit: int | None
) -> int:
    """Let each mode of an engine answer a run's timed prompts, and return the number of failures.

    Args:
        run_dir: the run's folder, to which the answers are added.
        engine: the engine, with its modes.
        model: path or hub id of the model, in a format of the engine; None: the run's own.
        progress: shows a step for each answer; the caller closes it.
        limit: number of prompts, from the first; None: all.

    Raises:
        BenchError: the run is stored (exit 2), not greedy or under a law (5), the engine cannot
            read its model (2), is missing or does not start (5), or a line cannot be written (1).
    """
    refuse_read_only(run_dir)
    run = load_run(run_dir)
    by_name = read_prompts(run.path)
    prompts = [by_name[p.prompt] for p in run.plan.in_pass("timing") if p.prompt in by_name][:limit]
    if not prompts:
        raise UsageError(f"{run.path} has no prompts to time")
    request = _request(run, prompts, model or _own_model(run, engine.name))
    module = optional(engine.package, engine.name, f"--engine {engine.name}")
    session = next_session(read_external(run_dir))
    facts: dict[str, Any] = {
        "session": session,
        "engine": engine.name,
        "version": str(module.__version__),
        "model": Path(request.model).name,
        "threads": request.threads if engine.threaded else None,
    }
    if not run.status.complete:
        progress.note("the run is incomplete: if it is still running, both compete for cores")
    modes = list(engine.modes)
    progress.start(engine.name, len(prompts) * len(modes))
    order, failures = random.Random(session), 0
    for group in [modes] if engine.together else [[mode] for mode in modes]:
        with contextlib.ExitStack() as stack:
            arms = []
            for mode in group:
                answer = stack.enter_context(engine.open(module, engine.modes[mode], request))
                _warm_up(answer, prompts[0], request.budget, f"{engine.name}:{mode}")
                arms.append((mode, answer))
            for prompt in prompts:
                order.shuffle(arms)
                for mode, answer in arms:
                    options = (engine.modes[mode] or {}).items()
                    line = ExternalAnswer(
                        **facts,
                        mode=mode,
                        options={k: v if isinstance(v, _PLAIN) else str(v) for k, v in options},
                        prompt=prompt.name,
                        prompt_hash=prompt.hash,
                        **_timed(answer, prompt, request.budget),
                    )
                    append_external(run_dir, line)
                    failures += line.error is not None
                    progress.step(f"{line.name} {prompt.name}")
    return failures


def _warm_up(answer: Answerer, prompt: Prompt, budget: int, name: str) -> None:
    """Answer a similar prompt."""
    try:
        answer(warm_up_prompt(prompt).ids, min(_WARM_UP, budget))
    except Exception as error:  # third-party code may raise anything
        line = f"{name} cannot answer {prompt.name}: {type(error).__name__}: {error}"
        raise UnavailableError(line) from error


def _timed(answer: Answerer, prompt: Prompt, budget: int) -> dict[str, Any]:
    """Return the measured fields of an answer."""
    with Stopwatch(Clock()) as watch:  # ids on the host: the engine's device has finished
        try:
            reply = answer(prompt.ids, budget)
        except Exception as error:  # third-party code: continue with the next answer
            return {"error": f"{type(error).__name__}: {error}"}
    return {"total_s": watch.total_s, **dataclasses.asdict(reply)}


def _request(run: Run, prompts: Sequence[Prompt], model: str) -> Settings:
    """Return the run's settings, with the tokens that ended ar's answers as stop ids."""
    temperature = run.config.get("temperature", 0)
    if temperature != 0:
        line = f"{run.path} samples at temperature {temperature}; other engines draw other tokens"
        raise UnavailableError(f"{line}: use a greedy run: bench run --temperature 0")
    if law := run.config.get("law"):
        raise UnavailableError(f"{run.path} is under --law {law}; use a run without a law")
    if all(cell.cell != BASELINE for cell in run.plan.cells):
        line = f"{run.path} has no {BASELINE}, whose answers other engines are compared with"
        raise UnavailableError(f"{line}: use a run of a causal model")
    ends = frozenset(
        record.tokens[-1]
        for record in run.records
        if record.decoder == BASELINE and record.stop == "eos" and record.tokens
    )
    return Settings(
        model=model,
        budget=int(run.config.get("max_new_tokens", 256)),
        stop_ids=ends,
        fixed_length=bool(run.config.get("fixed_length", False)),
        longest_prompt=max(len(prompt.ids) for prompt in prompts),
        threads=run.env.torch.threads,
    )


def _own_model(run: Run, engine: str) -> str:
    source = str(run.config.get("model") or "zoo")
    model = named(source)
    if engine == "vllm" and source != "zoo":
        return resolve(source)
    file = package_file(model) if model is not None else Path(source).expanduser()
    if file is not None and file.suffix.lower() == ".gguf":
        return str(file)
    kind = "a folder or hub id" if engine == "vllm" else "a .gguf file"
    line = f"{engine} cannot read the run's model {source!r}"
    raise UsageError(f"{line}: give {kind} of the same model with --model")
