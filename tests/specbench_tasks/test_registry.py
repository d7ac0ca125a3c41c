"""From ``--tasks`` to conversations: the grammar, the subset, and the listing."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from specbench_tasks.registry import (
    TaskSet,
    list_tasks,
    load_tasks,
    scorable,
    spread,
    tuning_split,
)
from specbench_tasks.scorers import score
from specbench_tasks.task import FAMILIES, LISTS, SETS, Conversation
from tests.specbench_tasks.published import PUBLISHED, WRITERS

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
QUESTIONS = SHARED / "data" / "spec_bench" / "question.jsonl"
GSM8K = SHARED / "data" / "gsm8k" / "test.jsonl"
needs_questions = pytest.mark.skipif(not QUESTIONS.is_file(), reason=f"needs {QUESTIONS.name}")
needs_gsm8k = pytest.mark.skipif(not GSM8K.is_file(), reason="needs gsm8k/test.jsonl")


def num_prompts(conversations: tuple[Conversation, ...], family: str) -> int:
    return sum(len(c.turns) for c in conversations if c.family == family)


def ids(task_set: TaskSet) -> list[str]:
    return [c.id for c in task_set.timing]


def test_the_default_is_24_zoo_conversations_4_of_each_family() -> None:
    tasks = load_tasks()
    assert (tasks.name, tasks.families) == ("zoo", FAMILIES)
    assert Counter(c.family for c in tasks.timing) == dict.fromkeys(FAMILIES, 4)
    assert [c.family for c in tasks.timing[:6]] == list(FAMILIES)  # in rounds over the families


def test_quality_takes_40_prompts_per_family_by_default() -> None:
    tasks = load_tasks()
    assert {family: num_prompts(tasks.quality, family) for family in FAMILIES} == dict.fromkeys(
        FAMILIES, 40
    )
    assert load_tasks(quality_limit=0).quality == ()
    assert num_prompts(load_tasks(quality_limit=5).quality, "mt_bench") == 4
    assert num_prompts(load_tasks(quality_limit=1).quality, "mt_bench") == 2


def test_the_seed_fixes_the_selection_and_a_larger_limit_extends_a_smaller_one() -> None:
    assert load_tasks(limit=12) == load_tasks(limit=12)
    assert set(ids(load_tasks(limit=10))) < set(ids(load_tasks(limit=30)))
    assert set(ids(load_tasks(seed=1))) != set(ids(load_tasks(seed=0)))
    golden = ids(load_tasks(limit=6))
    assert golden == ids(load_tasks(limit=24))[:6]


def test_the_selection_of_one_family_does_not_depend_on_the_other_families() -> None:
    alone = load_tasks("qa", limit=4)
    among = [c for c in load_tasks(limit=24).timing if c.family == "qa"]
    assert list(alone.timing) == among
    assert alone.quality == tuple(c for c in load_tasks().quality if c.family == "qa")


def test_family_names_choose_from_the_zoo_in_the_usual_order() -> None:
    tasks = load_tasks("qa, translation", limit=5)
    assert (tasks.name, tasks.families) == ("zoo:translation,qa", ("translation", "qa"))
    assert Counter(c.family for c in tasks.timing) == {"translation": 3, "qa": 2}
    assert load_tasks(",".join(FAMILIES)) == load_tasks("zoo")
    assert len(load_tasks("qa").timing) == 24


def test_the_two_splits_are_disjoint_and_together_cover_all_conversations() -> None:
    tune, test, both = (load_tasks(split=split, limit=10**6) for split in ("tune", "test", None))
    assert not set(ids(tune)) & set(ids(test))
    assert sorted([*ids(tune), *ids(test)]) == sorted(ids(both))
    assert 0.2 < len(tune.timing) / len(both.timing) < 0.3
    assert tune.families == test.families == FAMILIES
    scored = [c.id for tasks in (tune, test) for c in tasks.quality]
    assert len(scored) == len(set(scored))
    assert {c.id for c in tune.quality} <= set(ids(tune))


def test_a_limit_chooses_from_a_split_and_conversations_stay_whole() -> None:
    few = load_tasks(split="tune", limit=12)
    assert Counter(c.family for c in few.timing) == dict.fromkeys(FAMILIES, 2)
    assert set(ids(few)) < set(ids(load_tasks(split="tune", limit=30)))
    assert {len(c.turns) for c in few.timing if c.family == "mt_bench"} == {2}
    assert {tuning_split(c) for c in few.timing} == {"tune"}


def test_a_split_depends_only_on_the_text_of_the_turns(tmp_path: Path) -> None:
    turns = ["What is red?", "And \u00fc?"]
    rows = [
        {"id": str(i), "family": family, "turns": turns} for i, family in enumerate(("qa", "rag"))
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first = hashlib.sha256("\n".join(turns).encode()).digest()[0]
    kept, other = ("tune", "test") if first < 64 else ("test", "tune")
    assert len(load_tasks(str(file), split=kept).timing) == 2
    with pytest.raises(ValueError, match=f"no conversation of .* is in the split {other}; leave"):
        load_tasks(str(file), split=other)


@needs_questions
def test_the_split_of_spec_bench_does_not_change() -> None:
    tasks = load_tasks(f"specbench={QUESTIONS}")
    splits = {c.id: tuning_split(c) for c in tasks.timing}
    assert Counter(splits.values()) == {"test": 368, "tune": 112}
    numbers = (81, 141, 201, 261, 321, 381, 441, 501)
    tune = {number for number in numbers if splits[f"specbench-{number}"] == "tune"}
    assert tune == {81, 141, 321, 381}


def test_a_limit_above_the_size_of_the_source_takes_all_conversations_once_with_a_note() -> None:
    tasks = load_tasks("qa", limit=1_000_000_000)
    assert len(ids(tasks)) == len(set(ids(tasks))) == 120
    assert tasks.notes == ("--limit 1000000000 exceeds the source: all 120 are used",)
    assert load_tasks("qa", limit=120).notes == ()


def test_a_path_is_recognized_by_its_form_or_existence_and_task_names_take_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("qa", "mine", "a,b.jsonl"):
        (tmp_path / name).write_text('{"prompt": "mine"}\n')
    assert load_tasks("qa").name == "zoo:qa"
    for path in ("./qa", "mine", "a,b.jsonl", str(tmp_path / "mine")):
        tasks = load_tasks(path)
        assert (tasks.name, tasks.timing[0].turns) == (f"file:{Path(path).name}", ("mine",))
    columns = {"prompt": "prompt", "family": "qa"}
    assert load_tasks("mine", columns=columns).families == ("qa",)
    assert ids(load_tasks("jsonl=mine")) == ids(load_tasks("mine"))


def test_categories_of_speed_bench_become_families_listed_after_the_standard_families(
    tmp_path: Path,
) -> None:
    kinds = ("coding", "rag", "writing", "qa")
    row = {"source": "x", "src_id": "1", "turns": ["a"]}
    rows = [{**row, "question_id": f"{c}{i}", "category": c} for c in kinds for i in range(3)]
    file = tmp_path / "qualitative.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tasks = load_tasks(str(file), limit=8)
    assert tasks.families == ("qa", "rag", "coding", "writing")
    assert Counter(c.family for c in tasks.timing) == dict.fromkeys(kinds, 2)
    assert tasks.quality == ()


FILES = {"gsm8k": "gsm8k", "math500": "math-500", "mtbench": "mt-bench"}
FILES |= {"humaneval": "human-eval", "mbpp": "mbpp"}


def sources(tmp_path: Path, files: dict[str, str]) -> str:
    """Write a file per set, all of one name in folders of their own, and return ``--tasks``."""
    for name, shape in files.items():
        (tmp_path / name).mkdir()
        WRITERS["rows.jsonl"](tmp_path / name / "test.jsonl", PUBLISHED[shape].rows)
    return ",".join(f"{name}={tmp_path / name / 'test.jsonl'}" for name in files)


def test_five_published_sets_become_families_of_one_run_and_two_of_them_are_scored(
    tmp_path: Path,
) -> None:
    tasks = load_tasks(sources(tmp_path, FILES))
    assert tasks.name == "gsm8k,math500,mtbench,humaneval,mbpp"  # no path
    assert {c.family: c.turns for c in tasks.timing} == {
        name: PUBLISHED[shape].turns for name, shape in FILES.items()
    }
    assert [c.family for c in tasks.quality] == ["gsm8k", "math500"]
    answers = {"gsm8k": "So it is 18.", "math500": r"The answer is \boxed{\frac12}"}
    for one in tasks.quality:
        (gold,) = one.references
        assert gold is not None
        assert score(one.family, answers[one.family], gold) == {"exact_number": 1.0}
        assert score(one.family, "It is 7.", gold) == {"exact_number": 0.0}
    assert "mbpp is a family of its own, which is not scored" in tasks.notes


def test_both_published_forms_of_a_set_are_read(tmp_path: Path) -> None:
    tasks = load_tasks(sources(tmp_path, {"mtbench": "mt-bench-hub", "mbpp": "mbpp-sanitized"}))
    assert {c.family for c in tasks.timing} == {"mtbench", "mbpp"}


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("humaneval", "mbpp", "test.jsonl, line 1: it is read as MBPP, not as HumanEval"),
        ("gsm8k", "sharegpt", "line 1: it is read as ShareGPT, not as GSM8K"),
        ("mtbench", "spec-bench", "holds mtbench-161 of translation, not only MT-bench"),
    ],
)
def test_a_file_of_a_different_set_than_named_is_refused(
    name: str, shape: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as info:
        load_tasks(sources(tmp_path, {name: shape}))
    assert "\n" not in str(info.value)


def test_a_set_takes_no_columns(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="takes no \\[columns\\]"):
        load_tasks(sources(tmp_path, {"gsm8k": "gsm8k"}), columns={"prompt": "answer"})


@needs_gsm8k
def test_the_published_file_of_gsm8k_is_read_whole() -> None:
    tasks = load_tasks(f"gsm8k={GSM8K}")
    assert {c.family for c in tasks.timing} == {"gsm8k"}
    assert len(tasks.timing) == len(GSM8K.read_text(encoding="utf-8").splitlines())
    assert len(tasks.quality) == 40


@needs_questions
def test_specbench_is_taken_whole_by_default_and_evenly_under_a_limit() -> None:
    whole = load_tasks(f"specbench={QUESTIONS}")
    assert (whole.name, len(whole.timing), whole.families) == ("specbench", 480, FAMILIES)
    some = load_tasks(f"specbench={QUESTIONS}", limit=20)
    assert Counter(c.family for c in some.timing) == {
        "mt_bench": 4, "translation": 4, "summarization": 3, "qa": 3, "math_reasoning": 3, "rag": 3
    }  # fmt: skip
    # nothing objective to score: no constraints for mt_bench; qa's answers lie beside the file
    assert {c.family for c in whole.quality} == set(FAMILIES) - {"mt_bench"}


def test_prompts_without_a_family_take_their_even_share_and_are_not_scored(tmp_path: Path) -> None:
    rows = [{"prompt": f"say {i}", "reference": str(i)} for i in range(6)]
    rows += [{"prompt": f"what is {i}?", "reference": str(i), "family": "qa"} for i in range(6)]
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whole = load_tasks(f"jsonl={file}")
    assert (whole.families, len(whole.timing)) == (("qa", "other"), 12)
    some = load_tasks(f"jsonl={file}", limit=5)
    assert Counter(c.family for c in some.timing) == {"qa": 3, "other": 2}
    assert {c.family for c in some.quality} == {"qa"}


@needs_gsm8k
def test_a_jsonl_file_is_named_without_its_folder() -> None:
    tasks = load_tasks(f"jsonl={GSM8K}", limit=3, quality_limit=2)
    assert (tasks.name, tasks.families) == ("jsonl:test", ("math_reasoning",))
    assert (len(tasks.timing), len(tasks.quality)) == (3, 2)


def test_a_column_mapping_applies_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(json.dumps({"ask": "2 + 2?", "say": "#### 4"}))
    columns = {"prompt": "ask", "reference": "say", "family": "math_reasoning"}
    (conversation,) = load_tasks(f"jsonl={file}", columns=columns).timing
    assert conversation.references[0] is not None
    assert conversation.references[0].answers == ("4",)
    with pytest.raises(ValueError, match="unknown column key 'split'"):
        load_tasks(f"jsonl={file}", columns={"split": "test"})


def test_a_dataset_takes_its_split_from_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "tables"))
    tables = {"train": {"prompt": ["a"]}, "test": {"prompt": ["b"]}}
    folder = tmp_path / "toy"
    datasets.disable_progress_bars()
    datasets.DatasetDict(
        {split: datasets.Dataset.from_dict(table) for split, table in tables.items()}
    ).save_to_disk(str(folder))
    for spec, name in ((f"hf={folder}", "hf:toy"), (str(folder), "file:toy")):
        tasks = load_tasks(spec, columns={"split": "train"})
        assert tasks.name == name
        assert tasks.timing[0].turns == ("a",)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sumarization", "unknown task 'sumarization'; did you mean 'summarization'?"),
        ("spec_bench=x", "did you mean 'specbench'?"),
        ("xyzzy", r"unknown task 'xyzzy'; available: zoo, specbench\[=PATH\]"),
        ("", "give one source"),
        ("zoo,specbench", "give one source"),
        ("qa,specbench=x", "not both"),
        ("jsonl=a,jsonl=b", "give one source"),
        ("jsonl", "task 'jsonl': use one of .*jsonl=PATH"),
        ("hf=", "task 'hf=': use one of .*hf=ID"),
        ("qa=x", "task 'qa=x': use one of .*, qa, "),
        ("zoo=x", "task 'zoo=x': use one of zoo, "),
        ("jsonl=nowhere.jsonl", "no file nowhere.jsonl"),
        ("nowhere.csv", "no file nowhere.csv"),
        ("no/where", "no file no/where"),
        ("spec_bench=a/b.jsonl", "did you mean 'specbench'?"),
        ("x" * 4000, "unknown task 'xxx"),
        ("qa,nowhere.csv", "unknown task 'nowhere.csv'"),
        ("gsm8k", "task 'gsm8k': use one of .*gsm8k=PATH"),
        ("mbpp=nowhere.jsonl", "no file nowhere.jsonl"),
        ("mbpp=nowhere.jsonl,qa", "not both"),
        ("mbpp=a.jsonl,mbpp=b.jsonl", "one of mbpp is named twice; give each set one file"),
        ("humaneval=.", "no file .; give the path of an existing file"),
    ],
)
def test_unreadable_tasks_give_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as info:
        load_tasks(spec)
    assert "\n" not in str(info.value)


def test_even_shares_use_small_pools_up_and_give_remainders_to_the_first_pools() -> None:
    def shares(capacities: list[int], total: int) -> list[int]:
        pools: dict[str, list[Conversation]] = {}
        for family, capacity in zip("abc", capacities, strict=False):
            facts: dict[str, Any] = {"family": family, "turns": ("?",), "references": (None,)}
            pools[family] = [Conversation(id=f"{family}{n}", **facts) for n in range(capacity)]
        chosen = spread(pools, total, seed=3)
        assert len({c.id for c in chosen}) == len(chosen)
        return [sum(c.family == name for c in chosen) for name in pools]

    assert shares([9, 9, 9], 7) == [3, 2, 2]
    assert shares([1, 9, 9], 9) == [1, 4, 4]
    assert shares([2, 2], 9) == [2, 2]
    assert shares([5, 0, 5], 4) == [2, 0, 2]
    assert shares([], 3) == []


def test_the_listing_names_every_family_and_source_and_its_counts_are_true() -> None:
    infos = {info.task: info for info in list_tasks()}
    sources = {"zoo", "specbench[=PATH]", "PATH", "jsonl=PATH", "hf=ID"}
    sources |= {f"{name}=PATH" for name in SETS}
    assert {*FAMILIES, *LISTS} | sources == set(infos)
    assert infos["zoo"].conversations == len(load_tasks(limit=10_000).timing)
    assert infos["rag"].conversations == len(load_tasks("rag", limit=10_000).timing)


def test_every_zoo_conversation_can_be_scored() -> None:
    assert all(scorable(c) for c in load_tasks(limit=10_000).timing)


def test_timing_and_quality_passes_draw_different_conversations() -> None:
    tasks = load_tasks("qa,rag", limit=20, quality_limit=10)
    timed, scored = ({c.id for c in each} for each in (tasks.timing, tasks.quality))
    assert len(timed) == len(scored) == 20
    assert timed != scored
