"""Messages of a conversation as OpenAI and ShareGPT spell them, read alike.

A message is ``{"role": "user", "content": …}`` or ``{"from": "human", "value": …}``. Its content is
text, or OpenAI's list of parts that are text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, str]
_KEYS = (("role", "content"), ("from", "value"))
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "developer": "system"}
"""Roles under their usual names; any other one stays as it is."""
_CALLS = ("tool_calls", "function_call")


def messages_of(field: str, cell: Any) -> list[Message]:
    """Return the messages of a cell, as ``{"role", "content"}`` with text content.

    Args:
        field: what errors call the cell.
        cell: a list of messages in either spelling.

    Raises:
        ValueError: no list, a message without role and content, or content that is not text (an
            image, a tool call).
    """
    if isinstance(cell, Sequence) and not isinstance(cell, str) and cell:
        return [_message(f"{field}[{index}]", item) for index, item in enumerate(cell)]
    raise ValueError(
        f"{field} is {short(cell)}; it must be a list of objects with role and content (or from "
        "and value), both texts"
    )


def _message(name: str, item: Any) -> Message:
    if isinstance(item, Mapping):
        if call := next((key for key in _CALLS if item.get(key)), None):
            raise ValueError(f"{name} has {call}; only text can be asked and answered")
        for key, content in _KEYS:
            role = item.get(key)
            if isinstance(role, str):
                text = _text(f"{name}.{content}", item.get(content))
                return {"role": _ROLES.get(role, role), "content": text}
    raise ValueError(f"{name} is {short(item)}; a message has role and content, both texts")


def _text(name: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) and content else [content]
    texts = [text for part in parts if (text := _part(part)) is not None]
    if len(texts) == len(parts):
        return "\n".join(texts)
    raise ValueError(
        f"{name} is {short(content)}; a message has role and content, both texts (content may be a "
        "list of parts with text)"
    )


def _part(part: Any) -> str | None:
    """Return the text of a part of a content; None: it is no text (an image, say)."""
    if not isinstance(part, Mapping) or "text" not in str(part.get("type", "text")):
        return None
    text = part.get("text")
    return text if isinstance(text, str) else None


def short(value: object) -> str:
    """Return a value in at most 60 characters, for an error."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
