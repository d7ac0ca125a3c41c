"""Run llama.cpp through ``llama-cpp-python``: plain decoding, and drafts by prompt lookup.

Source: the package's own `Llama.generate` and `LlamaPromptLookupDecoding`. Its loop evaluates the
last token and the drafts after it in one call, then samples position by position until a token
differs from the draft. So after the prompt, `eval` receives one token and the drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.errors import UnavailableError
from bench.extras.external.engine import Engine, EngineAnswer, EngineArm, Settings


class LlamaCpp(Engine):
    """Define the llama.cpp engine, with the options of its prompt lookup."""

    name, package, together = "llamacpp", "llama_cpp", True

    def __init__(self, num_drafts: int, ngram: int) -> None:
        """Draft at most `num_drafts` tokens after a match of at most `ngram` tokens."""
        lookup = {"num_pred_tokens": num_drafts, "max_ngram_size": ngram}
        super().__init__({"ar": None, "lookup": lookup})
        self._num_drafts = num_drafts

    def open(self, mode: str, request: Settings) -> EngineArm:
        """Load the model, with the logits of all rows if its loop needs them for drafts."""
        module, drafts = self.module(), None
        if (lookup := self.modes[mode]) is not None:
            drafts = self.module(".llama_speculative").LlamaPromptLookupDecoding(**lookup)
        try:
            model = module.Llama(
                model_path=request.model,
                n_ctx=request.longest_prompt + request.budget + self._num_drafts + 1,
                n_threads=request.threads,
                n_threads_batch=request.threads,
                logits_all=drafts is not None,
                draft_model=drafts,
                verbose=False,
            )
        except (ValueError, RuntimeError, OSError) as error:
            raise UnavailableError(f"llama.cpp cannot load {request.model!r}: {error}") from error
        return _LlamaArm(model, request)


class _LlamaArm:
    """Wrap a loaded model, and count its `eval` calls."""

    def __init__(self, model: Any, request: Settings) -> None:
        self._model = model
        self._evaluate = model.eval
        model.eval = self._counted
        ends = request.stop_ids | {int(model.token_eos())}
        self._stop = frozenset() if request.fixed_length else ends
        self._calls = 0
        self._fed: list[Sequence[int]] = []

    def _counted(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens, and count a call per batch of the engine."""
        self._fed.append([int(token) for token in tokens])  # drafts are numpy integers
        self._calls += -(-len(tokens) // int(self._model.n_batch))
        self._evaluate(tokens)

    def answer(self, ids: Sequence[int], budget: int) -> EngineAnswer:
        size = int(self._model.n_vocab())
        if max(ids) >= size:
            raise ValueError(f"the prompt has id {max(ids)}, but this model has {size} tokens")
        self._model.reset()
        self._calls, self._fed = 0, []
        tokens: list[int] = []
        drafts: Sequence[int] = ()  # drafts not yet compared
        drafted = accepted = num_seen = 0
        for token in self._model.generate(list(ids), temp=0.0, repeat_penalty=1.0):
            if len(self._fed) > num_seen:  # a call came before this token
                num_seen = len(self._fed)
                drafts = self._fed[-1][1:] if num_seen > 1 else ()
                drafted += len(drafts)
            if drafts:
                accepted += int(token) == drafts[0]
                drafts = drafts[1:]
            tokens.append(int(token))
            if int(token) in self._stop or len(tokens) == budget:
                break
        return EngineAnswer(
            tokens=tuple(tokens), calls=self._calls, drafted=drafted, accepted=accepted
        )

    def close(self) -> None:
        self._model.close()
