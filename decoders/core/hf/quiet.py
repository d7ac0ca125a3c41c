"""Keep transformers, and the tqdm bar over a GGUF file's tensors, from writing to the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm
from transformers.utils import logging


@contextmanager
def no_bars() -> Iterator[None]:
    """Draw no bar of transformers or tqdm."""
    log: Any = logging  # untyped
    bars: Any = tqdm
    had_bars, made = log.is_progress_bar_enabled(), bars.__init__

    def hidden(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **{**options, "disable": True})

    log.disable_progress_bar()
    bars.__init__ = hidden
    try:
        yield
    finally:
        bars.__init__ = made
        if had_bars:
            log.enable_progress_bar()


@contextmanager
def no_warnings() -> Iterator[None]:
    """Let transformers log errors alone."""
    log: Any = logging  # untyped
    before = log.get_verbosity()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(before)
