"""Pages link as in a repository, and the site has what they link to."""

from pathlib import Path

import pytest

from docs.generate import places

ROOT = Path(__file__).parents[2]
FIGURE = "results/reference/cpu-zoo/figures/speedup.png"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("docs/metrics.md", "metrics.md"),
        ("docs/decoders/spec.md", "decoders/spec.md"),
        ("docs/figures/ptp-scaling.png", "figures/ptp-scaling.png"),
        ("CONTRIBUTING.md", "repository/CONTRIBUTING.md"),
        (FIGURE, f"repository/{FIGURE}"),
        ("decoders/spec.py", "repository/decoders/spec.py.md"),
    ],
)
def test_a_file_has_one_place_on_the_site_which_maps_back_to_the_file(
    path: str, place: str
) -> None:
    assert places.place_of(path) == place
    assert places.path_of(place) == path
    assert (ROOT / path).is_file()


def test_a_folder_maps_to_its_readme_and_the_folder_of_decisions_to_their_index() -> None:
    assert places.place_of("results/reference") == "repository/results/reference/README.md"
    assert places.place_of("docs/adr") == "adr/index.md"
    with pytest.raises(ValueError, match="bench/records is a folder without a README"):
        places.place_of("bench/records")


def test_links_are_rewritten_for_the_site_and_other_text_is_unchanged() -> None:
    text = (
        "[a](../../decoders/spec.py), [b](../metrics.md#speed-up 'title'), [c](#here),\n"
        "![d](../../results/reference/cpu-zoo/figures/speedup.png) <https://e.org> [f](https://g.h)\n"
        "```md\n[not a link](../../decoders/ar.py)\n```\n[h](../adr/)"
    )
    assert places.relinked(text, "docs/decoders/spec.md") == (
        "[a](../repository/decoders/spec.py.md), [b](../metrics.md#speed-up 'title'), [c](#here),\n"
        "![d](../repository/results/reference/cpu-zoo/figures/speedup.png) <https://e.org> "
        "[f](https://g.h)\n"
        "```md\n[not a link](../../decoders/ar.py)\n```\n[h](../adr/index.md)"
    )


def test_links_of_a_page_outside_docs_are_rewritten_from_its_place_on_the_site() -> None:
    linked = places.relinked("[a](docs/metrics.md) [b](CHANGELOG.md)", "CONTRIBUTING.md")
    assert linked == "[a](../metrics.md) [b](CHANGELOG.md)"


def test_the_site_includes_files_linked_directly_or_through_another_file() -> None:
    report = "results/reference/cpu-zoo-passes/report.md"
    along = places.outside({"docs/x.md": f"[a](../{report})"})
    assert {report, "results/reference/cpu-zoo-passes/figures/passes.png"} <= set(along)
    assert not any(path.startswith("docs/") for path in along)
    assert places.outside({"docs/x.md": "```\n[a](../README.md)\n```"}) == []
    assert "CHANGELOG.md" in places.outside({"CHANGELOG.md": "no links"})


def test_every_link_of_every_page_leads_to_a_file() -> None:
    texts = places.pages()
    texts |= {path: places.text_of(path) for path in places.outside(texts) if path.endswith(".md")}
    for path, text in texts.items():
        for target in places.targets(text, path):
            assert (ROOT / target).exists(), f"{path} links to {target}"
            places.place_of(target)


def test_code_is_shown_under_its_path_in_a_fence_that_the_code_cannot_close() -> None:
    page = places.shown("docs/generate/places.py")  # it holds fences itself
    _, head, shown = page.split("---\n", 2)
    assert head == "title: places.py\nsearch:\n  exclude: true\n"
    title, _, code = shown.partition("~~~~~~{ .python")
    assert title.strip() == "# `docs/generate/places.py`"
    source = (ROOT / "docs" / "generate" / "places.py").read_text(encoding="utf-8")
    assert code.partition("\n")[2] == f"{source}~~~~~~\n"
    assert "\n~~~~~~" not in source
