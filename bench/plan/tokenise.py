"""From conversations to the token ids every decoder is given: made once, the same for all.

A *prompt* is one turn. The chat template is applied exactly once and owns the special tokens; a
model without one gets the turns as plain text, joined by newlines, with whatever special tokens its
tokenizer adds by itself. A BOS token is never doubled. Turn 2's history holds the answer to turn 1
that the data gives, else the baseline's, so that every decoder answers the very same prompt. No
torch, no transformers here: the tokenizer is a protocol.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from jinja2 import TemplateError

from bench.errors import UnavailableError, UsageError
from bench.records.prompts import Prompt, SkippedTurn, ids_hash
from bench.records.vocabulary import Tokenizer
from specbench_tasks.loaders import DataUnavailable
from specbench_tasks.registry import TaskSet, load_tasks
from specbench_tasks.task import Conversation

_Overlong = Literal["skip", "truncate"]


def build_prompts(
    conversations: Sequence[Conversation],
    tokenizer: Tokenizer,
    *,
    max_prompt_tokens: int,
    overlong: _Overlong,
    answer_turn1: Callable[[list[Prompt]], Sequence[str | None]],
    template: Callable[[Sequence[str]], str] | None = None,
    vocab_size: int | None = None,
) -> tuple[list[Prompt], list[SkippedTurn]]:
    """Tokenise every turn of every conversation once, in order (turn 2 follows its turn 1).

    Args:
        conversations: what to ask.
        tokenizer: the target's.
        max_prompt_tokens: what fits, i.e. the model's context less the budget for the answer; 1 or
            more.
        overlong: a longer prompt is left out (with the later turns of its conversation), or loses
            its beginning: the last `max_prompt_tokens` ids stay, a leading BOS among them.
        answer_turn1: the baseline's answers, as text without special tokens, to prompts whose
            conversation goes on and gives no answer itself; called once per turn number that has
            such. None: there is no answer, and the later turns are skipped.
        template: a protocol's own, from what was said so far, user first, to the text that the
            tokenizer encodes with its special tokens; None is the tokenizer's.
        vocab_size: how many tokens the model knows; None: all that the tokenizer gives.

    Returns:
        The prompts, and the turns skipped with a reason each. An empty prompt is the BOS alone, or
        skipped where the tokenizer has none.

    Raises:
        ValueError: a prompt has a token that the model does not know.
    """
    assert max_prompt_tokens >= 1, "the answer's budget leaves no room for a prompt"
    made: list[Prompt | SkippedTurn] = []
    answers: dict[str, tuple[str, ...]] = {c.id: () for c in conversations}
    before: dict[str, Prompt] = {}
    for turn in range(1, max((len(c.turns) for c in conversations), default=0) + 1):
        asked = [c for c in conversations if len(c.turns) >= turn]
        results = [
            _prompt(c, turn, answers[c.id], tokenizer, max_prompt_tokens, overlong, template)
            for c in asked
        ]
        results = [
            replace(prompt, num_kept=_num_kept(prompt, before.get(c.id), c, answers, tokenizer))
            if isinstance(prompt, Prompt)
            else prompt
            for c, prompt in zip(asked, results, strict=True)
        ]
        _check_known(results, vocab_size)
        before = {prompt.conversation: prompt for prompt in results if isinstance(prompt, Prompt)}
        made += results
        going_on: list[Prompt] = []
        for conversation, result in zip(asked, results, strict=True):
            if isinstance(result, Prompt) and len(conversation.turns) > turn:
                if (given := conversation.reply(turn)) is None:
                    going_on.append(result)
                else:
                    answers[conversation.id] += (given,)
        texts = answer_turn1(going_on) if going_on else []
        for prompt, text in zip(going_on, texts, strict=True):
            if text is not None:
                answers[prompt.conversation] += (text.strip(),)
    place = {conversation.id: i for i, conversation in enumerate(conversations)}
    made.sort(key=lambda item: (place[item.conversation], item.turn))
    prompts = [item for item in made if isinstance(item, Prompt)]
    return prompts, [item for item in made if isinstance(item, SkippedTurn)]


def _check_known(results: Sequence[Prompt | SkippedTurn], vocab_size: int | None) -> None:
    for prompt in results:
        if not isinstance(prompt, Prompt) or vocab_size is None or max(prompt.ids) < vocab_size:
            continue
        raise ValueError(
            f"prompt {prompt.name} has token id {max(prompt.ids)}, and the model knows "
            f"{vocab_size:,} tokens: its folder holds the tokenizer of another model, or one that "
            "was extended without the model; give both as they were trained together"
        )


def to_length(prompts: Sequence[Prompt], num_tokens: int, bos: int | None) -> list[Prompt]:
    """The prompts at one length, to measure what the context costs.

    A prompt's end, with its question, always stays. A longer one loses its beginning; a shorter one
    follows the text of the prompts after it in the list, around to itself again if need be, which
    is cut at its beginning. A first BOS token stays the first, and there is no other.
    """
    texts = [p.ids[1:] if bos is not None and p.ids[0] == bos else p.ids for p in prompts]
    if not any(texts):
        return list(prompts)
    made = []
    for place, prompt in enumerate(prompts):
        head = prompt.ids[: len(prompt.ids) - len(texts[place])]
        room = num_tokens - len(head)
        ids, following = texts[place], place
        while len(ids) < room:
            following = (following + 1) % len(prompts)
            ids = texts[following] + ids
        ids = (*head, *ids[len(ids) - room :])
        cut = prompt.num_cut + max(0, len(prompt.ids) - num_tokens)
        made.append(replace(prompt, ids=ids, hash=ids_hash(ids), num_cut=cut, num_kept=0))
    return made


def count_lines(prompts: Sequence[Prompt], skipped: Sequence[SkippedTurn]) -> list[str]:
    """What was left out or cut, in words, one line per kind; empty where nothing was."""
    total = len(prompts) + len(skipped)
    lines = []
    cut = [prompt.num_cut for prompt in prompts if prompt.num_cut]
    if cut:
        lines.append(
            f"{len(cut)} of {total} prompts lost their beginning to fit "
            f"(up to {max(cut)} tokens cut)"
        )
    if skipped:
        families = Counter(item.family for item in skipped)
        per_family = ", ".join(f"{family} {num}" for family, num in families.most_common())
        lines.append(
            f"{len(skipped)} of {total} prompts skipped ({per_family}): "
            f"e.g. {skipped[0].name}: {skipped[0].reason}"
        )
    return lines


def _prompt(
    conversation: Conversation,
    turn: int,
    answers: Sequence[str],
    tokenizer: Tokenizer,
    max_prompt_tokens: int,
    overlong: _Overlong,
    template: Callable[[Sequence[str]], str] | None,
) -> Prompt | SkippedTurn:
    if len(answers) < turn - 1:
        return _skip(conversation, turn, "an earlier turn was skipped or not answered")
    try:
        ids = _encode(conversation, answers, tokenizer, template)
    except TemplateError as error:
        return _skip(conversation, turn, f"the chat template refuses it: {error}")
    if not ids:
        return _skip(conversation, turn, "empty, and the tokenizer has no BOS token to start from")
    num_cut = max(0, len(ids) - max_prompt_tokens)
    if num_cut and overlong == "skip":
        reason = f"{len(ids)} tokens; at most {max_prompt_tokens} leave room for the answer"
        return _skip(conversation, turn, reason)
    if num_cut:
        num_kept = int(ids[0] == tokenizer.bos_token_id and max_prompt_tokens > 1)
        ids = [*ids[:num_kept], *ids[num_cut + num_kept :]]
    return Prompt(
        conversation=conversation.id,
        turn=turn,
        family=conversation.family,
        ids=tuple(ids),
        hash=ids_hash(ids),
        reference=conversation.references[turn - 1],
        num_cut=num_cut,
    )


def _num_kept(
    prompt: Prompt,
    before: Prompt | None,
    conversation: Conversation,
    answers: Mapping[str, tuple[str, ...]],
    tokenizer: Tokenizer,
) -> int:
    """With how many ids of the turn before and its answer a prompt begins.

    The answer's last one is left out: no call fed it. No call fed a given answer either.
    """
    if before is None or prompt.num_cut or before.num_cut:
        return 0
    fed = answers[conversation.id][-1] if conversation.reply(before.turn) is None else ""
    answer = tokenizer.encode(fed, add_special_tokens=False, verbose=False)
    pairs = zip(prompt.ids, (*before.ids, *answer[:-1]), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _encode(
    conversation: Conversation,
    answers: Sequence[str],
    tokenizer: Tokenizer,
    template: Callable[[Sequence[str]], str] | None,
) -> list[int]:
    bos = tokenizer.bos_token_id
    said = [text for pair in zip(conversation.turns, answers, strict=False) for text in pair]
    said.append(conversation.turns[len(answers)])
    if template is not None:
        ids = tokenizer.encode(template(said), add_special_tokens=True, verbose=False)
    elif tokenizer.chat_template:
        messages = [
            {"role": "assistant" if i % 2 else "user", "content": text}
            for i, text in enumerate(said)
        ]
        if conversation.system is not None:
            messages.insert(0, {"role": "system", "content": conversation.system})
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False, verbose=False)
    else:
        if conversation.system is not None:
            said.insert(0, conversation.system)
        ids = tokenizer.encode("\n".join(said), add_special_tokens=True, verbose=False)
    if not ids and bos is not None:
        return [bos]
    return without_doubled_bos(ids, bos)


def without_doubled_bos(ids: list[int], bos: int | None) -> list[int]:
    """Ids that begin with one BOS where a template and the tokenizer both gave one."""
    while bos is not None and ids[:2] == [bos, bos]:
        ids = ids[1:]
    return ids


def _skip(conversation: Conversation, turn: int, reason: str) -> SkippedTurn:
    return SkippedTurn(
        conversation=conversation.id, turn=turn, family=conversation.family, reason=reason
    )


def tasks_of(
    tasks: str,
    *,
    limit: int | None,
    seed: int,
    quality_limit: int | None = None,
    columns: Mapping[str, str] | None = None,
) -> TaskSet:
    """`load_tasks`, with its errors as `BenchError` (unknown or unreadable 2, unavailable 5)."""
    try:
        return load_tasks(
            tasks, limit=limit, quality_limit=quality_limit, seed=seed, columns=columns
        )
    except DataUnavailable as error:
        raise UnavailableError(str(error)) from error
    except ValueError as error:
        raise UsageError(str(error)) from error
