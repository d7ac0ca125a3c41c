"""Hugging Face datasets as conversations, from local copies. The network is never used."""

from __future__ import annotations

import io
import urllib.error
from pathlib import Path

import pytest

from decoders.core.hf.checkpoint import hub_answers
from specbench_tasks import loaders
from specbench_tasks.task import Conversation, DataUnavailable


def load_hf(dataset: str, columns: dict[str, str] | None = None) -> list[Conversation]:
    return loaders.load_hf(dataset, columns).conversations


@pytest.fixture
def hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Let `datasets` keep its tables under tmp_path, without progress bars."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "tables"))
    datasets.disable_progress_bars()
    return tmp_path


def test_a_local_parquet_folder_loads_like_a_hub_dataset(hub_cache: Path) -> None:
    import pandas as pd

    folder = hub_cache / "toy"
    folder.mkdir()
    for split, word in (("train", "t"), ("test", "x")):
        table = pd.DataFrame({"question": [f"{word}1", f"{word}2"], "answer": [["a", "b"], ["c"]]})
        table.to_parquet(folder / f"{split}.parquet")
    conversations = load_hf(str(folder), {"family": "qa"})
    assert [c.turns[0] for c in conversations] == ["x1", "x2"]
    gold = conversations[0].references[0]
    assert gold is not None
    assert gold.answers == ("a", "b")
    assert [c.id for c in conversations] == ["toy-00000", "toy-00001"]
    assert load_hf(str(folder), {"split": "train"})[0].turns == ("t1",)
    with pytest.raises(ValueError, match=r"no split 'dev'; it has train, test|test, train"):
        load_hf(str(folder), {"split": "dev"})
    with pytest.raises(ValueError, match=r"no column 'q'.*columns present: question, answer"):
        load_hf(str(folder), {"prompt": "q"})


def test_a_folder_with_too_many_files_is_refused_without_a_full_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "_MAX_FILES", 3)
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("a/one.txt", "a/b/two.txt"):
        (tmp_path / name).write_text("x")
    with pytest.raises(ValueError, match="it holds more than 3 files; give a file in it"):
        load_hf(str(tmp_path))


def test_a_saved_table_and_a_single_file_load_too(hub_cache: Path) -> None:
    from datasets import Dataset

    saved = hub_cache / "saved"
    Dataset.from_dict({"prompt": ["a"], "id": ["k"]}).save_to_disk(str(saved))
    assert load_hf(str(saved))[0].id == "saved-k"
    file = hub_cache / "one.jsonl"
    file.write_text('{"prompt": "b"}\n')
    assert load_hf(str(file))[0].turns == ("b",)


def test_an_unreachable_hub_is_reported_in_one_clear_line(
    hub_cache: Path, no_network: Path
) -> None:
    with pytest.raises(
        DataUnavailable, match=r"cannot reach .* hub .*path of a local copy"
    ) as info:
        load_hf("nobody/never-cached-anything")
    assert "\n" not in str(info.value)
    from huggingface_hub import constants

    assert not constants.HF_HUB_OFFLINE  # put back as it was


def test_a_file_of_an_unknown_format_is_refused_in_one_clear_line(hub_cache: Path) -> None:
    file = hub_cache / "notes.xyz"
    file.write_text("?")
    with pytest.raises(ValueError, match=r"notes\.xyz is none of JSONL, .*Parquet"):
        load_hf(str(file))


def test_a_hub_that_answers_with_an_error_page_still_counts_as_reachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbid(*_: object, **__: object) -> None:
        raise urllib.error.HTTPError("u", 405, "no HEAD", {}, io.BytesIO())  # type: ignore[arg-type]

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("urllib.request.urlopen", forbid)
    assert hub_answers()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert not hub_answers()
