"""Sources of training rows: the zoo, files, datasets, and completions of a tiny teacher."""

from __future__ import annotations

import copy
import itertools
import json
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import generate
from decoders.core.hf.model import HFModel, load_tokenizer, stop_ids
from specbench_tasks import generators
from specbench_tasks.task import FAMILIES
from tests.specbench_tasks.published import write_csv
from training.text.completions import (
    Completion,
    CompletionPlan,
    Teacher,
    _beginning,
    _sample,
    sampled_rows,
)
from training.text.data import Encoder, PoolSource, Row, row_hash
from training.text.documents import cut_rows, first_prompt, read_documents
from training.text.sources import Source, ZooSource, build_source

ROOT = Path(__file__).parents[3]
STORIES = ROOT.parent / "shared" / "models" / "stories260K"
QUESTIONS = ROOT.parent / "shared" / "data" / "spec_bench" / "question.jsonl"
WORDS = ("red", "old", "warm", "big", "new", "small", "green", "young")
CHATML = (
    "{%- for m in messages -%}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor -%}{%- if add_generation_prompt -%}<|im_start|>assistant\n{% endif -%}"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(ROOT / "zoo" / "target")


@pytest.fixture(scope="module")
def encoder(tokenizer: Any) -> Encoder:
    return Encoder(tokenizer)


@pytest.fixture
def plain(tokenizer: Any) -> Any:
    """The tokenizer without its chat template."""
    without = copy.deepcopy(tokenizer)
    without.chat_template = None
    return without


@pytest.fixture(scope="module")
def module() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return LlamaForCausalLM(config)


@pytest.fixture
def teacher(module: Any) -> Teacher:
    return Teacher(name="tiny", open=lambda: HFModel(module))


ENDS = SimpleNamespace(bos_token_id=1, eos_token_id=2)
"""All that completions ask a tokenizer for."""


def lines_of(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def pool(rows: list[Row], num: int = 6, seed: int = 3) -> PoolSource:
    return PoolSource(rows, kind="text", name="pool", rows_per_step=num, seed=seed)


def given(tokenizer: Any, path: Path | str, **options: Any) -> PoolSource:
    section = {"kind": "text", "path": str(path), "max_tokens": 90, **options}
    found = build_source(section, tokenizer=tokenizer, max_length=512, folder=Path("unused"))
    assert isinstance(found, PoolSource)
    return found


def numbered(num: int) -> list[Row]:
    return [Row([7, index, index + 1], [False, True, True]) for index in range(num)]


def texts(num: int) -> list[str]:
    return [" ".join(WORDS[(i * j + j) % 8] for j in range(2, 9)) + f" {i}" for i in range(num)]


def same(left: list[Row], right: list[Row]) -> bool:
    return [(r.ids, r.learn) for r in left] == [(r.ids, r.learn) for r in right]


# ---------------------------------------------------------------- pool


def test_the_rows_of_a_step_depend_only_on_seed_and_step() -> None:
    walked, jumped = pool(numbered(40)), pool(numbered(40))
    steps = [walked.rows(step) for step in range(20)]
    assert same(jumped.rows(17), steps[17])
    assert same(jumped.rows(2), steps[2])
    assert not same(pool(numbered(40), seed=4).rows(2), steps[2])


def test_every_row_occurs_once_per_epoch_and_epochs_differ_in_order() -> None:
    source = pool(numbered(40), num=5)
    size = len(source._training)
    dealt = [row.ids[1] for step in range(2 * size) for row in source.rows(step)][: 3 * size]
    rounds = [dealt[start : start + size] for start in range(0, 3 * size, size)]
    assert all(len(set(each)) == size for each in rounds)
    assert rounds[0] != rounds[1]


def test_a_step_larger_than_the_pool_repeats_its_rows() -> None:
    source = pool(numbered(8), num=11)
    assert len(source.rows(0)) == 11
    assert len(source._training) == 4


def test_a_twentieth_of_the_rows_is_held_out_by_hash_and_never_trained_on() -> None:
    rows = numbered(2000)
    source = pool([*rows, *rows], num=500)
    held = source.held_out(10**6)
    dealt = {row_hash(row) for step in range(8) for row in source.rows(step)}
    assert 60 < len(held) < 140
    assert len(dealt) + len(held) == 2000
    assert not dealt & {row_hash(row) for row in held}
    assert same(source.held_out(3), held[:3])
    later = pool([*numbered(1500), *rows], num=1)
    assert same(later.held_out(10**6), held), "what else is in the pool does not matter"


@pytest.mark.parametrize("num", [8, 9, 30])
def test_small_pools_hold_out_a_few_rows_and_train_on_the_rest(num: int) -> None:
    source = pool(numbered(num))
    assert 4 <= len(source._held_out) <= num // 2
    assert len(source._training) + len(source._held_out) == num


def test_rows_without_trained_tokens_are_left_out() -> None:
    source = pool([*numbered(9), Row([1, 2], [True, False]), Row([5], [True])])
    assert len(source._training) + len(source._held_out) == 9
    assert source.digest == pool(numbered(9)).digest


def test_the_content_hash_depends_on_token_ids_and_on_the_positions_to_learn() -> None:
    rows = numbered(9)
    other_ids = [*rows[:-1], Row([7, 8, 8], [False, True, True])]
    other_learn = [*rows[:-1], Row(rows[-1].ids, [False, False, True])]
    hashes = [pool(each).digest for each in (rows, numbered(9), other_ids, other_learn)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_too_few_rows_are_an_error() -> None:
    with pytest.raises(ValueError, match="pool gives 7 different rows to learn from; at least 8"):
        pool(numbered(7) * 3)
    with pytest.raises(ValueError, match="rows_per_step is 0"):
        pool(numbered(9), num=0)


# ---------------------------------------------------------------- zoo


def test_the_zoo_source_trains_on_one_split_and_holds_out_the_other(encoder: Encoder) -> None:
    source: Source = ZooSource(encoder, {**dict.fromkeys(FAMILIES, 2), "qa": 0}, seed=3)
    again = ZooSource(encoder, {**dict.fromkeys(FAMILIES, 2), "qa": 0}, seed=3)
    assert len(source.rows(4)) == 10
    assert same(source.rows(4), again.rows(4))
    assert not same(source.rows(4), source.rows(5))
    held = source.held_out(13)
    assert len(held) == 13
    assert same(held[:5], source.held_out(5))
    held_families = [f for f in FAMILIES if f != "qa"]
    for family, row in zip(itertools.cycle(held_families), held[:5], strict=False):
        (example,) = itertools.islice(generators.generate(family, "test", 31_337), 1)
        assert row.ids == encoder.row(example).ids
    assert source.digest == again.digest != ZooSource(encoder, {"qa": 2}, 3).digest


def test_a_zoo_source_of_unknown_families_or_no_rows_is_an_error(encoder: Encoder) -> None:
    with pytest.raises(ValueError, match="unknown family 'poems' in counts; use mt_bench"):
        ZooSource(encoder, {"poems": 1}, 0)
    for counts in ({}, {"qa": 0}, {"qa": -1}):
        with pytest.raises(ValueError, match="not all 0"):
            ZooSource(encoder, counts, 0)


# ---------------------------------------------------------------- texts


def test_the_rows_of_a_document_decode_to_the_whole_document(plain: Any) -> None:
    text = "\n".join(texts(40))
    rows = cut_rows(text, plain, 50)
    assert plain.decode([token for row in rows for token in row.ids]) == text
    assert {len(row.ids) for row in rows[:-1]} == {50}
    assert all(row.learn == [False] + [True] * (len(row.ids) - 1) for row in rows)


def test_a_long_document_is_encoded_in_blocks_of_lines(
    plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(texts(40))
    whole = cut_rows(text, plain, 10**6)
    monkeypatch.setattr("training.text.documents.BLOCK_CHARACTERS", 100)
    blocks = cut_rows(text, plain, 10**6)
    assert plain.decode(blocks[0].ids) == plain.decode(whole[0].ids) == text


def test_every_row_of_a_document_starts_with_the_tokenizers_special_tokens(plain: Any) -> None:
    class Opened:
        chat_template, bos_token_id = None, 9

        def encode(self, text: str, add_special_tokens: bool = True, **_: Any) -> list[int]:
            ids: list[int] = plain.encode(text, add_special_tokens=False)
            return [9, *ids] if add_special_tokens else ids

    text = "\n".join(texts(10))
    rows = cut_rows(text, Opened(), 20)
    assert all(row.ids[0] == 9 and not row.learn[0] and len(row.ids) <= 20 for row in rows)
    assert plain.decode([token for row in rows for token in row.ids[1:]]) == text
    assert first_prompt("red", Opened())[0] == 9


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_is_encoded_like_an_example_of_the_zoo(
    family: str, tokenizer: Any, encoder: Encoder
) -> None:
    for example in itertools.islice(generators.generate(family, "train", 8), 5):
        said = zip(example.turns, example.responses, strict=True)
        messages = [
            {"role": role, "content": text}
            for pair in said
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ]
        (row,) = cut_rows(messages, tokenizer, 1024)
        assert row == encoder.row(example)
        assert first_prompt(messages, tokenizer) == row.ids[: row.learn.index(True)]


def chat(*texts: str) -> list[dict[str, str]]:
    roles = itertools.cycle(("user", "assistant"))
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


def learnt(row: Row, tokenizer: Any) -> str:
    text: str = tokenizer.decode([i for i, yes in zip(row.ids, row.learn, strict=True) if yes])
    return text


def test_an_answer_without_an_end_token_is_learnt_up_to_the_next_turn(plain: Any) -> None:
    plain.chat_template = CHATML
    (row,) = cut_rows(chat("red", "old warm", "big", "new"), plain, 400)
    assert learnt(row, plain) == "old warm<|im_end|>\nnew<|im_end|>\n"


def test_a_template_that_rewrites_the_past_still_shows_the_answers(plain: Any) -> None:
    """As reasoning models do: the generation prompt and the last answer alone hold a thought."""
    plain.chat_template = (
        "{%- for m in messages -%}{%- if m['role'] == 'user' -%}<|user|> {{ m['content'] }}"
        "{%- else -%}<|assistant|>{{ ' hm' if loop.last else '' }} {{ m['content'] }}<|end|>"
        "{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}<|assistant|> think{%- endif -%}"
    )
    (row,) = cut_rows(chat("red", "old warm", "big", "new"), plain, 400)
    assert learnt(row, plain) == " old warm<|end|> hm new<|end|>"


def test_a_conversation_that_is_too_long_is_cut_at_its_end(tokenizer: Any) -> None:
    (whole,) = cut_rows(chat("red old", "warm big new"), tokenizer, 400)
    (cut,) = cut_rows(chat("red old", "warm big new"), tokenizer, 6)
    assert cut == Row(whole.ids[:6], whole.learn[:6])


def test_without_a_template_or_an_answer_all_but_the_first_token_is_learnt(
    tokenizer: Any, plain: Any
) -> None:
    (row,) = cut_rows(chat("red", "old"), plain, 400)
    assert learnt(row, plain) == plain.decode(row.ids[1:])
    assert plain.decode(row.ids) == "red\nold"
    (row,) = cut_rows(chat("red"), tokenizer, 400)
    assert row.learn == [False] + [True] * (len(row.ids) - 1)


def test_a_prompt_is_the_text_before_the_first_answer(plain: Any, tokenizer: Any) -> None:
    assert plain.decode(first_prompt("red old", plain)) == "red old"
    assert plain.decode(first_prompt(chat("red", "old", "warm"), plain)) == "red"
    assert (
        tokenizer.decode(first_prompt(chat("red", "old"), tokenizer)) == "<|user|> red<|assistant|>"
    )


# ---------------------------------------------------------------- files and datasets


def test_all_formats_of_a_conversation_give_the_same_rows(tokenizer: Any, tmp_path: Path) -> None:
    pairs = [(text, text[::-1]) for text in texts(12)]
    spellings: dict[str, list[dict[str, Any]]] = {
        "messages": [{"messages": chat(*pair)} for pair in pairs],
        "sharegpt": [
            {"conversations": [{"from": "human", "value": a}, {"from": "gpt", "value": b}], "id": 3}
            for a, b in pairs
        ],
        "parts": [
            {"messages": [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in talk]}
            for talk in (chat(*pair) for pair in pairs)
        ],
        "table": [{"messages": json.dumps(chat(*pair))} for pair in pairs],
    }
    sources = {}
    for name, records in spellings.items():
        path = tmp_path / f"{name}.{'csv' if name == 'table' else 'jsonl'}"
        (write_csv if name == "table" else lines_of)(path, records)
        sources[name] = given(tokenizer, path)
    assert len({source.digest for source in sources.values()}) == 1
    assert len(sources["messages"]._training) + 4 == 12


def test_a_text_file_is_one_document(plain: Any, tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(texts(60)), encoding="utf-8")
    source = given(plain, path, max_tokens=32, rows_per_step=3, seed=1)
    assert source.kind == "text"
    assert len(source.rows(9)) == 3
    assert all(len(row.ids) <= 32 for row in source.rows(9))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"body": "x"}, r"line 2: none of messages, conversations, text in it; it has body$"),
        ({}, "it has nothing"),
        ({"text": 3}, "text is 3; it must be a text"),
        ({"messages": []}, r"messages is \[\]; it must be a list of objects with role"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "role and content, both texts"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "line 2: the chat template refuses"),
    ],
)
def test_a_line_without_usable_text_is_refused(
    line: dict[str, Any], message: str, tokenizer: Any, tmp_path: Path
) -> None:
    path = lines_of(tmp_path / "odd.jsonl", [{"text": "red"}, line])
    with pytest.raises(ValueError, match=message) as caught:
        given(tokenizer, path, max_tokens=9)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "a.txt is empty; give"),
        ("a.txt", b" \n\n", "a.txt is empty; give"),
        ("a.jsonl", b"", "holds no rows"),
        ("a.txt", b"red old", "a.txt gives 1 different rows to learn from; at least 8"),
        ("a.txt", b"\xff\xfe\xfa", "is not UTF-8 text"),
        ("a.bin", b"red old", "is none of JSONL, a JSON list"),
        ("missing.txt", None, "cannot read .*No such file"),
        ("missing.jsonl", None, "no file"),
    ],
)
def test_an_unusable_file_is_refused_in_one_line(
    name: str, content: bytes | None, message: str, plain: Any, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        given(plain, tmp_path / name, max_tokens=9)
    assert "\n" not in str(caught.value)


@pytest.fixture
def hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let `datasets` keep its tables under tmp_path, without progress bars."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "tables"))
    datasets.disable_progress_bars()
    return tmp_path


def test_a_dataset_gives_the_rows_of_the_same_file(hub_cache: Path, tokenizer: Any) -> None:
    import pandas as pd

    records = [{"messages": chat(text, text[::-1])} for text in texts(14)]
    folder = hub_cache / "talk"
    folder.mkdir()
    pd.DataFrame(records).to_parquet(folder / "train.parquet")
    path = lines_of(hub_cache / "talk.jsonl", records)
    wanted = given(tokenizer, path)
    for place in (folder, path):
        source = given(tokenizer, place, kind="dataset")
        assert source.digest == wanted.digest
        assert same(source.rows(3), wanted.rows(3))
    fewer = given(tokenizer, folder, kind="dataset", limit=9)
    assert len(fewer._training) + len(fewer._held_out) == 9
    with pytest.raises(ValueError, match="has no split 'dev'; it has train"):
        given(tokenizer, folder, kind="dataset", split="dev")
    pd.DataFrame({"talk": texts(14)}).to_parquet(folder / "train.parquet")
    with pytest.raises(ValueError, match="row 0: none of messages, conversations, text in it"):
        given(tokenizer, folder, kind="dataset", max_tokens=9)


def test_an_unreachable_hub_is_reported_in_one_line(
    hub_cache: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        ValueError, match=r"cannot reach the Hugging Face hub.*local copy$"
    ) as caught:
        given(tokenizer, "nobody/never-cached-anything", kind="dataset", max_tokens=9)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- completions


def ask(teacher: Teacher, folder: Path, **values: Any) -> list[Completion]:
    prompts = values.pop("prompts", [(1,)])
    plan = CompletionPlan(
        **{"num_completions": 12, "max_new_tokens": 10, "batch_size": 5, **values}
    )
    return _sample(teacher, ENDS, prompts, plan, folder)


def test_equal_prompts_get_different_texts_and_equal_settings_reproduce_the_texts(
    teacher: Teacher, tmp_path: Path
) -> None:
    found = ask(teacher, tmp_path / "a")
    assert len({completion.tokens for completion in found}) == 12
    assert ask(teacher, tmp_path / "b") == found
    one_by_one = ask(teacher, tmp_path / "c", batch_size=1)
    assert one_by_one == found


def test_first_tokens_follow_the_teachers_distribution(
    module: Any, teacher: Teacher, tmp_path: Path
) -> None:
    num = 1500
    found = ask(teacher, tmp_path, num_completions=num, max_new_tokens=1, batch_size=300)
    counts = torch.bincount(torch.tensor([c.tokens[0] for c in found]), minlength=60)
    with torch.no_grad():
        distribution = torch.softmax(module(torch.tensor([[1]])).logits[0, -1].double(), -1)
    expected = num * distribution
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    assert chi_square < 59 + 5 * (2 * 59) ** 0.5


def test_greedy_completions_equal_the_teachers_greedy_answers(
    module: Any, teacher: Teacher, tmp_path: Path
) -> None:
    found = ask(teacher, tmp_path, temperatures=(0.0, 1.0), max_new_tokens=11)
    greedy = [completion for completion in found if completion.temperature == 0]
    assert len(greedy) == 6
    assert greedy[0].prompt == (1,)
    sampled = [(*c.prompt, *c.tokens) for c in found if c.temperature > 0]
    model = HFModel(module)
    for number, completion in enumerate(greedy):
        assert completion.prompt in [text[: len(completion.prompt)] for text in sampled]
        sampling = CompletionPlan(max_new_tokens=6 if number else 11).sampling(
            0.0,
            stop_ids(model, ENDS),  # type: ignore[arg-type]
        )
        alone = generate(Autoregressive(), completion.prompt, sampling, Models(target=model))
        assert alone.tokens == completion.tokens
    assert len({completion.prompt for completion in greedy}) > 3


def test_beginnings_are_up_to_half_of_a_completion_and_end_before_its_stop_token() -> None:
    sampled = [
        Completion(number=0, temperature=1.0, prompt=(1,), tokens=(*range(5, 5 + length), 2))
        for length in (1, 3, 30)
    ]
    plan = CompletionPlan(max_new_tokens=10)
    found = [_beginning(sampled, plan, number) for number in range(200)]
    assert {*found} == {(1, *range(5, 5 + length)) for length in range(1, 6)}


def test_every_prompt_is_sampled_at_all_temperatures_in_turn(
    teacher: Teacher, tmp_path: Path
) -> None:
    prompts = [(1, 5), (1, 6)]
    found = ask(teacher, tmp_path, prompts=prompts, temperatures=(0.5, 1.0), num_completions=8)
    met = sorted((c.prompt, c.temperature) for c in found)
    assert met == [(p, t) for p in prompts for t in (0.5, 0.5, 1.0, 1.0)]
    few = ask(teacher, tmp_path, prompts=prompts, temperatures=(0.5, 1.0), num_completions=2)
    assert [c.temperature for c in few] == [0.5, 1.0], "not all at the first one"


def test_a_stop_token_ends_a_completion_and_is_learnt(teacher: Teacher, tmp_path: Path) -> None:
    found = ask(teacher, tmp_path, num_completions=150, max_new_tokens=20, batch_size=50)
    stopped = [completion for completion in found if 2 in completion.tokens]
    assert 0 < len(stopped) < 150
    for completion in stopped:
        assert completion.tokens.index(2) == len(completion.tokens) - 1
        row = completion.row(tempered=False)
        assert row.ids[-1] == 2
        assert row.learn == [False] + [True] * len(completion.tokens)


def test_completions_are_sampled_once_and_a_changed_setting_samples_anew(
    teacher: Teacher, tmp_path: Path
) -> None:
    def refuse() -> HFModel:
        raise AssertionError("the model was opened")

    found = ask(teacher, tmp_path)
    kept = Teacher(name="tiny", open=refuse)
    assert ask(kept, tmp_path) == found
    assert ask(kept, tmp_path, batch_size=2) == found
    changed: list[dict[str, Any]] = [
        {"seed": 1},
        {"top_p": 0.9},
        {"temperatures": (0.7,)},
        {"max_new_tokens": 9},
        {"num_completions": 13},
        {"prompts": [(1, 5)]},
    ]
    for values in changed:
        with pytest.raises(AssertionError, match="was opened"):
            ask(kept, tmp_path, **values)
    with pytest.raises(AssertionError, match="was opened"):
        ask(Teacher(name="other", open=refuse), tmp_path)


def test_seed_and_top_p_decide_the_texts(teacher: Teacher, tmp_path: Path) -> None:
    found = [each.tokens for each in ask(teacher, tmp_path)]
    assert [each.tokens for each in ask(teacher, tmp_path, seed=1)] != found
    assert len({each.tokens for each in ask(teacher, tmp_path, top_p=0.001)}) == 1


def test_an_interrupted_sampling_resumes_where_it_stopped(
    teacher: Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = CompletionPlan(
        num_completions=12, max_new_tokens=10, temperatures=(0.0, 1.0), batch_size=4
    )
    whole = _sample(teacher, ENDS, [(1,)], plan, tmp_path / "whole")

    written: list[int] = []
    line, most = Completion.line, [5]

    def counted(completion: Completion) -> str:
        if len(written) == most[0]:
            raise KeyboardInterrupt
        written.append(completion.number)
        return line(completion)

    monkeypatch.setattr(Completion, "line", counted)
    with pytest.raises(KeyboardInterrupt):
        _sample(teacher, ENDS, [(1,)], plan, tmp_path / "parts")
    (file,) = (tmp_path / "parts").iterdir()
    assert len(file.read_text().splitlines()) == 5
    file.write_text(file.read_text() + '{"number":5,"temp')
    most[0] = 100
    assert _sample(teacher, ENDS, [(1,)], plan, tmp_path / "parts") == whole
    assert len(written) == 5 + 5 + 7  # sampled, written again without the torn line, sampled
    assert sorted(written[5:]) == list(range(12))


def test_only_the_first_worker_samples_and_further_workers_wait(
    teacher: Teacher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ask(teacher, tmp_path / "alone")
    waiting: list[list[Completion]] = []

    def wait() -> None:
        with monkeypatch.context() as first:
            first.setattr("training.text.completions.worker", lambda: (0, 1))
            first.setattr("training.text.completions.wait_for_all", lambda: None)
            waiting.append(ask(teacher, tmp_path / "group"))

    monkeypatch.setattr("training.text.completions.worker", lambda: (1, 2))
    monkeypatch.setattr("training.text.completions.wait_for_all", wait)
    never = Teacher(name="tiny", open=lambda: pytest.fail("opened by the second worker"))
    assert ask(never, tmp_path / "group") == wanted
    assert waiting == [wanted]


def test_greedy_completions_alone_cannot_outnumber_their_prompts(
    teacher: Teacher, tmp_path: Path
) -> None:
    with pytest.raises(
        ValueError, match="each of 1 prompts has one text, and num_completions is 2"
    ):
        ask(teacher, tmp_path, temperatures=(0.0,), num_completions=2)
    prompts = [(1, 5), (1, 6)]
    found = ask(teacher, tmp_path, temperatures=(0.0,), num_completions=2, prompts=prompts)
    assert [completion.prompt for completion in found] == prompts


def test_an_on_policy_source_learns_completions_and_not_prompts(
    teacher: Teacher, tmp_path: Path
) -> None:
    prompts = [[1, 5, 6], [1, *range(7, 18)], [1] * 13]
    plan = CompletionPlan(num_completions=20, max_new_tokens=8)
    rows = sampled_rows(teacher, ENDS, plan, tmp_path, max_tokens=20, prompts=prompts)
    assert len(rows) == 20
    for row in rows:
        (prompt,) = [p for p in prompts if row.ids[: len(p)] == p]
        assert row.learn == [place >= len(prompt) for place in range(len(row.ids))]
    assert not any(row.ids[:13] == prompts[2] for row in rows)  # it leaves no room


# ---------------------------------------------------------------- recipes


def build(tokenizer: Any, folder: Path, teacher: Teacher | None = None, **section: Any) -> Source:
    return build_source(section, tokenizer=tokenizer, max_length=64, folder=folder, teacher=teacher)


def test_a_recipe_selects_its_source_by_kind(
    tokenizer: Any, encoder: Encoder, hub_cache: Path, module: Any
) -> None:
    path = lines_of(hub_cache / "talk.jsonl", [{"text": text} for text in texts(12)])
    zoo = build(tokenizer, hub_cache, kind="zoo", counts={"qa": 2}, seed=4)
    assert same(zoo.rows(1), ZooSource(encoder, {"qa": 2}, 4).rows(1))
    text = build(tokenizer, hub_cache, kind="text", path=str(path), rows_per_step=2, seed=5)
    table = build(tokenizer, hub_cache, kind="dataset", path=str(path), rows_per_step=2, seed=5)
    assert same(text.rows(1), table.rows(1))
    assert [zoo.kind, text.kind, table.kind] == ["zoo", "text", "dataset"]


def test_a_recipe_samples_from_bos_a_file_or_another_source(
    teacher: Teacher, plain: Any, tokenizer: Any, tmp_path: Path
) -> None:
    lines = tmp_path / "asked.txt"
    lines.write_text("a\n\nb\n", encoding="utf-8")
    letters = SimpleNamespace(
        **vars(ENDS),
        chat_template=None,
        encode=lambda text, **_: [ord(character) - 80 for character in text],
    )
    plan = {"num_completions": 16, "max_new_tokens": 6, "temperatures": [0.5, 1]}
    bos = build(letters, tmp_path, teacher, kind="on-policy", **plan)
    assert all(row.ids[0] == 1 and not row.learn[0] for row in bos.rows(0))
    asked = build(letters, tmp_path, teacher, kind="on-policy", prompts=str(lines), **plan)
    assert {row.ids[0] for row in asked.rows(0) + asked.held_out(9)} == {17, 18}


def test_prompts_can_come_from_a_task_file_of_bench_run(teacher: Teacher, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "a"},
        {"question": "b", "answer": "4"},
        {"turns": ["c", "d"]},
    ]
    file = lines_of(tmp_path / "my.jsonl", rows)
    letters = SimpleNamespace(
        **{**vars(ENDS), "bos_token_id": None},
        chat_template=None,
        encode=lambda text, **_: [ord(character) - 80 for character in text],
    )
    plan = {"num_completions": 16, "max_new_tokens": 6, "temperatures": [0.5, 1]}
    asked = build(letters, tmp_path, teacher, kind="on-policy", prompts=str(file), **plan)
    assert {row.ids[0] for row in asked.rows(0) + asked.held_out(9)} == {17, 18, 19}
    with pytest.raises(ValueError, match=r"none of messages, conversations, text in it; it has p"):
        build(letters, tmp_path, kind="text", path=str(file))


def test_a_template_that_writes_the_date_gives_the_same_rows_on_another_day(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Later:
            return cls(2099, 1, 28)

    dated = "{{ strftime_now('%d') }}" + tokenizer.chat_template
    monkeypatch.setattr(tokenizer, "chat_template", dated)
    rows = cut_rows(chat("red", "old"), tokenizer, 400)
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Later)
    assert cut_rows(chat("red", "old"), tokenizer, 400) == rows


def test_a_template_that_computes_nonsense_refuses_in_one_line(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "chat_template", "{{ 1 / 0 }}")
    with pytest.raises(ValueError, match="template refuses a conversation: ZeroDivisionError"):
        cut_rows(chat("red", "old"), tokenizer, 400)


def test_prompts_of_a_task_file_keep_their_system_text(tokenizer: Any, tmp_path: Path) -> None:
    system, user = ({"role": role, "content": f"red {role}"} for role in ("system", "user"))
    rows: list[dict[str, Any]] = [
        {"prompt": user["content"], "system": system["content"]},
        {"prompt": [system, user]},
        {"messages": [system, user]},
        {"problem": "red user", "answer": "4", "level": 1, "system": "red system"},
    ]
    use = partial(first_prompt, tokenizer=tokenizer)
    path = str(lines_of(tmp_path / "a.jsonl", rows))
    prompts = [*read_documents("text", use, path=path, prompts_only=True)]
    assert {tokenizer.decode(ids) for ids in prompts} == {
        "<|user|> red system red user<|assistant|>"
    }


def test_a_recipes_zoo_prompts_end_where_the_answer_begins(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def record(*given: Any, **options: Any) -> Any:
        seen.append({**options, "plan": given[2]})
        return numbered(12)

    monkeypatch.setattr("training.text.sources.sampled_rows", record)
    teacher = Teacher(name="zoo", open=lambda: pytest.fail("opened"))
    prompts = {"kind": "zoo", "counts": {"qa": 2, "rag": 1}}
    plan: dict[str, Any] = {"num_completions": 7, "max_new_tokens": 9, "top_p": 0.9}
    plan |= {"batch_size": 3, "seed": 2}
    options: dict[str, Any] = {**plan, "temperatures": 0.5, "prompts": prompts}
    made = build(tokenizer, tmp_path, teacher, kind="on-policy", **options)
    assert made.kind == "on-policy"
    asked = seen[0]["prompts"]
    assert len(asked) == 9
    assert {tokenizer.decode([ids[0], ids[-1]]) for ids in asked} == {"<|user|><|assistant|>"}
    assert seen[0]["plan"] == CompletionPlan(**plan, temperatures=(0.5,))
    assert seen[0]["max_tokens"] == 64
    build(tokenizer, tmp_path, teacher, kind="on-policy", **options, max_tokens=63)
    assert seen[1]["max_tokens"] == 63


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, r"kind is None in \[data\]; use one of zoo, text, dataset, on-policy"),
        ({"kind": ["zoo"]}, "use one of zoo"),
        ({"kind": "csv"}, "kind is 'csv'"),
        ({"kind": "text"}, "kind 'text' in .data. needs path"),
        (
            {"kind": "zoo"},
            r"kind 'zoo' in \[data\] needs counts, rows per step of each family, such",
        ),
        (
            {"kind": "text", "path": "a.txt", "split": "x"},
            "unknown option 'split' of text.*path",
        ),
        ({"kind": "text", "path": 3}, r"path is 3 in \[data\]; it must be a text"),
        ({"kind": "zoo", "counts": {"qa": 1}, "seed": True}, "seed is True"),
        (
            {"kind": "text", "path": "a.txt", "max_tokens": 65},
            "rows of 2 to 64 tokens",
        ),
        ({"kind": "text", "path": "a.jsonl"}, "no file"),
        ({"kind": "on-policy"}, "which is missing here"),
    ],
)
def test_an_invalid_data_section_is_refused_in_one_line(
    section: dict[str, Any], message: str, tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        build(tokenizer, tmp_path, **section)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperatures": []}, "temperatures are .*; give one or more different ones"),
        ({"temperatures": [1.0, 1]}, "different ones"),
        ({"temperatures": ["hot"]}, "give a number or a list of numbers"),
        ({"temperatures": -1}, "temperature is -1"),
        ({"top_p": 0}, "top_p is 0"),
        ({"num_completions": 0}, "num_completions is 0"),
        ({"max_new_tokens": 64}, "none of 1 prompts fits: max_tokens 64 .* leaves 0 tokens"),
        ({"prompts": {"kind": "on-policy"}}, "in prompts of .data.; use one of zoo, text, dataset"),
        ({"prompts": {"kind": "text", "path": "x", "seed": 1}}, "unknown option 'seed' of text"),
        ({"prompts": {"kind": "zoo", "counts": {"qa": 1}}}, "for models with the zoo's tokenizer"),
    ],
)
def test_an_invalid_on_policy_section_is_refused_in_one_line(
    options: dict[str, Any], message: str, teacher: Teacher, tmp_path: Path
) -> None:
    bare = SimpleNamespace(**vars(ENDS), get_vocab=dict)
    with pytest.raises(ValueError, match=message) as caught:
        build(bare, tmp_path, teacher, kind="on-policy", **{"max_new_tokens": 8, **options})
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_bos_needs_prompts(teacher: Teacher, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give prompts by --data on-policy=FILE"):
        build(SimpleNamespace(bos_token_id=None), tmp_path, teacher, kind="on-policy")


# ---------------------------------------------------------------- a real model


@pytest.mark.skipif(not STORIES.is_dir(), reason="../shared/models/stories260K is not there")
def test_a_pretrained_model_writes_its_own_training_stories(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(STORIES)
    teacher = Teacher(
        name="stories", open=lambda: HFModel.load(STORIES, dtype=torch.float32, device="cpu")
    )
    section = {
        "kind": "on-policy",
        "num_completions": 24,
        "max_new_tokens": 32,
        "temperatures": [0, 0.7],
        "batch_size": 24,
    }
    source = build_source(
        section, tokenizer=tokenizer, max_length=512, folder=tmp_path, teacher=teacher
    )
    stories = [str(tokenizer.decode(row.ids[1:])) for row in source.rows(0) + source.held_out(4)]
    assert sum(story.startswith("Once upon a time") for story in stories) > 10
    assert len(set(stories)) > 10


@pytest.mark.skipif(not (STORIES.is_dir() and QUESTIONS.is_file()), reason="../shared is not there")
def test_real_questions_become_prompts_of_a_real_tokenizer() -> None:
    use = partial(first_prompt, tokenizer=load_tokenizer(STORIES))
    prompts = [*read_documents("text", use, path=str(QUESTIONS), prompts_only=True)]
    assert len(prompts) == 480
    assert 0 < min(map(len, prompts)) < max(map(len, prompts)) < 9999
