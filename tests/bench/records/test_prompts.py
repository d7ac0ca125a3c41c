"""prompts.jsonl keeps exact ids and references."""

from pathlib import Path

import pytest

from bench.errors import BenchError
from bench.records.prompts import Prompt, ids_hash, read_prompts, write_prompts
from specbench_tasks.task import Constraint, GoldAnswer


def prompt(answer: str) -> Prompt:
    return Prompt(
        conversation="c",
        turn=1,
        family="qa",
        ids=(1, 2, 3),
        hash=ids_hash((1, 2, 3)),
        reference=GoldAnswer(
            answers=(answer,), constraints=(Constraint(kind="ends_with", value=3),)
        ),
    )


@pytest.mark.parametrize("answer", ["plain", "two\nlines", "next\u0085line\u2028separator", ""])
def test_a_reference_answer_of_any_text_is_read_back_unchanged(tmp_path: Path, answer: str) -> None:
    write_prompts(tmp_path, [prompt(answer)])
    assert read_prompts(tmp_path) == {"c#1": prompt(answer)}


def test_prompt_ids_that_do_not_match_their_hash_are_refused(tmp_path: Path) -> None:
    write_prompts(tmp_path, [prompt("x")])
    file = next(tmp_path.iterdir())
    file.write_text(
        file.read_text().replace("[1,2,3]", "[1,2,4]").replace("[1, 2, 3]", "[1, 2, 4]")
    )
    with pytest.raises(BenchError, match="does not match its hash"):
        read_prompts(tmp_path)
