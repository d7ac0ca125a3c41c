"""Makes the generated parts of decoders' pages, and whole pages for decoders without one."""

from __future__ import annotations

import csv
import dataclasses
import inspect
import itertools
import re
import tomllib
import typing
from pathlib import PurePosixPath
from types import UnionType
from typing import Any, Literal, Union

from bench.cli.listing import lossless, needs
from bench.extras.paper.citations import entries
from bench.extras.paper.table import packaged
from bench.records.plan import BASELINE, Cell
from bench.report.tables.table import interval, with_interval
from bench.settings.config import as_text
from bench.stats.summary import ALL
from bench.text import UNKNOWN, factor, percent
from decoders.core import registry
from decoders.core.decoder import Decoder
from decoders.core.types import DecoderSpec, Sampling
from docs.generate.places import ROOT
from docs.generate.tables import code, table

_RUNS = {
    "cpu-smollm2": ("SmolLM2", "0"),
    "cpu-smollm2-invariant": ("SmolLM2, row-invariant", "0"),
    "cpu-smollm2-t07": ("SmolLM2", "0.7"),
    "cpu-zoo": ("zoo", "0"),
    "cpu-zoo-t07": ("zoo", "0.7"),
    "cpu-zoo-rivals": ("zoo, beside transformers", "0"),
}
"""Model and temperature of each stored run."""
_COUNTERS = "counters/zoo.csv"
"""A greedy run of all other decoders on a busy machine, stored without times."""
_COST = (
    " Cost of its weights: [zoo](../training-an-adapter.md#results-by-training-time), "
    "[SmolLM2](../smollm2.md#the-adapters)."
)
_MODES = {"idlm": "refinement", "hf": "loops"}
"""Tables of ``citations.toml`` with the papers of a decoder's modes."""
_WORDS = {int: "integer", float: "number", bool: "true, false", str: "text"}


def built_in() -> list[str]:
    """Return the names of the repository's decoders, sorted, with the baseline first."""
    return sorted(registry.built_in(), key=lambda name: name != "ar")


def page_of(name: str) -> str:
    """Return the path of a decoder's page on the site."""
    return f"decoders/{name}.md"


def index() -> str:
    """Return a table of all decoders."""
    rows = []
    for name in built_in():
        cls = _class(name)
        link = f"[{code(name)}]({PurePosixPath(page_of(name)).name})"
        summary = (cls.__doc__ or "").strip().partition("\n")[0]
        rows.append((link, summary, lossless(cls), ", ".join(needs(cls)) or "-"))
    return table(("decoder", "what it does", "lossless", "needs"), rows)


def options(name: str) -> str:
    """Return a table of a decoder's options, from its fields and docstring."""
    cls = _class(name)
    fields = dataclasses.fields(cls)
    if not fields:
        return f"`{name}` has no options.\n"
    said, kinds = described(cls.__doc__ or ""), typing.get_type_hints(cls)
    rows = []
    for f in fields:
        typed = f.default is not dataclasses.MISSING and f.default != ""
        default = code(as_text(f.default)) if typed else ""
        rows.append((code(f.name), default, said.get(f.name, ""), _allowed(kinds[f.name])))
    return table(("option", "default", "meaning", "allowed"), rows)


def promises(name: str) -> str:
    """Return a table of what a decoder's cells need, and guarantee when greedy and sampled."""
    cls = _class(name)
    specs = {name: DecoderSpec(name=name)}
    for label, given in cls.showcase.items():  # modes that have their own row
        specs[f"{name}@{label}"] = DecoderSpec(name=name, label=label, options=dict(given))
    rows = []
    for cell, spec in specs.items():
        decoder = registry.build(spec)
        guaranteed = [
            Cell(
                cell=cell,
                lossless=decoder.lossless,
                comparable_to_ar=decoder.comparable_to_ar(Sampling(temperature=temperature)),
            ).guarantee
            for temperature in (0.0, 1.0)
        ]
        usual = "yes" if cls.by_default else "no"
        written = ":".join([cell, *(f"{key}={value}" for key, value in spec.options.items())])
        of = ", ".join(needs(type(decoder))) or "-"
        rows.append((code(written), *map(str, guaranteed), of, usual))
    headings = ("decoder", "guarantee, greedy", "guarantee, sampled", "needs", "runs by default")
    return table(headings, rows)


def facts(name: str) -> str:
    """Return the sections of a decoder's guarantee and options."""
    return f"## Guarantee\n\n{promises(name)}\n## Options\n\n{options(name)}"


