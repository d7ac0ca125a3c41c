"""What pages show is what works: the short decoder, the set-up, the recipe, and every link."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.cli.listing import lossless
from decoders.ar import Autoregressive
from decoders.core.checks import (
    check_decoder,
    check_real_tensors,
    check_tokens_ignore_the_memory,
    equality_checks,
)
from decoders.core.decoder import Decoder
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.registry import build, parse_spec
from decoders.core.testing.check_models import tables
from decoders.core.types import Generation, Sampling
from docs.generate import parts, places
from docs.generate.parts import OF_A_DECODER, PARTS, decisions, filled
from docs.generate.schema import anchor

ROOT = Path(__file__).parents[2]
TEXTS = places.pages()
SHORT = ROOT / "examples" / "short.py"
"""The short decoders that the page of the interface names."""


def blocks(path: str, language: str) -> list[str]:
    fenced = rf"^```{language}(?: title=[^\n]*)?\n(.*?)^```"
    return re.findall(fenced, TEXTS[path], re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_example_drafter_meets_the_contract_alone_and_in_a_hybrid(
    tmp_path: Path,
) -> None:
    source = blocks("docs/adding-a-decoder.md", "python")[0]
    assert len(source.splitlines()) <= 25
    file = tmp_path / "echo.py"
    file.write_text(source, encoding="utf-8")
    for spec in (f"{file}:Echo", f"hybrid:first={file}+Echo:then=lookup"):
        decoder: Decoder = build(parse_spec(spec))
        assert decoder.lossless
        assert decoder.coupled
        check_decoder(decoder)


@pytest.mark.parametrize("name", ["Echo", "Again"])
def test_example_drafters_that_copy_text_draft_up_to_8_tokens(name: str, tmp_path: Path) -> None:
    file = tmp_path / "shown.py"
    file.write_text(blocks("docs/adding-a-decoder.md", "python")[0], encoding="utf-8")
    decoder: Decoder = build(parse_spec(f"{file if name == 'Echo' else SHORT}:{name}"))
    scheduler = Scheduler(decoder, tables(decoder), Sampling(), memory=decoder.memory())
    for answer in scheduler.run([[1, 2, 3], [1, 2, 3]]):
        assert isinstance(answer, Generation)
        assert max(step.drafted for step in answer.steps) <= 8, "long chains are slower than none"


def test_every_short_example_decoder_is_named_on_the_interface_page() -> None:
    names = re.findall(
        r"^class (\w+)\((?:Decoder|DraftAndVerify|Speculative)\)", SHORT.read_text(), re.M
    )
    assert len(names) == 8
    page = TEXTS["docs/interface.md"]
    assert all(re.search(rf"[`:]{name}\b", page) for name in names)


def test_the_example_decoder_without_drafts_meets_the_contract(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    (source,) = (s for s in blocks("docs/adding-a-decoder.md", "python") if "class Plain" in s)
    file.write_text(source, encoding="utf-8")
    check_decoder(build(parse_spec(f"{file}:Plain")))


def test_the_example_verification_rule_meets_the_contract_and_is_lossy() -> None:
    decoder: Decoder = build(parse_spec(f"{SHORT}:TypicalSpec"))
    assert not decoder.lossless
    assert lossless(type(decoder)) == "no"
    check_decoder(decoder)


def test_the_example_decoder_with_a_memory_meets_the_contract_and_uses_the_memory() -> None:
    decoder: Decoder = build(parse_spec(f"{SHORT}:Again"))
    check_tokens_ignore_the_memory(decoder)
    scheduler = Scheduler(decoder, tables(decoder), Sampling(), memory=decoder.memory())
    first, second = scheduler.run([[1, 2, 3], [1, 2, 3]])
    assert isinstance(first, Generation)
    assert isinstance(second, Generation)
    assert len(second.steps) < len(first.steps)


@pytest.mark.parametrize(
    ("name", "is_lossless"), [("Recycling", True), ("NoEcho", False), ("ByState", True)]
)
def test_example_decoders_with_outputs_bars_and_layers_keep_their_guarantee(
    name: str, is_lossless: bool
) -> None:
    decoder: Decoder = build(parse_spec(f"{SHORT}:{name}"))
    assert decoder.lossless == decoder.coupled == is_lossless
    for check in (*equality_checks(decoder), check_real_tensors):
        check(decoder)
    answer = generate(decoder, [1, 2, 3, 1, 2], Sampling(max_new_tokens=40), tables(decoder))
    assert (sum(step.accepted for step in answer.steps) > 0) == is_lossless


def test_the_example_decoder_of_masks_meets_the_contract_on_masked_targets() -> None:
    decoder: Decoder = build(parse_spec(f"{SHORT}:TwoPasses"))
    assert tables(decoder).target.masked is not None
    check_decoder(decoder)


def test_the_front_page_shows_the_setup_commands_of_the_readme() -> None:
    readme = places.text_of("README.md").split("<!-- main -->")[1].split("```")[1]
    assert blocks("docs/README.md", "sh")[0] == readme.removeprefix("sh\n")


def test_the_example_ci_workflow_is_read_only_and_has_no_expressions_in_scripts() -> None:
    assert "(../examples/gate.yml)" in TEXTS["docs/ci.md"]
    workflow: dict[str, Any] = yaml.safe_load(places.text_of("examples/gate.yml"))
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    scripts = [step["run"] for step in job["steps"] if "run" in step]
    assert not any("${{" in script for script in scripts)
    checkouts = [step for step in job["steps"] if "checkout" in step.get("uses", "")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)
    ours = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").glob("*.yml")
    )
    assert all(step["uses"] in ours for step in job["steps"] if "uses" in step)


def test_the_ci_page_and_the_makefile_store_a_run_with_the_same_command() -> None:
    for text in (places.text_of("Makefile"), "\n".join(blocks("docs/ci.md", "sh"))):
        assert re.search(r"bench export \S+ --to reference --folder \S+", text)


WHOLE = {**TEXTS, "docs/adr/index.md": decisions()}
"""Every page with its parts; links are still those of the repository."""


def anchors(text: str) -> list[str]:
    prose = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return [anchor(re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading)) for heading in headings]


@pytest.mark.parametrize("path", WHOLE)
def test_links_lead_to_pages_and_to_headings_that_are_there(path: str) -> None:
    prose = re.sub(r"^( *)```.*?^\1```", "", WHOLE[path], flags=re.DOTALL | re.MULTILINE)
    for target, name in re.findall(r"\]\(([^)\s#:]*)#?([^)\s:]*)\)", prose):
        there = path if not target else str((ROOT / path).parent.joinpath(target).resolve())
        there = there.removeprefix(f"{ROOT}/")
        assert there in WHOLE or (ROOT / there).exists(), f"{path} links to {target}"
        if name:
            assert anchors(WHOLE[there]).count(name) == 1, f"{path} links to {target}#{name}"


@pytest.mark.parametrize("path", [path for path in TEXTS if "<!-- made of code" in TEXTS[path]])
def test_generated_parts_are_committed_and_current(path: str) -> None:
    hint = f"the generated parts of {path} are old: `{parts.RENEW}` writes them"
    assert filled(TEXTS[path], path) == TEXTS[path], hint


def test_a_part_is_written_once_and_replaced_when_the_code_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "docs" / "a.md"
    page.parent.mkdir()
    page.write_text(
        "above\n\n<!-- made of code: columns -->\n\nbetween\n\n<!-- made of code: gate -->\n",
        "utf-8",
    )
    monkeypatch.setattr(places, "ROOT", tmp_path)
    monkeypatch.setattr(places, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(parts, "readable", places.pages)
    monkeypatch.setattr(parts, "ROOT", tmp_path)
    for version in ("first", "second"):
        monkeypatch.setattr(parts, "PARTS", {"columns": lambda: version, "gate": lambda: "g\n"})  # noqa: B023
        assert parts.write() == ["docs/a.md"]
        assert parts.write() == []
        assert page.read_text("utf-8") == (
            f"above\n\n<!-- made of code: columns -->\n\n{version}\n\n<!-- end of code -->\n\n"
            "between\n\n<!-- made of code: gate -->\n\ng\n\n<!-- end of code -->\n"
        )


def test_pages_use_every_generated_part_and_no_unknown_part() -> None:
    asked = re.findall(r"<!-- made of code: (.*?) -->", "".join(TEXTS.values()))
    assert set(asked) == {*PARTS, *OF_A_DECODER}
    with pytest.raises(ValueError, match=r"docs/a\.md asks for 'colums', which nothing makes"):
        filled("<!-- made of code: colums -->", "docs/a.md")


def test_every_decision_is_listed_by_its_title() -> None:
    text = decisions()
    for file in (ROOT / "docs" / "adr").glob("0*.md"):
        title = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert f"* [{title}]({file.name})" in text


@pytest.mark.parametrize("name", ["Surer", "Judged"])
def test_decoders_of_several_sequences_or_models_meet_the_contract(name: str) -> None:
    decoder: Decoder = build(parse_spec(f"{SHORT}:{name}"))
    check_decoder(decoder)
    sampling, prompts = Sampling(max_new_tokens=20), [[1, 2, 3], [4, 5]]
    models = tables(decoder)
    plain = Scheduler(Autoregressive(), models, sampling).run(prompts)
    assert Scheduler(decoder, models, sampling).run(prompts) != plain
