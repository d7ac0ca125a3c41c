"""Hand-made records and whole synthetic run folders for the tests of metrics and reports."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.records.record import SampleRecord, StepColumns
from bench.report.findings import Findings
from bench.report.sections import tables_by_section
from bench.report.tables.table import Table
from tests.conftest import only_svg

FAMILIES = ("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag")
REPORTED = {"spec": 3.0, "nar": 6.0}
"""The decoders of `reported_run`."""
PRIMARY = {
    "mt_bench": "constraints_met",
    "translation": "bleu",
    "summarization": "rouge_l",
    "qa": "contains_answer",
    "math_reasoning": "exact_number",
    "rag": "contains_answer",
}


def make_record(
    decoder: str = "ar",
    emitted: Sequence[int] = (1, 1, 1),
    *,
    drafted: Sequence[int] | None = None,
    accepted: Sequence[int] | None = None,
    calls: Sequence[int] | None = None,
    rows: Sequence[int] | None = None,
    **fields: Any,
) -> SampleRecord:
    """A timing record whose steps emit `emitted`; everything else has a plain default."""
    zeros = (0,) * len(emitted)
    steps = StepColumns(
        emitted=tuple(emitted),
        drafted=tuple(drafted or zeros),
        accepted=tuple(accepted or zeros),
        target_calls=tuple(calls or (1,) * len(emitted)),
        target_rows=tuple(rows or (10, *map(max, emitted[1:], (drafted or emitted)[1:]))),
        draft_calls=zeros,
        draft_rows=zeros,
    )
    values: dict[str, Any] = {
        "kind": "timing",
        "family": "qa",
        "conversation": "c0",
        "turn": 1,
        "prompt_hash": f"h{fields.get('conversation', 'c0')}#{fields.get('turn', 1)}",
        "repeat": 0,
        "seed": 0,
        "block": 0,
        "order": 0,
        "attempt": 0,
        "batch_size": 1,
        "num_prompt_tokens": 10,
        "tokens": tuple(range(sum(emitted))),
        "text": "text",
        "stop": "eos",
        "steps": steps,
        "ttft_s": 0.01,
        "total_s": 0.01 * sum(emitted),
        "peak_memory_bytes": 1000,
    }
    if fields.get("error"):
        values |= dict.fromkeys(
            ("tokens", "text", "stop", "steps", "ttft_s", "total_s", "peak_memory_bytes")
        )
    return SampleRecord(decoder=decoder, **(values | fields))


@pytest.fixture
def record() -> Callable[..., SampleRecord]:
    return make_record


def _answer(decoder: str, mean: float, rng: np.random.Generator) -> dict[str, Any]:
    """Steps of one answer of a decoder that emits `mean` tokens per step on average."""
    length = int(rng.integers(20, 60))
    if decoder.startswith("ar"):
        return {"emitted": (1,) * length}
    emitted, drafted, accepted, left = [1], [0], [0], length - 1
    while left > 0:
        took = min(left, 1 + int(rng.binomial(7, min(0.98, (mean - 1) / 7))))
        emitted.append(took)
        drafted.append(7)
        accepted.append(took - 1)
        left -= took
    rows = (12, *(8,) * (len(emitted) - 1))
    return {"emitted": emitted, "drafted": drafted, "accepted": accepted, "rows": rows}


def write_run(
    path: Path,
    cells: Mapping[str, float],
    *,
    conversations: int = 12,
    repeats: int = 2,
    quality: int = 4,
    seed: int = 0,
    batch_size: int = 1,
    env: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    lossy: Sequence[str] = (),
) -> Path:
    """A run folder of `cells` (name -> mean tokens per step); `ar` and `ar@aa` are added.

    Those in `lossy` guarantee nothing and verify nothing.
    """
    rng = np.random.default_rng(seed)
    path.mkdir(parents=True)
    order = ["ar", "ar@aa", *cells]
    prompts: list[dict[str, Any]] = []
    for i in range(conversations):
        family = FAMILIES[i % len(FAMILIES)]
        for turn in range(1, 3 if family == "mt_bench" else 2):
            prompts.append({"conversation": f"{family}-{i}", "turn": turn, "family": family})
    for prompt in prompts:
        prompt["prompt"] = f"{prompt['conversation']}#{prompt['turn']}"
        prompt |= {"hash": "h" + prompt["prompt"], "num_tokens": 12, "passes": ["timing"]}
    records: list[SampleRecord] = []
    blocks: list[dict[str, Any]] = []
    for repeat in range(repeats):
        for prompt in prompts:
            block = len(blocks)
            blocks.append(
                {"block": block, "repeat": repeat, "prompts": [prompt["prompt"]], "order": order}
            )
            place = {k: prompt[k] for k in ("family", "conversation", "turn")}
            seeds = np.random.default_rng([seed, prompts.index(prompt)]).integers(1 << 30)
            for cell in order:
                steps = _answer(cell, cells.get(cell, 1.0), np.random.default_rng(seeds))
                if cell in lossy:
                    steps = {"emitted": steps["emitted"]}
                num = sum(steps["emitted"])
                speed = 1 + 0.75 * (cells.get(cell, 1.0) - 1)
                noise = float(np.exp(rng.normal(0, 0.05)))
                total = 0.004 * (1 + 0.2 * rng.random()) + 0.001 * num / speed * noise
                records.append(
                    make_record(
                        cell,
                        **steps,
                        **place,
                        prompt_hash=prompt["hash"],
                        repeat=repeat,
                        block=block,
                        ttft_s=0.004,
                        total_s=total,
                        peak_memory_bytes=4_000_000 + 1000 * len(cell),
                    )
                )
    for family in FAMILIES if quality else ():
        for i in range(quality):
            conversation = f"{family}-held-{i}"
            prompts.append(
                {
                    "prompt": f"{conversation}#1",
                    "conversation": conversation,
                    "turn": 1,
                    "family": family,
                    "hash": "q",
                    "num_tokens": 12,
                    "passes": ["quality"],
                    "reference": {"answers": ["Der kleine Hund schläft heute im Garten ."]},
                }
            )
            for n, cell in enumerate(c for c in order if c != "ar@aa"):
                text = "Der kleine Hund schläft heute im " + (
                    "Garten ." if (i + n) % 4 else "Haus ."
                )
                score = float(np.clip(rng.normal(0.9 - 0.03 * n, 0.08), 0, 1))
                records.append(
                    make_record(
                        cell,
                        family=family,
                        conversation=conversation,
                        prompt_hash=f"q{conversation}",
                        kind="quality",
                        text=text,
                        ttft_s=None,
                        total_s=None,
                        block=-1,
                        scores={PRIMARY[family]: score},
                    )
                )
    manifest = {
        "schema": 1,
        "name": "synthetic",
        "cells": [
            {
                "cell": c,
                "name": c.split("@")[0],
                "label": None,
                "options": {},
                "lossless": c not in lossy,
                "comparable_to_ar": not c.startswith("nar"),
            }
            for c in order
            if c != "ar@aa"
        ],
        "order_seed": 0,
        "prompts": prompts,
        "blocks": blocks,
        "skipped": [
            {
                "conversation": "qa-long",
                "turn": 1,
                "family": "qa",
                "reason": "1200 tokens exceed the context of 512",
            }
        ],
    }
    files = {
        "manifest.json": manifest,
        "env.json": env if env is not None else {"device": "cpu", "packages": {"torch": "2.11"}},
        "run.json": status
        if status is not None
        else {"status": "complete", "verdict": "VALID", "reasons": [], "warnings": []},
    }
    for name, data in files.items():
        (path / name).write_text(json.dumps(data), encoding="utf-8")
    vocabulary = {str(i): f" w{i}" for i in range(80)}
    (path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (path / "config.toml").write_text('model = "zoo"\nmax_new_tokens = 256\n', encoding="utf-8")
    lines = "".join(r.to_json() + "\n" for r in records)
    (path / "samples.jsonl").write_text(lines, encoding="utf-8")
    return path


@pytest.fixture
def synthetic_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes a run folder under the test's own folder."""

    def write(
        cells: Mapping[str, float] | None = None, *, name: str = "run", **options: Any
    ) -> Path:
        chosen = {"spec": 3.0, "ptp": 4.0} if cells is None else cells
        return write_run(tmp_path / name, chosen, **options)

    return write


def over_spec(run: Path) -> Path:
    """Let spec be the baseline of a synthetic run: the second arm becomes its own."""
    for name in ("manifest.json", "samples.jsonl"):
        text = (run / name).read_text(encoding="utf-8")
        (run / name).write_text(text.replace('"ar@aa"', '"spec@aa"'), encoding="utf-8")
    return run


@pytest.fixture(scope="session")
def reported_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic run with its report, written once: read it, do not change it.

    Its figures are drawn as svg alone.
    """
    from bench.report.write import write_report

    path = write_run(tmp_path_factory.mktemp("runs") / "a-run", REPORTED)
    with only_svg():
        write_report(path)
    return path


def tables_of(findings: Findings) -> dict[str, list[Table]]:
    """The tables of a report's sections by the sections' names."""
    return {section.name: tables for section, tables in tables_by_section(findings).items()}
