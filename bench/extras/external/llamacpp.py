"""Run llama.cpp through ``llama-cpp-python``: plain decoding, and drafts by prompt lookup.

Source: the package's own `Llama.generate` and `LlamaPromptLookupDecoding`. Its loop evaluates the
last token and the drafts after it in one call, then samples position by position until a token
differs from the draft. So after the prompt, `eval` receives one token and the drafts.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from bench.errors import UnavailableError
from bench.extras.external.engine import Answerer, Engine, EngineAnswer, Mode, Settings


def llamacpp(num_drafts: int, ngram: int) -> Engine:
    """Describe llama.cpp, with a lookup of `num_drafts` tokens after a match of at most `ngram`."""
    lookup = {"num_pred_tokens": num_drafts, "max_ngram_size": ngram}
    modes = {"ar": None, "lookup": lookup}
    options = {"together": True, "threaded": True}
    return Engine(name="llamacpp", package="llama_cpp", modes=modes, open=_open, **options)


@contextlib.contextmanager
def _open(module: Any, lookup: Mode, request: Settings) -> Iterator[Answerer]:
    """Load the model, with the logits of all rows if its loop needs them for drafts."""
    drafts, num_drafts = None, 0
    if lookup is not None:
        part = importlib.import_module(f"{module.__name__}.llama_speculative")
        drafts, num_drafts = part.LlamaPromptLookupDecoding(**lookup), lookup["num_pred_tokens"]
    try:
        model = module.Llama(
            model_path=request.model,
            n_ctx=request.longest_prompt + request.budget + num_drafts + 1,
            n_threads=request.threads,
            n_threads_batch=request.threads,
            logits_all=drafts is not None,
            draft_model=drafts,
            verbose=False,
        )
    except (ValueError, RuntimeError, OSError) as error:
        raise UnavailableError(f"llama.cpp cannot load {request.model!r}: {error}") from error
    with contextlib.closing(model):
        yield _counting(model, request)


def _counting(model: Any, request: Settings) -> Answerer:
    """Return a function that answers with a loaded model, and counts its `eval` calls."""
    evaluate, fed = model.eval, list[Sequence[int]]()
    stop = frozenset() if request.fixed_length else request.stop_ids | {int(model.token_eos())}

    def record(tokens: Sequence[int]) -> None:
        fed.append([int(token) for token in tokens])  # drafts are numpy integers
        evaluate(tokens)

    def answer(ids: Sequence[int], budget: int) -> EngineAnswer:
        size = int(model.n_vocab())
        if max(ids) >= size:
            raise ValueError(f"the prompt has id {max(ids)}, but this model has {size} tokens")
        model.reset()
        fed.clear()
        tokens: list[int] = []
        drafts: Sequence[int] = ()  # drafts not yet compared
        drafted = accepted = num_seen = 0
        for token in model.generate(list(ids), temp=0.0, repeat_penalty=1.0):
            if len(fed) > num_seen:  # a call came before this token
                num_seen = len(fed)
                drafts = fed[-1][1:] if num_seen > 1 else ()
                drafted += len(drafts)
            if drafts:
                accepted += int(token) == drafts[0]
                drafts = drafts[1:]
            tokens.append(int(token))
            if int(token) in stop or len(tokens) == budget:
                break
        calls = sum(-(-len(each) // int(model.n_batch)) for each in fed)  # of a batch each
        return EngineAnswer(tokens=tuple(tokens), calls=calls, drafted=drafted, accepted=accepted)

    model.eval = record
    return answer
