"""A package of one decoder in a git repository of its own, as a reader of docs/ci.md has it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_TOY = '''"""Prompt lookup with a table of its own."""

from dataclasses import dataclass

from decoders.core.decoder import Request
from decoders.core.drafting.drafter import Drafter, Text
from decoders.core.drafting.loop import DraftAndVerify
from decoders.core.registry import register

from .match import LONGEST, followers


@register("toy")
@dataclass(frozen=True, kw_only=True)
class Toy(DraftAndVerify):
    """Propose what followed the last tokens before. Lossless."""

    k: int = 5

    def drafter(self, request: Request) -> Drafter:
        return _Lookup(self.k)


class _Lookup(Drafter):
    def __init__(self, k: int) -> None:
        self._k = k

    def propose(self, text: Text, most: int) -> tuple[int, ...]:
        return tuple(followers(text.tokens, LONGEST)[: min(self._k, most)])
'''
_MATCH = '''"""Where the end of a text occurred before."""

LONGEST = 3


def followers(tokens, longest):
    for size in range(longest, 0, -1):
        end = list(tokens[-size:])
        for start in range(len(tokens) - size - 1, -1, -1):
            if list(tokens[start : start + size]) == end:
                return tokens[start + size :]
    return ()
'''
DECODER = "src/toydec/toy.py:Toy"


@dataclass(frozen=True)
class Toy:
    """The repository at `root`, with one commit."""

    root: Path

    @classmethod
    def written(cls, root: Path) -> Toy:
        package = root / "src" / "toydec"
        package.mkdir(parents=True)
        files = {"__init__.py": "", "toy.py": _TOY, "match.py": _MATCH}
        for name, text in files.items():
            (package / name).write_text(text)
        toy = cls(root.resolve())
        toy.git("init", "-q", "-b", "main")
        toy.commit()
        return toy

    def git(self, *arguments: str) -> str:
        author = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", "-C", str(self.root), *author, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "a change")

    def source(self, folder: Path | None = None, file: str = "toy.py") -> str:
        return ((folder or self.root) / "src" / "toydec" / file).read_text()

    def change(self, old: str, new: str, file: str = "toy.py") -> None:
        """Change the working tree; commit to make it a commit."""
        text = self.source(file=file)
        assert old in text
        (self.root / "src" / "toydec" / file).write_text(text.replace(old, new))
