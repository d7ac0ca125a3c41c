"""The embedded default, loaded once for all tests of this folder."""

import functools
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from decoders.core.engine.models import Models
from decoders.core.hf.model import HFModel, load_tokenizer
from tests.lent_outputs import lent_outputs

__all__ = ["lent_outputs"]
ROOT = Path(__file__).parents[2]
STORIES = ROOT.parent / "shared" / "models" / "stories260K"


@pytest.fixture(scope="session")
def zoo() -> Models:
    """The zoo's target and draft in float32 on the CPU."""
    load = functools.partial(HFModel.load, dtype=torch.float32, device="cpu")
    return Models(
        target=load(ROOT / "zoo" / "target"),
        draft=load(ROOT / "zoo" / "draft"),
    )


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(ROOT / "zoo" / "target")


@pytest.fixture(scope="session")
def stories() -> HFModel:
    """A real pretrained Llama of 260,032 parameters."""
    if not STORIES.is_dir():
        pytest.skip("../shared/models/stories260K is not here")
    return HFModel.load(STORIES, dtype=torch.float32, device="cpu")
