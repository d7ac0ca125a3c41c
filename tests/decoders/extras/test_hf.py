"""`hf`: the loops of transformers, on tiny modules."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.plan.select import built_in_cells
from decoders.ar import Autoregressive
from decoders.core.checks import (
    DISTRIBUTION_ALPHA,
    Check,
    check_budget_and_eos,
    check_decoder,
    check_distribution,
    check_draws,
    check_greedy_equals_ar,
    check_perfect_drafts_are_accepted,
    check_steps_concatenate,
    checks_for,
)
from decoders.core.engine.models import Models, check_models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from decoders.core.testing.check_models import table_draws, tables
from decoders.core.types import Generation, Sampling, StepEvent
from decoders.extras.hf import Transformers
from decoders.lookup import PromptLookup
from decoders.spec import Speculative
from tests.tiny_models import VOCAB, fresh, slot_adapter

KINDS = ["generate", "assisted", "lookup", "early-exit"]
DRAFTING = KINDS[1:]
SHORT = Sampling(max_new_tokens=9)
PROMPTS = [[3, 4, 5, 3, 4], [7], [9, 8, 7, 6, 5, 4, 3]]

# A whole answer of a drafting loop takes 10 ms, and the distribution wants 3,000: fewer below. And
# transformers does not treat drafts and target alike above temperature 0: see further below.
SET_APART = (check_distribution, check_perfect_drafts_are_accepted)
ESSENTIAL = (check_steps_concatenate, check_budget_and_eos, check_greedy_equals_ar)
"""What every loop is held to by default, and `lookup` to everything."""
CASES = [
    pytest.param(
        kind,
        check,
        id=f"{kind}-{check.__name__}",
        marks=() if kind == "lookup" or check in ESSENTIAL else pytest.mark.slow,
    )
    for kind in DRAFTING
    for check in checks_for(build(parse_spec(f"hf:kind={kind}")))
    if check not in SET_APART
]


def hf(options: str = "") -> Transformers:
    decoder = build(parse_spec(f"hf{options}"))
    assert isinstance(decoder, Transformers)
    return decoder


def tiny_models(name: str = "llama", **options: Any) -> Models:
    """A target, and a draft that is its copy but for some noise."""
    target, draft = fresh(name), fresh(name)
    generator = torch.Generator().manual_seed(5)
    for parameter in draft.parameters():
        parameter.data += 0.01 * torch.randn(parameter.shape, generator=generator)
    return Models(target=HFModel(target, **options), draft=HFModel(draft, **options))


def answers(
    decoder: Any, models: Models, sampling: Sampling, batch_size: int = 1
) -> list[Generation]:
    outcomes = Scheduler(decoder, models, sampling, batch_size).run(PROMPTS)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return [outcome for outcome in outcomes if isinstance(outcome, Generation)]


# ---------------------------------------------------------------- the contract


@pytest.mark.parametrize(("kind", "check"), CASES)
def test_a_drafting_loop_meets_the_contract(kind: str, check: Check) -> None:
    check(hf(f":kind={kind}"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["assisted"])
def test_a_drafting_loop_follows_the_targets_distribution(kind: str) -> None:
    draws = table_draws(hf(f":kind={kind}"), 300)
    draws.draw(0, 64)
    assert draws.fits[-1].p_value > DISTRIBUTION_ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAFTING)
def test_many_draws_of_a_drafting_loop_follow_the_targets_distribution(kind: str) -> None:
    check_draws(table_draws(hf(f":kind={kind}"), 3000), kind)


def perfectly_drafted(temperature: float) -> list[StepEvent]:
    """All steps but the last of answers whose draft model is the target's equal."""
    decoder, steps = hf(":kind=assisted"), list[StepEvent]()
    models = tables(decoder, agreement=1.0)
    for seed in range(6):
        sampling = Sampling(temperature=temperature, max_new_tokens=24, seed=seed)
        steps += generate(decoder, [1, 2, 3], sampling, models).steps[:-1]
    return steps


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_perfect_drafts_are_all_accepted(temperature: float) -> None:
    steps = perfectly_drafted(temperature)
    assert all(step.drafted for step in steps)
    assert all(step.accepted == step.drafted for step in steps)


