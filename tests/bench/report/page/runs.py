"""Run folders for the tests of the page: small, with everything that the viewer may show."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from bench.records.prompts import Prompt, ids_hash, write_prompts
from bench.records.record import SampleRecord, StepColumns
from bench.records.run_folder import load_run
from tests.bench.conftest import write_run

CELLS = {"ptp": 4.0, "spec": 3.0, "idlm": 5.0}
BAD = "<img src=x onerror=\"window.hacked='img'\">"
ENDS = "</script><script>window.hacked='script'</script>"


def told(record: SampleRecord) -> SampleRecord:
    """A record with what newer ones keep besides: times of steps, what fell, passes."""
    steps, total_s = record.steps, record.total_s
    if steps is None or total_s is None or record.ttft_s is None:
        return record
    num = len(steps.emitted)
    each_s = (total_s - record.ttft_s) / num
    # steps take longer and longer, so that nobody takes them for evenly spread ones
    shares = [step * (step + 1) / (num * (num + 1)) for step in range(num)]
    ended_s = tuple(round(record.ttft_s + share * each_s * num, 6) for share in shares)
    fallen = [d - a for d, a in zip(steps.drafted, steps.accepted, strict=True)]
    rejected = tuple(tuple(range(60, 60 + n)) for n in fallen)
    decided = tuple(tuple(min(i, 3) for i in range(n)) for n in steps.emitted)
    steps = dataclasses.replace(
        steps,
        ended_s=ended_s,
        rejected=rejected if any(fallen) else (),
        decided=decided if record.decoder == "idlm" else (),
    )
    return dataclasses.replace(record, steps=steps)


def write_told_run(path: Path) -> Path:
    """A run whose records tell all, whose prompts and pieces of text are attacks, some of them."""
    write_run(path, CELLS, lossy=["idlm"], conversations=12, repeats=2, quality=2)
    run = load_run(path)
    lines = [told(record).to_json() + "\n" for record in run.records]
    (path / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
    pieces = {str(i): f" w{i}" for i in range(80)}
    pieces |= {"3": BAD, "5": ENDS, "7": "\n", "9": " {{7*7}} \u202e", "60": " fell\n"}
    (path / "vocab.json").write_text(json.dumps(pieces), encoding="utf-8")
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    prompts = []
    for number, planned in enumerate(manifest["prompts"]):
        ids = (3, 5, 10 + number)
        place = {key: planned[key] for key in ("conversation", "turn", "family")}
        prompts.append(Prompt(**place, ids=ids, hash=ids_hash(ids), reference=None))
    write_prompts(path, prompts)
    return path


def without(columns: StepColumns, *names: str) -> StepColumns:
    """Columns as they were before they had some."""
    empty: dict[str, tuple[()]] = dict.fromkeys(names, ())
    return dataclasses.replace(columns, **empty)


def rewrite(path: Path, records: list[SampleRecord]) -> Path:
    """The run with other records."""
    lines = [record.to_json() + "\n" for record in records]
    (path / "samples.jsonl").write_text("".join(lines), encoding="utf-8")
    return path
