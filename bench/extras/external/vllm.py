"""Run vLLM's offline engine: plain decoding, its n-gram lookup, any ``speculative_config``.

Source: its documentation of `LLM`, `SamplingParams`, ``speculative_config`` and `LLM.get_metrics`.
The counters ``vllm:spec_decode_*`` are read before and after each answer. Forward passes are not
counted. Each pass emits one token besides the accepted drafts, so the number of passes is emitted -
accepted tokens; this is up to k too low if drafts are accepted past an answer's end.
A server's responses have metrics of their request (vllm-project/vllm#48915; `bench export --to
acceptance` writes the same), but no ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.errors import UnavailableError, UsageError
from bench.extras.external.engine import Answerer, Engine, EngineAnswer, Mode, Settings
from bench.extras.external.table import ExternalAnswer
from bench.text import UNKNOWN

_DRAFTED = "vllm:spec_decode_num_draft_tokens"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens"


def vllm(num_drafts: int, ngram: int, speculative: Mapping[str, object] | None) -> Engine:
    """Describe vLLM, with llama.cpp's options of a lookup and the user's ``speculative_config``.

    One instance is open at a time, as each reserves a share of the memory.
    """
    lookup = {
        "method": "ngram",
        "num_speculative_tokens": num_drafts,
        "prompt_lookup_max": ngram,
        "prompt_lookup_min": 1,
    }
    modes: dict[str, Mode] = {"ar": None, "lookup": lookup}
    if speculative is not None:
        modes[str(speculative.get("method", "speculative"))] = speculative
    return Engine(name="vllm", package="vllm", together=False, modes=modes, open=_open)


@contextmanager
def _open(module: Any, config: Mode, request: Settings) -> Iterator[Answerer]:
    """Start the engine for one sequence at a time, with no reuse between prompts."""
    try:
        model = module.LLM(
            model=request.model,
            max_model_len=request.longest_prompt + request.budget + 1,
            max_num_seqs=1,
            enable_prefix_caching=False,
            disable_log_stats=False,
            speculative_config=config,
        )
    except (ValueError, RuntimeError, OSError, NotImplementedError) as error:
        raise UnavailableError(f"vLLM cannot start with {request.model!r}: {error}") from error

    def counters() -> tuple[int, int]:
        """Return the numbers of tokens drafted and accepted since the engine started."""
        metrics = model.get_metrics() if config is not None else ()
        drafted, accepted = (
            sum(int(metric.value) for metric in metrics if metric.name == name)
            for name in (_DRAFTED, _ACCEPTED)
        )
        return drafted, accepted

    def answer(ids: Sequence[int], budget: int) -> EngineAnswer:
        sampling = module.SamplingParams(
            temperature=0.0,
            max_tokens=budget,
            ignore_eos=request.fixed_length,
            stop_token_ids=sorted(request.stop_ids) or None,
            detokenize=False,
        )
        before = counters()
        (output,) = model.generate([{"prompt_token_ids": list(ids)}], sampling, use_tqdm=False)
        drafted, accepted = (now - then for now, then in zip(counters(), before, strict=True))
        tokens = tuple(int(token) for token in output.outputs[0].token_ids)
        return EngineAnswer(
            tokens=tokens, calls=max(len(tokens) - accepted, 1), drafted=drafted, accepted=accepted
        )

    try:
        yield answer
    finally:
        model.llm_engine.engine_core.shutdown()


def read_responses(file: Path, session: int) -> list[ExternalAnswer]:
    """Return an answer per JSON line, without ids and times, in the mode of the file's name.

    Missing or contradictory metrics (by AIPerf's checks) raise a `UsageError`.
    """
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [_read(line, file.stem, session) for line in lines]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        advice = "a server started with --per-request-spec-decode-metrics summary writes them"
        line = f"no JSON lines with valid metrics.speculative_decoding ({error!r}); {advice}"
        raise UsageError(f"--read {file}: {line}") from error


def _read(response: Any, mode: str, session: int) -> ExternalAnswer:
    of, usage = response["metrics"]["speculative_decoding"], response.get("usage") or {}
    names = ("num_spec_steps", "num_accepted_draft_tokens", "num_draft_tokens")
    steps, accepted, drafted = (int(of[name]) for name in names)
    histogram, num_tokens = of["acceptance_histogram"], usage.get("completion_tokens")
    counted = (sum(histogram), sum(j * num for j, num in enumerate(histogram)))
    if counted != (steps, accepted) or accepted > drafted or min(histogram, default=0) < 0:
        text = f"acceptance_histogram {histogram} of {steps} steps, {accepted} of {drafted} drafts"
        raise ValueError(f"{response.get('id', UNKNOWN)} has {text}")
    return ExternalAnswer(
        session=session,
        engine="vllm",
        version=UNKNOWN,
        mode=mode,
        options={},
        model=Path(str(response.get("model", UNKNOWN))).name,
        prompt=str(response.get("id", UNKNOWN)),
        prompt_hash="",
        calls=None if num_tokens is None else num_tokens - accepted,
        drafted=drafted,
        accepted=accepted,
        num_tokens=num_tokens,
        num_steps=steps,
    )
