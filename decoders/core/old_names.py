"""Old spellings of keywords that decoders outside this repository may still use."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T", bound=Callable[..., Any])


def accept_old_names(**renamed: str) -> Callable[[_T], _T]:
    """Let a function or dataclass accept keywords by old names (old=new), with a warning."""

    def decorate(target: _T) -> _T:
        called: Any = vars(target)["__init__"] if isinstance(target, type) else target

        @functools.wraps(called)
        def forward(*args: Any, **given: Any) -> Any:
            for old, new in renamed.items():
                if old in given:
                    warnings.warn(f"{old}= is now {new}=", DeprecationWarning, stacklevel=2)
                    given[new] = given.pop(old)
            return called(*args, **given)

        if isinstance(target, type):
            target.__init__ = forward  # type: ignore[misc]
            return target
        return forward  # type: ignore[return-value]

    return decorate
