"""Other engines on a run's prompts: what they are asked, what is counted, where it stands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.extras.external.table import ExternalAnswer, append_external, engine_sums, read_external
from bench.records.files import write_text
from bench.records.prompts import Prompt, ids_hash, write_prompts
from tests.bench.conftest import make_record, write_run
from tests.bench.extras.external.engines import END, LLM, Llama, install_llama, install_vllm
from tests.command_line import bench

BUDGET = 6
STORED = Path(__file__).parents[4] / "results" / "reference" / "cpu-smollm2"


def answer_to(ids: tuple[int, ...], budget: int = BUDGET) -> tuple[int, ...]:
    """Upwards from the last id, to the end token or the budget: by the definition."""
    return tuple(range(ids[-1] + 1, min(ids[-1] + budget, END) + 1))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of four prompts whose ar counts upwards too, but for one of them."""
    folder = write_run(tmp_path / "run", {"spec": 2.0}, conversations=3, repeats=1, quality=0)
    manifest = json.loads((folder / "manifest.json").read_text())
    prompts = []
    for number, planned in enumerate(manifest["prompts"]):
        ids = (3, 7, 40 + number * 16)
        planned |= {"hash": ids_hash(ids), "num_tokens": len(ids)}
        place = {name: planned[name] for name in ("conversation", "turn", "family")}
        prompts.append(Prompt(**place, ids=ids, hash=ids_hash(ids), reference=None))
    write_prompts(folder, prompts)
    write_text(folder / "manifest.json", json.dumps(manifest))
    lines = []
    for line in (folder / "samples.jsonl").read_text().splitlines():
        record = json.loads(line)
        name = f"{record['conversation']}#{record['turn']}"
        (prompt,) = (prompt for prompt in prompts if prompt.name == name)
        right = answer_to(prompt.ids)
        tokens = right if prompt is not prompts[1] else (*right[:-1], 1)
        steps = make_record(emitted=(1,) * len(tokens)).to_json()
        record |= {
            "prompt_hash": prompt.hash,
            "tokens": tokens,
            "steps": json.loads(steps)["steps"],
            "stop": "eos" if tokens[-1] == END else "length",
        }
        lines.append(json.dumps(record))
    write_text(folder / "samples.jsonl", "".join(line + "\n" for line in lines))
    write_text(folder / "config.toml", f"max_new_tokens = {BUDGET}\ntemperature = 0.0\n")
    return folder


def by_mode(run: Path) -> dict[str, list[ExternalAnswer]]:
    answers = read_external(run)
    return {mode: [a for a in answers if a.mode == mode] for mode in ("ar", "lookup")}


def asked(run: Path) -> list[tuple[int, ...]]:
    lines = (run / "prompts.jsonl").read_text().splitlines()
    return [tuple(json.loads(line)["ids"]) for line in lines]


