"""Reads tokenizers and contexts of models before their weights are opened, and compares them.

A draft model must number its tokens as the target does. If it did not, every draft would be another
token than was meant, and all would be rejected without an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.errors import UnavailableError, UsageError, as_error
from bench.plan.template import chat_template, today
from bench.plan.tokenise import PromptEncoder, max_prompt_tokens
from bench.records.prompts import SkippedTurn
from bench.settings.config import RunConfig
from bench.settings.protocol import vicuna
from decoders.core.hf.loading import has_tokenizer, load_tokenizer, max_context
from specbench_tasks.registry import TaskSet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """A model's tokenizer (None: it has none of its own) and context (None: unknown)."""

    tokenizer: PreTrainedTokenizerBase | None
    context: int | None


def read_models(sources: Mapping[str, str]) -> dict[str, ModelInfo]:
    """Read tokenizers and configurations of models, by role, and compare them.

    Raises:
        UnavailableError: a folder has no configuration, or the target has no tokenizer.
        UsageError: the draft model has another tokenizer than the target.
    """
    infos = {}
    with as_error(UnavailableError):
        for role, source in sources.items():
            expected = role == "target" or has_tokenizer(source)
            tokenizer = load_tokenizer(source) if expected else None
            infos[role] = ModelInfo(tokenizer=tokenizer, context=max_context(source))
    target, draft = infos.get("target"), infos.get("draft")
    if target is not None and draft is not None and target.tokenizer and draft.tokenizer:
        difference = first_difference(target.tokenizer, draft.tokenizer)
        if difference is not None:
            raise UsageError(
                f"the draft model has another tokenizer than the target: {difference}; give a "
                "--draft that was trained with the target's tokenizer"
            )
    return infos


def first_difference(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> str | None:
    """Describe the first id that means another text in each tokenizer, if there is one.

    Ids of only one of them are left out, and so are special tokens, which are often renamed.
    """
    marks = {*target.added_tokens_decoder, *draft.added_tokens_decoder}
    target_pieces, draft_pieces = (
        {token: piece for piece, token in each.get_vocab().items()} for each in (target, draft)
    )
    for token in sorted((target_pieces.keys() & draft_pieces.keys()) - marks):
        pieces = target_pieces[token], draft_pieces[token]
        if pieces[0] != pieces[1]:
            return f"id {token} is {pieces[0]!r} in the target's, {pieces[1]!r} in the draft's"
    return None


def check_prompts(config: RunConfig, target: ModelInfo, tasks: TaskSet) -> None:
    """Refuse a run in which no first turn of the tasks fits the target.

    Raises:
        UsageError: every first turn is skipped.
        UnavailableError: the target's tokenizer or template fails.
    """
    if target.context is None or target.tokenizer is None:
        return
    limit = max_prompt_tokens(config, target.context)
    template = vicuna if config.protocol == "specbench" else None
    chat = chat_template(target.tokenizer, config.template_args, config.date or today())
    encoder = PromptEncoder(target.tokenizer, limit, config.overlong, template=template, chat=chat)
    turns = (encoder.prompt(conversation, 1, (), None) for conversation in tasks.timing)
    try:
        skipped = [*itertools.takewhile(lambda turn: isinstance(turn, SkippedTurn), turns)]
    except ValueError as error:  # the tokenizer fails, or the template does not end
        raise UnavailableError(f"target refused: {error}") from error
    if len(skipped) < len(tasks.timing):
        return
    why = "".join(f", e.g. {s.name}: {s.reason}" for s in skipped[:1] if isinstance(s, SkippedTurn))
    raise UsageError(f"no prompt is left to measure: all were skipped{why}")
