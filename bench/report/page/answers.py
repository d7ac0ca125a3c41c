"""Make the data of the step viewer: the timed answers of a run, prompt by prompt.

The viewer shows one repeat of every prompt, in which all decoders ran right after one another. The
page reads the index of prompts when it opens, and the answers to a prompt when they are viewed.
Data are deflated JSON in base64, so no text of a model can start an HTML tag.

An answer has these fields, if known and not all 0 (one entry per step; see `StepColumns`)::

    d         the decoder's index
    tokens    ids; `emitted` is the number of ids per step
    calls     target calls; `draft`: calls of the draft model
    drafted   accepted, undrafted, depth, rejected (ids), decided (passes): as recorded
    by        names of the drafters whose drafts were accepted
    ended     microseconds from the end of the previous step to the end of this step
    total     microseconds from the request's start to its end
    stop      eos or length
    error     why the other fields are missing
"""

from __future__ import annotations

import base64
import itertools
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.records.plan import SECOND
from bench.records.prompts import answered_ids, kept_prompts, read_pieces
from bench.records.record import SampleRecord
from bench.records.run_folder import Run
from bench.report.figures.style import RED, colours
from bench.stats.counters import group_by
from bench.stats.summary import decoder_order, family_order
from bench.text import portable, printable, shortened

MAX_BYTES = 11_000_000
"""Size limit of all answers; beyond it, prompts are chosen from the families in turn."""
_MAX_TEXT = 4_000
"""Number of characters shown from the beginning and from the end of a prompt."""
_COLUMNS = ("drafted", "accepted", "undrafted", "depth", "rejected", "decided")
_Decoders = Mapping[str, SampleRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Hold the page's packed data: the index, the texts of tokens, and a chunk per prompt."""

    index: str
    pieces: str
    chunks: tuple[str, ...]
    num_prompts: int
    num_left_out: int


def viewer(run: Run, ranked: Sequence[str] = ()) -> Viewer | None:
    """Return the step viewer's data, decoders in `ranked` order, or None if no prompt was timed."""
    measured = decoder_order(run)
    order = list(dict.fromkeys((*ranked, *measured)))
    answers = chosen_answers(run.records)
    if not answers:
        return None
    planned = (p.prompt for p in run.plan.prompts if p.prompt in answers)
    names = list(dict.fromkeys((*planned, *answers)))
    packed = {
        name: pack(
            [answer_data(answers[name][d], order.index(d)) for d in order if d in answers[name]]
        )
        for name in names
    }
    first = {name: next(iter(answers[name].values())) for name in names}
    fitting = _within(packed, {name: first[name].family for name in names}, MAX_BYTES)
    pieces = read_pieces(run.path)
    records = [record for name in fitting for record in answers[name].values()]
    prompts = {name: each for name, each in kept_prompts(run.path).items() if name in fitting}
    texts = {name: "".join(map(pieces, each.ids)) for name, each in prompts.items()}
    wrong = run.status.wrong
    good = [name for name in measured if name not in wrong]
    palette = colours(good) | dict.fromkeys(wrong, RED)
    promised = run.guarantees
    index = {
        "decoders": [
            {"name": printable(d), "colour": palette[d], "guarantee": promised.get(d)}
            for d in order
        ],
        "prompts": [
            {
                "name": printable(name),
                "family": printable(first[name].family),
                "repeat": first[name].repeat,
                "text": shortened(texts[name], _MAX_TEXT) if name in texts else None,
            }
            for name in fitting
        ],
    }
    return Viewer(
        index=pack(index),
        pieces=pack({str(token): pieces(token) for token in sorted(answered_ids(records))}),
        chunks=tuple(packed[name] for name in fitting),
        num_prompts=len(fitting),
        num_left_out=len(names) - len(fitting),
    )


def chosen_answers(records: Iterable[SampleRecord]) -> dict[str, _Decoders]:
    """Return timed answers by prompt and decoder, from the first repeat with the fewest errors."""
    repeats: defaultdict[str, defaultdict[int, dict[str, SampleRecord]]]
    repeats = defaultdict(lambda: defaultdict(dict))
    for record in records:
        if record.kind == "timing" and not record.decoder.endswith(SECOND):
            repeats[record.prompt][record.repeat][record.decoder] = record

    def rank(repeat: tuple[int, _Decoders]) -> tuple[int, int]:
        return sum(record.error is not None for record in repeat[1].values()), repeat[0]

    return {prompt: min(tries.items(), key=rank)[1] for prompt, tries in repeats.items()}


def answer_data(record: SampleRecord, decoder: int) -> dict[str, Any]:
    """Return one answer as JSON data, see the module's docstring."""
    steps = record.steps
    if record.error is not None or record.tokens is None or steps is None:
        return {"d": decoder, "error": portable(record.failure or "no steps were recorded")}
    data: dict[str, Any] = {
        "d": decoder,
        "tokens": record.tokens,
        "emitted": steps.emitted,
        "calls": steps.target_calls,
        "stop": record.stop,
    }
    if any(steps.draft_calls):
        data["draft"] = steps.draft_calls
    data |= {name: getattr(steps, name) for name in _COLUMNS if any(getattr(steps, name))}
    if record.drafters:
        names = [printable(name) for name in record.drafters]
        accepted = [dict.fromkeys(names[i] for i in drafters) for drafters in steps.source]
        data["by"] = [" + ".join(each) for each in accepted]
    if steps.ended_s and record.total_s is not None:
        ends = [round(end_s * 1e6) for end_s in steps.ended_s]
        data["ended"] = [after - before for before, after in itertools.pairwise([0, *ends])]
        data["total"] = round(record.total_s * 1e6)
    return data


def pack(data: Any) -> str:
    """Pack JSON data into a chunk that ``DecompressionStream("deflate")`` can read."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def _within(packed: Mapping[str, str], families: Mapping[str, str], max_bytes: int) -> list[str]:
    """Return prompts whose chunks fit into `max_bytes`, taken from each family in turn."""
    groups = group_by(packed, families.__getitem__)
    turns = itertools.zip_longest(*(groups[family] for family in family_order(groups)))
    order = [name for turn in turns for name in turn if name is not None]
    sizes = itertools.accumulate(len(packed[name]) for name in order)
    fitting = {name for name, size in zip(order, sizes, strict=True) if size <= max_bytes}
    return [name for name in packed if name in fitting]
