"""The named model SmolLM2-135M: ids of text against known answers, its own words against ours.

The ids below were not made by code of this project: vocabulary and merges were read from the GGUF
file, and text was cut by `Sequence([Digits(individual_digits=True), ByteLevel()])` of `tokenizers`,
put together by hand, and once more by a few lines of byte-pair encoding in plain Python.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from bench.plan import sources
from bench.plan.sources import MODELS, fetch
from bench.plan.tokenise import PromptEncoder
from decoders.ar import Autoregressive
from decoders.core.engine.models import Models
from decoders.core.engine.scheduler import Scheduler
from decoders.core.hf.model import HFModel, load_tokenizer, stop_ids
from decoders.core.types import Generation, Sampling
from specbench_tasks.registry import load_tasks

pytest.importorskip("gguf", reason="the extra [gguf] is not installed")

SMOLLM = MODELS[0]
QUESTIONS = Path(__file__).resolve().parents[3].parent / "shared/data/spec_bench/question.jsonl"
IDS = {
    "In 1984 there were 12 of 345.": "788 216 33 41 40 36 665 592 216 33 34 282 216 35 36 37 30",
    "a  b   c": "81 216 278 256 265",
    "\n123": "198 33 34 35",
    "line\n\n 7 x": "1311 8866 39 1792",
    "3.14159e-10": "35 30 33 36 33 37 41 85 29 33 32",
    "007": "32 32 39",
    "1,234,567.89": "33 28 34 35 36 28 37 38 39 30 40 41",
    "2024-11-05T08:30:00": "34 32 34 36 29 33 33 29 32 37 68 32 40 42 35 32 42 32 32",
    "x1 y22 z333": "104 33 329 34 34 1892 35 35 35",
    "  42": "256 36 34",
    "42  ": "36 34 256",
    "a\t1\n\t22": "81 197 33 3354 34 34",
    "total:\n15\n\n16": "9712 42 198 33 37 1116 33 38",
    "\n\n2. Second\n3. Third": "1116 34 30 5665 198 35 30 11961",
    "12  34": "33 34 256 35 36",
    "100%  of 50": "33 32 32 21 216 282 216 37 32",
    "Question: 6*7=\n42\n": "17872 42 216 38 26 39 45 198 36 34 198",
    "year\n 1999": "3610 3805 33 41 41 41",
    "v2.0.1-rc3\n\n\n9": "102 34 30 32 30 33 29 6506 35 16506 41",
    "½ of ١٢": "16738 282 216 164 111 164 112",
    "No digits  here.\n\nNone.": "5230 18638 216 1535 30 198 198 3482 30",
}
NUM_PROMPTS, NUM_TOKENS = 24, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The installed weights, converted afresh."""
    if sources.package_file(SMOLLM) is None:
        pytest.skip(f"the weights are not installed: {SMOLLM.install}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECODING_BENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield fetch(SMOLLM.name)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(folder)


@pytest.mark.slow
@pytest.mark.parametrize("text", IDS)
def test_ids_of_digits_spaces_and_newlines_are_golden(
    tokenizer: PreTrainedTokenizerBase, text: str
) -> None:
    ids = [int(number) for number in IDS[text].split()]
    assert tokenizer.encode(text, add_special_tokens=False) == ids
    assert tokenizer.decode(ids) == text


@pytest.mark.slow
def test_ar_gives_the_tokens_of_generate_on_two_dozen_questions(
    folder: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Greedy, in float32, 32 tokens each: first turns of Spec-Bench, spread over its families."""
    if not QUESTIONS.is_file():
        pytest.skip("../shared is not there")
    model = HFModel.load(folder, dtype=torch.float32, device="cpu")
    tasks = load_tasks(f"specbench={QUESTIONS}", limit=NUM_PROMPTS, quality_limit=0)
    prompts, skipped = PromptEncoder(
        tokenizer, max_prompt_tokens=model.max_length - NUM_TOKENS, overlong="skip"
    ).prompts(tasks.timing, lambda asked: [None] * len(asked))
    assert {turn.turn for turn in skipped} <= {2}
    assert len(prompts) == NUM_PROMPTS
    stops = stop_ids(model, tokenizer)
    sampling = Sampling(max_new_tokens=NUM_TOKENS, stop_ids=stops)
    scheduler = Scheduler(Autoregressive(), Models(target=model), sampling)
    for prompt, outcome in zip(
        prompts, scheduler.run([prompt.ids for prompt in prompts]), strict=True
    ):
        ids = torch.tensor([prompt.ids])
        theirs = model.module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            eos_token_id=sorted(stops),
            pad_token_id=2,
        )
        assert isinstance(outcome, Generation)
        assert outcome.tokens == tuple(theirs[0, ids.shape[1] :].tolist()), prompt.name
