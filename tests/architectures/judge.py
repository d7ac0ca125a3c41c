"""What a checkpoint can do here: it decodes and trains right, or one line refuses it.

Nothing else is a verdict: an answer that is not `generate()`'s, a decoder that leaves `ar`, and an
error that is no refusal in one line fail the test that asked.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from decoders.ar import Autoregressive
from decoders.core.adapter.module import read_adapter
from decoders.core.decoder import Decoder
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel
from decoders.core.hf.self_check import self_check
from decoders.core.types import Sampling
from decoders.eagle import Eagle
from decoders.idlm import Refinement
from decoders.isd import StridedDecoding
from decoders.lookahead import Lookahead
from decoders.lookup import PromptLookup
from decoders.medusa import Medusa
from decoders.nar import NonAutoregressive
from decoders.ptp import ParallelTokenPrediction
from docs.generate.architectures import DECODE, KINDS, Verdict
from docs.generate.places import ROOT
from tests.architectures.catalogue import CONTEXT, save
from training.adapters import train_adapter, train_heads

_Tokens = Sequence[Sequence[int]]
_REPEATED = [10, 20, 30, 40, 10, 20, 30, 40, 10, 20, 30, 40, 10, 20]
_BLOCK, _TOLERANCE = 5, 1e-3
PROMPTS: _Tokens = (_REPEATED[:9], [7, 8, 9], _REPEATED)

_RUN = {"num_steps": 1, "warmup_steps": 0, "adamw_lr": 0.01, "eval_rows": 2, "max_tokens": 200}
_SLOTS = {"run": {**_RUN, "muon_lr": 0.01, "workers": 1, "slots_per_row": 8}}
_MASKS = {"code": "constant", "num_slots": 4, "rank": 2}
_RECIPES: Mapping[str, Mapping[str, Any]] = {
    "ptp": {**_SLOTS, "adapter": {"num_slots": 4, "rank": 2}},
    "refine": {**_SLOTS, "adapter": {**_MASKS, "variant": "refine"}},
    "isd": {**_SLOTS, "adapter": {**_MASKS, "variant": "isd"}},
    "medusa": {"run": _RUN, "heads": {"num_heads": 2, "rank": 4}},
    "eagle": {"run": _RUN, "layer": {"unroll": 2, "rank": 8, "num_heads": 2}},
}
"""Recipes of one step, without model and data."""
_PLAIN: Sequence[Decoder] = (Autoregressive(), PromptLookup(), Lookahead())
_DECODERS: Mapping[str, Sequence[Decoder]] = {
    "ptp": [ParallelTokenPrediction()],
    "refine": [Refinement(block=4), NonAutoregressive()],
    "isd": [StridedDecoding()],
    "medusa": [Medusa()],
    "eagle": [Eagle()],
}


def judge(name: str, work: Path) -> Verdict:
    """Try everything with the checkpoint of a name, which is written to `work`.

    Raises:
        Exception: what is neither right nor refused.
    """
    folder = work / "model"
    architecture = save(name, folder)
    expected = _generated(folder)
    refusals: dict[str, str] = {}
    with _refusing(DECODE, refusals):
        model = _opened(folder)
        _check_logits(model)
        for decoder in _PLAIN:
            for batch_size in (1, len(PROMPTS)):
                _check(decoder, model, batch_size, expected)
    for kind in KINDS:
        with _refusing(kind, refusals):
            _train(kind, folder, work / kind)
            assert DECODE not in refusals, f"{kind} is trained for a model that does not decode"
            model = _opened(folder)
            model.attach(kind, read_adapter(work / kind))
            for decoder in _DECODERS[kind]:
                _check(decoder, model, len(PROMPTS), expected)
    if DECODE in refusals:
        assert set(refusals) == {DECODE, *KINDS}
        refusals = {DECODE: refusals[DECODE]}
    return Verdict(architecture=architecture, refusals=refusals)


@contextmanager
def _refusing(what: str, refusals: dict[str, str]) -> Iterator[None]:
    """Note the line by which one of our own statements refuses; its measurements are left out."""
    try:
        yield
    except ValueError as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        line = re.sub(r"\b(by|below) [\d.e+-]+%?", r"\1 …", str(error))
        own = Path(place.filename).is_relative_to(ROOT) and "raise " in str(place.line)
        if not own or not re.fullmatch(r"\S[^\n]{20,}", line):
            raise AssertionError(f"{what}: an error that is no refusal in one line") from error
        refusals[what] = line


def _opened(folder: Path) -> HFModel:
    """The model as a run opens it."""
    model = HFModel.load(folder, dtype=torch.float32, device="cpu")
    self_check(model)
    return model


@torch.inference_mode()
def _generated(folder: Path) -> list[list[int]]:
    """What transformers' own loop answers, each prompt alone."""
    module: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    num_tokens = CONTEXT - len(_REPEATED)
    module.generation_config = GenerationConfig(max_new_tokens=num_tokens, do_sample=False)
    alone = [torch.tensor([prompt]) for prompt in PROMPTS]
    texts = [module.generate(ids, attention_mask=torch.ones_like(ids))[0] for ids in alone]
    return [text[ids.shape[1] :].tolist() for text, ids in zip(texts, alone, strict=True)]


def _answers(decoder: Decoder, model: HFModel, batch_size: int) -> list[list[int]]:
    """Answers that fill the context with the longest prompt."""
    sampling = Sampling(max_new_tokens=model.max_length - len(_REPEATED))
    outcomes = Scheduler(decoder, Models(target=model), sampling, batch_size).run(PROMPTS)
    tokens = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise AssertionError(f"{decoder.name} ends in an error") from outcome
        tokens.append(list(outcome.tokens))
    assert {len(each) for each in tokens} == {sampling.max_new_tokens}
    return tokens


def _check(decoder: Decoder, model: HFModel, batch_size: int, expected: _Tokens) -> None:
    """Whatever the decoder promises: AR's answers, as far as the model's context goes."""
    got = _answers(decoder, model, batch_size)
    if decoder.lossless:
        cut = [tokens[: len(got[0])] for tokens in expected]
        assert got == cut, f"{decoder.name} is not generate() in batches of {batch_size}"


def _check_logits(model: HFModel) -> None:
    """Blocks of rows up to the end of the context, against transformers' own forward."""
    text = [(7 * place * place + 3) % model.vocab_size for place in range(model.max_length)]
    own = model.own_logits(text, len(text))
    model.reserve(1, len(text))
    session = model.open()
    blocks = [text[start : start + _BLOCK] for start in range(0, len(text), _BLOCK)]
    got = [model.forward([session.call(block, read=range(len(block)))]) for block in blocks]
    model.close(session)
    gap = (torch.cat(got) - own).abs().max() / own.std()
    assert gap < _TOLERANCE, f"logits are others than those of transformers by {gap:.2g}"


def _train(kind: str, model: Path, folder: Path) -> None:
    text = folder.parent / "text.txt"
    text.write_text("".join(chr(97 + number * number % 23) for number in range(600)))
    tables = {
        **_RECIPES[kind],
        "model": {"path": str(model), "dtype": "float32"},
        "data": {"kind": "text", "path": str(text), "rows_per_step": 4},
    }
    train = train_adapter if "adapter" in tables else train_heads
    train(tables, folder, progress="none")
