"""What models say before their weights are opened: their tokenizers and contexts.

A draft model must number its tokens as the target does. If it did not, every draft would be another
token than was meant, and all would be rejected without an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.errors import UnavailableError, UsageError, as_error
from bench.plan.template import template_of, today
from bench.plan.tokenise import PromptEncoder, longest_prompt
from bench.records.prompts import SkippedTurn
from bench.settings.config import RunConfig
from bench.settings.protocol import vicuna
from decoders.core.hf.loading import has_tokenizer, load_tokenizer, max_context
from specbench_tasks.registry import TaskSet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A model's tokenizer (None: it has none of its own) and context (None: unknown)."""

    tokenizer: PreTrainedTokenizerBase | None
    context: int | None


def read_models(sources: Mapping[str, str]) -> dict[str, Reading]:
    """Read tokenizers and configurations of models, by role, and compare them.

    Raises:
        UnavailableError: a folder has no configuration, or the target has no tokenizer.
        UsageError: the draft model has another tokenizer than the target.
    """
    readings = {}
    with as_error(UnavailableError):
        for role, source in sources.items():
            own = role == "target" or has_tokenizer(source)
            tokenizer = load_tokenizer(source) if own else None
            readings[role] = Reading(tokenizer=tokenizer, context=max_context(source))
    target, draft = readings.get("target"), readings.get("draft")
    if target is not None and draft is not None and target.tokenizer and draft.tokenizer:
        found = first_difference(target.tokenizer, draft.tokenizer)
        if found is not None:
            raise UsageError(
                f"the draft model has another tokenizer than the target: {found}; give a --draft "
                "that was trained with the target's tokenizer"
            )
    return readings


def first_difference(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> str | None:
    """Describe the first id that means another text in each tokenizer; None if there is none.

    Ids of only one of them are left out, and so are special tokens, which are often renamed.
    """
    marks = {*target.added_tokens_decoder, *draft.added_tokens_decoder}
    ours, theirs = (
        {token: piece for piece, token in each.get_vocab().items()} for each in (target, draft)
    )
    for token in sorted((ours.keys() & theirs.keys()) - marks):
        if (our := ours[token]) != (their := theirs[token]):
            return f"id {token} is {our!r} in the target's, {their!r} in the draft's"
    return None


def check_prompts(config: RunConfig, target: Reading, tasks: TaskSet) -> None:
    """Refuse a run in which no first turn of the tasks fits the target.

    Raises:
        UsageError: every first turn is skipped.
        UnavailableError: the target's tokenizer or template fails.
    """
    if target.context is None or target.tokenizer is None:
        return
    longest = longest_prompt(config, target.context)
    template = vicuna if config.protocol == "specbench" else None
    chat = template_of(target.tokenizer, config.template_args, config.date or today())
    encoder = PromptEncoder(
        target.tokenizer, longest, config.overlong, template=template, chat=chat
    )
    turns = (encoder.prompt(conversation, 1, (), None) for conversation in tasks.timing)
    try:
        skipped = [*itertools.takewhile(lambda turn: isinstance(turn, SkippedTurn), turns)]
    except ValueError as error:  # the tokenizer fails, or the template does not end
        raise UnavailableError(f"target refused: {error}") from error
    if len(skipped) < len(tasks.timing):
        return
    why = "".join(f", e.g. {s.name}: {s.reason}" for s in skipped[:1] if isinstance(s, SkippedTurn))
    raise UsageError(f"no prompt is left to measure: all were skipped{why}")
