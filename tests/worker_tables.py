"""Setups of table models for workers in processes of their own, which import them by name."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import torch

from tests.conftest import Characters, open_tables


class SlowCharacters(Characters):
    """A tokenizer that takes its time, outside of what is timed."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        time.sleep(0.03)
        return super().decode(token_ids, skip_special_tokens)


def open_here(run: Any) -> Any:
    """As many threads as were asked for: they are part of what times are compared by."""
    torch.set_num_threads(run.config.threads or 1)
    return open_tables(run)


def open_slowly(run: Any) -> Any:
    return replace(open_here(run), tokenizer=SlowCharacters())
