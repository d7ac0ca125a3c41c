"""Collect the decoders, one per file, which share the parts in `decoders.core`.

A decoder imports `decoders.core` and torch, but no other decoder. `transformers_generate` turns a
decoder into a loop for ``model.generate(custom_generate=…)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoders.extras.library.generate import transformers_generate

__all__ = ["transformers_generate"]


def __getattr__(name: str) -> Any:
    """Load transformers only when `transformers_generate` is used."""
    if name != "transformers_generate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from decoders.extras.library.generate import transformers_generate

    return transformers_generate
