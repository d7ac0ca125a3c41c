"""One decoder a file; `decoders.core` holds what they stand on.

A decoder imports `decoders.core` and torch, no other decoder. `transformers_generate` makes one of
them a loop for ``model.generate(custom_generate=…)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from decoders.core.hf.export import transformers_generate

__all__ = ["transformers_generate"]


def __getattr__(name: str) -> Any:
    """Load transformers when it is asked for."""
    if name != "transformers_generate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from decoders.core.hf.export import transformers_generate

    return transformers_generate
