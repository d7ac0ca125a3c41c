"""The first sentence of a report says neither more nor less than the intervals do."""

from typing import Any

import pandas as pd
import pytest

from bench.report.tables.conclusion import Rivals, conclusion, primary_sentence
from bench.stats.intervals import Estimate
from bench.stats.metrics import COLUMNS


def summary(*rows: dict[str, Any]) -> pd.DataFrame:
    ar = {"decoder": "ar", "guarantee": "same tokens", "speedup": 1.0, "quality": 0.998}
    plain = {"family": "all", "pairs": 28, "batch_size": 1}
    frame = pd.DataFrame([plain | row for row in (ar, *rows)], columns=list(COLUMNS))
    return frame.astype(COLUMNS)


def row(decoder: str, speedup: float, low: float | None, high: float | None, **more: Any) -> Any:
    promise = {"guarantee": "same tokens"}
    return {"decoder": decoder, "speedup": speedup, "speedup_low": low, "speedup_high": high} | (
        promise | more
    )


def over(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high)


APART: Rivals = {("ptp", "spec"): over(1.57, 1.4, 1.7)}


def test_the_fastest_decoder_with_a_guarantee_is_named_before_the_fastest_without() -> None:
    said = conclusion(
        summary(
            row("spec", 1.6, 1.5, 1.7),
            row("ptp", 2.52, 2.14, 2.97),
            row("idlm", 1.5, 1.2, 1.9, guarantee="none", quality=0.98),
            row("nar", 5.93, 5.58, 6.31, guarantee="none", quality=0.58),
        ),
        APART,
    )
    assert said == (
        "ptp is 2.52 times as fast as ar (95 % interval [2.14, 2.97], 28 prompts) and "
        "guarantees ar's tokens: the fastest of 2 decoders with a guarantee. nar, which guarantees "
        "nothing, is 5.93 times as fast as ar (95 % interval [5.58, 6.31], 28 prompts) at quality "
        "58.0 % (ar: 99.8 %)."
    )


def test_a_decoder_of_the_same_distribution_is_not_credited_with_the_same_tokens() -> None:
    said = conclusion(summary(row("spec", 2.0, 1.5, 2.5, guarantee="same distribution")), {})
    assert said.endswith("28 prompts) and guarantees ar's distribution.")
    claimed = row("spec", 2.0, 1.5, 2.5, guarantee="same distribution", checked="claimed")
    assert conclusion(summary(claimed), {}).endswith("28 prompts) and claims ar's distribution.")


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.3), (None, None), (1.0, 1.3), (0.7, 0.9)])
def test_a_speedup_that_is_not_significant_is_not_claimed(low: Any, high: Any) -> None:
    said = conclusion(summary(row("spec", 1.1, low, high), row("ptp", 0.5, 0.4, 0.6)), {})
    assert said.startswith(
        "No decoder with a guarantee is shown to be faster than ar: the highest of 2 estimates is "
        "spec's, 1.10 times as fast as ar ("
    )
    assert ("interval" in said) == (low is not None)


def test_a_wrong_decoder_is_named_and_never_the_fastest() -> None:
    said = conclusion(summary(row("fast", 9.0, 8.0, 10.0, guarantee="WRONG")), {})
    assert said == "fast claims to be lossless and is not."


def test_the_likelihood_that_a_lossy_decoder_loses_is_per_token() -> None:
    said = conclusion(summary(row("nar", 2.0, 1.5, 2.5, guarantee="none", nll_over_ar=12.789)), {})
    assert said.endswith("its tokens are on average 12.79 nats less likely than ar's.")


def test_pairs_of_a_batched_run_are_counted_as_groups() -> None:
    many = conclusion(summary(row("spec", 2.0, 1.5, 2.5, batch_size=4, pairs=7)), {})
    assert "7 groups)" in many
    assert "1 prompt)" in conclusion(summary(row("spec", 2.0, None, None, pairs=1)), {})


def test_a_run_of_the_baseline_alone_concludes_nothing() -> None:
    assert conclusion(summary(), {}) == "Nothing was compared with ar."
    assert conclusion(summary().iloc[:0], {}) == "Nothing was compared with ar."


TWO = [row("spec", 1.6, 1.5, 1.7), row("ptp", 1.7, 1.5, 1.9)]


