"""Refuse an architecture that cannot train or decode, before any text is sampled.

The rehearsal decodes with a fresh adapter and runs its job on made-up rows.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from decoders.core.adapter.module import HiddenAdapter, SlotAdapter
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.checkpoint import is_of_memory
from decoders.core.hf.model import HFModel
from decoders.core.hf.self_check import self_check
from decoders.core.registry import build
from decoders.core.types import DecoderSpec, Sampling
from training.loop import Job
from training.reporter import TrainingProgress
from training.text.data import PoolSource, Row
from training.text.sources import Source

_NAME = "rehearsal"
_DECODERS = {"o-ptp": "ptp", "c-ptp": "ptp", "refine": "idlm"}
"""Names of the decoders of variants, where they differ from the variant's."""
_NUM_TOKENS = 4


def rehearse(
    model: HFModel, adapter: SlotAdapter | HiddenAdapter, make: Callable[[Source], Job]
) -> None:
    """Check the model, decode with a fresh adapter, and run a step of its job without an update.

    Models that run incorrectly, or cannot decode with or train the adapter, raise `ValueError`.
    """
    self_check(model)
    name, variant = type(model.module).__name__, adapter.config.variant
    with _refusing(f"{name} cannot take a {variant} adapter", passing=ValueError):
        model.attach(_NAME, adapter)
    texts = ([token % model.vocab_size for token in range(n, n + 8)] for n in range(3, 19))
    rows = (Row(ids, [False, *[True] * 7], temperature=1.0) for ids in texts)
    # of kind completions, which every job accepts
    source = PoolSource(rows, kind="completions", name=_NAME, rows_per_step=1, seed=0)
    prompts = [row.ids[:length] for row in source.rows(0) for length in (3, 5)]
    models, sampling = Models(target=model), Sampling(max_new_tokens=_NUM_TOKENS)
    decoder_name = _DECODERS.get(variant, variant)
    decoder = build(DecoderSpec(name=decoder_name, options={"adapter": _NAME}))
    with _refusing(f"{name} decodes with no {variant} adapter"):
        for batch_size in (1, 2):
            for outcome in Scheduler(decoder, models, sampling, batch_size).run(prompts):
                if isinstance(outcome, Exception):
                    raise outcome
    job = make(source)
    with _refusing(f"{name} trains no {variant} adapter"):
        for loss, _, _ in job.pieces(TrainingProgress()):
            loss.backward()  # type: ignore[no-untyped-call]
        job.trained.zero_grad(set_to_none=True)


@contextmanager
def _refusing(subject: str, passing: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    """Turn errors into a one-line `ValueError`, except memory errors and those in `passing`."""
    try:
        yield
    except passing:
        raise
    except Exception as error:
        if is_of_memory(error):
            raise
        reason = textwrap.shorten(str(error), 100, placeholder=" …") or type(error).__name__
        raise ValueError(f"{subject} ({reason}); use another kind, see docs/running.md") from error
