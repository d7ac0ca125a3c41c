"""Names, paths, entry points and options of decoders."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from bench.plan.code import own_files
from decoders.core import registry
from decoders.core.registry import build, names, parse_spec, parse_specs, resolve
from decoders.core.types import DecoderSpec

EXAMPLE = Path(__file__).parents[2] / "examples" / "recycle.py"


def test_specs_carry_name_label_and_options() -> None:
    assert parse_specs("ar, spec@k5:k=5:verify=coupled") == (
        DecoderSpec(name="ar"),
        DecoderSpec(name="spec", label="k5", options={"k": "5", "verify": "coupled"}),
    )
    spec = parse_spec("some/where.py:Mine@x:n=3")
    assert (spec.name, spec.label, spec.options) == ("some/where.py:Mine", "x", {"n": "3"})
    assert spec.cell == "some/where.py:Mine@x"


@pytest.mark.parametrize("text", ["", "@x", "spec@", "spec:k", "spec:=3", "mine.py", "mine.py:k=3"])
def test_malformed_specs_are_refused_with_the_syntax_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_spec(text)


def test_the_error_for_an_unknown_decoder_suggests_the_nearest_and_lists_every_name() -> None:
    with pytest.raises(ValueError, match=r"unknown decoder 'spce'; did you mean 'spec'.*ar, "):
        resolve(DecoderSpec(name="spce"))


def test_the_error_for_an_unknown_option_suggests_the_nearest_and_lists_every_name() -> None:
    with pytest.raises(
        ValueError, match=r"unknown option 'verfy'.*did you mean 'verify'.*k, .*stop, verify"
    ):
        build(parse_spec("spec:verfy=coupled"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec:k=three", "must be of type int"),
        ("spec:k=0", "must be 1 to 120"),
        ("spec:k=9999999999", "must be a number up to 1,000,000,000"),
        ("idlm:threshold=nan", "must be a number up to 1,000,000,000"),
        ("idlm:threshold=-inf", "must be a number up to 1,000,000,000"),
        ("spec:verify=coupld", "did you mean 'coupled'"),
    ],
)
def test_option_values_are_checked(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(parse_spec(text))


def test_options_are_converted_to_the_fields_types() -> None:
    decoder = build(parse_spec("spec:k=5:verify=coupled"))
    assert (decoder.k, decoder.verify) == (5, "coupled")  # type: ignore[attr-defined]


def test_a_decoder_is_loaded_by_path_and_class() -> None:
    assert build(parse_spec(f"{EXAMPLE}:Recycle:k=3")).k == 3  # type: ignore[attr-defined]


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path: Path) -> None:
    files = [tmp_path / folder / "mine.py" for folder in ("old", "new")]
    for file in files:
        file.parent.mkdir()
        file.write_text(
            "from decoders.lookup import PromptLookup\nclass Mine(PromptLookup): pass\n"
        )
    decoders = [build(parse_spec(f"{file}:Mine")) for file in files]
    assert [own_files(decoder) for decoder in decoders] == [[file] for file in files]


def test_a_missing_file_is_named_and_a_misspelt_class_gets_a_suggestion() -> None:
    with pytest.raises(ValueError, match=r"'no/such.py' does not exist"):
        resolve(DecoderSpec(name="no/such.py:X"))
    with pytest.raises(ValueError, match=r"did you mean 'Recycle'"):
        resolve(DecoderSpec(name=f"{EXAMPLE}:Recycel"))


def test_an_installed_package_offers_decoders_by_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from decoders.core.checks import check_decoder

    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    point = EntryPoint(name="recycle", value="recycle:Recycle", group=registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point])
    assert "recycle" in names()
    check_decoder(build(parse_spec("recycle:k=3")))


def test_listing_names_imports_neither_torch_nor_decoders() -> None:
    code = (
        "import sys; from decoders.core.registry import names; print(names());"
        "assert 'torch' not in sys.modules and 'decoders.spec' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_file_in_a_package_may_import_its_siblings(tmp_path: Path) -> None:
    package = tmp_path / "outer" / "inner"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package.parent / "sizes.py").write_text("K = 7\n")
    (package / "mine.py").write_text(
        "from dataclasses import dataclass\nfrom decoders.spec import Speculative\n"
        "from ..sizes import K\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(Speculative):\n    k: int = K\n"
    )
    before = list(sys.path)
    assert build(parse_spec(f"{package}/mine.py:Mine")).k == 7  # type: ignore[attr-defined]
    assert sys.path == before
    (package / "mine.py").write_text("from ..sizes import L\n")
    with pytest.raises(ValueError, match=r"cannot be imported: ImportError.*\(mine\.py:1\)"):
        build(parse_spec(f"{package}/mine.py:Mine"))


def test_a_file_that_cannot_be_imported_is_named_with_the_line_and_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ("from dataclasses import dataclass", "from decoders.spec import Speculative as Base")
    Path("bad.py").write_text("\n".join([*lines, "", "@dataclass", "class Mine(Base): pass", ""]))
    remedy = r"\(bad\.py:[45]\); write @dataclass\(frozen=True, kw_only=True\)$"
    with pytest.raises(ValueError, match=remedy):
        build(parse_spec("bad.py:Mine"))


def test_an_imported_package_of_the_same_name_is_not_mistaken_for_the_decoders_package(
    tmp_path: Path,
) -> None:
    """`tests` is imported already: this file's folder is another package of that name."""
    package = tmp_path / "tests"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "mine.py").write_text("from decoders.spec import Speculative as Mine\n")
    assert build(parse_spec(f"{package}/mine.py:Mine")).name == "spec"


