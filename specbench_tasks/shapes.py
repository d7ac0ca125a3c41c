"""Read the prompt of a row in any of the shapes in which prompts are published.

The field of the prompt and the row's other fields determine the shape:

=============  =====================================================================================
SPEED-Bench    turns or messages, with category, source and src_id (arXiv 2604.09557)
Spec-Bench     turns, with question_id and category (some are MT-bench's); also EAGLE's files
MT-bench       the same, but with only MT-bench's eight categories; or prompt, with prompt_id
ShareGPT       conversations: ``{"from", "value"}``
OpenAI         messages: ``{"role", "content"}``; content may be parts
HumanEval      prompt, with task_id and entry_point
Alpaca         instruction, followed by input or context (also Dolly's rows)
GSM8K          question, with an answer that ends in ``#### 18``
MATH-500       problem, with answer and level
MBPP           text or prompt, with test_list
=============  =====================================================================================

Any other shape is named after the field of the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench_tasks.tables import Row, short

Message = dict[str, str]
_KEYS = (("role", "content"), ("from", "value"))
_ROLES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "developer": "system"}
"""Usual names of roles; any other role keeps its name."""
_CALLS = ("tool_calls", "function_call")


def read_messages(field: str, cell: Any) -> list[Message]:
    """Return the messages of a cell, as ``{"role", "content"}`` with text content.

    Messages are in OpenAI's form or in ShareGPT's (``{"from": "human", "value": …}``). Content is
    text, or OpenAI's list of text parts.

    Args:
        field: name of the cell in errors.
        cell: a list of messages in either form.

    Raises:
        ValueError: a cell that is not a list, a message without role and content, or content that
            is not text (an image, a tool call).
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
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, Mapping) and "text" in str(part.get("type", "text"))
        if isinstance(part.get("text"), str)  # not e.g. an image
    ]
    if len(texts) == len(parts):
        return "\n".join(texts)
    raise ValueError(f"{name} is {short(content)}; a message has role and content, both texts")


PROMPTS = ("prompt", "question", "instruction", "input", "turns", "messages", "conversations")
"""Fields that may hold the prompt."""
SPEED, SPEC, SHAREGPT, MATH = "SPEED-Bench", "Spec-Bench", "ShareGPT", "MATH-500"
RARE_PROMPTS = {"problem": {"problem", "answer", "level"}, "text": {"text", "test_list"}}
"""Fields that hold the prompt only in rows with all these fields, of MATH-500 and MBPP."""
_INPUTS = ("input", "context")
"""Fields of the text that follows an instruction, in Alpaca's and Dolly's rows."""
Turns = tuple[str | None, list[str], list[str | None]]
"""System text, user turns, and the cell's answers to them."""
_LISTS = ("turns", "messages", "conversations")
"""Fields that hold a list."""
_TIERS = ("low_entropy", "mixed", "high_entropy")
_GSM8K_FINAL = re.compile(r"####\s*(-?[\d,]*\.?\d+)\s*$")
_GROUPED = re.compile(r"-?\d{1,3}(,\d{3})+\b")
_PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""Start of SPEED-Bench's prompts whose text the licence keeps out of the published files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPrompt:
    """Hold a row's user turns, the answers to them (None: missing), and the fields of origin."""

    shape: str
    turns: tuple[str, ...]
    replies: tuple[str | None, ...]
    system: str | None
    fields: frozenset[str]


def read_prompt(row: Row, named: str | None) -> RowPrompt:
    """Read the prompt of a row, from the field `named` if the user names a field.

    Raises:
        ValueError: no field for the prompt or several, a cell of a wrong type, an empty turn, or a
            placeholder of SPEED-Bench. The message lists the fields of the row.
    """
    field = named or _field(row)
    cell, fields = row.get(field), {field}
    if field in _LISTS and isinstance(cell, str) and cell.lstrip().startswith("["):
        raise ValueError(f"{field} is {short(cell)}; write its list as JSON")
    system, turns, replies = _turns(field, cell)
    if named is None and field == "instruction" and len(turns) == 1:
        inputs = [name for name in _INPUTS if isinstance(row.get(name), str)]
        fields |= {*inputs}
        turns = ["\n\n".join([*turns, *(row[name] for name in inputs if row[name].strip())])]
    for number, turn in enumerate(turns, start=1):
        if not turn.strip():
            raise ValueError(f"the prompt is empty (turn {number} of {len(turns)}, in {field})")
        if turn.startswith(_PLACEHOLDER):
            raise ValueError(
                "the prompt is a placeholder of SPEED-Bench, not its text: fill the file in with "
                "prepare_data.py of NVIDIA/Model-Optimizer's examples/specdec_bench"
            )
    return RowPrompt(
        shape=_shape(row, field, named),
        turns=tuple(turns),
        replies=tuple(replies),
        system=system,
        fields=frozenset(fields),
    )


