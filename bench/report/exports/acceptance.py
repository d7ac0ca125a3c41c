"""`bench export --to acceptance`: what was accepted, in the words of serving engines.

* ``synthetic.json``: options that make an engine accept drafts as often as here, by decoder. vLLM's
  are two ``--speculative-config``, of which it takes one at a time (vllm-project/vllm#41035);
  llama.cpp's are two command lines (ggml-org/llama.cpp#27711).
* ``requests/DECODER.jsonl``: a response per answer with vLLM's metrics of it, at its level
  ``detailed`` (vllm-project/vllm#48915), as NVIDIA's AIPerf reads them (ai-dynamo/aiperf#1167).
* ``DECODER/speculation_profile.json``: NVIDIA's profile 1.0 (NVIDIA/Model-Optimizer#2247).

Rates are unconditional (`bench.stats.counters.PositionCount`): 1 + their sum is the tokens per
step. K is the most drafts in a row, or the most tokens of a step less one.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from bench.errors import UnavailableError
from bench.records.record import SampleRecord
from bench.report.findings import Findings
from bench.stats.counters import (
    Tally,
    acceptance_by_position,
    group_by,
    ratio,
    step_lengths,
    timed,
)
from bench.text import portable

_DIGITS = 6
_TOLERANCE = 0.02
"""Difference of the two means that a profile's own check allows, in tokens: its producer's."""


def acceptance(findings: Findings) -> dict[str, bytes]:
    """Return the files of every decoder that drafted; a WRONG one has none (exit 5: nobody)."""
    target = portable(str(findings.run.config.get("model") or "zoo"))
    synthetic: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for decoder, answers in group_by(timed(findings.run.records)).items():
        if decoder in findings.wrong or not (rates := _rates(answers)):
            continue
        synthetic[decoder] = _synthetic(rates)
        name = re.sub(r"[^\w.@-]", "-", decoder)
        lines = [json.dumps(_response(answer, target, len(rates))) for answer in answers]
        files[f"requests/{name}.jsonl"] = "".join(f"{line}\n" for line in lines).encode()
        profile = _profile(findings, answers, rates, target)
        files[f"{name}/speculation_profile.json"] = json.dumps(profile, indent=2).encode()
    if not files:
        raise UnavailableError(f"{findings.name} has no decoder that drafted; choose a run of one")
    return {"synthetic.json": json.dumps(synthetic, indent=2).encode(), **files}


def _rates(answers: Sequence[SampleRecord]) -> list[float]:
    """Return the K unconditional rates, positions that no step got to included; none: no drafts."""
    most = max(max(answer.steps.depths) for answer in answers if answer.steps)
    rates = [count.unconditional or 0.0 for count in acceptance_by_position(answers)]
    return [round(rate, _DIGITS) for rate in (*rates, *[0.0] * (most - len(rates)))]


def _synthetic(rates: Sequence[float]) -> dict[str, Any]:
    """Return options by engine: rates reproduce the shape, the length its mean alone."""
    length = round(1 + sum(rates), _DIGITS)
    vllm = {"rejection_sample_method": "synthetic", "num_speculative_tokens": len(rates)}
    line = f"--spec-draft-n-max {len(rates)}"
    return {
        "vllm": vllm | {"synthetic_acceptance_rates": rates},
        "vllm_length": vllm | {"synthetic_acceptance_length": length},
        "llama_cpp": f"{line} --spec-synth-rates {','.join(f'{rate:g}' for rate in rates)}",
        "llama_cpp_length": f"{line} --spec-synth-len {length:g}",
    }


def _response(answer: SampleRecord, model: str, most: int) -> dict[str, Any]:
    """Return an answer as vLLM responds, less its text.

    Steps that drafted nothing are left out, as vLLM leaves them: its mean, 1 + accepted / steps,
    is of the others. Drafts are those of all branches.
    """
    steps = answer.steps
    assert steps is not None
    each = zip(steps.accepted[1:], steps.drafted[1:], strict=True)
    pairs = [(accepted, drafted) for accepted, drafted in each if drafted]
    accepted, drafted = (sum(pair[i] for pair in pairs) for i in (0, 1))
    histogram = Counter(pair[0] for pair in pairs)
    num_tokens = len(answer.tokens or ())
    return {
        "id": f"{answer.decoder}/{answer.prompt}/{answer.repeat}",
        "object": "text_completion",
        "model": model,
        "choices": [],
        "usage": {
            "prompt_tokens": answer.num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": answer.num_prompt_tokens + num_tokens,
        },
        "metrics": {
            "speculative_decoding": {
                "mean_acceptance_length": 1 + (ratio(accepted, len(pairs)) or 0.0),
                "draft_acceptance_rate": ratio(accepted, drafted) or 0.0,
                "acceptance_histogram": [histogram[j] for j in range(most + 1)],
                "num_spec_steps": len(pairs),
                "num_accepted_draft_tokens": accepted,
                "num_draft_tokens": drafted,
                "num_spec_tokens": most,
                "per_step_accepted": [pair[0] for pair in pairs],
                "per_step_drafted": [pair[1] for pair in pairs],
            }
        },
    }


def _profile(
    findings: Findings, answers: Sequence[SampleRecord], rates: Sequence[float], target: str
) -> dict[str, Any]:
    """Return NVIDIA's profile: lengths are tokens of a step, conditionals ratios of marginals."""
    config, model = findings.run.config, findings.run.env.models
    families = {"": answers, **group_by(answers, lambda answer: answer.family)}
    lengths = {
        f: round(Tally.pool(of).acceptance_length or 0.0, _DIGITS) for f, of in families.items()
    }
    mean, implied = lengths.pop(""), round(1 + sum(rates), _DIGITS)
    each = [length for a in answers if (length := Tally.of(a).acceptance_length) is not None]
    off = round(abs(implied - mean), _DIGITS)
    return {
        "schema_version": "1.0",
        "measured": True,
        "producer": "decoding-bench",
        "method": answers[0].decoder,
        "draft_checkpoint": None,
        "target_model": {"id": target, "weights_sha256": model.weights_of("target")},
        "num_speculative_tokens": len(rates),
        "block_size": None,
        "max_supported_k": len(rates),
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [
            round(ratio(rate, before) or 0.0, _DIGITS)
            for before, rate in itertools.pairwise([1.0, *rates])
        ],
        "marginal_accept_rates": rates,
        "mean_accept_length": mean,
        "mean_accept_length_per_request": round(fmean(each or [mean]), _DIGITS),
        "accept_length_model": "measured_per_k",
        "accept_length_by_k": {str(len(rates)): mean},
        "acceptance_length_histogram": step_lengths(answers),
        "per_category": {f: {"mean_accept_length": length} for f, length in lengths.items()},
        "measurement_conditions": {
            "run": findings.name,
            "verdict": findings.verdict,
            "num_samples": len(answers),
            **{k: config.get(k) for k in ("temperature", "top_p", "top_k", "max_new_tokens")},
            "dtype": findings.run.env.dtype,
        },
        "validation": {
            "mean_consistency": {
                "implied_mean_accept_length": implied,
                "reported_mean_accept_length": mean,
                "abs_delta": off,
                "tolerance": _TOLERANCE,
                "passed": off <= _TOLERANCE,
            },
            "marginal_monotonicity": {"passed": rates == sorted(rates)[::-1], "violations": []},
        },
    }