def test_llama_cpp_answers_every_prompt_of_the_run_in_both_modes(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_llama(monkeypatch)
    done = bench("external", run, "--engine", "llamacpp", "--model", "m.gguf", "--drafts", 3)
    assert (done.code, done.err.count("Traceback")) == (0, 0), done.err
    answers = by_mode(run)
    for mode in answers.values():
        assert [answer.tokens for answer in mode] == [answer_to(ids) for ids in asked(run)]
        assert all((answer.total_s or 0) > 0 for answer in mode)
    assert [a.calls for a in answers["ar"]] == [len(a.tokens or ()) for a in answers["ar"]]
    assert {a.drafted for a in answers["ar"]} == {0}
    # of three drafts a call the first stands: 1 token, then 2 a call
    assert [a.calls for a in answers["lookup"]] == [4, 4, 4, 2]
    assert [a.drafted for a in answers["lookup"]] == [9, 9, 9, 3]
    assert [a.accepted for a in answers["lookup"]] == [3, 3, 3, 1]
    plain, drafting = Llama.made
    assert plain["draft_model"] is None
    assert not plain["logits_all"]
    assert drafting["logits_all"]
    assert drafting["n_ctx"] >= 3 + BUDGET + 3


def test_prompts_longer_than_a_batch_count_as_several_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bench.extras.external.engine import Settings
    from bench.extras.external.llamacpp import llamacpp

    install_llama(monkeypatch)
    request = Settings(
        model="m", budget=2, stop_ids=frozenset(), fixed_length=True, longest_prompt=9, threads=1
    )
    with llamacpp(3, 2).open(sys.modules["llama_cpp"], None, request) as answer:
        assert answer([1] * 8, 2).calls == 2
        assert answer([1] * 9, 2).calls == 3


@pytest.mark.parametrize("fixed", [False, True])
def test_the_end_token_ends_an_answer_and_is_kept_unless_the_length_is_fixed(
    fixed: bool, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = f"max_new_tokens = 60\nfixed_length = {str(fixed).lower()}\n"
    write_text(run / "config.toml", config)
    for engine, install in (("llamacpp", install_llama), ("vllm", install_vllm)):
        install(monkeypatch)
        assert bench("external", run, "--engine", engine, "--model", "m").code == 0
        for answer, ids in zip(by_mode(run)["ar"], asked(run), strict=False):
            assert answer.tokens is not None
            assert len(answer.tokens) == (60 if fixed else END - ids[-1])
            assert fixed or answer.tokens[-1] == END
        (run / "external.jsonl").unlink()


def test_vllm_receives_token_ids_and_its_counters_are_read_as_differences(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_vllm(monkeypatch)
    env = json.loads((run / "env.json").read_text()) | {"torch": {"threads": 2}}
    (run / "env.json").write_text(json.dumps(env))
    own = '{"method": "eagle3", "model": "E", "num_speculative_tokens": 3}'
    done = bench("external", run, "--engine", "vllm", "-m", "M", "--speculative", own)
    assert done.code == 0, done.err
    answers = read_external(run)
    assert [a.mode for a in answers] == ["ar"] * 4 + ["lookup"] * 4 + ["eagle3"] * 4
    assert [a.tokens for a in answers[:4]] == [answer_to(ids) for ids in asked(run)]
    assert [(a.calls, a.drafted, a.accepted) for a in answers[::4]] == [
        (6, 0, 0), (3, 30, 3), (3, 9, 3),
    ]  # fmt: skip
    configs = [options["speculative_config"] for options in LLM.made]
    assert configs[0] is None
    assert configs[1]["method"] == "ngram"
    assert configs[2] == json.loads(own)
    assert all(not options["enable_prefix_caching"] for options in LLM.made)
    assert LLM.num_open == 0
    assert {answer.threads for answer in answers} == {None}, "nothing sets vLLM's threads"


@pytest.mark.usefixtures("undrawn")
def test_the_report_has_a_separate_table_of_other_engines_without_speed_ups(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench("report", run)
    summary = (run / "summary.csv").read_bytes()
    assert "Other engines" not in (run / "report.md").read_text()
    install_llama(monkeypatch)
    assert bench("external", run, "--engine", "llamacpp", "-m", "folder/m.gguf").code == 0
    bench("report", run)
    assert (run / "summary.csv").read_bytes() == summary, "never among the run's decoders"
    report = (run / "report.md").read_text()
    table = report.split("## Other engines")[1].split("\n## ")[0]
    rows = [line for line in table.splitlines() if "(other engine)" in line]
    assert [row.split("|")[1].strip() for row in sorted(rows)] == [
        "llamacpp:ar (other engine)", "llamacpp:lookup (other engine)",
    ]  # fmt: skip
    assert all("75.0 (n = 4)" in row for row in rows), "ids of three of four prompts are ar's"
    assert "speed-up" not in table.splitlines()[2]
    assert "(other engine)" not in report.replace(table, "")
    assert "folder/" not in table
    assert "llamacpp:lookup (other engine)" in (run / "report.html").read_text()


def made_up(**values: Any) -> ExternalAnswer:
    given: dict[str, Any] = {
        "session": 0, "engine": "llamacpp", "version": "1", "mode": "ar", "options": {},
        "model": "m", "prompt": "c0#1", "prompt_hash": "h", "tokens": (1, 2, 3), "total_s": 2.0,
        "calls": 2, "drafted": 4, "accepted": 1,
    }  # fmt: skip
    return ExternalAnswer(**(given | values))


def test_rates_over_several_answers_are_ratios_of_totals() -> None:
    answers = [made_up(), made_up(prompt="c1#1", tokens=(1,), total_s=1.0, calls=3, drafted=1)]
    (sums,) = engine_sums(answers, [make_record("ar", tokens=(1, 2, 3), prompt_hash="h")])
    assert (sums.tokens_per_s, sums.tokens_per_call) == (pytest.approx(4 / 3), pytest.approx(4 / 5))
    assert sums.acceptance_rate == pytest.approx(2 / 5)
    assert (sums.compared, sums.identical, sums.prompts) == (1, 1.0, 2)
    assert engine_sums(answers[1:], [make_record()])[0].identical is None
    of_others = engine_sums(answers[:1], [make_record("spec", tokens=(1, 2, 3), prompt_hash="h")])
    assert of_others[0].identical is None, "ids are held against ar's alone"


def test_tokens_per_call_are_unknown_if_the_calls_of_one_answer_are_unknown() -> None:
    answers = [made_up(), made_up(prompt="c1#1", calls=None)]
    (sums,) = engine_sums(answers, [])
    assert sums.tokens_per_call is None
    assert sums.tokens_per_s == pytest.approx(6 / 4), "what is known is still summed"
    failed = made_up(prompt="c2#1", calls=None, tokens=None, error="x")
    (sums,) = engine_sums([answers[0], failed], [])
    assert sums.tokens_per_call == pytest.approx(3 / 2), "a failed answer made no tokens"


def test_the_newest_session_counts() -> None:
    older = [made_up(), made_up(prompt="c1#1")]
    newer = [made_up(session=1), made_up(session=1, prompt="c1#1", tokens=None, error="x")]
    (sums,) = engine_sums([*older, *newer], [])
    assert (sums.first.session, sums.prompts, sums.errors) == (1, 1, 1)


def test_a_failed_answer_is_stored_with_its_error_and_the_remaining_prompts_are_answered(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_llama(monkeypatch)
    evaluate, broken = Llama.eval, asked(run)[1]

    def failing(self: Llama, tokens: Any) -> None:
        if tuple(tokens) == broken:
            raise RuntimeError("llama_decode returned -3")
        evaluate(self, tokens)

    monkeypatch.setattr(Llama, "eval", failing)
    done = bench("external", run, "--engine", "llamacpp", "--model", "m.gguf")
    assert done.code == 1
    assert "2 answer(s) failed" in done.err
    answers = by_mode(run)["lookup"]
    told = [answer.error for answer in answers]
    assert told == [None, "RuntimeError: llama_decode returned -3", None, None]
    assert answers[1].tokens is answers[1].total_s is None


@pytest.mark.parametrize("engine", ["llamacpp", "vllm"])
def test_a_missing_engine_is_reported_in_one_line_with_the_extra_that_installs_it(
    engine: str, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, {"llamacpp": "llama_cpp"}.get(engine, engine), None)
    done = bench("external", run, "--engine", engine, "--model", "m.gguf")
    assert done.code == 5
    assert f"decoding-bench[{engine}]" in done.err
    assert done.err.count("\n") == 1
    assert not (run / "external.jsonl").exists()


def test_bad_input_is_refused_with_one_line(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_llama(monkeypatch)
    for arguments, code, said in (
        (["--drafts", 0], 2, "--drafts 0 is below 1"),
        ([], 2, "llamacpp cannot read the run's model 'zoo'"),
        (["--speculative", "{}"], 2, "--speculative is for --engine vllm"),
    ):
        done = bench("external", run, "--engine", "llamacpp", *arguments)
        assert (done.code, done.err.count("\n")) == (code, 1), done.err
        assert said in done.err
    done = bench("external", run, "--engine", "vllm", "-m", "M", "--speculative", "[1]")
    assert done.code == 2
    assert "not a JSON object" in done.err
    done = bench("external", STORED, "--engine", "llamacpp", "-m", "m.gguf")
    assert (done.code, "is a stored run" in done.err) == (2, True)
    assert "to measure again: bench run --config" in done.err
    for setting, said in (
        ("temperature = 0.7", "greedy"),
        ('law = "g.py:G"', "under --law g.py:G"),
    ):
        write_text(run / "config.toml", f"{setting}\n")
        done = bench("external", run, "--engine", "llamacpp", "-m", "m.gguf")
        assert done.code == 5
        assert said in done.err


def test_a_model_whose_vocabulary_is_too_small_for_the_prompts_is_refused(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_llama(monkeypatch)
    monkeypatch.setattr(Llama, "n_vocab", lambda self: 40)
    done = bench("external", run, "--engine", "llamacpp", "-m", "m.gguf")
    assert done.code == 5
    assert "has id 40, but this model has 40 tokens" in done.err


def test_answers_are_read_as_they_were_written_and_a_damaged_line_is_refused(
    tmp_path: Path,
) -> None:
    answers = (made_up(), made_up(options={"k": 3}, threads=2), made_up(tokens=None, error="no"))
    for answer in answers:
        append_external(tmp_path, answer)
    assert read_external(tmp_path) == answers
    path = tmp_path / "external.jsonl"
    path.write_text(path.read_text().replace('"session":0', '"session":"x"', 1))
    with pytest.raises(Exception, match=r"external.jsonl is damaged: its session"):
        read_external(tmp_path)


def next_scores(file: str, ids: list[int]) -> Any:
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(file, n_ctx=128, n_threads=1, logits_all=True, verbose=False)
    model.eval(ids)
    return model.scores[len(ids) - 1].copy()


def test_real_weights_of_smollm2_answer_through_llama_cpp(tmp_path: Path) -> None:
    module = pytest.importorskip("llama_cpp", reason="the extra [llamacpp] is not installed")
    from bench.extras.external.engine import Settings
    from bench.extras.external.llamacpp import llamacpp
    from bench.plan.sources import MODELS, package_file

    file = package_file(MODELS[0])
    if file is None:
        pytest.skip(f"no weights: {MODELS[0].install}")
    engine = llamacpp(num_drafts=4, ngram=2)
    text = "one two three four one two three four one two three"
    request = Settings(
        model=str(file), budget=24, stop_ids=frozenset({2}), fixed_length=False,
        longest_prompt=64, threads=1,
    )  # fmt: skip
    given = {}
    words = module.Llama(str(file), vocab_only=True, verbose=False)
    ids = words.tokenize(text.encode(), add_bos=False)
    for mode, options in engine.modes.items():
        with engine.open(module, options, request) as answer:
            given[mode] = answer(ids, 24)
            assert answer(ids, 24) == given[mode], "nothing is left of the answer before"
    plain, lookup = given["ar"], given["lookup"]
    assert plain.calls == len(plain.tokens), "one pass a token, the prompt's gives the first"
    assert (plain.drafted, plain.accepted) == (0, 0)
    pairs = list(zip(plain.tokens, lookup.tokens, strict=True))
    differing = [i for i, (a, b) in enumerate(pairs) if a != b]
    if differing:  # its kernels for one row and for several round differently: a near-tie
        scores = next_scores(str(file), [*ids, *plain.tokens[: differing[0]]])
        assert min(scores[list(pairs[differing[0]])]) > scores.max() - 0.5
    assert lookup.calls is not None
    assert lookup.accepted is not None
    assert lookup.calls < len(lookup.tokens)
    assert lookup.accepted >= len(lookup.tokens) - lookup.calls


def test_a_run_without_ar_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_llama(monkeypatch)
    for name in ("manifest.json", "samples.jsonl"):
        text = (run / name).read_text()
        write_text(run / name, text.replace('"ar@aa"', '"spec@aa"').replace('"ar"', '"dllm"'))
    done = bench("external", run, "--engine", "llamacpp", "-m", "m.gguf")
    assert done.code == 5
    assert "has no ar, whose answers other engines are compared with" in done.err