def results(name: str) -> str:
    """Return the section of a decoder's results, with its code and what its weights cost."""
    place = f"{_class(name).__module__.replace('.', '/')}.py"
    file = f"In code: [{place}](../../{place})."
    trained = {"adapter", "draft"} & {need.partition(" ")[0] for need in needs(_class(name))}
    return f"## Measured\n\n{measured(name)}\n{file}{_COST * bool(trained)}\n"


def measured(name: str) -> str:
    """Return a table of a decoder's results in the reference runs, over all families."""
    rows = []
    for run, (model, temperature) in _RUNS.items():
        link = f"[{model}](../../results/reference/{run}/report.md)"
        rows += _rows(f"{run}/summary.csv", name, link, temperature)
    more = "\nThe linked reports have the numbers by family.\n" * bool(rows)
    rows = rows or _rows(_COUNTERS, name, "zoo, without times", "0")
    if not rows and (other := next((n for n in built_in() if name in _class(n).modes), None)):
        return f"Reference runs list it as [`{other}@{name}`]({other}.md#measured).\n"
    if not rows:
        return f"No reference run has `{name}` yet: `bench run --decoders {name}` measures it.\n"
    headings = ("decoder", "model", "temperature", "speed-up [95 %]", "tokens per call", "quality")
    return f"{table(headings, rows)}{more}"


def citations(name: str) -> str:
    """Return the section of the papers of a decoder, from the BibTeX entries of `bench paper`."""
    keys = tomllib.loads(packaged("citations.toml"))
    modes = keys[_MODES[name]].values() if name in _MODES else ()
    papers = dict.fromkeys(itertools.chain(keys["decoders"][name], *modes))
    return "## Cite\n\n" + "\n".join(f"* {_reference(entries()[key])}" for key in papers)


def _reference(entry: str) -> str:
    """Return authors, title, year and link of a BibTeX entry."""
    fields: dict[str, str] = dict(re.findall(r"^ +(\w+) = \{(.*)\},?$", entry, re.MULTILINE))
    fields = {key: re.sub(r"[{}\\]", "", value) for key, value in fields.items()}
    authors = [author.partition(",")[0] for author in fields["author"].split(" and ")]
    shown = ", ".join(authors) if len(authors) < 4 else f"{authors[0]} et al."
    link = fields.get("note", fields.get("journal", ""))
    if paper := re.search(r"arXiv:(\d+\.\d+)", link):
        link = f"[arXiv {paper[1]}](https://arxiv.org/abs/{paper[1]})"
    elif link.startswith("github.com/"):
        link = f"[{link.removeprefix('github.com/')}](https://{link})"
    return f"{shown}: *{fields['title']}*, {fields['year']}, {link}."


def described(docstring: str) -> dict[str, str]:
    """Return the text of each name in a docstring's section of arguments or of attributes."""
    _, *sections = re.split(r"^(?:Args|Attributes):\n", inspect.cleandoc(docstring), flags=re.M)
    section = re.split(r"^\S", "".join(sections[:1]), maxsplit=1, flags=re.MULTILINE)[0]
    said: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if begun := re.match(r" {4}(\w+): (.*)", line):
            name = begun[1]
            said[name] = begun[2]
        elif name:
            said[name] += f" {line.strip()}"
    return {name: text.strip() for name, text in said.items()}


def _rows(table: str, name: str, model: str, temperature: str) -> list[tuple[str, ...]]:
    """Return the rows of a decoder's cells in a table of ``results/reference``."""
    with (ROOT / "results" / "reference" / table).open(encoding="utf-8") as file:
        return [
            (row["decoder"], model, temperature, *_numbers(row))
            for row in csv.DictReader(file)
            if row["decoder"].partition("@")[0] == name and row["family"] == ALL
        ]


def _numbers(row: dict[str, str]) -> tuple[str, str, str]:
    def known(column: str) -> float | None:
        return float(row[column]) if row.get(column) else None

    speedup, tokens = known("speedup"), known("tokens_per_call")
    ends = UNKNOWN
    if row["decoder"] != BASELINE:
        ends = interval(known("speedup_low"), known("speedup_high"))
    return with_interval(factor(speedup), ends), factor(tokens, ""), percent(known("quality"))


def _class(name: str) -> type[Decoder]:
    return registry.resolve(DecoderSpec(name=name))


def _allowed(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return ", ".join(map(code, typing.get_args(kind)))
    if typing.get_origin(kind) in (Union, UnionType):
        return ", ".join(map(_allowed, typing.get_args(kind)))
    return _WORDS.get(kind, "")
