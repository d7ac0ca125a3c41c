"""Bars of transformers and tqdm: none while a model is read or written, all of them afterwards."""

import pytest
import torch
from tqdm.auto import tqdm
from transformers.utils import logging

from decoders.core.hf import gguf
from decoders.core.hf.loading import no_bars
from decoders.core.hf.model import HFModel
from tests.tiny_gguf import write_gguf


def bars_shown(capfd) -> str:
    """What a bar of each kind leaves on stderr."""
    for bar in (tqdm, logging.tqdm):
        for _ in bar(range(2), desc="some bar"):
            pass
    return capfd.readouterr().err


def test_converting_and_loading_a_model_print_nothing_to_stderr(tmp_path, capfd):
    pytest.importorskip("gguf", reason="the extra [gguf] is not installed")
    pytest.importorskip("accelerate", reason="the extra [gguf] is not installed")
    logging.enable_progress_bar()
    folder = gguf.convert(write_gguf(tmp_path / "m.gguf"), tmp_path / "f", "0")
    HFModel.load(folder, dtype=torch.float32, device="cpu")
    assert capfd.readouterr().err == ""
    assert bars_shown(capfd).count("some bar") >= 2


def fail_within(capfd) -> None:
    with no_bars():
        assert bars_shown(capfd) == ""
        raise ZeroDivisionError


@pytest.mark.parametrize("enabled", [True, False])
def test_progress_bars_are_restored_after_an_error(enabled, capfd):
    (logging.enable_progress_bar if enabled else logging.disable_progress_bar)()
    try:
        before = bars_shown(capfd).count("some bar")
        with pytest.raises(ZeroDivisionError):
            fail_within(capfd)
        assert logging.is_progress_bar_enabled() is enabled
        assert bars_shown(capfd).count("some bar") == before > 0
    finally:
        logging.enable_progress_bar()
