"""Compiled calls: answers of every decoder are those of the plain module, float32, on the zoo.

The backend ``export`` interprets the traced graphs: it shows that shapes, gates and caches are
right in them without a C++ compiler. ``eager`` runs the plain function, in the
shapes of CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from bench.plan.sources import load_adapter
from decoders.core.engine.models import Models
from decoders.core.hf.compiled import COMPILED_PROMPT, Backend, Graphs
from decoders.core.hf.model import HFModel
from decoders.core.model import MERGED_ROWS, Model
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
ADAPTERS = tuple(filter(None, dict.fromkeys(SPECS.values())))


def opened(backend: Backend | None, adapters: Sequence[str] = ADAPTERS) -> HFModel:
    """The zoo's target with adapters; None: not compiled."""
    from transformers import AutoModelForCausalLM

    module = AutoModelForCausalLM.from_pretrained(ROOT / "zoo" / "target", dtype=torch.float32)
    model = HFModel(module) if backend is None else HFModel(module, compile=True, backend=backend)
    for name in adapters:
        model.attach(name, load_adapter(name, ROOT / "zoo" / name))
    return model


@pytest.fixture(scope="module")
def plain() -> HFModel:
    return opened(None)


@pytest.fixture(scope="module", params=["export", "eager"])
def compiled(request: pytest.FixtureRequest) -> Iterator[HFModel]:
    """A target that every decoder runs on, so that none disturbs the graphs of others."""
    yield opened(request.param)
    torch.compiler.reset()


def check(
    spec: str,
    plain: HFModel,
    compiled: HFModel,
    draft: Model | None,
    tokenizer: PreTrainedTokenizerBase,
    batch_sizes: Sequence[int] = (1, 2),
) -> None:
    decoder, prompts = build(parse_spec(spec)), held_out(tokenizer, 1)[:3]
    expecting, made = Models(target=plain, draft=draft), Models(target=compiled, draft=draft)
    sampling = sampling_for(expecting, tokenizer)
    expected = tokens_of(decoder, expecting, prompts, sampling)
    for batch_size in batch_sizes:
        with patch.object(Graphs, "bound", autospec=True, side_effect=Graphs.bound) as graph:
            assert tokens_of(decoder, made, prompts, sampling, batch_size) == expected
        assert graph.called
        num_graphs = made.num_graphs
        assert tokens_of(decoder, made, prompts, sampling, batch_size) == expected
        assert made.num_graphs == num_graphs, "the same calls were compiled again"
    with made.uncompiled():
        assert tokens_of(decoder, made, prompts, sampling, 3) == expected
    assert plain.num_graphs == 0


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_compiled_calls_give_the_answers_of_the_plain_module_for_every_decoder(
    spec: str, plain: HFModel, compiled: HFModel, zoo: Models, tokenizer: PreTrainedTokenizerBase
) -> None:
    check(spec, plain, compiled, zoo.draft, tokenizer)


@pytest.fixture(scope="module")
def cache(library: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where graphs are stored: those of the target alone serve several decoders."""
    return library(tmp_path_factory.mktemp("cache")).parents[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "batch_sizes"),
    [("ar", (1, 2)), ("ptp", (1, 2)), ("eagle", (1,)), ("medusa", (1,)), ("shallow", (1,))],
)
def test_compiled_and_cached_kernels_give_the_answers_of_the_plain_module(
    spec: str,
    batch_sizes: Sequence[int],
    plain: HFModel,
    zoo: Models,
    tokenizer: PreTrainedTokenizerBase,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DECODING_BENCH_CACHE", str(cache))
    written = []
    try:
        for _ in ("compiled", "read from files"):
            model = opened("inductor", [name for name in [SPECS[spec]] if name])
            check(spec, plain, model, zoo.draft, tokenizer, batch_sizes)
            written.append(sorted(path.stat().st_mtime_ns for path in cache.glob("graphs/*.pt2")))
    finally:
        torch.compiler.reset()
    assert written[0]
    assert written[0] == written[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "lone", "num_rows", "graphs"),
    [
        ("export", True, COMPILED_PROMPT, 1),
        ("export", True, COMPILED_PROMPT + 1, 0),
        ("export", False, MERGED_ROWS, 1),
        ("export", False, MERGED_ROWS + 1, 0),  # several sequences
        ("eager", True, COMPILED_PROMPT, 1),  # in the shapes of CUDA graphs
        ("eager", True, COMPILED_PROMPT + 1, 0),
        ("eager", False, MERGED_ROWS, 1),
        ("eager", False, MERGED_ROWS + 1, 0),
    ],
)
def test_prompts_run_as_graphs_up_to_a_maximum_length(
    backend: Backend, lone: bool, num_rows: int, graphs: int
) -> None:
    made, plain = opened(backend, ()), opened(None, ())
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
