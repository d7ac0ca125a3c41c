"""Write a run as files of other tools: of pull requests, and of serving engines.

``github-action-benchmark`` takes one file per direction (smaller or bigger is better).

``acceptance`` has draft acceptance in the formats of serving engines. ``synthetic.json`` makes vLLM
(vllm-project/vllm#41035: by rates or by length) and llama.cpp (ggml-org/llama.cpp#27711) accept
drafts as often as this run; ``requests/DECODER.jsonl`` has vLLM's metrics of each answer
(vllm-project/vllm#48915, level ``detailed``), as AIPerf reads them (ai-dynamo/aiperf#1167);
``spec_al.json`` has AIPerf's acceptance length by set (ai-dynamo/aiperf#1046: 1 + accepted / steps
that drafted, summed over a set);
``DECODER/speculation_profile.json`` is NVIDIA's profile 1.0 (NVIDIA/Model-Optimizer#2247). Rates
are unconditional (`bench.extras.sections.drafts.PositionCount`).
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
from bench.extras.sections.drafts import acceptance_by_position, step_lengths
from bench.records.record import SampleRecord
from bench.report.findings import Findings
from bench.report.tables.table import estimated, guarantee_label, number, without_wrong
from bench.stats import counters
from bench.stats.counters import Tally, group_by, ratio
from bench.stats.metrics import SummaryRow, summary_rows
from bench.stats.summary import ALL
from bench.text import counted, portable
from specbench_tasks.task import SETS

_SMALLER = (("time per token", "ms", "time_per_token_s", 1e3), ("TTFT", "ms", "ttft_s", 1e3))
_BIGGER = (
    ("speed-up over {over}", "x", "speedup", 1.0),
    ("tokens per call", "tokens", "tokens_per_call", 1.0),
    ("tokens per step", "tokens", "acceptance_length", 1.0),
    ("quality", "%", "quality", 100.0),
)


def github_action(findings: Findings) -> dict[str, bytes]:
    """Return two files, for numbers that are better if smaller, and if bigger."""
    rows = summary_rows(without_wrong(findings.summary), ALL)
    files = {"smaller-is-better.json": _SMALLER, "bigger-is-better.json": _BIGGER}
    texts = {
        name: json.dumps([e for row in rows for c in columns for e in _entries(row, *c)], indent=1)
        for name, columns in files.items()
    }
    return {name: f"{text}\n".encode() for name, text in texts.items()}


def _entries(
    row: SummaryRow, label: str, unit: str, column: str, scale: float
) -> list[dict[str, Any]]:
    value = row.value(column)
    if value is None:
        return []
    extra = f"{counted(row.prompts or 0, 'prompt')} x {counted(row.repeats or 0, 'repeat')}"
    extra += f", guarantee: {guarantee_label(row)}"
    if column == "speedup" and row.aa_speedup is not None:
        extra += f", A/A {estimated(row.floor)}"
    name = f"{row.decoder}: {label.format(over=row.over)}"
    entry = {"name": name, "unit": unit, "value": value * scale, "extra": extra}
    low, high = row.value(f"{column}_low"), row.value(f"{column}_high")
    if low is not None and high is not None:
        entry["range"] = f"{number(low, '.3g', scale)} to {number(high, '.3g', scale)}"
    return [entry]


def acceptance(findings: Findings) -> dict[str, bytes]:
    """Return the files of every decoder that drafted, without WRONG ones (exit 5 if none)."""
    target = portable(str(findings.run.config.get("model") or "zoo"))
    synthetic, files, lengths = {}, {}, {}
    for decoder, answers in group_by(counters.timed(findings.run.records)).items():
        positions = acceptance_by_position(answers)
        if decoder in findings.wrong or not positions:
            continue
        deepest = max(max(answer.steps.depths) for answer in answers if answer.steps)
        name, max_drafts = re.sub(r"[^\w.@-]", "-", decoder), max(deepest, len(positions))
        rates = [round(count.unconditional or 0.0, 6) for count in positions]
        rates += [0.0] * (max_drafts - len(rates))  # no step reached these positions
        vllm = {"rejection_sample_method": "synthetic", "num_speculative_tokens": max_drafts}
        length, line = round(1 + sum(rates), 6), f"--spec-draft-n-max {max_drafts}"
        synthetic[decoder] = {
            "vllm": vllm | {"synthetic_acceptance_rates": rates},
            "vllm_length": vllm | {"synthetic_acceptance_length": length},
            "llama_cpp": f"{line} --spec-synth-rates {','.join(f'{rate:g}' for rate in rates)}",
            "llama_cpp_length": f"{line} --spec-synth-len {length:g}",
        }
        responses = [_response(answer, target, max_drafts) for answer in answers]
        lines = [json.dumps(response) + "\n" for response in responses]
        files[f"requests/{name}.jsonl"] = "".join(lines).encode()
        lengths[decoder] = _lengths(answers, responses)
        profile = _profile(findings, answers, rates) | {"target_model": {"id": target}}
        files[f"{name}/speculation_profile.json"] = json.dumps(profile, indent=2).encode()
    if not files:
        raise UnavailableError(f"{findings.name} has no decoder that drafted: choose another run")
    if any(lengths.values()):
        files["spec_al.json"] = json.dumps(lengths, indent=2).encode()
    return {"synthetic.json": json.dumps(synthetic, indent=2).encode(), **files}


def _lengths(
    answers: Sequence[SampleRecord], responses: Sequence[dict[str, Any]]
) -> dict[str, float]:
    """Return AIPerf's acceptance length for each of `SETS` that has answers."""
    sums: dict[str, Counter[str]] = {}
    for answer, response in zip(answers, responses, strict=True):
        counts = response["metrics"]["speculative_decoding"]
        sums.setdefault(answer.family, Counter()).update(
            {key: counts[key] for key in ("num_accepted_draft_tokens", "num_spec_steps")}
        )
    rates = {name: ratio(*sums[name].values()) for name in SETS if name in sums}
    return {f"spec_al_{name}": 1 + rate for name, rate in rates.items() if rate is not None}


