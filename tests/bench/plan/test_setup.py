"""What is open during a run: texts without stop ids, arms with the models they use, devices."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import runs as bench_run
from bench.errors import BenchError, Exit
from bench.plan.numerics import open_device
from bench.plan.select import choose_decoders, stored_decoders
from bench.records.prompts import pieces_in
from decoders.core import registry
from decoders.core.decoder import Decoder
from decoders.core.types import DecoderSpec


def test_a_text_has_no_stop_ids(small: Any, opener: Any) -> None:
    setup = opener(choose_decoders(small(), print))
    assert setup.text([32, 72, 105, 10]) == " Hi"
    assert setup.text([1, 72, 10]) == "H"


def test_an_arm_has_the_models_its_decoder_uses_and_no_others(small: Any, opener: Any) -> None:
    setup = opener(choose_decoders(small(), print))
    assert setup.arm("ar").models.draft is None
    assert setup.arm("spec").models.draft is setup.models.draft
    assert setup.arm("ar@aa") is setup.arm("ar")


def test_the_baseline_is_added_and_comes_first(small: Any) -> None:
    run = choose_decoders(small(decoders="spec@a:k=2,spec@b"), print)
    assert list(run.config.decoders or {}) == list(run.decoders) == ["ar", "spec@a", "spec@b"]
    defaults = {"k": "4", "stop": "0.0", "verify": "rejection"}
    assert defaults.items() <= (run.config.decoders or {})["spec@b"].items()


def test_choosing_decoders_from_a_resolved_configuration_changes_nothing(small: Any) -> None:
    run = choose_decoders(small(), print)
    assert choose_decoders(run.config, print) == stored_decoders(run.config) == run
    unnamed = choose_decoders(small(decoders=None), print)
    assert unnamed.config.primary == "none"  # nobody named one
    assert choose_decoders(unnamed.config, print) == unnamed


def test_the_primary_comparison_is_the_first_decoder_unless_an_option_names_another(
    small: Any,
) -> None:
    def primary(**given: Any) -> str | None:
        chosen = choose_decoders(small(decoders="ar,spec@a,spec@b", **given), print)
        return chosen.config.primary

    assert (primary(), primary(primary="spec@b"), primary(primary="none")) == (
        *("spec@a", "spec@b", "none"),
    )
    over_spec = small(decoders="spec@a,spec@b", baseline="spec@a")
    assert choose_decoders(over_spec, print).config.primary == "spec@b"  # ar was not named
    with pytest.raises(BenchError, match="--primary ar: allowed are spec@a, spec@b, none"):
        primary(primary="ar")


@pytest.mark.parametrize(("name", "code"), [("banana", 2), ("mps", 2), ("cuda:99", 5)])
def test_an_unusable_device_is_refused_with_a_matching_exit_code(name: str, code: int) -> None:
    with pytest.raises(BenchError, match=name) as caught:
        open_device(name)
    assert caught.value.exit_code == code


def test_pieces_keep_the_leading_space_that_decoding_drops_at_the_start_of_a_text() -> None:
    class Sentences:
        def encode(self, _text: str, *, add_special_tokens: bool, verbose: bool) -> list[int]:
            return [0]

        def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
            return "".join([" a", " dog", "s"][i] for i in token_ids).removeprefix(" ")

    tokenizer: Any = Sentences()
    prompt: Any = SimpleNamespace(ids=(1, 2))
    assert pieces_in(tokenizer, [], [prompt]) == {"1": " dog", "2": "s"}


def test_an_adapter_that_no_decoder_needs_is_refused(small: Any) -> None:
    with pytest.raises(BenchError, match="--adapter ptp=…: none of ar, spec needs it") as refused:
        choose_decoders(small(decoders="spec", adapters={"ptp": "a/b"}), print)
    assert refused.value.exit_code == 2


@pytest.mark.slow
def test_a_run_builds_each_decoder_once_and_its_resumption_once(
    small: Any, opener: Any, progress: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = registry.build

    def counted(spec: DecoderSpec) -> Decoder:
        built.append(spec.cell)
        return build(spec)

    monkeypatch.setattr(registry, "build", counted)
    ended = bench_run.run(small(), tmp_path, progress(stop_at=5), opener, report=None)
    assert built == ["ar", "spec"]
    assert bench_run.resume(ended.run_dir, progress(), opener, report=None).exit_code == Exit.DONE
    assert built == ["ar", "spec"] * 2
