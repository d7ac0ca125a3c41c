"""Wrap a decoder as a model of EleutherAI's lm-evaluation-harness.

The decoder answers `generate_until`; tasks of likelihoods are refused, as a decoder has none. Texts
are tokenised as in `bench.plan.tokenise`, and answers are sampled with the same positional
uniforms, so the answer to a prompt is the one that `bench run` gives. Needs lm_eval (the extra
``eval``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lm_eval.api.model import LM

from bench.errors import BenchError, UsageError
from bench.plan.setup import Setup
from bench.plan.tokenise import without_doubled_bos
from bench.progress import Progress
from bench.records.prompts import ids_hash
from decoders.core.decoder import Request, SelfDriven, Steps
from decoders.core.engine.scheduler import Scheduler
from decoders.core.types import CallResult, Emit, Outcome, Sampling

Write = Callable[[Mapping[str, Any]], None]
"""A function that stores one answer, as JSON data, as soon as the answer is complete."""
_ALLOWED = ("until", "do_sample", "temperature", "top_p", "top_k", "max_gen_toks")
_ALIASES = {"max_new_tokens": "max_gen_toks", "max_tokens": "max_gen_toks"}
_NEUTRAL = {"num_beams": 1, "repetition_penalty": 1.0}
"""Other options of tasks, allowed only at values that change nothing."""


class DecoderLM(LM):  # type: ignore[misc]
    """Wrap one arm of a setup as a model, whose prompts may be `templated` already."""

    def __init__(
        self,
        setup: Setup,
        cell: str,
        *,
        templated: bool,
        batch_size: int,
        write: Write,
        progress: Progress,
    ) -> None:
        """Prepare the arm. `write` stores every answer at once, so that no stop loses answers."""
        super().__init__()
        self._setup, self._arm = setup, setup.arms[cell]
        self._cell, self._templated, self._batch_size = cell, templated, batch_size
        self._write, self._progress = write, progress
        self._tokenizer: Any = setup.tokenizer
        self.num_cut = 0
        """Number of prompts that lost their beginning to fit the context."""

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return the decoder's answers, each cut at the first of its task's stop strings."""
        groups: dict[tuple[tuple[str, ...], Sampling], list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(self._read_options(request.args[1]), []).append(index)
        self._progress.start(f"answers of {self._cell}", len(requests))
        texts = [""] * len(requests)
        for (until, sampling), indices in groups.items():
            self._answer(until, sampling, {i: requests[i] for i in indices}, texts)
        return texts

    def _answer(
        self,
        until: tuple[str, ...],
        sampling: Sampling,
        requests: Mapping[int, Any],
        texts: list[str],
    ) -> None:
        """Answer requests that share sampling options and stop strings."""
        arm = self._arm
        limit = self._setup.models.target.max_length - sampling.max_new_tokens
        if limit < 1:
            self._refuse(f"max_gen_toks {sampling.max_new_tokens} leaves no room for a prompt")
        indices = list(requests)
        whole = [self._encode(requests[i].args[0]) for i in indices]
        prompts = [ids[max(0, len(ids) - limit) :] for ids in whole]  # as lm-eval's models cut them
        self.num_cut += sum(len(ids) > limit for ids in whole)
        failed: list[Exception] = []

        def finish(index: int, outcome: Outcome) -> None:
            if isinstance(outcome, Exception):
                failed.append(outcome)
                return
            at = indices[index]
            texts[at] = self._setup.text(outcome.tokens)
            for string in filter(None, until):
                texts[at] = texts[at].split(string)[0]
            facts = {"task": requests[at].task_name, "doc": requests[at].doc_id}
            facts["prompt"] = ids_hash(prompts[index])
            self._write({**facts, "tokens": outcome.tokens, "text": texts[at]})
            self._progress.step(self._cell)

        steps = None
        if until and sampling.stop_ids and not isinstance(arm.decoder, SelfDriven):
            steps = _ending_at(arm.decoder.steps, self._setup.text, until, min(sampling.stop_ids))
        scheduler = Scheduler(
            arm.decoder, arm.models, sampling, self._batch_size, arm.deadline, steps=steps
        )
        with arm.deadline.ticking():
            scheduler.run(prompts, on_finish=finish)
        if failed:  # all other answers are already written
            example = f"{type(failed[0]).__name__}: {failed[0]}"
            raise BenchError(f"{self._cell} failed on {len(failed)} of {len(indices)}: {example}")

    def _read_options(self, options: Mapping[str, Any]) -> tuple[tuple[str, ...], Sampling]:
        """Return stop strings and sampling from the task's options (greedy unless it samples)."""
        values = {_ALIASES.get(name, name): value for name, value in options.items()}
        for name, value in values.items():
            if name not in _ALLOWED and _NEUTRAL.get(name, object()) != value:
                allowed = ", ".join(_ALLOWED)
                self._refuse(f"it asks for {name}={value!r}; decoders support {allowed}")
        until = values.get("until") or ()
        strings = tuple([until] if isinstance(until, str) else until)
        temperature = values.get("temperature")
        sampled = values.get("do_sample", bool(temperature))
        defaults = self._setup.sampling
        try:
            special = set(self._tokenizer.all_special_ids)  # an answer's text hides these
            encoded = [
                self._tokenizer.encode(text, add_special_tokens=False) for text in strings if text
            ]
            sampling = replace(
                defaults,
                temperature=float(1.0 if temperature is None else temperature) if sampled else 0.0,
                top_p=float(values.get("top_p") or 1.0) if sampled else 1.0,
                top_k=int(values.get("top_k") or 0) if sampled else 0,
                max_new_tokens=int(values.get("max_gen_toks") or defaults.max_new_tokens),
                stop_ids=defaults.stop_ids
                | frozenset(ids[0] for ids in encoded if len(ids) == 1 and ids[0] in special),
            )
        except (TypeError, ValueError) as error:
            self._refuse(str(error))
        return strings, sampling

    def _refuse(self, why: str) -> None:
        raise UsageError(f"the task cannot be answered by {self._cell}: {why}")

    def loglikelihood(self, requests: Sequence[Any]) -> Any:
        """Refuse the request (`UsageError`)."""
        self._refuse(
            "it asks for likelihoods, and a decoder has none; choose a task that generates"
        )

    loglikelihood_rolling = loglikelihood

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as one text, using the tokenizer's template."""
        if (template := self._setup.template) is not None:
            ask = add_generation_prompt
            return template.render(chat_history, ask=ask, go_on=not ask)
        return str(
            self._tokenizer.apply_chat_template(
                chat_history,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the chat template in use, for lm-eval's records."""
        return str(self._tokenizer.chat_template or "") if chat_template else ""

    @property
    def tokenizer_name(self) -> str:
        """Return the tokenizer's name for lm-eval's records."""
        return str(getattr(self._tokenizer, "name_or_path", "")).replace("/", "__")

    def _encode(self, text: str) -> list[int]:
        ids = self._tokenizer.encode(text, add_special_tokens=not self._templated, verbose=False)
        bos = self._tokenizer.bos_token_id
        prefix = min(self._setup.sampling.stop_ids, default=0) if bos is None else bos
        return without_doubled_bos(ids, bos) or [prefix]


def _ending_at(
    steps: Callable[[Request], Steps],
    text: Callable[[Sequence[int]], str],
    until: Sequence[str],
    stop: int,
) -> Callable[[Request], Steps]:
    """Let a decoder's steps emit the token `stop` once the answer contains a string of `until`."""

    def ending(request: Request) -> Steps:
        inner = steps(request)
        tokens: list[int] = []
        result: CallResult | None = None
        while True:
            item = next(inner) if result is None else inner.send(result)
            result = yield item
            if isinstance(item, Emit) and item.tokens:
                tokens += item.tokens
                answer = text(tokens)
                if any(string and string in answer for string in until):
                    yield Emit(tokens=(stop,))

    return ending