def gsm8k_answer(text: str) -> str:
    """Return the number after ``####`` if an answer ends in one (GSM8K), else the text."""
    match = _GSM8K_FINAL.search(text)
    if match is None:
        return text
    return match[1].replace(",", "") if _GROUPED.match(match[1]) else match[1]


def _field(row: Row) -> str:
    there = [name for name in PROMPTS if row.get(name) not in (None, "")]
    if "instruction" in there and "input" in there:
        there.remove("input")
    if len(there) > 1:
        raise ValueError(
            f"{' and '.join(there)} could each be the prompt; name one in the config file, in "
            f"[columns]: prompt = '{there[0]}'"
        )
    fields = there or [name for name in PROMPTS if name in row]
    fields = fields or [name for name, beside in RARE_PROMPTS.items() if row.keys() >= beside]
    if not fields:
        raise ValueError(
            f"none of {', '.join(PROMPTS)} in it; it has {', '.join(row) or 'nothing'}. Name the "
            "prompt's field in the config file, in [columns]: prompt = '…'"
        )
    return fields[0]


def _shape(row: Row, field: str, named: str | None) -> str:
    if named is not None:
        return f"prompts in {named!r}"
    if field in ("turns", "messages") and row.keys() >= {"category", "source", "src_id"}:
        return f"{SPEED} {'throughput' if row['category'] in _TIERS else 'qualitative'}"
    if field == "turns" and row.keys() >= {"question_id", "category"}:
        return SPEC
    if field == "prompt" and row.keys() >= {"task_id", "entry_point"}:
        return "HumanEval"
    if field == "prompt" and row.keys() >= {"prompt_id", "category"}:
        return "MT-bench"
    if field in ("prompt", "text") and "test_list" in row:
        return "MBPP"
    answer = row.get("answer")
    if field == "question" and isinstance(answer, str) and gsm8k_answer(answer) != answer:
        return "GSM8K"
    names = {"conversations": SHAREGPT, "messages": "OpenAI messages", "problem": MATH}
    return {**names, "instruction": "Alpaca"}.get(field, f"prompts in {field!r}")


def _turns(field: str, cell: Any) -> Turns:
    if isinstance(cell, str) and field not in _LISTS[1:]:
        return None, [cell], [None]
    if field in _LISTS[1:] or _all(cell, Mapping):
        return _talk(field, read_messages(field, cell))
    if _all(cell, str):
        return None, list(cell), [None] * len(cell)
    raise ValueError(
        f"the prompt is {short(cell)}; it must be text, a list of texts (one per turn), or a list "
        "of role/content messages with a user among them"
    )


def _all(cell: Any, kind: type) -> bool:
    listed = isinstance(cell, Sequence) and not isinstance(cell, str) and len(cell) > 0
    return listed and all(isinstance(item, kind) for item in cell)


def _talk(field: str, messages: Sequence[Message]) -> Turns:
    """Sort messages by speaker, and join successive messages of one speaker, except of users."""
    system: list[str] = []
    turns: list[str] = []
    replies: list[str | None] = []
    for index, message in enumerate(messages):
        role, text = message["role"], message["content"]
        if role == "system" and not turns:
            system.append(text)
        elif role == "user":
            turns.append(text)
            replies.append(None)
        elif role == "assistant" and turns:
            replies[-1] = text if replies[-1] is None else f"{replies[-1]}\n{text}"
        else:
            raise ValueError(
                f"{field}[{index}] is of the role {role!r}; a conversation is an optional system "
                "message, then user and assistant in turn, the user first"
            )
    if not turns:
        raise ValueError(f"{field} holds no message of a user")
    return "\n".join(system) or None, turns, replies
