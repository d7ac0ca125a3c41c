"""Compile calls (`decoders.core.hf.compiled`), by default wherever this is possible.

The graphs of a run are made before the run is planned, so that no measured time includes compiling.
A model without graphs is measured eagerly from the beginning.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from bench.errors import UnavailableError
from bench.machine.clock import Stopwatch
from bench.plan.labels import Note
from bench.plan.numerics import open_device, uses_tiles
from bench.plan.select import ResolvedRun
from bench.plan.setup import Opener, Setup
from bench.progress import Progress
from bench.text import counted
from decoders.core.decoder import SelfDriven
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.compiled import NoGraphError
from decoders.core.hf.graph_children import side_by_side
from decoders.core.hf.graph_files import has_products, missing_compiler
from decoders.core.hf.model import HFModel
from decoders.core.hf.self_check import check_graphs

_SWITCH = "TORCH_COMPILE_DISABLE"
"""Torch's own variable. If it is 1, calls are eager by default, without a note."""
_TEXT = [3 + number % 24 for number in range(48)]
_NUM_TOKENS = 32
"""A prompt, and a length of answer, by which each decoder makes the graphs that it needs."""
Result = TypeVar("Result")


def open_compiled(run: ResolvedRun, opener: Callable[[ResolvedRun], Result], note: Note) -> Result:
    """Open a run compiled by --compile, or by default if `opener` can make graphs.

    Raises:
        UnavailableError: no graph can be made although --compile was given.
    """
    config = run.config
    if config.compile is None and os.environ.get(_SWITCH) != "1":
        why = None
        if uses_tiles(run) or config.device_map or config.quantize:
            why = "row-invariant numerics, packed weights and placed models are eager by default"
        elif open_device(config.device).type != "cuda":  # CUDA captures calls
            why = None if has_products() else missing_compiler()  # compiled code needs no capture
        try:
            if why is None:
                return opener(run.with_values(compile=True))
        except NoGraphError as error:
            why = str(error)
        note(f"calls run eagerly, which may take four times as long as compiled: {why}")
    try:
        return opener(run.with_values(compile=bool(config.compile)))
    except NoGraphError as error:
        raise UnavailableError(f"{error}; use --no-compile") from error


def open_with_graphs(run: ResolvedRun, opener: Opener, progress: Progress) -> Setup:
    """Open a run as `open_compiled` does, and make its graphs (`make_graphs`)."""
    return open_compiled(run, lambda run: make_graphs(opener(run), progress), progress.note)


def make_graphs(setup: Setup, progress: Progress) -> Setup:
    """Make and record each decoder's graphs by answering a text, if calls are compiled.

    A `NoGraphError` passes. Any other error will appear in the run's own answers.
    """
    if not setup.config.compile:
        return setup
    arms = {c: arm for c, arm in setup.arms.items() if not isinstance(arm.decoder, SelfDriven)}
    progress.start("compiling", len(arms), even=False)
    graphs, num_children, seconds = Counter[str](), Counter[str](), dict.fromkeys(arms, 0.0)

    def answer(cell: str) -> None:
        arm = arms[cell]
        graphs[cell] -= arm.models.num_graphs
        with Stopwatch(setup.clock) as watch:
            whole: Any = {"max_new_tokens": _NUM_TOKENS, "stop_ids": frozenset(), "law": None}
            sampling = replace(setup.sampling, **whole)
            scheduler = Scheduler(arm.decoder, arm.models, sampling, setup.config.batch_size)
            batches = (scheduler.run([_TEXT] * num) for num in _batch_sizes(setup))
            for outcome in [each for batch in batches for each in batch]:
                if isinstance(outcome, NoGraphError):
                    raise outcome
        graphs[cell] += arm.models.num_graphs
        seconds[cell] += watch.total_s

    with side_by_side() as children:
        for cell in arms:
            before = len(children)
            answer(cell)
            if num := len(children) - before:
                num_children[cell] = num
                progress.note(f"compiling {counted(num, 'graph')} of {cell}, once on this machine")
        with Stopwatch(setup.clock) as watch:
            children.wait()
    for cell in arms:
        if num := num_children.total():
            seconds[cell] += watch.total_s * num_children[cell] / num
            answer(cell)
        progress.step(f"{cell}: {counted(graphs[cell], 'graph')}")
    for role, model in setup.models.roles.items() if setup.config.self_check else ():
        if isinstance(model, HFModel):
            try:
                check_graphs(model, _batch_sizes(setup))
            except ValueError as error:
                raise NoGraphError(f"compiled calls of the {role} are wrong: {error}") from error
    compiled = tuple((cell, graphs[cell], seconds[cell]) for cell in arms if graphs[cell])
    return replace(setup, compiled=compiled)


def _batch_sizes(setup: Setup) -> list[int]:
    batch_size = setup.config.batch_size
    return sorted({min(1 << power, batch_size) for power in range(batch_size.bit_length() + 1)})
