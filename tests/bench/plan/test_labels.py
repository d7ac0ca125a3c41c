"""What a decoder's label means: a variant that the tables show, or nothing at all."""

import pytest

from bench.errors import BenchError
from bench.plan.select import choose_decoders, stored_decoders
from bench.settings.config import RunConfig, load_config


def chosen(decoders: str) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The cells of a run with their options, and its notes."""
    notes: list[str] = []
    run = choose_decoders(load_config(None, {"decoders": decoders}), notes.append)
    return dict(run.config.decoders or {}), notes


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ("idlm@isd", {"mode": "isd", "stride": "8"}, "idlm@isd is idlm:mode=isd:stride=8"),
        ("idlm@isd:stride=4", {"mode": "isd", "stride": "4"}, "is idlm:mode=isd:stride=4"),
        ("idlm@refine", {"mode": "refine"}, "idlm@refine is idlm:mode=refine"),
        ("ptp@pqd", {"mode": "pqd"}, "ptp@pqd is ptp:mode=pqd"),
        ("isd@refine", {"mode": "refine"}, "isd@refine is isd:mode=refine"),
        ("isd", {"stride": "4"}, "isd:stride=4; the tables' row idlm@isd is isd:stride=8"),
        ("idlm@isd:mode=isd", {"stride": "4"}, "is not the idlm@isd of the tables"),
    ],
)
def test_a_label_that_names_a_variant_selects_it_and_a_note_explains_it(
    given: str, options: dict[str, str], said: str
) -> None:
    cells, notes = chosen(given)
    cell = given.partition(":")[0]
    assert cells[cell].items() >= options.items()
    (note,) = notes
    assert said in note


@pytest.mark.parametrize(
    "given",
    [
        *("hf@lookup", "spec@coupled", "spec@k2", "jacobi@b8", "lookup@k=8", "lookup@k=8:n=4"),
        *("ptp@spec", "ar@rows5", "ar@nocache", "ptp@fast", "spec@stop", "idlm@isd:mode=refine"),
    ],
)
def test_a_label_that_reads_like_an_option_or_a_variant_is_refused(given: str) -> None:
    with pytest.raises(BenchError, match=r"choose another label$") as refused:
        chosen(given)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    "given",
    [
        *("spec@a,spec@b", "spec@mine", "spec@k2:k=2", "hf@lookup:kind=lookup", "ptp@p2"),
        *("idlm@isd:mode=isd:stride=8", "isd:stride=8", "ar@rows5:rows=5", "spec@v2"),
    ],
)
def test_an_unambiguous_label_is_accepted_without_a_note(given: str) -> None:
    cells, notes = chosen(given)
    assert notes == []
    assert list(cells)[1:] == [each.partition(":")[0] for each in given.split(",")]


def test_a_run_without_named_decoders_has_idlm_isd_as_in_the_tables_without_a_note() -> None:
    notes: list[str] = []
    run = choose_decoders(RunConfig(), notes.append)
    assert (run.config.decoders or {})["idlm@isd"]["stride"] == "8"
    assert not [note for note in notes if "idlm@isd" in note]


def test_a_label_does_not_change_the_decoders_of_a_stored_run() -> None:
    stored = RunConfig.model_validate({"decoders": {"spec@k2": {"k": "4"}, "idlm@isd": {}}})
    run = stored_decoders(stored)
    assert [type(each).__name__ for each in run.decoders.values()] == ["Speculative", "Refinement"]
