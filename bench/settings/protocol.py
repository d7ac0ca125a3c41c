"""Apply Spec-Bench's protocol (``--protocol specbench``), and read published numbers.

The protocol follows github.com/hemingkx/Spec-Bench (arXiv 2401.07851), main at fd2c1cd: all 480
questions, greedy, batch 1, at most 1,024 tokens, float16 on a GPU, three runs, and prompts in
FastChat's Vicuna v1.1 template for every model. Tokens are counted as in evaluation/speed.py: a
method's tokens as emitted, the baseline's by tokenising its text again, minus one. Explicit options
override the protocol and are reported as departures. Order and warm-up differ from Spec-Bench's.
Turn 2 follows the baseline's answer to turn 1 for every method, not each method's own answer.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from bench.text import shown_value

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NUM_TURNS = 560
"""Turns of the 480 questions: 80 questions have two."""
SPECBENCH: Mapping[str, Any] = {
    "tasks": "specbench",
    "quality_limit": 0,
    "repeats": 3,
    "batch_size": 1,
    "max_new_tokens": 1024,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "fixed_length": False,
    "reuse_prefix": False,
    **dict.fromkeys(("law", "prompt_tokens", "quantize")),
}
"""Values of the configuration that the protocol sets."""
DTYPE = "float16"
_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)
_FREE = ("quality_limit", "tasks")
"""Keys that do not affect what the protocol measures, or that are compared in another way."""


def published() -> dict[str, dict[str, Any]]:
    """Read the references of ``published.toml``, by their names in ``--reference``."""
    return tomllib.loads((files("bench.settings") / "published.toml").read_text(encoding="utf-8"))


def vicuna(messages: Sequence[str]) -> str:
    """Format user and assistant texts (the user's last) as FastChat's Vicuna v1.1 prompt."""
    text = f"{_SYSTEM} "
    for turn, message in enumerate(messages):
        text += f"ASSISTANT: {message}</s>" if turn % 2 else f"USER: {message} "
    return f"{text}ASSISTANT:"


def recount(tokenizer: PreTrainedTokenizerBase, text: str) -> int:
    """Return a baseline answer's length as Spec-Bench counts it: tokenised again, minus the BOS."""
    return len(tokenizer.encode(text, add_special_tokens=True, verbose=False)) - 1


def departures(config: Mapping[str, Any], num_turns: int) -> list[str]:
    """List the departures from the protocol of a run that timed `num_turns`, one line each."""
    lines = [
        f"{key} is {shown_value(config[key])}, not {shown_value(value)}"
        for key, value in SPECBENCH.items()
        if key not in _FREE and key in config and config[key] != value
    ]
    if config.get("dtype") not in (None, DTYPE):
        lines.append(f"dtype is {config['dtype']}, not {DTYPE}")
    if not str(config.get("tasks", "")).startswith("specbench"):
        lines.append("the tasks are not Spec-Bench's questions")
    if num_turns != NUM_TURNS:
        lines.append(f"{num_turns} turns were timed, not {NUM_TURNS}")
    if config.get("overlong") == "truncate":
        lines.append("prompts longer than the context were cut at the beginning")
    return lines
