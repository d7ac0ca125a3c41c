"""What the report of a large run costs: Spec-Bench's 480 conversations x 8 decoders x 3 repeats.

    python -m tests.benchmarks.big_report [FOLDER]

The run is made up (seeded; nothing in it was measured) and written to FOLDER, a temporary one by
default. Said are seconds and peak memory of `bench report` in a process of its own, the size of
``report.html``, whether a second writing gives the same bytes, and, where chromium is installed,
the seconds until the step viewer stands.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.records.plan import BASELINE, SECOND
from bench.records.prompts import Prompt, ids_hash, write_prompts
from bench.records.record import SampleRecord, StepColumns
from decoders.core.types import Generation, StepEvent
from specbench_tasks.task import FAMILIES
from tests.bench.conftest import PRIMARY

CONVERSATIONS, REPEATS, HELD_OUT = 480, 3, 8
VOCABULARY = 32_000
DECODERS = {"ptp": 5.0, "ptp@pqd": 6.0, "spec": 3.0, "spec@k8": 4.0, "idlm@isd": 4.0, "idlm": 3.0,
            "nar": 16.0}  # fmt: skip
"""Beside ar: tokens of a step, on average."""
LOSSY = ("idlm", "nar")
SPEAKING = sorted({*range(200, VOCABULARY, 3)})


def asked(rng: np.random.Generator) -> list[Prompt]:
    """Prompts of 480 conversations; those of mt_bench have two turns."""
    prompts = []
    for number in range(CONVERSATIONS):
        family = FAMILIES[number % len(FAMILIES)]
        for turn in range(1, 3 if family == "mt_bench" else 2):
            ids = tuple(rng.choice(SPEAKING, int(rng.integers(100, 1200))).tolist())
            name = f"{family}-{number}"
            prompts.append(
                Prompt(conversation=name, turn=turn, family=family, ids=ids, hash=ids_hash(ids),
                       reference=None)
            )  # fmt: skip
    return prompts


def answer(decoder: str, tokens: Sequence[int], rng: np.random.Generator) -> Generation:
    """Steps that give `tokens`: one each, verified drafts, or passes over blocks."""
    mean = DECODERS.get(decoder, 1.0)
    verifies = mean > 1 and decoder not in LOSSY
    steps = [StepEvent(tokens=tuple(tokens[:1]), drafted=0, accepted=0, **work(40, 0))]
    place = 1
    while place < len(tokens):
        most = int(2 * mean - 1)
        took = min(len(tokens) - place, 1 + int(rng.binomial(most - 1, 0.5)) if most > 1 else 1)
        part = tuple(tokens[place : place + took])
        fell = tuple(rng.choice(SPEAKING, most - took).tolist()) if verifies else ()
        drafts = most if decoder.startswith("spec") else 0
        passes = tuple(rng.integers(0, 5, took).tolist()) if decoder in LOSSY else ()
        steps.append(
            StepEvent(
                tokens=part,
                drafted=most - 1 if verifies else 0,
                accepted=took - 1 if verifies else 0,
                passes=3 if passes else 0,
                rejected=fell if len(fell) <= most - took else (),
                decided=passes,
                **work(most, drafts),
            )
        )
        place += took
    return Generation(tokens=tuple(tokens), steps=tuple(steps), stop="eos")


def work(rows: int, drafts: int) -> dict[str, Any]:
    return {"target_calls": 1, "target_rows": rows, "draft_calls": drafts, "draft_rows": drafts}


def record(
    decoder: str, prompt: Prompt, tokens: Sequence[int], rng: np.random.Generator, **where: Any
) -> SampleRecord:
    """One answer with times of a machine on which a call takes some 20 ms."""
    generation = answer(decoder, tokens, rng)
    each_s = 0.02 * (1 + 0.4 * np.array([s.draft_calls for s in generation.steps]))
    ends_s = np.cumsum(each_s * np.exp(rng.normal(0, 0.05, len(generation.steps)))).tolist()
    timed = where["kind"] == "timing"
    return SampleRecord(
        decoder=decoder,
        family=prompt.family,
        conversation=prompt.conversation,
        turn=prompt.turn,
        prompt_hash=prompt.hash,
        attempt=0,
        batch_size=1,
        num_prompt_tokens=len(prompt.ids),
        tokens=generation.tokens,
        text=" ".join(f"w{token}" for token in tokens),
        stop=generation.stop,
        steps=StepColumns.of(generation, ends_s if timed else ()),
        ttft_s=ends_s[0] if timed else None,
        total_s=ends_s[-1] + 1e-4 if timed else None,
        peak_memory_bytes=1_000_000_000 if timed else None,
        scores=None if timed else {PRIMARY[prompt.family]: float(rng.integers(0, 2))},
        **where,
    )


def records(prompts: Sequence[Prompt], rng: np.random.Generator) -> Iterator[SampleRecord]:
    """All timed answers, then the held-out ones."""
    cells = [BASELINE, BASELINE + SECOND, *DECODERS]
    said = [rng.choice(SPEAKING, int(rng.integers(40, 257))).tolist() for _ in prompts]
    for repeat in range(REPEATS):
        for number, prompt in enumerate(prompts):
            for order, cell in enumerate(cells):
                block = repeat * len(prompts) + number
                where = {"kind": "timing", "repeat": repeat, "seed": repeat, "block": block}
                yield record(cell, prompt, said[number], rng, order=order, **where)
    for number, prompt in enumerate(prompts[: HELD_OUT * len(FAMILIES)]):
        for cell in cells:
            if cell != BASELINE + SECOND:
                where = {"kind": "quality", "repeat": 0, "seed": 0, "block": -1}
                yield record(cell, prompt, said[number], rng, order=0, **where)


def write(folder: Path) -> Path:
    """The run folder, as a run leaves it before its report is written."""
    rng = np.random.default_rng(0)
    prompts = asked(rng)
    order = [BASELINE, BASELINE + SECOND, *DECODERS]
    planned = [
        {
            "prompt": p.name, "conversation": p.conversation, "turn": p.turn, "family": p.family,
            "hash": p.hash, "num_tokens": len(p.ids), "passes": ["timing"],
        }
        for p in prompts
    ]  # fmt: skip
    manifest = {
        "schema": 1,
        "name": "big",
        "cells": [
            {"cell": c, "name": c.partition("@")[0], "lossless": c not in LOSSY, "options": {},
             "comparable_to_ar": True}
            for c in order
            if c != BASELINE + SECOND
        ],
        "prompts": planned,
        "blocks": [
            {"block": r * len(prompts) + i, "repeat": r, "prompts": [p.name], "order": order}
            for r in range(REPEATS)
            for i, p in enumerate(prompts)
        ],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    status = {"status": "complete", "verdict": "VALID", "reasons": [], "warnings": []}
    pieces = {str(i): f" w{i}" for i in range(VOCABULARY)}
    for name, data in (("manifest", manifest), ("run", status), ("env", {}), ("vocab", pieces)):
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    (folder / "config.toml").write_text("max_new_tokens = 256\n", encoding="utf-8")
    write_prompts(folder, prompts)
    with (folder / "samples.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(each.to_json() + "\n" for each in records(prompts, rng))
    return folder


def reported(folder: Path) -> tuple[float, float, float]:
    """Seconds of `bench report` on the wall and of the processor, and its peak memory in bytes."""
    before = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "bench", "report", str(folder)],
                               stdout=subprocess.DEVNULL)  # fmt: skip
    _, code, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        raise SystemExit(f"bench report failed: {process.returncode}")
    passed = time.perf_counter() - before
    return passed, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


def digests(folder: Path) -> dict[str, str]:
    """What was written, by name."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def main(folder: Path) -> None:
    """Write the run where it is not there yet, report it twice, open the page."""
    if not (folder / "samples.jsonl").is_file():
        write(folder)
    size = (folder / "samples.jsonl").stat().st_size
    print(f"samples.jsonl {size / 1e6:.0f} MB, {CONVERSATIONS} conversations")
    for turn in range(2):
        passed, busy, peak = reported(folder)
        spent = f"{passed:.1f} s, {busy:.1f} s of them of the processor"
        print(f"bench report: {spent}; peak memory {peak / 1e6:.0f} MB")
        if turn == 0:
            first = digests(folder)
    print("written again:", "the same bytes" if digests(folder) == first else "OTHER BYTES")
    page = folder / "report.html"
    print(f"report.html {page.stat().st_size / 1e6:.1f} MB")
    from tests.bench.report.page.browser import missing, opened

    if why := missing():
        print(f"not opened: {why}")
        return
    with opened(page) as browser:
        print(f"viewer stands after {browser.ready_ms() / 1e3:.2f} s of opening the page")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made) / "run")
