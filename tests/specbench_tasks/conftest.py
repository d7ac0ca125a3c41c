"""Rows written to a file, and a network that refuses: what the loaders' tests share."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write rows to data.jsonl."""

    def to_file(*rows: dict[str, Any]) -> Path:
        path = tmp_path / "data.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
        return path

    return to_file


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Refuse every connection, and give the cache an empty home."""

    def refuse(*_: object, **__: object) -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"