def test_transformers_warps_drafts_twice_at_temperatures_other_than_1() -> None:
    # Its assistant is given the target's warpers, and makes the same ones again: the output is the
    # target's still, but a perfect draft falls. Where this fails it was mended: check it then.
    steps = perfectly_drafted(0.6)
    assert any(step.accepted < step.drafted for step in steps)


# ---------------------------------------------------------------- ids


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    [*itertools.product(["llama", "qwen2-window"], KINDS), *[("gpt2", k) for k in KINDS[:3]]],
)
def test_greedy_ids_equal_ars(name: str, kind: str) -> None:
    models, sampling = tiny_models(name), Sampling(max_new_tokens=20, stop_ids=frozenset({11}))
    exits = ":exit_layer=1" if kind == "early-exit" else ""
    expected = [answer.tokens for answer in answers(Autoregressive(), models, sampling)]
    for batch_size in (1, 3):
        given = answers(hf(f":kind={kind}{exits}"), models, sampling, batch_size)
        assert [answer.tokens for answer in given] == expected


def test_the_models_generation_config_is_ignored() -> None:
    models, sampling = tiny_models(), Sampling(max_new_tokens=20)
    expected = answers(Autoregressive(), models, sampling)
    for model in (models.target, models.draft):
        assert isinstance(model, HFModel)
        config = model.module.generation_config
        config.eos_token_id, config.repetition_penalty = [t for t in range(VOCAB) if t % 2], 3.0
        config.min_new_tokens, config.suppress_tokens = 2, list(range(40))
        config.num_assistant_tokens_schedule, config.do_sample = "heuristic", True
    for kind in ("generate", "assisted", "lookup"):
        given = answers(hf(f":kind={kind}"), models, sampling)
        assert [answer.tokens for answer in given] == [answer.tokens for answer in expected]


