"""Modules of the shape of llama_cpp and vllm, whose model counts upwards from the last prompt id.

Its answer to ids that end in n is n + 1, n + 2, …; `END` ends it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

END = 90
SIZE = 100


class Llama:
    """The loop of llama-cpp-python 0.3: evaluate, sample until a draft differs, draft again."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, **options: Any) -> None:
        Llama.made.append(options)
        self.n_batch = 8
        self.closed = self.dirty = False
        self._drafts = options["draft_model"]

    def token_eos(self) -> int:
        return END

    def n_vocab(self) -> int:
        return SIZE

    def reset(self) -> None:
        self.dirty = False

    def eval(self, tokens: Sequence[int]) -> None:
        self.dirty = True

    def close(self) -> None:
        self.closed = True

    def generate(self, tokens: list[int], temp: float, repeat_penalty: float) -> Iterator[int]:
        assert (temp, repeat_penalty) == (0.0, 1.0)
        assert not self.dirty, "nothing is reused of the prompt before"
        text, fed = list(tokens), list(tokens)
        first = True
        while True:
            self.eval(fed)
            drafts = [] if first else fed[1:]
            first = False
            for draft in [*drafts, None]:
                text.append(text[-1] + 1)
                yield text[-1]
                if text[-1] != draft:
                    break
            fed = [text[-1]]
            if self._drafts is not None:
                fed += list(self._drafts(np.array(text)).astype(int))


class LlamaPromptLookupDecoding:
    """Proposes the next number rightly and then a wrong one, whatever it is asked for."""

    def __init__(self, max_ngram_size: int, num_pred_tokens: int) -> None:
        assert max_ngram_size >= 1
        self._num = num_pred_tokens

    def __call__(self, ids: np.ndarray) -> np.ndarray:
        return np.array([ids[-1] + 1, 0, 0, 0][: self._num])


class SamplingParams(SimpleNamespace):
    pass


class LLM:
    """vLLM's offline engine: two tokens a pass where it speculates, the second one accepted."""

    made: ClassVar[list[dict[str, Any]]] = []
    num_open = 0

    def __init__(self, **options: Any) -> None:
        LLM.made.append(options)
        LLM.num_open += 1
        assert LLM.num_open == 1, "one engine at a time has the device's memory"
        self._config = options["speculative_config"]
        self._drafted, self._accepted = 5, 5  # of others' requests
        self.llm_engine = SimpleNamespace(engine_core=SimpleNamespace(shutdown=self._shutdown))

    def _shutdown(self) -> None:
        LLM.num_open -= 1

    def generate(self, prompts: list[Any], sampling: Any, use_tqdm: bool) -> list[Any]:
        (prompt,) = prompts
        assert sampling.temperature == 0.0
        assert not use_tqdm
        ids: list[int] = prompt["prompt_token_ids"]
        tokens: list[int] = []
        stops = set() if sampling.ignore_eos else {END, *(sampling.stop_token_ids or ())}
        while len(tokens) < sampling.max_tokens and not stops & set(tokens[-1:]):
            tokens.append((ids + tokens)[-1] + 1)
        if self._config is not None:
            self._drafted += self._config["num_speculative_tokens"] * (len(tokens) // 2)
            self._accepted += len(tokens) // 2
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens)])]

    def get_metrics(self) -> list[Any]:
        assert self._config is not None, "there are no such counters without speculation"
        return [
            SimpleNamespace(name="vllm:spec_decode_num_draft_tokens", value=self._drafted),
            SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens", value=self._accepted),
            SimpleNamespace(name="vllm:spec_decode_num_accepted_tokens_per_pos", values=[1, 2]),
        ]


def install_llama(monkeypatch: pytest.MonkeyPatch) -> None:
    module, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    vars(module).update(Llama=Llama, __version__="0.3.fake")
    vars(speculative).update(LlamaPromptLookupDecoding=LlamaPromptLookupDecoding)
    Llama.made.clear()
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", speculative)


def install_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm")
    vars(module).update(LLM=LLM, SamplingParams=SamplingParams, __version__="0.fake")
    LLM.made.clear()
    monkeypatch.setattr(LLM, "num_open", 0)
    monkeypatch.setitem(sys.modules, "vllm", module)
