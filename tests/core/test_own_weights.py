"""Weights that a decoder holds itself count as its memory, wherever it keeps them."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.machine.usage import PeakMemory
from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.hf.model import HFModel
from decoders.core.own_weights import own_storages
from decoders.core.registry import build, parse_spec
from tests.pretended_allocator import allocator
from tests.tiny_models import fresh

HEADER = """
import functools
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import nn

from decoders.ar import Autoregressive as Decoder

"""
LAYER_BYTES = 4 * 10 * 10
PLACES = {
    "an attribute": """
        @dataclass(frozen=True, kw_only=True)
        class Mine(Decoder):
            def __post_init__(self):
                object.__setattr__(self, "layer", nn.Linear(10, 10, bias=False))
    """,
    "a cached property": """
        @dataclass(frozen=True, kw_only=True)
        class Mine(Decoder):
            @functools.cached_property
            def layer(self):
                return nn.Linear(10, 10, bias=False)

            def use(self):
                self.layer
    """,
    "a class attribute": """
        @dataclass(frozen=True, kw_only=True)
        class Mine(Decoder):
            layer = nn.Linear(10, 10, bias=False)
    """,
    "a dict in the file": """
        LOADED = {}

        @dataclass(frozen=True, kw_only=True)
        class Mine(Decoder):
            def use(self):
                LOADED["layers"] = [(torch.zeros(10, 10),)]
    """,
    "a cached function": """
        @functools.cache
        def loaded(path):
            return nn.Linear(10, 10, bias=False)

        @dataclass(frozen=True, kw_only=True)
        class Mine(Decoder):
            def use(self):
                loaded("here")
    """,
    "a bounded cache": """
        @functools.lru_cache(maxsize=2)
        def loaded(path):
            return {"w": torch.zeros(10, 10)}

        @dataclass(frozen=True, kw_only=True)
        class Mine(Decoder):
            def use(self):
                loaded("here")
    """,
    "a closure": """
        def made():
            layer = torch.zeros(10, 10)
            return lambda x: x @ layer

        HEAD = made()

        @dataclass(frozen=True, kw_only=True)
        class Mine(Decoder):
            pass
    """,
    "an object of the file": """
        class Drafter:
            def __init__(self):
                self.layer = nn.Linear(10, 10, bias=False)
                self.view = self.layer.weight[2:]
                self.other = self

        DRAFTER = Drafter()

        @dataclass(frozen=True, kw_only=True)
        class Mine(Decoder):
            pass
    """,
    "elsewhere, and it says so": """
        @dataclass(frozen=True, kw_only=True)
        class Mine(Decoder):
            def own_weights(self):
                return [nn.Linear(10, 10, bias=False)]
    """,
}


def made(folder: Path, body: str) -> Any:
    path = folder / "mine.py"
    path.write_text(HEADER + textwrap.dedent(body))
    return build(parse_spec(f"{path}:Mine"))


@pytest.mark.parametrize("place", PLACES)
def test_a_decoders_own_weights_count_as_memory_wherever_it_keeps_them(
    place: str, tmp_path: Path
) -> None:
    decoder = made(tmp_path, PLACES[place])
    model = HFModel(fresh("llama"))
    models = Models(target=model)
    plain = PeakMemory(models, models, Autoregressive()).peak_bytes()
    assert plain == model.weight_bytes
    memory = PeakMemory(models, models, decoder)
    getattr(decoder, "use", lambda: None)()
    assert memory.peak_bytes() == plain + LAYER_BYTES


def test_model_weights_that_a_decoder_also_references_are_counted_once(tmp_path: Path) -> None:
    decoder = made(tmp_path, PLACES["a dict in the file"])
    model = HFModel(fresh("llama"))
    sys.modules[type(decoder).__module__].LOADED["head"] = model.module.lm_head  # type: ignore[attr-defined]
    sys.modules[type(decoder).__module__].LOADED["all"] = model  # type: ignore[attr-defined]
    models = Models(target=model)
    assert PeakMemory(models, models, decoder).peak_bytes() == model.weight_bytes


def test_on_a_gpu_the_weights_of_other_decoders_are_taken_off_the_peak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = SimpleNamespace(type="cuda")

    def stored(size: int, device: Any = gpu) -> Any:
        return SimpleNamespace(
            device=device, untyped_storage=lambda: SimpleNamespace(nbytes=lambda: size)
        )

    one, other = Autoregressive(), Autoregressive(rows=2)
    shared, on_cpu = stored(40), stored(5, SimpleNamespace(type="cpu"))
    held = {one: {1: shared}, other: {1: shared, 2: stored(7), 3: on_cpu}}
    monkeypatch.setattr("decoders.core.own_weights.own_storages", held.get)
    allocator(monkeypatch, (900, 1000))
    target = SimpleNamespace(device=gpu, weight_bytes=100, adapters=(), cache_bytes=lambda: 10)
    target.adapter_bytes = {}.get
    models = Models(target=target)  # type: ignore[arg-type]
    assert PeakMemory(models, models, one, [one, other]).peak_bytes() == 110 + 40 + 100
    assert PeakMemory(models, models, other, [one, other]).peak_bytes() == 110 + 47 + 100


def test_gpu_memory_allocated_before_an_answer_does_not_count_as_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Graphs that other decoders captured keep their buffers and outputs."""
    target = SimpleNamespace(device=SimpleNamespace(type="cuda"), weight_bytes=100, adapters=())
    target.cache_bytes, target.adapter_bytes = lambda: 10, {}.get
    models, ar = Models(target=target), Autoregressive()  # type: ignore[arg-type]
    for graphs in (0, 500):
        allocator(monkeypatch, (60 + graphs, 67 + graphs), (50, 53))
        assert PeakMemory(models, models, ar).peak_bytes() == 110 + 7 + 3


def test_built_in_decoders_hold_no_weights_themselves() -> None:
    for name in ("ar", "spec", "lookup", "jacobi", "ptp"):
        assert own_storages(build(parse_spec(name))) == {}