def _response(answer: SampleRecord, model: str, max_drafts: int) -> dict[str, Any]:
    """Return an answer as vLLM's response, without text and (as in vLLM) undrafted steps."""
    steps = answer.steps
    assert steps is not None
    each = zip(steps.accepted[1:], steps.drafted[1:], strict=True)
    pairs = [(accepted, drafted) for accepted, drafted in each if drafted]
    accepted, drafted = (sum(pair[i] for pair in pairs) for i in (0, 1))
    histogram = Counter(pair[0] for pair in pairs)
    of = {
        "mean_acceptance_length": 1 + (ratio(accepted, len(pairs)) or 0.0),
        "draft_acceptance_rate": ratio(accepted, drafted) or 0.0,
        "acceptance_histogram": [histogram[j] for j in range(max_drafts + 1)],
        "num_spec_steps": len(pairs),
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": max_drafts,
        "per_step_accepted": [pair[0] for pair in pairs],
        "per_step_drafted": [pair[1] for pair in pairs],
    }
    usage = {"prompt_tokens": answer.num_prompt_tokens, "completion_tokens": sum(steps.emitted)}
    return {
        "id": f"{answer.decoder}/{answer.prompt}/{answer.repeat}",
        "object": "text_completion",
        "model": model,
        "choices": [],
        "usage": usage | {"total_tokens": sum(usage.values())},
        "metrics": {"speculative_decoding": of},
    }


def _profile(
    findings: Findings, answers: Sequence[SampleRecord], rates: Sequence[float]
) -> dict[str, Any]:
    """Return NVIDIA's profile: lengths are tokens per step, conditionals ratios of marginals."""
    parts = {"": answers, **group_by(answers, lambda answer: answer.family)}
    means = {f: round(Tally.pool(of).acceptance_length or 0.0, 6) for f, of in parts.items()}
    mean, implied, max_drafts = means.pop(""), round(1 + sum(rates), 6), len(rates)
    each = [length for a in answers if (length := Tally.of(a).acceptance_length) is not None]
    settings = ("temperature", "top_p", "top_k", "max_new_tokens", "dtype")
    conditions = {"run": findings.name, "num_samples": len(answers)}
    consistency = {
        "implied_mean_accept_length": implied,
        "reported_mean_accept_length": mean,
        "abs_delta": round(abs(implied - mean), 6),
        "tolerance": 0.02,  # as in NVIDIA's producer
        "passed": abs(implied - mean) <= 0.02,
    }
    return {
        "schema_version": "1.0",
        "measured": True,
        "method": answers[0].decoder,
        "draft_checkpoint": None,
        "block_size": None,
        "num_speculative_tokens": max_drafts,
        "max_supported_k": max_drafts,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": [
            round(ratio(rate, before) or 0.0, 6) for before, rate in itertools.pairwise((1, *rates))
        ],
        "marginal_accept_rates": rates,
        "mean_accept_length": mean,
        "mean_accept_length_per_request": round(fmean(each or [mean]), 6),
        "accept_length_model": "measured_per_k",
        "accept_length_by_k": {str(max_drafts): mean},
        "acceptance_length_histogram": step_lengths(answers),
        "per_category": {f: {"mean_accept_length": length} for f, length in means.items()},
        "measurement_conditions": conditions | {k: findings.run.config.get(k) for k in settings},
        "validation": {
            "mean_consistency": consistency,
            "marginal_monotonicity": {"passed": rates == sorted(rates)[::-1], "violations": []},
        },
    }
