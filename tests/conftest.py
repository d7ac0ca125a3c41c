"""Runs without a checkpoint: table models, a character tokenizer and a fake clock."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from bench.progress import Progress

if TYPE_CHECKING:
    from bench.plan.select import ResolvedRun
    from bench.plan.setup import Setup
    from bench.settings.config import RunConfig

os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # eager runs, unless a test asks
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")  # trio's warns in some runs, which ends them
if "PYTEST_XDIST_WORKER" in os.environ:  # a core for each process; torch is imported later
    os.environ.setdefault("OMP_NUM_THREADS", "1")
gc.disable()  # while tests are collected, of which it took two fifths


def pytest_collection_finish() -> None:
    gc.freeze()  # what was collected stays to the end: no search for garbage looks at it
    gc.enable()


VOCAB = 128
STOP = ord("\n")


BOS = 1


class Characters:
    """A tokenizer whose ids are code points below 128."""

    chat_template = None
    bos_token_id: int | None = BOS

    def apply_chat_template(self, *_: Any, **__: Any) -> str:
        raise AssertionError("there is no template")

    def encode(self, text: str, *, add_special_tokens: bool, verbose: bool = False) -> list[int]:
        ids = [min(ord(character), VOCAB - 1) for character in text[-40:]]
        return [BOS, *ids] if add_special_tokens else ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        kept = [i for i in token_ids if not (skip_special_tokens and i == self.bos_token_id)]
        return "".join(map(chr, kept))


class RecordedProgress(Progress):
    """Keeps the notes; raises `error` at step number `stop_at`."""

    def __init__(self, stop_at: int | None = None, error: BaseException | None = None) -> None:
        self.notes: list[str] = []
        self.phases: list[tuple[str, int, int]] = []
        self.details: list[str] = []
        self.num_steps = 0
        self.closed = 0
        self._stop_at, self._error = stop_at, error or KeyboardInterrupt()

    def start(self, phase: str, total: int, done: int = 0, *, even: bool = True) -> None:
        self.phases.append((phase, total, done))

    def step(self, detail: str = "", num: int = 1) -> None:
        self.num_steps += num
        self.details.append(detail)
        if self._stop_at is not None and self.num_steps >= self._stop_at:
            self._stop_at = None
            raise self._error

    def note(self, line: str) -> None:
        self.notes.append(line)

    def close(self) -> None:
        self.closed += 1


def open_tables(run: ResolvedRun, max_length: int = 256, agreement: float = 0.9) -> Setup:
    """A setup of two table models that agree most of the time."""
    from bench.plan.setup import assemble
    from bench.records.environment import ModelFacts
    from decoders.core.engine.models import Models
    from decoders.core.testing.table_model import TableModel
    from tests.fake_clock import FakeClock

    target = TableModel(VOCAB, seed=1, order=1, max_length=max_length)
    draft = TableModel(
        VOCAB, seed=2, order=1, agree_with=target, agreement=agreement, max_length=max_length
    )
    for name in run.config.adapters:
        target.attach(name, error=0.3)
    return assemble(
        run.with_values(device="cpu", dtype="float32"),
        Models(target=target, draft=draft if run.config.draft else None),
        cast(Any, Characters()),
        stop_ids=frozenset({STOP}),
        clock=FakeClock(step_s=0.5),
        facts=ModelFacts(target={"vocab_size": VOCAB}),
    )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out asking git, which costs a short run most."""
    monkeypatch.setattr("bench.machine.env._git", lambda *_: None)


@pytest.fixture(autouse=True)
def _uncollected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at no garbage: a process of tests has millions of objects, and every run asks often."""
    monkeypatch.setattr("gc.collect", lambda *_: 0)


@pytest.fixture
def saved() -> None:
    """Let figures be saved: for tests of what is in their files."""


@pytest.fixture(autouse=True)
def _unsaved(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw figures and save none unless a test is `saved`: that takes most of a report's time."""
    if "saved" not in request.fixturenames:
        monkeypatch.setattr("bench.report.figures.canvas.render", unsaved)


@pytest.fixture
def contract() -> None:
    """Let decoders be checked before a run: for tests of what these checks find."""


@pytest.fixture(autouse=True)
def _unchecked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check no decoder before a run unless a test asks for it: it takes seconds a decoder."""
    if "contract" not in request.fixturenames:
        from bench.plan.contract import Checked

        nothing = Checked(outcome="claimed")
        monkeypatch.setattr("bench.plan.contract.check_cell", lambda *_: nothing)


def unsaved(_figure: object, kinds: Sequence[str] = ("png", "pdf", "svg")) -> dict[str, bytes]:
    return dict.fromkeys(kinds, b"<svg></svg>")


@contextmanager
def only_svg() -> Iterator[None]:
    """Save figures as a page holds them and in no other kind: for fixtures of many tests."""
    from bench.report.figures import canvas

    render = canvas.render
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            canvas, "render", lambda figure, *_: unsaved(figure) | render(figure, ["svg"])
        )
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports be written without drawing their figures: for tests of what is around them."""
    from bench.report.figures import gallery

    nothing = gallery.Gallery(plots={}, captions={}, left_out=())
    monkeypatch.setattr(gallery, "draw_all", lambda findings: nothing)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Puts the compiled products into a cache: half a minute of a compiler, and of measurements."""
    from decoders.core import products
    from decoders.core.hf import graph_files

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("DECODING_BENCH_CACHE", str(tmp_path_factory.mktemp("products")))
        made = graph_files._library()
    products.make(made)
    graph_files.seal(made, {})
    made.with_suffix(".rows").write_text("64 64 0 0")

    def put(cache: Path) -> Path:
        shutil.copytree(made.parent, cache / "graphs")
        return cache / "graphs" / made.name

    return put


@pytest.fixture
def opener() -> Callable[..., Setup]:
    return open_tables


@pytest.fixture
def progress() -> type[RecordedProgress]:
    return RecordedProgress


@pytest.fixture
def small() -> Callable[..., RunConfig]:
    """A small configuration of `ar` and `spec` over two families; values override."""

    def make(**values: Any) -> RunConfig:
        from bench.settings.config import load_config

        plain: dict[str, Any] = {
            "model": "tables",
            "draft": "tables",
            "decoders": "spec",
            "tasks": "qa,math_reasoning",
            "limit": 4,
            "quality_limit": 2,
            "repeats": 2,
            "max_new_tokens": 12,
        }
        return load_config(None, plain | values)

    return make


@pytest.fixture
def decoder_file(tmp_path: Path) -> Callable[[str], str]:
    """Writes a decoder `Mine` whose `steps` has the given body; returns its spec."""

    def write(body: str) -> str:
        path = tmp_path / "mine.py"
        lines = "\n".join("        " + line for line in body.splitlines())
        path.write_text(
            "from dataclasses import dataclass\n"
            "from decoders.core.decoder import Decoder\n"
            "from decoders.core.types import Emit\n\n\n"
            "@dataclass(frozen=True, kw_only=True)\n"
            "class Mine(Decoder):\n"
            '    """A decoder of a test."""\n\n'
            f"    def steps(self, request):\n{lines}\n"
        )
        return f"{path}:Mine@mine"

    return write