def test_sampled_answers_repeat_for_a_seed_and_differ_between_seeds() -> None:
    models = tiny_models()

    def sampled(seed: int) -> list[tuple[int, ...]]:
        sampling = Sampling(temperature=1.0, max_new_tokens=20, seed=seed)
        return [answer.tokens for answer in answers(hf(), models, sampling, 3)]

    assert sampled(1) == sampled(1)
    assert all(one != other for one, other in zip(sampled(1), sampled(2), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("warped", [{"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}])
def test_temperature_top_k_and_top_p_of_the_sampling_are_applied(warped: dict) -> None:
    # each of them leaves the likeliest token alone
    models = tiny_models()
    sampling = Sampling(**{"temperature": 1.0, "max_new_tokens": 20, **warped})
    expected = answers(Autoregressive(), models, Sampling(max_new_tokens=20))
    for kind in ("generate", "assisted", "lookup"):
        given = answers(hf(f":kind={kind}"), models, sampling)
        assert [answer.tokens for answer in given] == [answer.tokens for answer in expected]


# ---------------------------------------------------------------- counts and steps


@pytest.mark.parametrize("batch_size", [1, 3])
def test_each_token_is_one_step_of_one_call_and_padding_is_not_counted_as_rows(
    batch_size: int,
) -> None:
    sampling = Sampling(max_new_tokens=30, stop_ids=frozenset({11}))
    given = answers(hf(), tiny_models(), sampling, batch_size)
    for prompt, answer in zip(PROMPTS, given, strict=True):
        assert [len(step.tokens) for step in answer.steps] == [1] * len(answer.tokens)
        assert [step.target_calls for step in answer.steps] == [1] * len(answer.tokens)
        rows = [step.target_rows for step in answer.steps]
        assert rows == [len(prompt)] + [1] * (len(answer.tokens) - 1)
        assert not any(step.drafted or step.draft_calls for step in answer.steps)


@pytest.mark.parametrize("kind", DRAFTING)
def test_counted_calls_and_rows_equal_those_that_the_models_ran(kind: str) -> None:
    models = tiny_models()
    exits = ":exit_layer=1" if kind == "early-exit" else ""
    decoder = hf(f":kind={kind}{exits}")
    ran = {"target": [0, 0], "draft": [0, 0]}

    def watch(role: str, model: Any) -> Any:
        def hook(module: Any, _args: Any, named: Any) -> None:
            if "input_ids" not in named:  # the trial whether it stops early at all
                return
            few = module.config.num_hidden_layers < 2
            counted = ran["draft" if few else role]
            counted[0] += 1
            counted[1] += named["input_ids"].numel()

        module = model.library_module
        return module.register_forward_pre_hook(hook, with_kwargs=True)

    watch("target", models.target)
    watch("draft", models.draft)
    given = answers(decoder, models, Sampling(max_new_tokens=30))
    steps = [step for answer in given for step in answer.steps]
    counts = [(s.target_calls, s.target_rows, s.draft_calls, s.draft_rows) for s in steps]
    assert [sum(column) for column in zip(*counts, strict=True)] == [*ran["target"], *ran["draft"]]
    assert bool(ran["draft"][0]) == (kind != "lookup")
    assert sum(step.drafted for step in steps) > 0


@pytest.mark.parametrize("k", [1, 3])
def test_drafts_are_counted_from_the_rows_of_the_verifying_call(k: int) -> None:
    given = answers(hf(f":kind=assisted:k={k}"), tiny_models(), Sampling(max_new_tokens=30))
    num_fallen = 0
    for prompt, answer in zip(PROMPTS, given, strict=True):
        first, *later = answer.steps
        assert first.drafted == first.target_rows - len(prompt) == k
        for step in later:
            assert step.drafted == step.target_rows - 1 <= k
        for step in answer.steps:
            assert len(step.tokens) == step.accepted + 1 or step is answer.steps[-1]
            num_fallen += len(step.rejected)
            if step.rejected and len(step.tokens) > step.accepted:
                assert step.rejected[0] != step.tokens[step.accepted]
    assert num_fallen > 0


def test_tokens_are_reported_while_the_loop_runs() -> None:
    models = tiny_models()
    passes: list[None] = []
    seen: list[tuple[int, int]] = []
    models.target.library_module.register_forward_pre_hook(lambda *_: passes.append(None))
    scheduler = Scheduler(hf(), models, Sampling(max_new_tokens=8))
    scheduler.run([PROMPTS[0]], on_emit=lambda _, number: seen.append((number, len(passes))))
    assert seen == [(number, number + 1) for number in range(8)]


# ---------------------------------------------------------------- settings


class Captured(Exception):
    """What `generate` was given."""


def captured(decoder: Any, models: Models, sampling: Sampling) -> dict[str, Any]:
    module = models.target.library_module
    given: dict[str, Any] = {}

    def generate_instead(**named: Any) -> None:
        given.update(named, own=module.generation_config)
        raise Captured

    module.generate = generate_instead
    (outcome,) = Scheduler(decoder, models, sampling).run([[3, 4]])
    assert isinstance(outcome, Captured)
    return given


def test_the_assistant_drafts_as_many_tokens_as_spec_at_any_confidence() -> None:
    given = captured(hf(":kind=assisted"), tiny_models(), Sampling(max_new_tokens=9))
    settings = given["assistant_model"].generation_config
    assert settings.num_assistant_tokens == Speculative().k
    assert settings.num_assistant_tokens_schedule == "constant"
    assert settings.assistant_confidence_threshold == 0


def test_the_recorded_options_include_defaults_and_rebuild_the_decoder() -> None:
    assisted, lookup = hf(":kind=assisted"), hf(":kind=lookup")
    assert assisted.k == Speculative().k
    assert (assisted.schedule, assisted.confidence) == ("constant", 0)
    assert (lookup.k, lookup.n) == (PromptLookup().k, PromptLookup().n)
    for decoder in (hf(), assisted, lookup, hf(":kind=early-exit:exit_layer=3")):
        options = {name: str(value) for name, value in vars(decoder).items()}
        assert hf("".join(f":{name}={value}" for name, value in options.items())) == decoder


def test_options_set_the_assistants_draft_length_schedule_and_confidence() -> None:
    own = ":kind=assisted:k=20:confidence=0.4:schedule=heuristic_transient"
    settings = captured(hf(own), tiny_models(), SHORT)["assistant_model"].generation_config
    assert settings.num_assistant_tokens == 20
    assert settings.num_assistant_tokens_schedule == "heuristic_transient"
    assert settings.assistant_confidence_threshold == 0.4


def test_options_of_lookup_and_early_exit_reach_the_generation_config() -> None:
    config = captured(hf(":kind=lookup:k=7:n=2"), tiny_models(), SHORT)["generation_config"]
    assert (config.prompt_lookup_num_tokens, config.max_matching_ngram_size) == (7, 2)
    models = tiny_models()
    given = captured(hf(":kind=early-exit:exit_layer=1:k=6"), models, SHORT)
    assert given["generation_config"].assistant_early_exit == 1
    assert given["own"].num_assistant_tokens == 6


def test_the_sampling_is_passed_on_and_top_k_is_off() -> None:
    sampling = Sampling(temperature=0.7, top_p=0.9, max_new_tokens=9, stop_ids=frozenset({5, 3}))
    config = captured(hf(), tiny_models(), sampling)["generation_config"]
    assert (config.do_sample, config.temperature, config.top_p, config.top_k) == (True, 0.7, 0.9, 0)
    assert (config.max_new_tokens, config.eos_token_id) == (9, [3, 5])
    assert captured(hf(), tiny_models(), SHORT)["generation_config"].do_sample is False


def test_a_model_that_names_its_exit_layer_needs_no_option() -> None:
    models = tiny_models()
    models.target.library_module.config.exit_layer = 1
    check_models(hf(":kind=early-exit"), models, "hf")
    given = captured(hf(":kind=early-exit"), models, SHORT)
    assert given["generation_config"].assistant_early_exit == 1


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (":k=3", "'k' of decoder 'hf' is 3, but it belongs to kind=assisted or kind=lookup"),
        (":kind=lookup:custom=x.py", "belongs to kind=generate, not to kind=lookup"),
        (":function=mine", "'function' of decoder 'hf' is mine; it must be left out"),
        (":kind=lookup:confidence=0.5", "belongs to kind=assisted or kind=early-exit"),
        (":kind=assisted:k=-1", "'k' of decoder 'hf' is -1; it must be 0 (default) or above"),
        (":kind=assisted:confidence=2", "it must be from 0 (off) to 1"),
        (":kind=beam", "allowed: generate, assisted, lookup, early-exit"),
    ],
)
def test_invalid_or_incompatible_options_are_refused_in_one_line(options: str, line: str) -> None:
    with pytest.raises(ValueError, match="hf") as refused:
        hf(options)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_assisted_generation_without_a_draft_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'hf' needs a draft model, but none was given; pass"):
        Scheduler(hf(":kind=assisted"), Models(target=tables(hf()).target), Sampling())


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("", r"trained exit layer, but this model's config\.json names none \(exit_layer\)"),
        (":exit_layer=2", "exit_layer=2: fewer layers must draft than the model has, and it has 2"),
    ],
)
def test_a_missing_or_too_high_exit_layer_is_refused(options: str, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        Scheduler(hf(f":kind=early-exit{options}"), tiny_models(), Sampling())


@pytest.mark.parametrize("number", [0, 1])
def test_a_model_of_one_layer_has_no_layer_to_exit_from(number: int) -> None:
    models = tiny_models()
    models.target.library_module.config.num_hidden_layers = 1
    line = f"exit_layer={number}: fewer layers must draft than the model has, and it has 1"
    with pytest.raises(ValueError, match=line):
        Scheduler(hf(f":kind=early-exit:exit_layer={number}"), models, Sampling())


def test_early_exit_is_refused_if_transformers_always_runs_all_layers_of_the_model() -> None:
    with pytest.raises(ValueError, match="cannot run on GPT2LMHeadModel: in transformers its body"):
        Scheduler(hf(":kind=early-exit:exit_layer=1"), tiny_models("gpt2"), SHORT)


def test_an_early_exit_that_is_interrupted_leaves_all_layers_to_the_next_answer() -> None:
    models = tiny_models()
    passes: list[None] = []

    def interrupt(*_: object) -> None:
        passes.append(None)
        if len(passes) == 2:  # inside of a draft
            raise ArithmeticError

    hook = models.target.library_module.register_forward_pre_hook(interrupt)
    scheduler = Scheduler(hf(":kind=early-exit:exit_layer=1"), models, SHORT)
    (outcome,) = scheduler.run(PROMPTS[:1])
    assert isinstance(outcome, ArithmeticError)
    hook.remove()
    expected = generate(Autoregressive(), PROMPTS[0], SHORT, models).tokens
    assert generate(hf(), PROMPTS[0], SHORT, models).tokens == expected


def test_hf_is_not_among_the_default_cells() -> None:
    assert "hf" not in built_in_cells()


# ---------------------------------------------------------------- the module


def test_the_library_module_runs_as_loaded_without_our_hooks_and_wrappers() -> None:
    plain = fresh("llama")
    model = HFModel(fresh("llama", "sdpa"))
    model.attach("late", slot_adapter(model.module, enter=1))
    module = model.library_module
    ids = torch.tensor([[3, 4, 5, 6]])
    assert torch.equal(module(ids).logits, plain(ids).logits)
    assert module is model.library_module
    assert all(parameter.is_contiguous() for parameter in module.parameters())
    assert not any("forward" in vars(part) for part in module.modules())
    assert not any(part._forward_pre_hooks for part in module.modules())
    shared = module.get_input_embeddings().weight
    assert shared.data_ptr() == model.module.get_input_embeddings().weight.data_ptr()


def test_tied_weights_stay_tied() -> None:
    module = HFModel(fresh("llama-gqa", "sdpa")).library_module
    assert module.get_output_embeddings().weight is module.get_input_embeddings().weight


def test_a_target_that_drafts_for_itself_accepts_all_drafts() -> None:
    model = tiny_models().target
    models, sampling = Models(target=model, draft=model), Sampling(max_new_tokens=30)
    models.reserve(2, 40)
    steps = generate(hf(":kind=assisted"), PROMPTS[0], sampling, models).steps
    assert [(s.drafted, s.accepted, s.target_calls) for s in steps[:-1]] == [(4, 4, 1)] * 5
    assert all(step.draft_calls for step in steps[:-1])


# ---------------------------------------------------------------- custom loops

_LOOP = """
import torch

def generate(model, input_ids, **given):
    ids, last = input_ids, given["generation_config"].max_length
    while ids.shape[1] < last:
        logits = model(ids).logits[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        ASK
    return ids
"""
ASKING = _LOOP.replace("ASK", "given['stopping_criteria'](ids, None)")
SILENT = _LOOP.replace("ASK", "pass")


def custom_file(folder: Path, text: str) -> str:
    file = folder / "loop.py"
    file.write_text(text, encoding="utf-8")
    return str(file)


def test_a_custom_loop_in_a_file_runs_as_a_decoder_with_one_step_per_token(tmp_path: Path) -> None:
    models, sampling = tiny_models(), Sampling(max_new_tokens=12)
    expected = answers(Autoregressive(), models, sampling)
    given = answers(hf(f":custom={custom_file(tmp_path, ASKING)}"), models, sampling, 2)
    for prompt, answer, ar in zip(PROMPTS, given, expected, strict=True):
        assert answer.tokens == ar.tokens
        assert [len(step.tokens) for step in answer.steps] == [1] * 12
        # it has no cache
        assert [s.target_rows for s in answer.steps] == [len(prompt) + n for n in range(12)]


def test_a_custom_loop_that_checks_no_stopping_criterion_counts_as_one_step(tmp_path: Path) -> None:
    models, sampling = tiny_models(), Sampling(max_new_tokens=12)
    (answer, *_) = answers(hf(f":custom={custom_file(tmp_path, SILENT)}"), models, sampling)
    assert [len(step.tokens) for step in answer.steps] == [12]
    assert answer.steps[0].target_calls == 12


def test_a_custom_loop_in_a_folder_runs_as_transformers_would_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = tmp_path / "modules"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(modules))
    folder = tmp_path / "mine"
    (folder / "custom_generate").mkdir(parents=True)
    # there it has what generate() was given, and prepares all by itself
    last = 'input_ids.shape[1] + given["generation_config"].max_new_tokens'
    text = SILENT.replace('given["generation_config"].max_length', last)
    assert last in text
    (folder / "custom_generate" / "generate.py").write_text(text, encoding="utf-8")
    models, sampling = tiny_models(), Sampling(max_new_tokens=12)
    given = answers(hf(f":custom={folder}"), models, sampling)
    expected = answers(Autoregressive(), models, sampling)
    assert [answer.tokens for answer in given] == [answer.tokens for answer in expected]


def test_code_in_a_model_folder_is_never_executed(tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    fresh("llama").save_pretrained(tmp_path / "model")
    code = tmp_path / "model" / "custom_generate"
    code.mkdir()
    text = f"open({str(trace)!r}, 'w')\n\ndef generate(**_): ...\n"
    (code / "generate.py").write_text(text, encoding="utf-8")
    model = HFModel.load(tmp_path / "model", dtype=torch.float32, device="cpu")
    generate(hf(), [3, 4], Sampling(max_new_tokens=3), Models(target=model))
    assert not trace.exists()


@pytest.mark.slow
def test_a_custom_loop_has_no_guarantee_and_is_not_batched(tmp_path: Path) -> None:
    decoder = hf(f":custom={custom_file(tmp_path, ASKING)}")
    assert not decoder.lossless
    assert not decoder.batches
    check_decoder(decoder)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("def generate(model, input_ids, **_): return input_ids[:, 1:]", "begin with its prompt"),
        ("def generate(model, input_ids, **_): return 'text'", "begin with its prompt"),
        ("def generate(model, input_ids, **_): return input_ids", "returned before EOS or budget"),
        (
            "def generate(model, input_ids, **_): return input_ids.repeat(1, 40)",
            "without a forward pass of the target",
        ),
    ],
)
def test_a_custom_loop_with_an_invalid_result_fails_with_one_line(
    tmp_path: Path, text: str, line: str
) -> None:
    decoder = hf(f":custom={custom_file(tmp_path, text)}")
    with pytest.raises((ValueError, RuntimeError), match=line):
        generate(decoder, [3, 4, 5], Sampling(max_new_tokens=12), tiny_models())


