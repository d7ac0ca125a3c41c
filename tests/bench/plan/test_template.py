"""Chat templates are rendered as transformers renders them, and within limits."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from bench.plan import template as templates
from bench.plan.template import (
    ChatTemplate,
    RenderError,
    TemplateEndless,
    chat_template,
    template_notes,
)
from bench.plan.tokenise import PromptEncoder
from decoders.core.hf.checkpoint import refusing_panics
from specbench_tasks.task import Conversation
from tests.command_line import bench
from tests.tiny_checkpoint import save_checkpoint

HI = [{"role": "user", "content": "Hi <b>ä"}]
TALK = [*HI, {"role": "assistant", "content": "So?"}, {"role": "user", "content": "More"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
SAY = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}"


def made(text: str, **values: Any) -> ChatTemplate:
    return ChatTemplate(text=text, tokens=TOKENS, **values)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<unk>": 0, "<s>": 1, "</s>": 2}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, "<unk>")), bos_token="<s>",
        eos_token="</s>", unk_token="<unk>",
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        SAY,
        "{%- for m in messages %}\n  <{{ m.role }}>{{ m['content'] | trim }}\n{%- endfor %}\n!",
        "{{ messages | tojson }}{{ messages | tojson(indent=1) }}",
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }}{% generation %}{{ eos_token }}{% endgeneration %}",
        "{% if add_generation_prompt %}<a>{% endif %}{{ enable_thinking }}{{ tools is none }}",
        "{{ strftime_now('%d %b %Y') }}",
    ],
)
def test_templates_are_rendered_as_by_transformers(text: str, tokenizer: Any) -> None:
    tokenizer.chat_template = text
    found = chat_template(tokenizer, {"enable_thinking": False}, None)
    assert found is not None
    for messages in (HI, TALK):
        theirs = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        assert found.render(messages) == theirs


def test_a_started_answer_continues_inside_the_last_message() -> None:
    closing = made("{% for m in messages %}<{{ m['content'] }}>{% endfor %}!")
    started = [*HI, {"role": "assistant", "content": "So far"}]
    assert closing.render(started, ask=False, go_on=True) == "<Hi <b>ä><So far"
    assert closing.render(started, ask=False) == "<Hi <b>ä><So far>!"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{{ 1/0 }}", "ZeroDivisionError: division by zero"),
        ("{{ range(10**9) | list }}", "OverflowError: Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ 'a' * 10**11 }}", "MemoryError"),
        ("{% if", "unexpected 'end of template'"),
        ("{{ raise_exception('no system role') }}", "^no system role$"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute"),
    ],
)
def test_a_failing_template_raises_a_render_error_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(RenderError, match=reason):
        made(text).render(HI)


def test_a_template_with_too_long_an_output_is_refused(monkeypatch: Any) -> None:
    with pytest.raises(RenderError, match="at most 50,000,000 are allowed"):
        made("{% for i in range(60000) %}{{ 'aaaaaaaaaa' * 100 }}{% endfor %}").render(HI)


def test_an_endless_template_is_stopped_and_the_next_template_is_rendered(monkeypatch: Any) -> None:
    loops = "".join(f"{{% for {name} in range(99999) %}}" for name in "abc") + "{% endfor %}" * 3
    began = time.monotonic()
    with monkeypatch.context() as hurried:
        hurried.setattr(templates, "_CPU_S", 0)
        with pytest.raises(TemplateEndless, match="does not end"):
            made(loops).render(HI)
    assert time.monotonic() - began < 60
    assert made(SAY).render(HI) == "<s>Hi <b>ä"


def test_a_prompt_whose_template_fails_is_skipped_with_the_error_as_its_reason() -> None:
    asked = Conversation(id="c", family="qa", turns=("Hi",), references=(None,))

    class Plain:
        chat_template, bos_token_id = "yes", None

        def encode(self, text: str, **_: Any) -> list[int]:
            return [*text.encode()]

    def encoder(text: str) -> PromptEncoder:
        plain: Any = Plain()
        return PromptEncoder(plain, 100, "skip", chat=made(text))

    (prompt,), _ = encoder(SAY).prompts([asked], lambda _: [])
    assert prompt.ids == tuple(b"<s>Hi")
    _, (skipped,) = encoder("{{ 1/0 }}").prompts([asked], lambda _: [])
    assert skipped.reason == "the chat template refuses it: ZeroDivisionError: division by zero"


def test_the_date_is_fixed_and_recorded_only_if_the_template_uses_it() -> None:
    dated = made("{{ strftime_now('%d.%m.%Y %H:%M') }}", date="2026-03-01")
    assert dated.render(HI) == "01.03.2026 00:00"
    assert dated.facts["date"] == "2026-03-01"
    assert made(SAY, date="2026-03-01").facts["date"] is None


def test_draws_depend_on_the_seed_alone() -> None:
    drawn = made("{{ range(100000) | random }} {{ lipsum(n=1) }}")
    assert drawn.render(HI) == drawn.render(HI) != drawn.render(HI, seed=1)


def test_a_panic_of_the_tokenizer_becomes_an_error_of_one_line(tokenizer: Any) -> None:
    class PanicException(BaseException):
        pass

    with (
        pytest.raises(ValueError, match="its tokenizer fails: assertion failed: a b"),
        refusing_panics(),
    ):
        raise PanicException("assertion failed:\n a b")
    with pytest.raises(KeyboardInterrupt), refusing_panics():
        raise KeyboardInterrupt


def test_a_tokenizer_with_its_own_apply_chat_template_keeps_using_it(tokenizer: Any) -> None:
    class Own(type(tokenizer)):  # type: ignore[misc]
        def apply_chat_template(self, *_: Any, **__: Any) -> str:
            return "own"

    own = Own(tokenizer_object=tokenizer.backend_tokenizer, chat_template=SAY)
    assert chat_template(own, {}, None) is None
    assert template_notes(None, own, frozenset()) == []


def test_an_argument_that_no_prompt_depends_on_is_noted(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Hi"}\n')
    model = save_checkpoint(tmp_path / "tiny")
    job: Any = ("--model", model, "--tasks", file, "--decoders", "lookup")
    job += ("--no-compile", "--no-self-check", "--max-new-tokens", 2, "--dry-run")
    noted = bench("run", *job, "--template-args", "enable_thinking=false").err
    assert "target: no prompt depends on enable_thinking of --template-args" in noted
    assert "--template-args" not in bench("run", *job).err
