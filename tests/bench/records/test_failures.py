"""A failed answer: one line, a place in the decoder's file, and its traceback in the run folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import runs as bench_run
from bench.errors import BenchError
from bench.records.record import SampleRecord
from bench.records.run_folder import load_run
from bench.records.samples import ERRORS, SampleWriter, error_line, error_position
from decoders.core import registry
from decoders.core.decoder import Decoder

LONGEST = """
from dataclasses import dataclass
from decoders.core.decoder import Decoder
from decoders.core.types import Emit


def longest(ids):
    return ids[len(ids)]


@dataclass(frozen=True, kw_only=True)
class Longest(Decoder):
    def steps(self, request):
        result = yield request.target.call(request.prompt_ids)
        yield Emit(tokens=result.picks)
        token = longest(result.picks)
        result = yield request.target.call((token,))
"""


@pytest.fixture
def longest(tmp_path: Path) -> Path:
    file = tmp_path / "longest.py"
    file.write_text(LONGEST)
    return file


@pytest.fixture
def failed(
    longest: Path,
    small: Callable[..., Any],
    opener: Any,
    progress: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Path, list[str]]:
    """The folder of a run whose decoder raises on every prompt, and what the run said."""
    config = small(decoders=f"{longest}:Longest@mine", draft=None, repeats=1)
    shown = progress()
    return bench_run.run(config, tmp_path / "r", shown, opener, report=None).run_dir, shown.notes


@pytest.mark.usefixtures("quick")
def test_records_and_warnings_name_the_file_and_line_of_an_exception(
    failed: tuple[Path, list[str]],
) -> None:
    run_dir, notes = failed
    run = load_run(run_dir)
    mine = [record for record in run.records if record.decoder.endswith("@mine")]
    assert {record.kind for record in mine} == {"timing", "quality"}
    assert {record.error for record in mine} == {"IndexError: tuple index out of range"}
    assert {record.error_at for record in mine} == {"longest.py:8"}
    (said,) = run.status.reasons
    assert said.endswith("IndexError: tuple index out of range (longest.py:8)")
    assert any(line.endswith(f"tracebacks in {run_dir / ERRORS}") for line in notes)
    assert all(r.error_at is None for r in run.records if r.error is None)


@pytest.mark.usefixtures("quick")
def test_the_log_holds_every_traceback_once_and_names_every_answer(
    failed: tuple[Path, list[str]],
) -> None:
    log = (failed[0] / ERRORS).read_text()
    assert log.count("return ids[len(ids)]") == 1
    assert "token = longest(result.picks)" in log
    mine = [r for r in load_run(failed[0]).records if r.error]
    first, *others = [line for line in log.splitlines() if line.endswith(", attempt 0")][:1]
    assert not others
    assert log.count(f"as in {first}\n") == len(mine) - 1


@pytest.mark.usefixtures("quick")
def test_a_run_without_errors_has_no_log(
    small: Callable[..., Any], opener: Any, progress: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ended = bench_run.run(small(repeats=1), tmp_path / "r", progress(), opener, report=None)
    assert not (ended.run_dir / ERRORS).exists()


def decoder_of(file: Path, name: str) -> Decoder:
    return registry.build(registry.parse_spec(f"{file}:{name}"))


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_error_raised_outside_the_decoder_has_no_position(longest: Path) -> None:
    decoder = decoder_of(longest, "Longest")
    assert error_position(raised(ValueError("of the harness")), decoder) is None
    assert error_position(ValueError("never raised"), decoder) is None


def test_an_error_in_an_inherited_method_is_located_in_the_file_of_the_base_class(
    tmp_path: Path,
) -> None:
    own = tmp_path / "own.py"
    own.write_text("from decoders.ar import Autoregressive\nclass Own(Autoregressive): pass\n")
    decoder = decoder_of(own, "Own")
    with pytest.raises(AttributeError) as caught:
        next(decoder.steps(None))  # type: ignore[arg-type]
    assert str(error_position(caught.value, decoder)).startswith("ar.py:")


def test_the_text_of_an_error_is_joined_into_one_line() -> None:
    assert error_line(ValueError("a\n  b")) == "ValueError: a b"
    assert error_line(AssertionError()) == "AssertionError"
    assert error_line(ValueError("\ud83d")) == "ValueError: \\ud83d"


def test_an_unwritable_error_log_is_reported_in_one_line(
    record: Callable[..., SampleRecord], tmp_path: Path
) -> None:
    (tmp_path / ERRORS).mkdir()
    with pytest.raises(BenchError, match=r"cannot write .*errors\.log"):
        SampleWriter(tmp_path).record(record("spec", (1,)), raised(ValueError("x")))


def test_surrogates_and_escape_sequences_are_neutralised_in_the_error_log(
    record: Callable[..., SampleRecord], tmp_path: Path
) -> None:
    SampleWriter(tmp_path).record(record("spec", (1,)), raised(ValueError("\ud83d \x1b[31m")))
    assert "\\ud83d \u241b[31m" in (tmp_path / ERRORS).read_text()


def test_a_record_without_an_error_position_is_still_read(
    record: Callable[..., SampleRecord],
) -> None:
    line = json.loads(record("spec", (1,)).to_json())
    assert line.pop("error_at") is None
    assert SampleRecord.from_dict(line).error_at is None
    assert SampleRecord.from_dict({**line, "error_at": "a.py:3"}).error_at == "a.py:3"
    with pytest.raises(ValueError, match="error_at"):
        SampleRecord.from_dict({**line, "error_at": 3})
