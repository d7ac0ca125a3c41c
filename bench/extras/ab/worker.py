"""Measure one side of `bench ab`, in a process with the code of the side's own checkout.

The process is a run's worker (`bench.extras.workers.worker`), started as a script of the checkout,
which is first on PYTHONPATH. Its arguments are folders of the decoders' own repository. Both sides
share only the format of requests and answers, whose version `open` reports: any change must raise
`PROTOCOL`. Requests and answers are JSON lines over stdin and the original stdout; prints of the
code under test go to stderr. A request is ``{"do": NAME, …}``. An answer is the result, or
``{"error": line, "exit": code}``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import BenchError, Exit
from bench.extras.ab.checkout import PROTOCOL
from bench.extras.workers.crew import Job, ScorePrompts, TimeBlock
from bench.extras.workers.worker import LineCollector, Worker
from bench.machine.env import ROOT
from bench.plan.checks import check_first
from bench.plan.compiling import open_with_graphs
from bench.plan.contract import check_cells
from bench.plan.identity import setup_identity
from bench.plan.make import make_plan
from bench.plan.setup import open_setup
from bench.progress import Progress
from bench.records.plan import Block
from bench.records.prompts import pieces_in, read_prompts
from bench.records.record import SampleRecord
from bench.settings.config import load_config
from bench.verify.divergence import differences
from bench.verify.floor import measure_floor

Answer = dict[str, Any]


class SideWorker(Worker):
    """Answer the parent's requests, one after another."""

    def open(self, config: Mapping[str, Any]) -> Answer:
        """Open a configuration, uncompiled by default, and return its values and cells."""
        progress = Progress()
        run = check_first(load_config(None, {"compile": False, **config}), progress.note)
        self._setup = setup = open_with_graphs(run, open_setup, progress)
        cells = check_cells(setup, progress)
        return {
            "protocol": PROTOCOL,
            "root": str(ROOT),
            "config": setup.config.to_toml(),
            "cells": [dataclasses.asdict(cell) for cell in cells],
            "identity": setup_identity(setup),
            "env": setup.environment().to_json(),
        }

    def plan(self, name: str) -> Answer:
        """Return the plan, and its prompts as lines of prompts.jsonl."""
        plan, prompts = make_plan(self._setup, name, Progress())
        lines = [json.dumps(dataclasses.asdict(p), ensure_ascii=False) for p in prompts.values()]
        return {"manifest": plan.to_manifest(), "prompts": lines}

    def warm_up(self, folder: str, names: Sequence[str]) -> Answer:
        """Read a folder's prompts, reserve KV caches for them, and run every decoder briefly."""
        whole = Block(block=0, repeat=0, prompts=tuple(names), order=())
        self.begin(self._setup, read_prompts(Path(folder)), [whole], LineCollector())
        return {}

    def measure(self, block: int, repeat: int, prompts: Sequence[str], cell: str) -> Answer:
        """Measure one decoder on the prompts of one block, and return its records and the load.

        Args:
            block: number of the block in base's plan.
            repeat: repeat of the block, from 0, which is added to the seed.
            prompts: names of the block's prompts.
            cell: the decoder, one of `open`'s cells.
        """
        part = Block(block=block, repeat=repeat, prompts=tuple(prompts), order=(cell,))
        return self._perform(TimeBlock(block=part))

    def quality(self, names: Sequence[str]) -> Answer:
        """Score the answers to `names`, untimed."""
        return self._perform(ScorePrompts(prompts=tuple(names), done=frozenset()))

    def _perform(self, job: Job) -> Answer:
        self.work(job)
        lines, _ = self._lines.take()
        return {"lines": [json.loads(line) for line in lines]}

    def finish(self, lines: Sequence[Mapping[str, Any]]) -> Answer:
        """Return the text of this side's tokens, and its differences from the baseline."""
        records = [SampleRecord.from_dict(line) for line in lines]
        floor = measure_floor(self._setup, records, self._prompts)
        unlike = differences(self._setup, records, self._prompts, floor)
        return {
            "pieces": pieces_in(self._setup.tokenizer, records, self._prompts.values()),
            "differences": [dataclasses.asdict(difference) for difference in unlike],
            "floor": floor and dataclasses.asdict(floor),
        }


def answer(worker: SideWorker, line: str) -> Answer:
    """Answer one request, with its result or with the error that it raised."""
    request = json.loads(line)
    try:
        result: Answer = getattr(worker, request.pop("do"))(**request)
    except BenchError as error:
        return {"error": error.message, "exit": error.exit_code}
    except Exception as error:  # the parent reports which side failed, and how
        return {"error": f"{type(error).__name__}: {error}", "exit": int(Exit.FAILED)}
    return result


def main() -> None:
    """Answer requests until stdin ends."""
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path[:0] = sys.argv[1:]  # the decoders' folders; the benchmark is imported already
    worker = SideWorker()
    for line in sys.stdin:
        channel.write(json.dumps(answer(worker, line)) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
