"""Gold answers in LaTeX: the boxed expression is compared, and what cannot be is not scored."""

import pytest

from specbench_tasks.scorers import score
from specbench_tasks.task import GoldAnswer
from tests.cases.conftest import Case

COLUMNS = '[columns]\nprompt = "problem"\nreference = "answer"\nfamily = "math_reasoning"\n'


@pytest.mark.parametrize(
    ("said", "gold", "right"),
    [
        (r"\boxed{\frac{1}{4}}", r"\frac{3}{4}", 0),
        (r"\boxed{\frac{6}{8}}", r"\frac{3}{4}", 1),
        (r"2\sqrt{5}", r"7\sqrt{5}", 0),
        (r"So 2.", r"(3, \frac{\pi}{2})", 0),
        (r"\boxed{(3, \pi/2)}", r"\left( 3, \frac{\pi}{2} \right)", 1),
        ("p - q", "p - q", 1),
        (r"\text{east}", r"\text{east}", 1),
    ],
)
def test_the_expression_is_compared_and_not_its_last_number(said: str, gold: str, right: int):
    assert score("math_reasoning", said, GoldAnswer(answers=(gold,)))["exact_number"] == right


def test_a_gold_answer_that_cannot_be_scored_is_left_out_and_named(case: Case, stories):
    golds = {
        "a": r"\frac{3}{4}",
        "b": "p - q",
        "c": "4",
        "d": r"\frac{1",
        "e": "x is 3, the other is 4",
    }
    rows = [{"id": name, "problem": name, "answer": gold} for name, gold in golds.items()]
    tasks = case.write(rows, "math.jsonl")
    config = case.folder / "run.toml"
    config.write_text(COLUMNS)
    done = case.run(stories, "-c", config, "--dry-run", tasks=tasks)
    assert done.code == 0, done.err
    assert "2 of 5 conversations chosen for quality cannot be scored" in done.err
    assert "of math-d is nothing" in done.err or "of math-e is nothing" in done.err
    assert "3 prompts scored (math_reasoning 3)" in done.out
