"""Names and docstrings of the source use the words of docs/glossary.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("bench", "cli.py", "decoders", "specbench_tasks", "training")

NO_NOUNS = frozenset(
    re.findall(
        r"\w+",
        """asked began begun bought chosen dealt drawn fallen found given gone got grown had held
        his its judged known made meant mine needed offered opened others ours own refused said
        stood stored taken taught their theirs these those told wanted watched what which who
        whose""",
    )
)
"""Participles and pronouns that name nothing: neither a whole name nor the noun at its end."""
SUPERLATIVES = frozenset({"fewest", "latest", "least", "most"})
"""Words of limits, which are called `max_` and `min_`, in no part of a name."""
LIMITS = frozenset({"largest", "longest", "shortest", "smallest", "surest", "widest"})
PREDICATES = frozenset({"are", "has", "is", "num", "was"})
"""Words after which a participle is no noun, as in `is_known`."""
ALLOWED = {
    "least": ("an option of `hybrid`", ["decoders/hybrid.py"]),
    "most": (
        "the parameter of drafters (docs/adding-a-decoder.md)",
        ["bench/plan/starter.py", "decoders/core/drafting/drafter.py"],
    ),
    "own": ("a key of a recipe's [blocks]", ["training/adapter/windows.py"]),
    "prompts_needed": ("a column of summary.csv", ["bench/stats/metrics.py"]),
    "shortest": ("an option of `lookup`", ["decoders/lookup.py"]),
    "stored": (
        "a key of recipes",
        ["training/adapter/recipe.py", "training/draft.py", "training/heads/recipe.py"],
    ),
    "what": ("the argument of `bench ls`", ["bench/cli/read.py"]),
}
"""Names that stay because they are a contract: why, and where (`most`: in all of decoders/)."""
NO_OPENINGS = re.compile(r"(Of|What|Whether)\b")
CONTRACT = re.compile(r"decoders/core/(drafting/|engine/|testing/)?\w+\.py")
"""Files that writers of decoders read: there, functions of three parameters describe them."""
FOREIGN = {"PlaneCache.update"}
"""Methods whose signature another library declares."""

parsed = cache(ast.parse)
"""Parse a source, once."""

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the names that a module defines or assigns, with their lines."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name, node.lineno


def words(name: str) -> list[str]:
    """Split a name into its words, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)]


def banned(name: str) -> bool:
    """Tell whether a name uses a word as no name should."""
    parts = words(name)
    if not parts:
        return False
    is_noun = len(parts) == 1 or parts[0] not in PREDICATES
    return (
        (is_noun and parts[-1] in NO_NOUNS)
        or bool(SUPERLATIVES & {*parts})
        or (len(parts) == 1 and parts[0] in LIMITS)
    )


def is_allowed(name: str, file: str) -> bool:
    """Tell whether a name is a contract of a file."""
    drafts = name == "most" and file.startswith("decoders/")
    return drafts or (name in ALLOWED and file in ALLOWED[name][1])


def bad_names(source: str, file: str = "") -> list[str]:
    """Return the names of a module that break the rules, with their lines."""
    tree = parsed(source)
    bad = [
        f"{file}:{line} {name}"
        for name, line in sorted({*names(tree)}, key=lambda each: each[1])
        if banned(name) and not is_allowed(name, file)
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and re.search(r"\w_of$|^_*of_", node.name):
            bad.append(f"{file}:{node.lineno} {node.name}")
    return bad


def bad_openings(source: str, file: str = "") -> list[str]:
    """Return the first lines of docstrings that break the rules."""
    bad = []
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Module | _Definition) and (text := ast.get_docstring(node)):
            line = text.splitlines()[0]
            if ";" in line or not line.endswith(".") or NO_OPENINGS.match(line):
                bad.append(f"{file}:{getattr(node, 'lineno', 1)} {line}")
    return bad


@cache
def sources(*folders: str) -> dict[str, str]:
    """Return the text of every file of folders, which may be files, by its path."""
    paths = [ROOT / folder for folder in folders]
    files = [file for path in paths for file in sorted(path.rglob("*.py")) or [path]]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """Drop the parsed sources after these tests."""
    yield
    parsed.cache_clear()


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_use_the_words_of_the_glossary(folder: str) -> None:
    bad = [line for file, text in sources(folder).items() for line in bad_names(text, file)]
    assert not bad, "CONTRIBUTING.md has other words for: " + "; ".join(bad)


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_open_with_one_sentence(folder: str) -> None:
    bad = [line for file, text in sources(folder).items() for line in bad_openings(text, file)]
    assert not bad, "\n".join(bad)