UNDECORATED = """
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal
from decoders.core.decoder import Decoder, SelfDriven
from decoders.core.drafting.loop import DraftAndVerify
from decoders.spec import Speculative

class Bare(Decoder):
    lossless = False
    some: ClassVar[int] = 3
    def steps(self, request): ...

class Meant(Decoder):
    k: int = 4

class Other(Speculative):
    k = 8

@dataclass(frozen=True, kw_only=True)
class Untyped(Speculative):
    k = 8

@dataclass(frozen=True, kw_only=True)
class Right(Speculative):
    k: int = 8

@dataclass(frozen=True, kw_only=True)
class Folder(Speculative):
    file: Path = Path("phrases.txt")

class Stepless(Decoder): pass
class Draftless(DraftAndVerify): pass
class Answerless(SelfDriven): pass

@dataclass(frozen=True, kw_only=True)
class Required(Speculative):
    width: int

@dataclass(frozen=True, kw_only=True)
class Two(Bare):
    needs = ("draft", "draft2")

@dataclass(frozen=True, kw_only=True)
class Word(Bare):
    needs = ("draft")

@dataclass(frozen=True, kw_only=True)
class Nameless(Bare):
    needs = ("adapter",)

@dataclass(frozen=True, kw_only=True)
class Quoted(Bare):
    words: "Sequence[str]" = ()

@dataclass(frozen=True, kw_only=True)
class Mixed(Bare):
    size: Literal[4, 8] = 4
    depth: Literal["auto"] | int | None = None
    place: int | str = "end"
    word: Literal["a", "b"] | None = None

@dataclass(frozen=True, kw_only=True)
class Voting(Bare):
    sure: float = 0.9
    mode: str = "some"

    def __post_init__(self):
        self.demand(self.sure <= 1, "sure", "1 or below")
        self.demand_read("mode", {"all": ("sure",)})
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Meant", r"class Meant: 'k' is no option.* lacks @dataclass"),
        ("Meant:k=2", r"class Meant: 'k' is no option.* lacks @dataclass"),
        ("Other", r"class Other: 'k' is no option.* lacks @dataclass"),
        ("Untyped", r"class Untyped: 'k' is no option.* lacks its type"),
        (
            "Folder",
            r"option 'file' of .* is a PosixPath; allowed: .*str \(also for a path\)",
        ),
        ("Required", r"required keyword-only argument: 'width'; give its field a default"),
        ("Stepless", r"class Stepless makes no answers; it must define 'steps'"),
        ("Draftless", r"it must define 'drafter'"),
        ("Answerless", r"it must define 'answer'"),
        ("Two", r"needs \('draft', 'draft2'\); allowed: a tuple of draft, adapter"),
        ("Word", r"needs 'draft'; allowed: a tuple"),
        ("Nameless", r"add `adapter: str = "),
        ("Quoted", r"class Quoted: a field's type cannot be read: name 'Sequence'"),
        ("Mixed:size=6", r"option 'size' of .* is '6'; allowed: 4, 8"),
        ("Mixed:word=c", r"option 'word' of .* is 'c'; .*allowed: a, b"),
        ("Mixed:depth=deep", r"is 'deep'; it must be of type int or auto"),
        ("Voting:sure=2", r"option 'sure' of decoder 'Voting' is 2\.0; it must be 1 or below"),
        ("Voting:sure=0.5", r"option 'sure' of decoder 'Voting' is 0\.5, but it belongs to mode="),
    ],
)
def test_a_decoder_class_with_invalid_options_or_needs_is_refused(
    name: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(UNDECORATED)
    with pytest.raises(ValueError, match=message):
        build(parse_spec(f"{file}:{name}"))


def test_a_class_without_options_needs_no_decorator(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(UNDECORATED)
    build(parse_spec(f"{file}:Bare"))
    assert build(parse_spec(f"{file}:Right")).k == 8  # type: ignore[attr-defined]


def test_types_of_options_may_be_unions_in_any_order_and_words_may_be_numbers(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(UNDECORATED)
    for options in ({"size": 8, "depth": 3, "place": 7}, {"depth": "auto", "place": "end"}):
        text = "".join(f":{name}={value}" for name, value in options.items())
        decoder = build(parse_spec(f"{file}:Mixed{text}"))
        assert vars(decoder).items() >= options.items()


@pytest.mark.parametrize("broken", ["raise RuntimeError('no luck')", "import nowhere", "exit()"])
def test_a_broken_package_is_named_and_harms_only_its_own_decoder(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.cli.listing import list_facts

    (tmp_path / "broken_package.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("borked", "broken_package:Mine", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "_plugins", lambda: (point,))
    with pytest.raises(ValueError, match=r"'borked' of the installed package 'broken_package'"):
        build(parse_spec("borked"))
    listed = {str(facts["decoder"]): facts for facts in list_facts("decoders", tmp_path)}
    assert "cannot be imported" in listed["borked"]["error"]
    assert "error" not in listed["ar"]
