"""A vLLM server's responses, a JSON object a line, read for the acceptance metrics of each request.

They are ``metrics.speculative_decoding`` (vllm-project/vllm#48915); `bench export --to acceptance`
writes the same. A response holds no ids, so none are held against ar's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.records.external import ExternalAnswer
from bench.records.json_file import parse
from bench.text import UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metrics:
    acceptance_histogram: tuple[int, ...]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int


def read_responses(file: Path, session: int) -> list[ExternalAnswer]:
    """Return an answer per line, without ids and times; its mode is the file's name.

    Raises:
        BenchError: the file cannot be read, or holds a line without such metrics (exit 2); a count
            is missing or none (4).
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        given = [json.loads(line) for line in lines if line.strip()]
        metrics = [response["metrics"]["speculative_decoding"] for response in given]
    except (OSError, ValueError, KeyError, TypeError) as error:
        line = f"--read {file}: no JSON lines with metrics.speculative_decoding ({error!r})"
        advice = "start vLLM with --per-request-spec-decode-metrics summary"
        raise UsageError(f"{line}; {advice}") from error
    return [
        _answer(response, parse(_Metrics, data, f"{file} line {number}"), file.stem, session)
        for number, (response, data) in enumerate(zip(given, metrics, strict=True), start=1)
    ]


def _answer(response: Any, of: _Metrics, mode: str, session: int) -> ExternalAnswer:
    """Return one answer; `UsageError` where its counts contradict each other, as AIPerf checks."""
    name = str(response.get("id", UNKNOWN))
    accepted = sum(j * num for j, num in enumerate(of.acceptance_histogram))
    told = (of.num_spec_steps, of.num_accepted_draft_tokens)
    if (counted := (sum(of.acceptance_histogram), accepted)) != told or (
        accepted > of.num_draft_tokens or min(of.acceptance_histogram, default=0) < 0
    ):
        line = f"--read: the acceptance_histogram of {name} has {counted} steps and accepted drafts"
        raise UsageError(f"{line}, and it counts {told} of {of.num_draft_tokens} drafts")
    num_tokens = (response.get("usage") or {}).get("completion_tokens")
    return ExternalAnswer(
        session=session,
        engine="vllm",
        version=UNKNOWN,
        mode=mode,
        options={},
        model=Path(str(response.get("model", UNKNOWN))).name,
        prompt=name,
        prompt_hash="",
        num_tokens=num_tokens,
        num_steps=of.num_spec_steps,
        calls=None if num_tokens is None else num_tokens - accepted,
        drafted=of.num_draft_tokens,
        accepted=accepted,
    )
