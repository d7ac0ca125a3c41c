"""Plan, measure, judge and report runs of decoders.

In Python and notebooks, use ``from bench import load, load_run, run`` (see
`bench.extras.notebook`). The folders form layers; each imports only the layers below it
(``[tool.importlinter]`` in pyproject.toml).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.extras.notebook import Results, load, load_run, run

__all__ = ["Results", "load", "load_run", "run"]


def __getattr__(name: str) -> Any:
    """Import a name of `bench.extras.notebook` on its first use."""
    if name in __all__:
        from bench.extras import notebook

        return getattr(notebook, name)
    raise AttributeError(f"module 'bench' has no attribute {name!r}")
