"""Compiled calls: answers of every decoder are those of the plain module, float32, on the zoo.

The backend ``export`` interprets the traced graphs: it shows that shapes, gates and caches are
right in them without a C++ compiler. ``eager`` runs the plain function, in the
shapes of CUDA graphs.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from bench.plan.sources import load_adapter
from decoders.core.engine.models import Models
from decoders.core.hf.compiled import COMPILED_PROMPT, COMPILED_ROWS, Backend
from decoders.core.hf.model import HFModel
from decoders.core.registry import build, parse_spec
from tests.zoo.answers import held_out, sampling_for, tokens_of
from tests.zoo.conftest import ROOT

SPECS = {
    "ar": None,
    "spec": None,
    "lookahead": None,
    "ptp": "ptp",
    "ptp@pqd:mode=pqd": "ptp",
    "idlm": "refine",
    "idlm@isd:mode=isd": "isd",
    "medusa": "medusa",
    "eagle": "eagle",
    "shallow": "shallow",
}


def opened(name: str | None, backend: Backend | None) -> HFModel:
    """The zoo's target with an adapter; None: not compiled."""
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(ROOT / "zoo" / "target", dtype=torch.float32)
    model = HFModel(module) if backend is None else HFModel(module, compile=True, backend=backend)
    if name is not None:
        model.attach(name, load_adapter(name, ROOT / "zoo" / name))
    return model


def check(
    spec: str,
    name: str | None,
    zoo: Models,
    tokenizer: PreTrainedTokenizerBase,
    backend: Backend,
    *,
    batch_size: int = 1,
) -> None:
    prompts = held_out(tokenizer, 1)[:3]
    decoder = build(parse_spec(spec))
    plain = Models(target=opened(name, None), draft=zoo.draft)
    sampling = sampling_for(plain, tokenizer)
    expected = tokens_of(decoder, plain, prompts, sampling)
    made = Models(target=opened(name, backend), draft=zoo.draft)
    try:
        assert tokens_of(decoder, made, prompts, sampling, batch_size) == expected
        num_graphs = made.num_graphs
        assert num_graphs > 0
        assert tokens_of(decoder, made, prompts, sampling, batch_size) == expected
        assert made.num_graphs == num_graphs, "the same calls were compiled again"
        with made.uncompiled():
            assert tokens_of(decoder, made, prompts, sampling, 3) == expected
        assert plain.num_graphs == 0
    finally:
        torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["ar", "ptp", "ptp@pqd:mode=pqd"])
def test_answers_are_those_of_the_plain_module(
    spec: str,
    zoo: Models,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    check(spec, SPECS[spec], zoo, tokenizer, "export")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["export", "eager"])
@pytest.mark.parametrize("batch_size", [1, 2])
@pytest.mark.parametrize("spec", SPECS)
def test_answers_of_every_decoder_are_those_of_the_plain_module(
    spec: str,
    batch_size: int,
    backend: Backend,
    zoo: Models,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    check(spec, SPECS[spec], zoo, tokenizer, backend, batch_size=batch_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "batch_size"),
    [("ar", 1), ("ar", 2), ("ptp", 1), ("ptp", 2), ("eagle", 1), ("medusa", 1), ("shallow", 1)],
)
def test_answers_of_compiled_kernels_are_those_of_the_plain_module(
    spec: str,
    batch_size: int,
    zoo: Models,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(tmp_path))
    check(spec, SPECS[spec], zoo, tokenizer, "inductor", batch_size=batch_size)
    made = sorted(path.stat().st_mtime_ns for path in tmp_path.glob("graphs/*.pt2"))
    assert made
    check(spec, SPECS[spec], zoo, tokenizer, "inductor", batch_size=batch_size)  # of the files
    assert sorted(path.stat().st_mtime_ns for path in tmp_path.glob("graphs/*.pt2")) == made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "lone", "num_rows", "graphs"),
    [
        ("export", True, COMPILED_PROMPT, 1),
        ("export", True, COMPILED_PROMPT + 1, 0),
        ("export", False, COMPILED_ROWS, 1),
        ("export", False, COMPILED_ROWS + 1, 0),  # several sequences
        ("eager", True, COMPILED_PROMPT, 1),  # in the shapes of CUDA graphs
        ("eager", True, COMPILED_PROMPT + 1, 0),
        ("eager", False, COMPILED_ROWS + 1, 0),
    ],
)
def test_prompts_are_graphs_up_to_a_length(
    backend: Backend, lone: bool, num_rows: int, graphs: int
) -> None:
    made, plain = opened(None, backend), opened(None, None)
    found = []
    for model in (made, plain):
        model.reserve(2, COMPILED_PROMPT + 8)
        prompt = [3 + row % 200 for row in range(num_rows)]
        prompts = [prompt] if lone else [prompt, [5, 6]]
        found.append(model.forward([model.open().call(each) for each in prompts]))
    torch.testing.assert_close(*found, atol=1e-4, rtol=1e-4)
    assert made.num_graphs == graphs
    assert made.facts["compiled"] is True
    assert plain.facts["compiled"] is False
