"""``--fixed-length`` goes on behind the end token: told with its share, and not scored."""

import pytest

from tests.cases.conftest import Case

MOST = 64
SMALL = ("--max-new-tokens", MOST, "--limit", 1, "--quality-limit", 1)


@pytest.mark.slow
def test_text_behind_the_end_is_reported_and_not_scored(case: Case):
    assert case.run("zoo", *SMALL, tasks="qa").code == 0
    assert case.run("zoo", *SMALL, "--fixed-length", tasks="qa", output="fixed").code == 0

    def by_answer(output: str):
        return {(r.kind, r.decoder, r.prompt): r for r in case.records(output)}

    ended, fixed = by_answer("out"), by_answer("fixed")
    assert "eos" in {record.stop for record in ended.values()}
    assert {record.stop for record in fixed.values()} == {"length"}
    for answer, record in ended.items():
        other = fixed[answer]
        assert (other.text, other.scores) == (record.text, record.scores)
        assert len(other.tokens or ()) == MOST
        assert (other.num_behind or 0) == MOST - len(record.tokens or ())
        assert record.num_behind is None
    mine = [record for record in fixed.values() if record.decoder == "ar"]
    share = sum(record.num_behind or 0 for record in mine) / (MOST * len(mine))
    assert f"Behind the end: {100 * share:.0f} % of the tokens" in case.report("fixed")
    assert "Behind the end" not in case.report()