def undocumented(trees: Mapping[str, ast.Module]) -> list[str]:
    """Return public functions with many parameters, of which `Args:` does not have each."""
    classes = {
        n.name: n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.ClassDef)
    }

    def inherited(node: ast.ClassDef, name: str) -> bool:
        bases = [classes[e.id] for e in node.bases if isinstance(e, ast.Name) and e.id in classes]
        own = [n.name for base in bases for n in base.body if isinstance(n, ast.FunctionDef)]
        return name in own or any(inherited(base, name) for base in bases)

    def visit(file: str, node: ast.Module | ast.ClassDef) -> Iterator[str]:
        for each in node.body:
            if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name.startswith("_"):
                continue
            if isinstance(each, ast.ClassDef):
                yield from visit(file, each)
            if not isinstance(each, ast.FunctionDef):
                continue
            of_class = isinstance(node, ast.ClassDef)
            where = f"{node.name}.{each.name}" if isinstance(node, ast.ClassDef) else each.name
            if where in FOREIGN or (isinstance(node, ast.ClassDef) and inherited(node, each.name)):
                continue
            arguments = each.args
            pairs = [*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            found = [a.arg for a in pairs if a is not None][of_class and not is_static(each) :]
            text = (ast.get_docstring(each) or "").partition("Args:")[2]
            if len(found) < (3 if CONTRACT.fullmatch(file) else 4):
                continue
            if any(".command(" in ast.unparse(each) for each in each.decorator_list):
                continue  # its options are documented one by one
            lacking = [name for name in found if not re.search(rf"^ +{name}: ", text, re.M)]
            if lacking:
                yield f"{file}:{each.lineno} {where}: {', '.join(lacking)}"

    return [line for file, tree in trees.items() for line in visit(file, tree)]


def is_static(node: ast.FunctionDef) -> bool:
    """Tell whether a method has neither `self` nor `cls`."""
    return any(ast.unparse(each) == "staticmethod" for each in node.decorator_list)


def test_functions_of_many_parameters_describe_each() -> None:
    trees = {file: parsed(text) for file, text in sources(*FOLDERS).items()}
    assert not (lines := undocumented(trees)), "\n".join(lines)


def test_parameters_are_described_by_name() -> None:
    head = "def f(a, b, c):"
    body = '    """Do it.\n\n    Args:\n        a: one.\n        c: three.\n    """'
    for file, expected in (
        ("decoders/core/a.py", ["decoders/core/a.py:1 f: b"]),
        ("bench/a.py", []),
    ):
        assert undocumented({file: ast.parse(f"{head}\n{body}")}) == expected
    private = head.replace("f(", "_f(")
    assert undocumented({"decoders/core/a.py": ast.parse(f"{private}\n{body}")}) == []


def test_every_allowed_name_is_still_used() -> None:
    for name, (reason, files) in ALLOWED.items():
        assert reason
        for file in files:
            assert name in {each for each, _ in names(parsed(sources(*FOLDERS)[file]))}, (
                name,
                file,
            )


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for file, text in sources(*FOLDERS).items():
        for node in ast.walk(parsed(text)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(file)
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_the_banned_words_are_listed_and_the_glossary_stays_short() -> None:
    lines = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines()
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.split("## Words that are not used in names")[1]
    for word in ("told", "asked", "known", "made", "given", "most", "fewest", "x_of"):
        assert f"`{word}`" in table, word
    assert len(lines) <= 80


@pytest.mark.parametrize(
    ("line", "is_bad"),
    [
        ("told = 1", True),
        ("self._asked = 1", True),
        ("def f(known): ...", True),
        ("for own in (): ...", True),
        ("class Judged: ...", True),
        ("tokens_given = 1", True),
        ("_FEWEST = 1", True),
        ("MOST_DRAFTS = 1", True),
        ("longest = 1", True),
        ("def rows_of(x): ...", True),
        ("def of_rows(x): ...", True),
        ("if found := 1: ...", True),
        ("most = 1", False),  # the contract of drafters
        ("is_known = 1", False),
        ("known_words = 1", False),
        ("longest_path = 1", False),
        ("power_of_two = 1", False),
        ("def of(cls): ...", False),
        ("print(told)", False),
    ],
)
def test_banned_words_are_found(line: str, is_bad: bool) -> None:
    assert bool(bad_names(line, "decoders/extras/hf.py")) == is_bad


@pytest.mark.parametrize(
    ("line", "is_bad"),
    [
        ("Return the rows.", False),
        ("Return the rows; None if there are none.", True),
        ("Return the rows", True),
        ("Of a call: its rows.", True),
        ("Whether a call has rows.", True),
        ("What a call has.", True),
    ],
)
def test_docstring_openings_that_are_not_one_sentence_are_found(line: str, is_bad: bool) -> None:
    assert bool(bad_openings(f'def f():\n    """{line}"""')) == is_bad
