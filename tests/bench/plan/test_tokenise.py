"""Prompts: one template, one BOS, frozen histories, nothing left out in silence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError

from bench.errors import UsageError
from bench.plan.make import tokenise
from bench.plan.select import choose_decoders
from bench.plan.tokenise import (
    PromptEncoder,
    count_lines,
    max_prompt_tokens,
    to_length,
)
from bench.records.prompts import Prompt, SkippedTurn, ids_hash
from bench.settings.config import load_config
from specbench_tasks.task import Conversation, GoldAnswer

SHARED = Path(__file__).resolve().parents[3].parent / "shared"
STORIES = SHARED / "models" / "stories260K"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{ raise_exception('no system role') }}{% endif %}<{{ m['role'] }}>{{ m['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


class Letters:
    """One id per character; BOS is id 0, written ``^`` in a text."""

    def __init__(
        self, *, template: bool = False, bos_token_id: int | None = 0, adds_bos: bool = False
    ) -> None:
        self.chat_template = "yes" if template else None
        self.bos_token_id = bos_token_id
        self.adds_bos = adds_bos
        self.texts: list[str] = []

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert not tokenize
        assert add_generation_prompt
        if any("{{" in message["content"] for message in conversation):
            raise TemplateError("braces")
        return "^" + "".join(f"[{m['role'][0]}:{m['content']}]" for m in conversation)

    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool) -> list[int]:
        assert not verbose
        self.texts.append(text)
        ids = [0 if letter == "^" else ord(letter) for letter in text]
        return [0, *ids] if add_special_tokens and self.adds_bos else ids


LETTERS: Any = Letters()


def conversation(*turns: str, id: str = "c", system: str | None = None) -> Conversation:
    references = tuple(GoldAnswer(answers=(turn.upper(),)) for turn in turns)
    return Conversation(id=id, family="qa", turns=turns, references=references, system=system)


def build(
    *conversations: Conversation,
    tokenizer: Any = None,
    max_prompt_tokens: int = 1000,
    overlong: Any = "skip",
) -> tuple[list[Prompt], list[SkippedTurn]]:
    return PromptEncoder(
        tokenizer or LETTERS, max_prompt_tokens=max_prompt_tokens, overlong=overlong
    ).prompts(conversations, lambda prompts: [f" answer to {p.name} " for p in prompts])


def text(prompt: Prompt) -> str:
    return "".join("^" if i == 0 else chr(i) for i in prompt.ids)


def test_a_model_without_template_gets_plain_turns_joined_by_newlines() -> None:
    prompts, skipped = build(conversation("Hi", "More", system="Be brief."))
    assert [text(p) for p in prompts] == ["Be brief.\nHi", "Be brief.\nHi\nanswer to c#1\nMore"]
    assert [p.name for p in prompts] == ["c#1", "c#2"]
    assert [p.reference and p.reference.answers for p in prompts] == [("HI",), ("MORE",)]
    assert skipped == []


def test_the_chat_template_is_applied_exactly_once_with_the_frozen_answer_in_it() -> None:
    tokenizer = Letters(template=True, adds_bos=True)
    prompts, _ = build(conversation("Hi", "More", system="S"), tokenizer=tokenizer)
    assert [text(p) for p in prompts] == ["^[s:S][u:Hi]", "^[s:S][u:Hi][a:answer to c#1][u:More]"]
    assert len(tokenizer.texts) == 3  # every prompt is tokenised once, and the answer
    assert [p.num_kept for p in prompts] == [0, len("^[s:S][u:Hi]")]


def test_a_token_that_the_model_does_not_know_is_refused_before_any_answer() -> None:
    def build_for(vocab_size: int) -> list[Prompt]:
        return PromptEncoder(
            LETTERS, max_prompt_tokens=99, overlong="skip", vocab_size=vocab_size
        ).prompts(
            [conversation("Hi", "z"), conversation("Hé", id="d")],
            lambda prompts: ["" for _ in prompts],
        )[0]

    assert len(build_for(ord("é") + 1)) == 3
    line = rf"prompt d#1 has token id {ord('é')}, but the model has {ord('é')} tokens: its folder"
    with pytest.raises(ValueError, match=line):
        build_for(ord("é"))


def test_no_special_token_is_added_to_the_output_of_a_chat_template() -> None:
    class Bare(Letters):
        """Its template writes no BOS, which its tokenizer would add."""

        def apply_chat_template(self, *arguments: Any, **options: Any) -> str:
            return super().apply_chat_template(*arguments, **options).removeprefix("^")

    (prompt,), _ = build(conversation("Hi"), tokenizer=Bare(template=True, adds_bos=True))
    assert text(prompt) == "[u:Hi]"


def test_a_doubled_bos_is_dropped_and_a_single_one_kept() -> None:
    (typed,), _ = build(conversation("^Hi"), tokenizer=Letters(adds_bos=True))
    assert text(typed) == "^Hi"
    (plain,), _ = build(conversation("Hi"), tokenizer=Letters(adds_bos=True))
    assert text(plain) == "^Hi"


def test_an_empty_prompt_is_the_bos_alone_or_skipped_with_a_reason() -> None:
    (prompt,), _ = build(conversation(""))
    assert prompt.ids == (0,)
    prompts, (skipped,) = build(conversation(""), tokenizer=Letters(bos_token_id=None))
    assert prompts == []
    assert "no BOS" in skipped.reason


def test_an_overlong_prompt_is_skipped_with_its_length_and_so_are_the_later_turns() -> None:
    prompts, skipped = build(
        conversation("x" * 30, "later", id="long"), conversation("ok", id="ok"), max_prompt_tokens=9
    )
    assert [p.name for p in prompts] == ["ok#1"]
    assert [s.name for s in skipped] == ["long#1", "long#2"]
    assert skipped[0].reason == "30 tokens; at most 9 leave room for the answer"
    assert skipped[1].reason == "an earlier turn was skipped or not answered"


def test_only_the_second_turn_is_skipped_where_the_history_makes_it_too_long() -> None:
    prompts, skipped = build(conversation("Hi", "More"), max_prompt_tokens=9)
    assert [p.name for p in prompts] == ["c#1"]
    assert [s.name for s in skipped] == ["c#2"]


def test_truncation_keeps_the_end_and_the_bos_and_counts_the_cut_tokens() -> None:
    (prompt,), skipped = build(
        conversation("abcdefgh"),
        tokenizer=Letters(adds_bos=True),
        max_prompt_tokens=4,
        overlong="truncate",
    )
    assert text(prompt) == "^fgh"
    assert (len(prompt.ids), prompt.num_cut, skipped) == (4, 5, [])
    (plain,), _ = build(conversation("abcdefgh"), max_prompt_tokens=4, overlong="truncate")
    assert (text(plain), plain.num_cut) == ("efgh", 4)
    (last,), _ = build(
        conversation("abcdefgh"),
        tokenizer=Letters(adds_bos=True),
        max_prompt_tokens=1,
        overlong="truncate",
    )
    assert (text(last), last.num_cut) == ("h", 8), "a BOS alone would ask nothing"


@pytest.mark.parametrize("overlong", ["skip", "truncate"])
def test_a_prompt_that_just_fits_is_left_alone(overlong: str) -> None:
    (prompt,), _ = build(conversation("abcd"), max_prompt_tokens=4, overlong=overlong)
    assert (text(prompt), prompt.num_cut) == ("abcd", 0)


def test_a_fixed_prompt_length_must_leave_room_for_the_answer() -> None:
    def limit(num: int | None) -> int:
        config = load_config(None, {"max_new_tokens": 30, "prompt_tokens": num})
        return max_prompt_tokens(config, context=40)

    assert limit(None) == limit(2) == limit(10) == 10
    for num in (1, 11):
        with pytest.raises(UsageError, match="of 40 has room for 2 to 10"):
            limit(num)


def test_prompts_of_a_fixed_length_are_cut_even_if_the_context_is_shorter(
    small: Any, opener: Any
) -> None:
    setup = opener(choose_decoders(small(prompt_tokens=8), lambda _: None), max_length=30)
    prompts, skipped = tokenise(setup, [conversation("x" * 90, "y"), conversation("ok", id="ok")])
    assert [len(prompt.ids) for prompt in prompts] == [8, 8, 8]
    assert not skipped


def test_skipped_and_cut_prompts_are_counted_in_one_line() -> None:
    prompts, skipped = build(conversation("x" * 30, id="long"), conversation("ok"),
                             max_prompt_tokens=9)  # fmt: skip
    assert count_lines(prompts, skipped) == [
        "1 of 2 prompts skipped (qa 1): e.g. long#1: 30 tokens; at most 9 leave room for the answer"
    ]
    prompts, skipped = build(conversation("x" * 30), max_prompt_tokens=9, overlong="truncate")
    assert count_lines(prompts, skipped) == [
        "1 of 1 prompts were cut at the beginning (up to 21 tokens cut)"
    ]
    assert count_lines(*build(conversation("ok"))) == []


def test_the_baseline_answers_once_per_turn_and_only_where_a_conversation_continues() -> None:
    asked: list[list[str]] = []

    def answer(prompts: list[Prompt]) -> list[str]:
        asked.append([p.name for p in prompts])
        return ["yes"] * len(prompts)

    prompts, _ = PromptEncoder(LETTERS, max_prompt_tokens=99, overlong="skip").prompts(
        [
            conversation("a", id="one"),
            conversation("a", "b", id="two"),
            conversation("a", "b", "c", id="three"),
        ],
        answer,
    )
    assert asked == [["two#1", "three#1"], ["three#2"]]
    assert [p.name for p in prompts] == ["one#1", "two#1", "two#2", "three#1", "three#2", "three#3"]
    assert text(prompts[-1]) == "a\nyes\nb\nyes\nc"


def test_an_answer_in_the_data_becomes_the_history_without_a_call_of_the_baseline() -> None:
    asked: list[str] = []

    def answer(prompts: list[Prompt]) -> list[str]:
        asked.extend(p.name for p in prompts)
        return ["own"] * len(prompts)

    given = replace(conversation("a", "b", "c"), replies=("\nGiven ", None, "last"))
    prompts, _ = PromptEncoder(LETTERS, max_prompt_tokens=99, overlong="skip").prompts(
        [given], answer
    )
    assert asked == ["c#2"]
    assert [text(p) for p in prompts] == ["a", "a\n\nGiven \nb", "a\n\nGiven \nb\nown\nc"]
    # a cache holds the turn before, and the answer that was generated to it, not the given one
    assert [p.num_kept for p in prompts] == [0, len("a"), len("a\n\nGiven \nb")]


def test_the_cached_prefix_of_a_later_turn_ends_before_the_last_token_of_the_answer() -> None:
    encoder = PromptEncoder(LETTERS, 99, "skip", template=lambda texts: "|".join([*texts, ""]))
    prompts, _ = encoder.prompts([conversation("a", "b")], lambda asked: ["yes"] * len(asked))
    assert [text(p) for p in prompts] == ["a|", "a|yes|b|"]
    assert [p.num_kept for p in prompts] == [0, len("a|ye")]


def test_a_template_that_refuses_a_conversation_skips_it_visibly() -> None:
    prompts, (skipped,) = build(conversation("{{"), tokenizer=Letters(template=True))
    assert prompts == []
    assert skipped.reason == "the chat template refuses it: braces"


def test_the_hash_of_a_prompt_depends_only_on_its_ids() -> None:
    (first, second, third), _ = build(
        conversation("ab", id="1"), conversation("ab", id="2"), conversation("ba", id="3")
    )
    assert first.hash == second.hash == ids_hash(first.ids) != third.hash
    assert len(first.hash) == 16
    assert ids_hash([1, 23]) != ids_hash([12, 3])
    assert ids_hash([1, 2, 3]) == "8a6ae15122001229"  # golden: two versions must agree


# ---------------------------------------------------------------- real tokenizers


def test_a_transformers_tokenizer_with_template_gets_one_bos() -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers, processors

    words = ["<s>", "<unk>", "<", ">", "user", "assistant", "Hi", "More", "yes"]
    backend = Backend(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Punctuation()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", unk_token="<unk>"
    )
    tokenizer.chat_template = TEMPLATE
    assert tokenizer.encode("Hi")[0] == 0  # it adds a BOS by itself, and the template another
    prompts, skipped = PromptEncoder(tokenizer, max_prompt_tokens=99, overlong="skip").prompts(
        [conversation("Hi", "More"), conversation("Hi", id="s", system="S")], lambda _: ["yes"]
    )
    spelled = [" ".join(words[i] for i in p.ids) for p in prompts]
    assert spelled[0] == "<s> < user > Hi < assistant >"
    assert spelled[1] == "<s> < user > Hi < assistant > yes < user > More < assistant >"
    assert [(s.name, s.reason) for s in skipped] == [
        ("s#1", "the chat template refuses it: no system role")
    ]


@pytest.mark.skipif(not STORIES.is_dir(), reason="needs models/stories260K")
def test_stories260k_has_no_template_and_starts_from_its_bos() -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(STORIES))
    prompts, _ = build(
        conversation("", id="empty"), conversation("Once upon a time", id="story"),
        conversation("x " * 900, id="long"), tokenizer=tokenizer, max_prompt_tokens=256,
        overlong="truncate",
    )  # fmt: skip
    assert prompts[0].ids == (1,)
    assert tokenizer.decode(prompts[1].ids) == "Once upon a time"
    assert len(prompts[2].ids) == 256


def prompt_of(name: str, *ids: int) -> Prompt:
    return Prompt(
        conversation=name, turn=1, family="qa", ids=ids, hash=ids_hash(ids), reference=None
    )


def test_prompts_get_one_length_by_filling_or_cutting_before_their_question() -> None:
    prompts = [prompt_of("a", 0, 1, 2), prompt_of("b", 0, 3, 4, 5, 6), prompt_of("c", 0, 7)]
    made = to_length(prompts, 4, bos=0)
    assert [p.ids for p in made] == [(0, 6, 1, 2), (0, 4, 5, 6), (0, 1, 2, 7)]
    assert [p.num_cut for p in made] == [0, 1, 0]
    assert [p.hash for p in made] == [ids_hash(p.ids) for p in made]
    assert [p.conversation for p in made] == ["a", "b", "c"]
    # around all prompts and on, and without a BOS every id is text
    (long, _) = to_length([prompt_of("a", 0, 1), prompt_of("b", 2)], 7, bos=None)
    assert long.ids == (1, 2, 0, 1, 2, 0, 1)
    empty = [prompt_of("a", 0)]
    assert to_length(empty, 4, bos=0) == empty


def test_tokens_cut_earlier_and_tokens_cut_for_a_fixed_length_are_counted_together() -> None:
    (prompt,) = to_length([replace(prompt_of("a", 1, 2, 3, 4, 5), num_cut=7)], 3, None)
    assert (prompt.ids, prompt.num_cut) == ((3, 4, 5), 7 + 2)


def test_a_prompt_is_not_filled_with_text_that_contains_its_answer() -> None:
    first, other = prompt_of("a", 0, 1), prompt_of("b", 0, 9)
    later = replace(prompt_of("a", 0, 1, 7, 2), turn=2)  # 7 is the answer to the first turn
    assert [p.ids for p in to_length([first, later, other], 4, bos=0)] == [
        (0, 1, 9, 1),
        (0, 1, 7, 2),
        (0, 9, 1, 9),
    ]
