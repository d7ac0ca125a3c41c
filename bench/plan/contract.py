"""Check the claims of lossless decoders before a run (`decoders.core.checks`).

The checks run on tables of known distributions and on a tiny random Llama, so they cost the same
for every model. The result is kept in the cache folder under a hash of everything that decides the
result: the harness's decoders and checks, the decoder's code and options, and library versions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType

import numpy as np
import torch

from bench.errors import BenchError
from bench.machine.deadline import interrupting
from bench.machine.env import ROOT, source_hash
from bench.plan.code import own_files
from bench.plan.setup import Setup
from bench.progress import Progress
from bench.records.files import parse, read_json, write_json
from bench.records.plan import BASELINE, CLAIMED, REFUTED, VERIFIED, Cell
from bench.records.samples import error_line
from decoders.core.decoder import Decoder, SelfDriven
from decoders.core.hf.checkpoint import cache_folder

LIMIT_S = 300.0
"""Time limit, in seconds, of the checks of one decoder."""
_AGAIN_S = 5.0
"""Seconds until a decoder that swallows the time limit's error is interrupted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Hold the outcome of a decoder's checks (`Cell.checked`), and the reason unless verified."""

    outcome: str
    note: str | None = None


def check_cells(setup: Setup, progress: Progress) -> tuple[Cell, ...]:
    """Return the cells of a setup, with the outcome of the checks of lossless cells.

    Each outcome but `VERIFIED` is noted. A sampled run also checks the distribution of answers.
    """
    cells = {}
    sampled = not setup.sampling.greedy
    for name, arm in setup.arms.items():
        cells[name] = arm.cell
        if name == BASELINE or not arm.cell.lossless:
            continue
        result = Checked(outcome=CLAIMED, note="not checked (--no-self-check)")
        if setup.config.self_check:
            result = check_cell(name, arm.decoder, sampled, progress)
        cells[name] = replace(arm.cell, checked=result.outcome, check_note=result.note)
        if result.outcome == REFUTED:
            progress.note(f"{name} claims to be lossless and fails its checks: {result.note}")
        elif result.note is not None:
            says = {VERIFIED: "is lossless, but", CLAIMED: "claims to be lossless, unverified:"}
            progress.note(f"{name} {says[result.outcome]} {result.note}")
    return tuple(cells.values())


def check_cell(name: str, decoder: Decoder, sampled: bool, progress: Progress) -> Checked:
    """Return the outcome of a decoder's checks from the cache, or run them.

    Args:
        name: the cell's name, for progress.
        decoder: the decoder; its options and code decide which stored outcome is its own.
        sampled: whether the run draws at random, so that the distribution is checked, too.
        progress: shows a phase of one step, unless the cache has the outcome.
    """
    file = _cache_file(decoder, sampled)
    with contextlib.suppress(BenchError):  # a damaged file is checked again
        if file is not None and (data := read_json(file)):
            return parse(Checked, data, file)
    progress.start(f"checking {name} on tables", 1)
    try:
        with interrupting(LIMIT_S, _AGAIN_S):
            result = examine(decoder, sampled)
    except TimeoutError as error:
        result = Checked(outcome=CLAIMED, note=str(error))
    progress.step(name)
    if file is not None and result.outcome != CLAIMED:
        with contextlib.suppress(OSError, BenchError):  # a read-only cache keeps nothing
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, dataclasses.asdict(result))
    return result


def examine(decoder: Decoder, sampled: bool) -> Checked:
    """Run a decoder's checks up to the first failure, except on tables where it cannot run."""
    from decoders.core import checks  # only if no outcome is stored
    from decoders.core.testing.check_models import llama_draws

    random = sampled and not decoder.coupled
    by_itself = random and isinstance(decoder, SelfDriven)
    draws = random and not by_itself
    note = failed = None
    try:
        for check in checks.equality_checks(decoder):
            try:
                check(decoder)
            except checks.StepsDifferError as error:  # losslessness is not affected
                note = str(error)
        if draws:
            checks.check_distribution(decoder)
    except TimeoutError:
        raise
    except Exception as error:
        if checks.is_verdict(error):
            return Checked(outcome=REFUTED, note=str(error))
        failed = error
    try:
        checks.check_real_tensors(decoder)
        if failed is not None and draws:
            checks.check_draws(llama_draws(decoder, checks.NUM_DISTRIBUTION_DRAWS), str(decoder))
    except Exception as error:
        if checks.is_verdict(error):
            return Checked(outcome=REFUTED, note=str(error))
        return Checked(outcome=CLAIMED, note=error_line(failed or error))
    if by_itself:
        line = "it runs a loop of its own, too slow to draw from; `bench verify` tests it"
        return Checked(outcome=CLAIMED, note=line)
    return Checked(outcome=VERIFIED, note=note)


def _cache_file(decoder: Decoder, sampled: bool) -> Path | None:
    """Return the file of a decoder's outcome, or None if its code cannot be read."""
    kind = type(decoder)
    methods = [each for base in kind.__mro__ for each in vars(base).values()]
    derived = {each.__code__.co_filename for each in methods if isinstance(each, FunctionType)}
    files = [*sorted(ROOT.glob("decoders/**/*.py")), *own_files(decoder)]
    files += [file for file in map(Path, sorted(derived)) if file.is_file()]  # of base classes, too
    try:
        code = source_hash([*files, Path(__file__)])
    except OSError:
        return None
    options = {each.name: repr(getattr(decoder, each.name)) for each in dataclasses.fields(decoder)}
    versions = (sys.version, torch.__version__, np.__version__)
    inputs = (kind.__module__, kind.__qualname__, options, sampled)
    key = hashlib.sha256(repr((inputs, code, versions)).encode()).hexdigest()[:32]
    return cache_folder() / "checked" / f"{key}.json"
