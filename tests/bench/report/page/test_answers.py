"""What the viewer is given equals what was recorded."""

from __future__ import annotations

import base64
import dataclasses
import itertools
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.records.record import SampleRecord
from bench.records.run_folder import Run, load_run
from bench.report.figures.style import colours
from bench.report.findings import Findings
from bench.report.page import answers
from bench.report.page.answers import chosen_answers, pack, viewer
from bench.report.tables.main import ranked_rows

Make = Callable[..., SampleRecord]
Write = Callable[..., Path]


def unpack(chunk: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(chunk)))


def handed_over(run: Run) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]], dict[str, str]]:
    """The index, the answers by prompt, the pieces."""
    made = viewer(run)
    assert made is not None
    index = unpack(made.index)
    names = [prompt["name"] for prompt in index["prompts"]]
    chunks = {name: unpack(chunk) for name, chunk in zip(names, made.chunks, strict=True)}
    return index, chunks, unpack(made.pieces)


@pytest.mark.slow
def test_every_answer_in_the_viewer_equals_its_record(told_run: Path) -> None:
    run = load_run(told_run)
    index, chunks, _ = handed_over(run)
    names = [decoder["name"] for decoder in index["decoders"]]
    assert names == ["ar", "ptp", "spec", "idlm"]
    repeats = {prompt["name"]: prompt["repeat"] for prompt in index["prompts"]}
    records = {
        (r.prompt, r.decoder): r
        for r in run.records
        if r.kind == "timing" and r.repeat == repeats[r.prompt]
    }
    assert len(chunks) == 14
    for prompt, lanes in chunks.items():
        assert [names[answer["d"]] for answer in lanes] == names
        for answer in lanes:
            record = records[prompt, names[answer["d"]]]
            steps = record.steps
            assert steps is not None
            assert tuple(answer["tokens"]) == record.tokens
            assert tuple(answer["emitted"]) == steps.emitted
            assert tuple(answer["calls"]) == steps.target_calls
            ends_us = list(itertools.accumulate(answer["ended"]))
            assert ends_us == [round(1e6 * end_s) for end_s in steps.ended_s]
            assert answer["total"] == round(1e6 * (record.total_s or 0))
            assert ends_us[-1] <= answer["total"]
            for name in ("drafted", "accepted", "rejected", "decided"):
                column = getattr(steps, name)
                recorded = [list(x) if isinstance(x, tuple) else x for x in column]
                assert answer.get(name, []) == (recorded if any(column) else []), name
    assert any("rejected" in a for lanes in chunks.values() for a in lanes)
    assert {names[a["d"]] for lanes in chunks.values() for a in lanes if "decided" in a} == {"idlm"}


def test_every_id_that_is_shown_has_its_piece_and_prompts_have_their_text(told_run: Path) -> None:
    index, chunks, pieces = handed_over(load_run(told_run))
    vocabulary = json.loads((told_run / "vocab.json").read_text())
    ids = {
        token
        for lanes in chunks.values()
        for answer in lanes
        for token in (*answer["tokens"], *itertools.chain(*answer.get("rejected", [])))
    }
    assert {str(token) for token in ids} == set(pieces)
    assert pieces["60"] == vocabulary["60"]
    assert "\u202e" not in "".join(pieces.values())
    first = index["prompts"][0]
    assert first["text"] == vocabulary["3"] + vocabulary["5"] + vocabulary["10"]


def test_decoders_are_shown_with_the_colours_of_the_figures_and_their_guarantees(
    told_run: Path,
) -> None:
    decoders = handed_over(load_run(told_run))[0]["decoders"]
    palette = colours(["ar", "ptp", "spec", "idlm"])
    assert {d["name"]: d["colour"] for d in decoders} == palette
    assert {d["name"]: d["guarantee"] for d in decoders} == {
        "ar": "same tokens", "ptp": "same tokens", "spec": "same tokens", "idlm": "none",
    }  # fmt: skip


def test_decoders_have_the_order_of_the_main_table_and_keep_their_colours(told_run: Path) -> None:
    run = load_run(told_run)
    plain, ranked = viewer(run), viewer(run, ["ar", "spec", "ptp"])
    assert plain is not None
    assert ranked is not None
    decoders = unpack(ranked.index)["decoders"]
    assert [each["name"] for each in decoders] == ["ar", "spec", "ptp", "idlm"]
    assert sorted(map(str, decoders)) == sorted(map(str, unpack(plain.index)["decoders"]))
    shown = viewer(run, [row.decoder for row in ranked_rows(Findings(run).summary)])
    assert shown is not None
    assert shown.index in (told_run / "report.html").read_text(encoding="utf-8")


def test_all_answers_to_a_prompt_are_shown_from_the_first_repeat_without_an_error(
    record: Make,
) -> None:
    error = {"error": "ValueError: no"}
    records = [
        record("ar", repeat=0), record("spec", repeat=0, **error), record("ar@aa", repeat=0),
        record("ar", repeat=1), record("spec", repeat=1),
        record("ar", repeat=2), record("spec", repeat=2),
        record("ar", kind="quality", conversation="q"),
        record("ar", conversation="c1", **error), record("spec", conversation="c1"),
    ]  # fmt: skip
    chosen = chosen_answers(records)
    assert {prompt: {d: r.repeat for d, r in of.items()} for prompt, of in chosen.items()} == {
        "c0#1": {"ar": 1, "spec": 1},
        "c1#1": {"ar": 0, "spec": 0},
    }


def test_an_answer_of_a_batch_has_no_times(record: Make) -> None:
    batched = record(ttft_s=None, total_s=None, group_s=3.0)
    assert not {"ended", "total"} & set(answers.answer_data(batched, 0))


def test_a_failed_answer_has_its_error_and_no_path_of_the_machine(record: Make) -> None:
    failed = record(error="OSError: cannot open '/home/someone/secret.bin'", error_at="mine.py:3")
    assert answers.answer_data(failed, 2) == {
        "d": 2, "error": "OSError: cannot open 'secret.bin' (mine.py:3)",
    }  # fmt: skip


def test_prompts_beyond_the_size_limit_are_left_out_family_by_family_in_turn(
    synthetic_run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = load_run(synthetic_run(conversations=18))
    whole = viewer(run)
    assert whole is not None
    assert (whole.num_prompts, whole.num_left_out) == (21, 0)
    monkeypatch.setattr(answers, "MAX_BYTES", sum(map(len, whole.chunks)) // 2)
    half = viewer(run)
    assert half is not None
    assert half.num_prompts + half.num_left_out == 21
    assert sum(map(len, half.chunks)) <= answers.MAX_BYTES
    families = [prompt["family"] for prompt in unpack(half.index)["prompts"]]
    assert len(set(families)) == 6
    assert max(map(families.count, families)) - min(map(families.count, families)) <= 1
    names = [prompt["name"] for prompt in unpack(whole.index)["prompts"]]
    fitting = [prompt["name"] for prompt in unpack(half.index)["prompts"]]
    assert fitting == [name for name in names if name in fitting]


def test_a_run_without_timed_answers_has_no_viewer(record: Make, told_run: Path) -> None:
    run = load_run(told_run)
    assert viewer(dataclasses.replace(run, records=(record(kind="quality"),))) is None


def test_chunks_encode_any_text_without_characters_of_html_tags() -> None:
    data = {"text": '</script><!-- ]]> \u2028 \\ " é 中 \U0001f600', "n": [1, 2.5, None, True]}
    chunk = pack(data)
    assert unpack(chunk) == data
    assert re.fullmatch(r"[A-Za-z0-9+/]+=*", chunk)
    assert pack(data) == chunk