@pytest.mark.parametrize(
    ("text", "function", "line"),
    [
        (None, "generate", r"is neither a Python file nor a folder with custom_generate/gen"),
        ("x = 1", "generate", r"has no function 'generate'; name one: function="),
        ("x = 1", "x", r"has no function 'x'"),
        ("raise SystemExit(3)", "generate", r"cannot be loaded: SystemExit: 3"),
        ("def mine(: pass", "mine", r"cannot be loaded: SyntaxError"),
    ],
)
def test_an_invalid_custom_loop_is_refused_in_one_line(
    tmp_path: Path, text: str | None, function: str, line: str
) -> None:
    path = str(tmp_path / "none.py") if text is None else custom_file(tmp_path, text)
    with pytest.raises(ValueError, match=line) as refused:
        check_models(hf(f":custom={path}:function={function}"), tiny_models(), "hf")
    assert "\n" not in str(refused.value)


def test_a_file_that_was_changed_is_loaded_again(tmp_path: Path) -> None:
    models, sampling = tiny_models(), Sampling(max_new_tokens=12)
    decoder = hf(f":custom={custom_file(tmp_path, SILENT)}")
    assert len(answers(decoder, models, sampling)[0].steps) == 1
    file = Path(custom_file(tmp_path, ASKING))
    os.utime(file, ns=(0, 0))
    assert len(answers(decoder, models, sampling)[0].steps) == 12


def test_a_folder_without_a_custom_loop_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no custom_generate/generate\.py"):
        check_models(hf(f":custom={tmp_path}"), tiny_models(), "hf")
