"""One side of `bench ab`: a process that measures with the code of its own checkout.

Started as a script with that checkout first on PYTHONPATH, so `bench` here is the side's own, which
may be older than this file: it uses the few names below and nothing of `bench.regress`. Requests
and answers are JSON, one a line, over stdin and what was stdout; prints of the code under test go
to stderr. A request is ``{"do": NAME, …}``; an answer is its result, or ``{"error": line, "exit":
code}``. Requests come one at a time, and a worker that waits uses no processor time.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import env as environment
from bench.choice import choose_decoders
from bench.config import load_config
from bench.errors import BenchError, Exit
from bench.gpu import gpu_handle
from bench.identity import identity_of
from bench.load import LoadWatch
from bench.lossless.differences import as_facts, differences
from bench.plan import Block
from bench.planning import make_plan
from bench.progress import Silent
from bench.prompt_file import read_prompts
from bench.prompts import Prompt
from bench.quality import score_quality
from bench.records import SampleRecord
from bench.runner import Runner
from bench.vocabulary import vocabulary
from bench.workbench import Workbench, open_workbench

Answer = dict[str, Any]


class Kept:
    """Takes records and events as a `SampleWriter` does, and keeps them as JSON lines."""

    def __init__(self) -> None:
        self.lines: list[Answer] = []

    def record(self, record: SampleRecord) -> None:
        """Keep one record."""
        self.lines.append(json.loads(record.to_json()))

    def event(self, event: str, **fields: object) -> None:
        """Keep one event."""
        self.lines.append({"event": event, **fields})

    def sync(self) -> None:
        """Nothing: the parent writes."""

    def take(self) -> list[Answer]:
        """All that was kept since the last time."""
        lines, self.lines = self.lines, []
        return lines


class Worker:
    """Answers the parent's requests, one after another."""

    def __init__(self, opener: Callable[[Any], Workbench] = open_workbench) -> None:
        """`opener` is injected by tests."""
        self._opener = opener
        self._kept = Kept()
        self._prompts: Mapping[str, Prompt] = {}

    def open(self, config: Mapping[str, Any]) -> Answer:
        """Open what a configuration names; says what was resolved, and on what it runs."""
        chosen = choose_decoders(load_config(None, config), Silent().note)
        self._bench = bench = self._opener(chosen)
        device = str(bench.models.target.device)
        self._watch = LoadWatch(gpu_handle(device))
        return {
            "root": str(environment.ROOT),
            "config": bench.config.to_toml(),
            "cells": [dataclasses.asdict(arm.cell) for arm in bench.arms.values()],
            "identity": identity_of(bench),
            "env": environment.capture(
                device=device,
                dtype=bench.config.dtype or "float32",
                models=bench.facts,
                gpu=gpu_handle(device),
            ),
        }

    def plan(self, name: str) -> Answer:
        """The plan, and its prompts as lines of prompts.jsonl."""
        plan, prompts = make_plan(self._bench, name, Silent())
        lines = [json.dumps(dataclasses.asdict(p), ensure_ascii=False) for p in prompts.values()]
        return {"manifest": plan.to_manifest(), "prompts": lines}

    def warm_up(self, folder: str, names: Sequence[str]) -> Answer:
        """Take the prompts of a folder, reserve caches for them, and run every decoder a little."""
        bench = self._bench
        self._prompts = read_prompts(Path(folder))
        timed = [self._prompts[name] for name in names]
        longest = max(len(prompt.ids) for prompt in timed) + bench.sampling.max_new_tokens
        bench.models.reserve(bench.config.batch_size, min(longest, bench.models.target.max_length))
        self._runner = Runner(
            bench,
            self._prompts,
            self._kept,  # type: ignore[arg-type]
            Silent(),
            attempt=0,
            lap=self._watch.lap,
        )
        self._runner.warm_up(timed)
        gc.collect()
        gc.freeze()
        return {}

    def measure(self, block: int, repeat: int, prompts: Sequence[str], cell: str) -> Answer:
        """One decoder on the prompts of one block: its records, and the load meanwhile."""
        gc.collect()
        self._watch.lap()  # the other side's work is no load of this one
        self._runner.measure(
            Block(block=block, repeat=repeat, prompts=tuple(prompts), order=(cell,))
        )
        return {"lines": self._kept.take()}

    def quality(self, names: Sequence[str]) -> Answer:
        """The untimed pass over `names`."""
        asked = [self._prompts[name] for name in names]
        score_quality(self._bench, asked, self._kept, Silent(), attempt=0)  # type: ignore[arg-type]
        return {"lines": self._kept.take()}

    def finish(self, lines: Sequence[Mapping[str, Any]]) -> Answer:
        """What a reader needs beside this side's records: pieces of text, lossless or not."""
        records = [SampleRecord.from_dict(line) for line in lines]
        ids = {token for record in records for token in record.tokens or ()}
        ids |= {token for prompt in self._prompts.values() for token in prompt.ids}
        pieces = vocabulary(self._bench.tokenizer, sorted(ids))
        return {
            "pieces": {str(token): piece for token, piece in pieces.items()},
            "differences": as_facts(differences(self._bench, records, self._prompts)),
        }


def answer(worker: Worker, line: str) -> Answer:
    """The answer to one request; whatever goes wrong is an answer too."""
    request = json.loads(line)
    try:
        result: Answer = getattr(worker, request.pop("do"))(**request)
    except BenchError as error:
        return {"error": error.message, "exit": error.exit_code}
    except Exception as error:  # the parent says which side failed, and how
        return {"error": f"{type(error).__name__}: {error}", "exit": int(Exit.FAILED)}
    return result


def main() -> None:
    """Answer until stdin ends."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin:
        channel.write(json.dumps(answer(worker, line)) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
