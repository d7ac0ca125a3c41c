"""What cannot be trained or decoded is refused in one line, before any text is sampled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from decoders.core.adapter.heads import DraftHeads
from decoders.core.adapter_config import AdapterConfig
from decoders.core.hf.model import HFModel
from tests.architectures.catalogue import save
from tests.tiny_models import WIDTH, fresh
from tests.tiny_recipe import ADAPTER
from training import forward
from training.adapter import student
from training.adapters import rehearse, train_adapter, train_heads
from training.text.sources import build_source

_ISD = {"variant": "isd", "code": "constant", "num_slots": 3, "rank": 2}


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any, **__: Any) -> Any:
        pytest.fail("text was read for what cannot be trained")

    monkeypatch.setattr("training.adapters.build_source", read)


@pytest.fixture
def refused(recipe: dict[str, Any], tmp_path: Path) -> Callable[..., str]:
    """The line by which training of a checkpoint of the catalogue is refused."""

    def train(name: str, **tables: Any) -> str:
        folder = tmp_path / "model"
        save(name, folder)
        given = {**recipe, "model": {"path": str(folder), "dtype": "float32"}, **tables}
        if heads := "adapter" not in tables:
            given = {key: given[key] for key in ("model", "data", *tables)}
            given["run"] = {"num_steps": 1, "adamw_lr": 0.1}
        with pytest.raises(ValueError, match=r"^[^\n]+$") as caught:
            (train_heads if heads else train_adapter)(given, tmp_path / "out", progress="none")
        assert not list((tmp_path / "out").glob("*.json"))
        return str(caught.value)

    return train


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize(
    ("name", "tables", "told"),
    [
        ("deepseek_v3", {"adapter": _ISD, "sampling": {}}, "kv_b_proj rows other than the call's"),
        ("gpt_oss", {"adapter": ADAPTER}, "its attention is not plain (its states differ by "),
        ("gemma2", {"adapter": ADAPTER}, "does more to its logits than a linear head"),
    ],
)
def test_an_architecture_that_cannot_train_the_adapter_is_refused_before_text_is_read(
    refused: Callable[..., str], name: str, tables: dict[str, Any], told: str
) -> None:
    assert told in refused(name, **tables)


@pytest.mark.parametrize("name", ["llama", "gpt-neox"])
def test_a_student_whose_attention_differs_from_the_models_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unscaled(*parts: Any) -> Any:
        return attend(*parts[:-1], 1.0)

    attend: Any = forward.attend
    config = SimpleNamespace(layers={}, rank=1, enter=0)
    adapter: Any = SimpleNamespace(check_fits=lambda _: None, config=config)
    student.Student(fresh(name), adapter)
    monkeypatch.setattr(forward, "attend", unscaled)
    monkeypatch.setattr(student, "attend", unscaled)
    with pytest.raises(ValueError, match=r"its states differ by [\d.]+%\)"):
        student.Student(fresh(name), adapter)


class Job:
    """Runs a step that raises what it is given, or that trains heads a little."""

    def __init__(self, heads: DraftHeads, error: Exception | None) -> None:
        self.trained, self._error = heads, error

    def pieces(self, _: Any) -> Iterator[tuple[torch.Tensor, int, int]]:
        if self._error is not None:
            raise self._error
        yield self.trained.up.square().sum(), 1, 1


def rehearsed(error: Exception | None = None) -> DraftHeads:
    heads = DraftHeads(
        AdapterConfig(
            variant="medusa", code="constant", num_slots=2, rank=4, layers={}, width=WIDTH
        )
    )
    made: Any = lambda _: Job(heads, error)  # noqa: E731
    rehearse(HFModel(fresh("llama"), in_place=False), heads, made)
    return heads


def test_a_rehearsal_leaves_an_adapter_as_it_was() -> None:
    before, heads = rehearsed().state_dict(), rehearsed()
    assert all(torch.equal(before[name], value) for name, value in heads.state_dict().items())
    assert all(parameter.grad is None for parameter in heads.parameters())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TypeError("no\nsuch"), "no such"),
        (IndexError(), "IndexError"),
        (ValueError("w " * 99), f"{'w ' * 49}…"),
    ],
)
def test_any_exception_of_a_training_step_becomes_one_line(error: Exception, reason: str) -> None:
    line = f"LlamaForCausalLM trains no medusa adapter ({reason}); use another kind"
    with pytest.raises(ValueError, match=rf"^{re.escape(line)}[^\n]*$"):
        rehearsed(error)


def test_running_out_of_memory_is_not_reported_as_a_fault_of_the_architecture() -> None:
    with pytest.raises(MemoryError):
        rehearsed(MemoryError())


@pytest.mark.slow
def test_training_rows_are_cut_to_the_models_sliding_window(
    recipe: dict[str, Any], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("some words that are longer than a window of the model " * 100)
    recipe["model"]["path"] = str(home / "sliding")
    recipe["data"] = {"kind": "text", "path": str(text)}
    lengths: list[int] = []

    def noting(*given: Any, **options: Any) -> Any:
        source = build_source(*given, **options)
        lengths.extend(len(row.ids) for row in source.rows(0))
        return source

    monkeypatch.setattr("training.adapters.build_source", noting)
    train_adapter(recipe, tmp_path / "out", progress="none")
    assert max(lengths) == 100
    recipe["data"]["max_tokens"] = 101
    with pytest.raises(ValueError, match=r"sliding window\): --set data\.max_tokens=100"):
        train_adapter(recipe, tmp_path / "more", progress="none")
