"""Sequential decoding with and without its cache: the same tokens, and other work."""

import pytest

from bench.errors import BenchError, Exit
from bench.plan.select import choose_decoders
from bench.settings.config import load_config
from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler, generate
from decoders.core.hf.model import HFModel
from decoders.core.testing.table_model import TableModel
from decoders.core.types import Generation, Sampling
from tests.tiny_models import fresh

PROMPT = [1, 2, 3]
NUM = 9


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_without_a_cache_the_tokens_are_the_same_and_every_row_is_counted(temperature: float):
    sampling = Sampling(temperature=temperature, max_new_tokens=NUM, seed=3)
    models = Models(target=TableModel(31, seed=1, scale=2.0))
    kept = generate(Autoregressive(), PROMPT, sampling, models)
    fed = generate(Autoregressive(cache=False), PROMPT, sampling, models)
    assert fed.tokens == kept.tokens
    assert [step.target_calls for step in fed.steps] == [1] * NUM
    assert [step.target_rows for step in kept.steps] == [len(PROMPT)] + [1] * (NUM - 1)
    assert [step.target_rows for step in fed.steps] == [len(PROMPT) + n for n in range(NUM)]


def test_without_a_cache_a_transformer_answers_the_same_in_batches():
    models = Models(target=HFModel(fresh("llama-gqa").eval()))
    sampling = Sampling(max_new_tokens=NUM)
    prompts = [[5, 6, 7], [9, 3, 4, 8, 2], [11]]
    answers = {}
    for cache in (True, False):
        outcomes = Scheduler(Autoregressive(cache=cache), models, sampling, 2).run(prompts)
        assert all(isinstance(outcome, Generation) for outcome in outcomes)
        answers[cache] = [o.tokens for o in outcomes if isinstance(o, Generation)]
    assert answers[False] == answers[True]


def test_the_baseline_must_keep_its_cache_and_a_labelled_ar_may_run_without():
    notes: list[str] = []
    with pytest.raises(BenchError, match=r"ar@LABEL:cache=false") as refused:
        choose_decoders(load_config(None, {"decoders": "ar:cache=false"}), notes.append)
    assert refused.value.exit_code == Exit.USAGE
    spelled_out = load_config(None, {"decoders": "ar:cache=true,ar@nocache:cache=false"})
    chosen = choose_decoders(spelled_out, notes.append).config.decoders
    one = {"rows": "1"}
    assert chosen == {"ar": {"cache": "true"} | one, "ar@nocache": {"cache": "false"} | one}


def test_in_calls_of_several_rows_the_tokens_are_the_same_and_every_row_is_counted():
    sampling = Sampling(temperature=0.9, max_new_tokens=NUM, seed=3)
    models = Models(target=TableModel(31, seed=1, scale=2.0))
    wide = generate(Autoregressive(rows=5), PROMPT, sampling, models)
    assert wide.tokens == generate(Autoregressive(), PROMPT, sampling, models).tokens
    assert [step.target_rows for step in wide.steps] == [len(PROMPT), 4, *[5] * (NUM - 2)]
    for rows, cache in ((0, True), (2, False)):
        with pytest.raises(ValueError, match="option 'rows' of decoder 'ar'"):
            Autoregressive(rows=rows, cache=cache)
