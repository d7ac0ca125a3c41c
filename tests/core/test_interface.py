"""The promise to third parties: a decoder written against 0.1 runs as it was written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from decoders.core.checks import check_decoder
from decoders.core.decoder import INTERFACE, OLDEST_INTERFACE
from decoders.core.registry import build, parse_spec
from decoders.core.types import Emit

FROZEN = Path(__file__).parents[1] / "data" / "decoder_of_0_1.py"
FROZEN_SHA256 = "cc68cabd4691383c097c34de02817122bef3da727a391bd616ddaae15f11670c"
PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-decoder.md").read_text(encoding="utf-8")


def test_the_frozen_file_is_as_it_was_written() -> None:
    assert hashlib.sha256(FROZEN.read_bytes()).hexdigest() == FROZEN_SHA256


@pytest.mark.parametrize(
    "spec", ["Copies", "Copies:k=1", "Copies:mode=all:width=3", "Drafts", "Tree", "Masks"]
)
@pytest.mark.filterwarnings("default:.* is now :DeprecationWarning")
def test_a_decoder_of_0_1_keeps_the_contract(spec: str) -> None:
    check_decoder(build(parse_spec(f"{FROZEN}:{spec}")))


def test_a_decoder_of_0_1_says_no_version_and_is_taken_as_the_first() -> None:
    assert "interface" not in FROZEN.read_text(encoding="utf-8")
    assert OLDEST_INTERFACE <= 1 <= INTERFACE


@pytest.mark.parametrize(
    ("version", "advice"),
    [(INTERFACE + 1, "update decoding-bench"), (OLDEST_INTERFACE - 1, "adding-a-decoder.md")],
)
def test_a_decoder_of_another_interface_is_one_line(
    decoder_file: Callable[[str], str], version: int, advice: str
) -> None:
    spec = decoder_file("yield")
    file = Path(spec.split(":")[0])
    file.write_text(f"{file.read_text()}\nMine.interface = {version}\n")
    with pytest.raises(ValueError, match=f"version {version} of the decoder interface") as caught:
        build(parse_spec(spec))
    assert advice in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_page_names_the_version_of_the_code() -> None:
    assert f"The interface is at version {INTERFACE}" in PAGE
    assert f"from version {OLDEST_INTERFACE} on run" in PAGE


def test_an_old_spelling_is_taken_with_a_warning_that_names_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match="undrafted= is now num_leading="):
        emit = Emit(tokens=(1, 2), undrafted=1)  # type: ignore[call-arg]
    assert emit == Emit(tokens=(1, 2), num_leading=1)
