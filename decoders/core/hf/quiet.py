"""The terminal is the caller's: transformers writes to it while it reads, writes and runs models.

Its switch for bars (`transformers.utils.logging`) reaches some of them; the bar over the tensors of
a GGUF file is tqdm's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm
from transformers.utils import logging


@contextmanager
def no_bars() -> Iterator[None]:
    """Inside, no bar of transformers or tqdm is drawn; afterwards both are as they were."""
    log: Any = logging  # untyped
    bars: Any = tqdm
    shown, made = log.is_progress_bar_enabled(), bars.__init__

    def hidden(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **{**options, "disable": True})

    log.disable_progress_bar()
    bars.__init__ = hidden
    try:
        yield
    finally:
        bars.__init__ = made
        if shown:
            log.enable_progress_bar()


@contextmanager
def no_warnings() -> Iterator[None]:
    """Inside, transformers logs errors alone; afterwards what it did before."""
    log: Any = logging  # untyped
    before = log.get_verbosity()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(before)
