"""Which share of the answers the limit cut, and of the tokens follows an end."""

from __future__ import annotations

from dataclasses import replace

from bench.report.tables.conclusion import ends
from tests.bench.conftest import make_record


def test_the_share_of_cut_answers_leaves_out_failed_answers():
    ended, cut = replace(make_record(), stop="eos"), replace(make_record(), stop="length")
    failed = replace(make_record(), stop=None, tokens=None, error="it broke")
    assert list(ends([ended, ended, cut, ended, failed], ["ar"])) == [
        "Cut by --max-new-tokens: 25 % of the answers."
    ]
    assert list(ends([failed], ["ar"])) == list(ends([ended], ["ar"])) == []
    other = replace(cut, decoder="spec")
    assert list(ends([ended, cut, other], ["ar", "spec", "absent"])) == [
        "Cut by --max-new-tokens: 50 % (ar), 100 % (spec) of the answers."
    ]


def test_a_share_of_cut_answers_just_below_100_percent_is_not_rounded_up():
    ended, cut = replace(make_record(), stop="eos"), replace(make_record(), stop="length")
    (line,) = ends([ended, *[cut] * 299], ["ar"])
    assert line == "Cut by --max-new-tokens: 99 % of the answers."


def test_tokens_behind_the_end_are_a_share_of_all_tokens():
    plain = replace(make_record(emitted=(1, 1, 1)), tokens=(1, 2, 3), stop="length")
    behind = replace(plain, num_behind=2)
    (line,) = ends([plain, behind], ["ar"])
    assert line.startswith("Behind the end: 33 % of the tokens follow an end token")
