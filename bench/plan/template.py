"""Render a tokenizer's chat template within limits and on one date, and describe the template.

A template is a program in a file that anybody may have written. A child process renders it
(`specbench_tasks.child`), on the job's date and with the same random draws every time, so that
another day or process has the same prompts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from specbench_tasks import child

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[Mapping[str, str]]
_CPU_S = 5
"""Limit of processor seconds for one prompt."""
_MAX_CHARS = 50_000_000
"""Limit of characters of a prompt."""
_QUESTION, _ANSWER = "Where is Oslo?", "It lies in Norway."
"""A conversation by which a template's text is examined."""


class RenderError(ValueError):
    """Report a template that renders no prompt of its messages."""


class TemplateEndless(ValueError):
    """Report a template that reaches a limit of time, memory or length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """Hold a chat template: its text, and its variables besides the messages.

    `tokens` are the tokenizer's special tokens by name, `arguments` the user's variables. `date`
    (ISO) is the day that ``strftime_now`` returns.
    """

    text: str
    tokens: Mapping[str, str]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    date: str | None = None

    @property
    def dated(self) -> bool:
        """Return whether the template may write a date."""
        return "strftime_now" in self.text

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that a run records."""
        return {
            "text": self.text,
            "sha256": hashlib.sha256(self.text.encode(errors="surrogatepass")).hexdigest(),
            "arguments": dict(self.arguments),
            "date": self.date if self.dated else None,
        }

    def render(
        self, messages: Messages, *, ask: bool = True, go_on: bool = False, seed: int = 0
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages: roles and contents.
            ask: end where an answer begins.
            go_on: end inside the last message, which an answer continues.
            seed: the seed of the template's own random draws.

        Raises:
            RenderError: the template raises an error, or writes too much.
            TemplateEndless: the template reaches a limit.
        """
        variables = {**self.tokens, **self.arguments, "add_generation_prompt": ask}
        variables |= {"continue_final_message": True} if go_on else {}
        day = self.date or today()
        try:
            error, text = child.ask(
                "bench.plan.template",
                _CPU_S,
                *(self.text, list(map(dict, messages)), variables, day, seed),
            )
        except child.Ended as ended:
            raise TemplateEndless(f"the chat template does not end: {ended}") from ended
        if error is not None:
            raise RenderError(error)
        return str(text)


def today() -> str:
    """Return the date in UTC, which is equal everywhere."""
    return f"{datetime.now(UTC):%Y-%m-%d}"


def chat_template(
    tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any], date: str | None
) -> ChatTemplate | None:
    """Return a tokenizer's template, or None if it has none or its class formats by itself."""
    if not tokenizer.chat_template or not hasattr(tokenizer, "get_chat_template"):
        return None
    from transformers import PreTrainedTokenizerBase

    method = type(tokenizer).apply_chat_template
    if method is not PreTrainedTokenizerBase.apply_chat_template:
        return None
    tokens = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    text = tokenizer.get_chat_template()
    return ChatTemplate(text=text, tokens=tokens, arguments=dict(arguments), date=date)


def template_notes(
    template: ChatTemplate | None, tokenizer: PreTrainedTokenizerBase, stop_ids: frozenset[int]
) -> list[str]:
    """Describe surprising effects of a template (raises `TemplateEndless`)."""
    if template is None:
        ids = [] if tokenizer.chat_template else tokenizer.encode(_QUESTION, verbose=False)
        return _ended(tokenizer, ids, stop_ids)
    notes, messages = [], [{"role": "user", "content": _QUESTION}]
    try:
        text = template.render(messages)
        other = template.render(messages, seed=1)
    except RenderError:
        return []  # each prompt reports the reason
    if template.dated:
        notes.append(f"its chat template may write a date: {template.date} (--date) in every run")
    if text != other:
        notes.append("its chat template draws at random; every run has the same draws (seed 0)")
    if _QUESTION not in text:
        notes.append("its chat template does not write what the user asks")
    ids = tokenizer.encode(text, add_special_tokens=False, verbose=False)
    notes += _ended(tokenizer, ids, stop_ids)
    try:
        whole = [*messages, {"role": "assistant", "content": _ANSWER}]
        _, answer, after = template.render(whole, ask=False).rpartition(_ANSWER)
    except RenderError:
        return notes
    end = after.lstrip() if answer else ""
    ids = tokenizer.encode(end, add_special_tokens=False, verbose=False)[:1]
    if ids and ids[0] not in stop_ids and ids[0] in tokenizer.added_tokens_decoder:
        names = ", ".join(map(str, tokenizer.convert_ids_to_tokens(sorted(stop_ids)))) or "none"
        token = tokenizer.convert_ids_to_tokens(ids[0])
        notes.append(
            f"its chat template ends an answer with {token}, which is no stop id ({names}): "
            "answers may run on and invent the next turn; add its id to eos_token_id in "
            "generation_config.json"
        )
    return notes


def _ended(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], stop_ids: frozenset[int]
) -> list[str]:
    if not ids or ids[-1] not in stop_ids:
        return []
    name = tokenizer.convert_ids_to_tokens(ids[-1])
    return [f"its prompts end in a stop id ({name}): every answer begins after the end"]


def serve() -> None:
    """Render templates as transformers does: for the child."""
    import random

    from jinja2 import TemplateError
    from transformers.utils import chat_template_utils

    utils: Any = chat_template_utils

    def rendered(
        text: str, messages: list[dict[str, str]], variables: dict[str, Any], day: str, seed: int
    ) -> tuple[str | None, str | None]:
        class Day(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Day:
                return cls.fromisoformat(day)

        utils.datetime = Day
        random.seed(seed)
        try:
            (prompt,), _ = utils.render_jinja_template([messages], chat_template=text, **variables)
        except Exception as error:  # a template can raise anything
            kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
            return f"{kind}{' '.join(str(error).split())}"[:1000], None
        if len(prompt) > _MAX_CHARS:
            return f"it writes {len(prompt):,} characters; at most {_MAX_CHARS:,} are allowed", None
        return None, prompt

    child.answer_questions(rendered)