@pytest.mark.parametrize(
    ("pair", "floor"),
    [
        (over(1.06, 0.99, 1.14), (1.0, 0.99, 1.01)),  # the interval covers 1
        (over(1.06, 1.02, 1.10), (0.98, 0.93, 1.03)),  # less than two arms of ar differ
        (over(1.06, 1.02, 1.10), (1.08, None, None)),
        (Estimate(value=1.06), (1.0, 0.99, 1.01)),  # too few prompts for an interval
    ],
)
def test_decoders_that_cannot_be_distinguished_are_not_called_the_fastest(
    pair: Estimate, floor: tuple[float, float | None, float | None]
) -> None:
    noise = dict(zip(("aa_speedup", "aa_low", "aa_high"), floor, strict=True))
    rows = [each | noise for each in [*TWO, row("jacobi", 1.2, 1.1, 1.3)]]
    pairs = {("ptp", "spec"): pair, ("ptp", "jacobi"): over(1.4, 1.3, 1.5)}
    said = conclusion(summary(*rows), pairs)
    assert said.endswith(
        "tokens; the best 2 of 3 decoders with a guarantee cannot be told apart (ptp, spec)."
    )


def test_a_decoder_that_leads_beyond_the_noise_is_called_the_fastest() -> None:
    rows = [each | {"aa_speedup": 1.0, "aa_low": 0.97, "aa_high": 1.02} for each in TWO]
    said = conclusion(summary(*rows), {("ptp", "spec"): over(1.06, 1.02, 1.10)})
    assert said.endswith("guarantees ar's tokens: the fastest of 2 decoders with a guarantee.")


def test_a_speed_up_within_the_noise_is_not_claimed() -> None:
    floor = {"aa_speedup": 0.9, "aa_low": 0.5, "aa_high": 1.11}
    noisy = row("spec", 1.47, 1.27, 1.71, **floor)
    said = conclusion(summary(noisy, row("ptp", 1.2, 0.9, 1.6, **floor)), {})
    assert said.startswith("No decoder with a guarantee is shown")
    assert said.endswith(
        "An interval above 1 (spec) is not beyond the noise: ar against itself differs by up to "
        "2.00x."
    )


def test_an_uncertain_higher_speed_up_does_not_hide_a_decoder_that_is_shown_to_be_faster() -> None:
    rows = [row("spec", 1.3, 1.2, 1.4), row("ptp", 1.5, 0.9, 2.4)]
    said = conclusion(summary(*rows), {("spec", "ptp"): over(0.87, 0.5, 1.5)})
    assert said.startswith("spec is 1.30 times as fast as ar")
    assert said.endswith(
        "the best 2 of 2 decoders with a guarantee cannot be told apart (spec, ptp)."
    )


def test_a_decoder_that_failed_on_every_answer_is_named_without_a_speed_up() -> None:
    dead = row("dead", None, None, None, errors=2)  # type: ignore[arg-type]
    assert conclusion(summary(dead), {}) == (
        "Nothing was compared with ar. dead failed on 2 answers and is not ranked."
    )
    said = conclusion(summary(row("spec", 2.0, 1.5, 2.5), dead), {})
    assert said.startswith("spec is 2.00 times as fast as ar")
    assert said.endswith("dead failed on 2 answers and is not ranked.")


def test_a_failed_primary_comparison_is_not_reported_as_unnamed() -> None:
    dead = row("dead", None, None, None, errors=2)  # type: ignore[arg-type]
    frame = summary(row("spec", 2.0, 1.5, 2.5), dead)
    assert primary_sentence(frame, "dead").startswith(
        "The primary comparison, dead over ar, could not be made; 1 comparison by decoder and "
        "family is exploratory"
    )
    assert primary_sentence(frame, "none").startswith("No primary comparison was named; 1 ")
    assert primary_sentence(frame, "spec").startswith("Primary comparison: spec over ar, all")


def test_the_comparisons_of_a_single_family_are_those_of_all_families() -> None:
    both = [row(name, 2.0, 1.5, 2.5, family=f) for name in ("spec", "ptp") for f in ("qa", "all")]
    assert primary_sentence(summary(*both), "spec").startswith(
        "Primary comparison: spec over ar, all families; 1 comparison by decoder and family is"
    )
    assert primary_sentence(summary(*both[:2]), "spec").endswith("spec over ar, all families.")


@pytest.mark.parametrize(
    ("lost", "likely"),
    [
        (0.004, "as likely as"),
        (0.0, "as likely as"),
        (-0.5, "on average 0.50 nats more likely than"),
    ],
)
def test_tokens_are_not_called_less_likely_by_0_00_nats(lost: float, likely: str) -> None:
    lossy = row("nar", 2.0, 1.5, 2.5, guarantee="none", nll_over_ar=lost)
    said = conclusion(summary(lossy), {})
    assert said.endswith(f"; under the target, its tokens are {likely} ar's.")
