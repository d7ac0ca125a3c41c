"""Turn conversations into the token ids of prompts, once for all decoders.

A *prompt* is one turn. The chat template is applied exactly once and provides the special tokens; a
model without a template gets the turns as plain text, joined by newlines, with the special tokens
that its tokenizer adds. A BOS token is never doubled. Turn 2's history has the answer to turn 1
from the data, or else the baseline's answer, so that every decoder answers the same prompt.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from bench.errors import UnavailableError, UsageError, as_error
from bench.plan.template import ChatTemplate, RenderError
from bench.records.prompts import Prompt, SkippedTurn, ids_hash
from bench.settings.config import RunConfig
from decoders.core.hf.checkpoint import refusing_panics
from specbench_tasks.registry import TaskSet, load_tasks
from specbench_tasks.task import Conversation, DataUnavailable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Template = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True)
class PromptEncoder:
    """Turn conversations into prompts.

    Args:
        tokenizer: tokenizer of the target.
        max_prompt_tokens: the model's context less the answer's token budget; 1 or more.
        overlong: "skip" leaves out a longer prompt and the later turns of its conversation;
            "truncate" keeps its last `max_prompt_tokens` ids, among them a leading BOS.
        template: a protocol's own template, which makes one text of the texts so far, user first,
            for the tokenizer to encode with special tokens; None: the tokenizer's template.
        vocab_size: size of the model's vocabulary; None: ids are not checked.
        chat: the tokenizer's template; None: the tokenizer applies its own, if it has one.
    """

    tokenizer: PreTrainedTokenizerBase
    max_prompt_tokens: int
    overlong: Literal["skip", "truncate"]
    template: Template | None = None
    vocab_size: int | None = None
    chat: ChatTemplate | None = None

    def prompts(
        self,
        conversations: Sequence[Conversation],
        answer_turn1: Callable[[list[Prompt]], Sequence[str | None]],
    ) -> tuple[list[Prompt], list[SkippedTurn]]:
        """Tokenise every turn of every conversation once, in order (turn 2 follows its turn 1).

        `answer_turn1` returns the baseline's answers, as text without special tokens, to prompts
        with a later turn and no answer in the data. It is called once per turn number with such
        prompts. If an answer is None, the later turns of its conversation are skipped.

        Returns:
            The prompts, and the skipped turns with their reasons. An empty prompt becomes a BOS, or
            is skipped if the tokenizer has no BOS.

        Raises:
            ValueError: a prompt has a token outside the model's vocabulary, the template does not
                end, or the tokenizer fails.
        """
        assert self.max_prompt_tokens >= 1, "the answer's budget leaves no room for a prompt"
        turns: list[Prompt | SkippedTurn] = []
        answers: dict[str, tuple[str, ...]] = {c.id: () for c in conversations}
        before: dict[str, Prompt] = {}
        for turn in range(1, max((len(c.turns) for c in conversations), default=0) + 1):
            going_on: list[Prompt] = []
            for conversation in (c for c in conversations if len(c.turns) >= turn):
                last = before.pop(conversation.id, None)
                prompt = self._prompt(conversation, turn, answers[conversation.id], last)
                turns.append(prompt)
                if isinstance(prompt, SkippedTurn):
                    continue
                before[conversation.id] = prompt
                if len(conversation.turns) > turn:
                    if (reply := conversation.reply(turn)) is None:
                        going_on.append(prompt)
                    else:
                        answers[conversation.id] += (reply,)
            texts = answer_turn1(going_on) if going_on else []
            for prompt, text in zip(going_on, texts, strict=True):
                if text is not None:
                    answers[prompt.conversation] += (text.strip(),)
        order = {conversation.id: i for i, conversation in enumerate(conversations)}
        turns.sort(key=lambda item: (order[item.conversation], item.turn))
        prompts = [item for item in turns if isinstance(item, Prompt)]
        return prompts, [item for item in turns if isinstance(item, SkippedTurn)]

    def _prompt(
        self, conversation: Conversation, turn: int, answers: Sequence[str], before: Prompt | None
    ) -> Prompt | SkippedTurn:
        """Return a turn, which follows the turn `before`, as a prompt or as a reason to skip it."""
        skipped = partial(
            SkippedTurn, conversation=conversation.id, turn=turn, family=conversation.family
        )
        if len(answers) < turn - 1:
            return skipped(reason="an earlier turn was skipped or not answered")
        try:
            with refusing_panics():
                ids = self._ids(conversation, answers)
        except RenderError as error:
            return skipped(reason=f"the chat template refuses it: {error}")
        if not ids:
            return skipped(reason="empty, and the tokenizer has no BOS token to start from")
        limit = self.max_prompt_tokens
        num_cut = max(0, len(ids) - limit)
        if num_cut and self.overlong == "skip":
            reason = f"{len(ids)} tokens; at most {limit} leave room for the answer"
            return skipped(reason=reason)
        if num_cut:
            num_kept = int(ids[0] == self.tokenizer.bos_token_id and limit > 1)
            ids = [*ids[:num_kept], *ids[num_cut + num_kept :]]
        prompt = Prompt(
            conversation=conversation.id,
            turn=turn,
            family=conversation.family,
            ids=tuple(ids),
            hash=ids_hash(ids),
            reference=conversation.references[turn - 1],
            num_cut=num_cut,
        )
        if self.vocab_size is not None and max(ids) >= self.vocab_size:
            raise ValueError(
                f"prompt {prompt.name} has token id {max(ids)}, but the model has "
                f"{self.vocab_size:,} tokens: its folder has another model's tokenizer, or one "
                "that was extended without the model; use model and tokenizer of one training"
            )
        if before is None or num_cut or before.num_cut:
            return prompt
        # no call fed the last token of an answer, nor an answer of the data
        fed = answers[-1] if conversation.reply(before.turn) is None else ""
        answer = self.tokenizer.encode(fed, add_special_tokens=False, verbose=False)
        pairs = zip(prompt.ids, (*before.ids, *answer[:-1]), strict=False)
        kept = itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
        return replace(prompt, num_kept=sum(1 for _ in kept))

    def _ids(self, conversation: Conversation, answers: Sequence[str]) -> list[int]:
        tokenizer, bos = self.tokenizer, self.tokenizer.bos_token_id
        texts = [text for pair in zip(conversation.turns, answers, strict=False) for text in pair]
        texts.append(conversation.turns[len(answers)])
        if self.template is not None:
            ids = tokenizer.encode(self.template(texts), add_special_tokens=True, verbose=False)
        elif tokenizer.chat_template:
            roles = itertools.cycle(("user", "assistant"))
            messages = [
                {"role": role, "content": text} for role, text in zip(roles, texts, strict=False)
            ]
            if conversation.system is not None:
                messages.insert(0, {"role": "system", "content": conversation.system})
            ids = tokenizer.encode(
                self._chat_text(messages), add_special_tokens=False, verbose=False
            )
        else:
            lines = texts if conversation.system is None else [conversation.system, *texts]
            ids = tokenizer.encode("\n".join(lines), add_special_tokens=True, verbose=False)
        return without_doubled_bos(ids, bos) if ids or bos is None else [bos]

    def _chat_text(self, messages: list[dict[str, str]]) -> str:
        if self.chat is not None:
            return self.chat.render(messages)
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template can raise anything
            raise RenderError(str(error)) from error
        return str(text)


def without_doubled_bos(ids: list[int], bos: int | None) -> list[int]:
    """Return ids with one leading BOS if the template and the tokenizer each added one."""
    while bos is not None and ids[:2] == [bos, bos]:
        ids = ids[1:]
    return ids


def to_length(prompts: Sequence[Prompt], num_tokens: int, bos: int | None) -> list[Prompt]:
    """Bring all prompts to one length, to measure what the context costs.

    A prompt always keeps its end, which has its question. A longer prompt loses its beginning. A
    shorter prompt is preceded by the texts of the next first turns in the list (cyclically, if need
    be itself), cut at the beginning: later turns contain answers, which a decoder could copy. A
    leading BOS token stays first, and there is no other.
    """
    texts = [p.ids[1:] if bos is not None and p.ids[0] == bos else p.ids for p in prompts]
    usable = [bool(text) and prompt.turn == 1 for prompt, text in zip(prompts, texts, strict=True)]
    if not any(usable):
        return list(prompts)
    result = []
    for index, prompt in enumerate(prompts):
        head = prompt.ids[: len(prompt.ids) - len(texts[index])]
        room = num_tokens - len(head)
        ids, following = texts[index], index
        while len(ids) < room:
            following = (following + 1) % len(prompts)
            ids = (texts[following] if usable[following] else ()) + ids
        ids = (*head, *ids[len(ids) - room :])
        cut = prompt.num_cut + max(0, len(prompt.ids) - num_tokens)
        result.append(replace(prompt, ids=ids, hash=ids_hash(ids), num_cut=cut, num_kept=0))
    return result


def count_lines(prompts: Sequence[Prompt], skipped: Sequence[SkippedTurn]) -> list[str]:
    """Return one line about cut prompts and one line about skipped prompts, if there are any."""
    total = len(prompts) + len(skipped)
    lines = []
    if cut := [prompt.num_cut for prompt in prompts if prompt.num_cut]:
        lost = f"{len(cut)} of {total} prompts were cut at the beginning"
        lines.append(f"{lost} (up to {max(cut)} tokens cut)")
    if skipped:
        families = Counter(item.family for item in skipped)
        per_family = ", ".join(f"{family} {num}" for family, num in families.most_common())
        example = f"{skipped[0].name}: {skipped[0].reason}"
        lines.append(f"{len(skipped)} of {total} prompts skipped ({per_family}): e.g. {example}")
    return lines


def max_prompt_tokens(config: RunConfig, context: int) -> int:
    """Return the limit of a prompt's tokens beside an answer (`UsageError`: there is no room)."""
    limit = context - config.max_new_tokens
    if limit < 1:
        raise UsageError(
            f"the model's context is {context} tokens, so answers of {config.max_new_tokens} "
            f"leave none for a prompt: lower --max-new-tokens to {context - 1} or less"
        )
    if config.prompt_tokens is not None and not 1 < config.prompt_tokens <= limit:
        raise UsageError(
            f"--prompt-tokens {config.prompt_tokens}: with answers of {config.max_new_tokens} "
            f"tokens the model's context of {context} has room for 2 to {limit}"
        )
    return limit


def read_tasks(config: RunConfig) -> TaskSet:
    """Read a run's tasks (`UsageError` if unknown or unreadable, `UnavailableError` if no data)."""
    with as_error(UsageError), as_error(UnavailableError, DataUnavailable):
        return load_tasks(
            config.tasks,
            split=config.split,
            limit=config.limit,
            quality_limit=config.quality_limit,
            seed=config.seed,
            columns=config.columns,
        )
