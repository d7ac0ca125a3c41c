"""The zoo's tokenizer: byte-level BPE in which every generator word is one token.

The vocabulary is: special tokens, 256 bytes, a few hundred merges learnt from the generators' text
(so that foreign words do not fall back to bytes alone), and all whole words. ``ignore_merges`` (as
in Llama 3) lets a whole word be taken at once. Each digit is a token of its own.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

from specbench_tasks.generators import generate
from specbench_tasks.task import FAMILIES

USER, ASSISTANT, END, PAD = "<|user|>", "<|assistant|>", "<|end|>", "<|pad|>"
SPECIALS = (PAD, END, USER, ASSISTANT)
# text is cut before BPE: words with their leading space, single digits, punctuation
_SPLIT_PATTERN = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"

_CHAT_TEMPLATE = (
    "{%- set lead = '' -%}"
    "{%- if messages[0]['role'] == 'system' -%}"
    "{%- set lead = ' ' + messages[0]['content'] | trim -%}"
    "{%- set messages = messages[1:] -%}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'user' -%}"
    "<|user|>{{ lead if loop.first else '' }} {{ message['content'] | trim }}"
    "{%- elif message['role'] == 'assistant' -%}"
    "<|assistant|> {{ message['content'] | trim }}<|end|>"
    "{%- else -%}"
    "{{ raise_exception('roles must be user or assistant after an optional system message') }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
"""A text always starts with a space, so that a word is the same token wherever it stands."""


def build_tokenizer(num_examples: int, num_merges: int, seed: int) -> Any:
    """Return a `transformers` fast tokenizer made from `num_examples` examples of each family.

    Words seen at all become tokens. Same arguments, same tokenizer.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts: Counter[str] = Counter()
    split, byte_level = _words_and_bytes()
    for family in FAMILIES:
        for example in itertools.islice(generate(family, "train", seed), num_examples):
            for text in (*example.turns, *example.responses):
                # as the chat template shows it
                counts.update(word for word, _ in split.pre_tokenize_str(f" {text}"))
    vocab, merges = _vocabulary(counts, num_merges)
    core = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    core.decoder = decoders.ByteLevel()
    make: Any = PreTrainedTokenizerFast
    return make(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=_CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def _words_and_bytes() -> tuple[Any, Any]:
    """Return what cuts text into words, and what spells words in bytes."""
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(Regex(_SPLIT_PATTERN), "isolated")
    return split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _vocabulary(
    counts: Counter[str], num_merges: int
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return ids for specials, bytes, merge products and whole words (in byte-level spelling)."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    split, byte_level = _words_and_bytes()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ordered = [word for word, _ in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + num_merges,
        initial_alphabet=alphabet,
        show_progress=False,
        min_frequency=2,
    )
    learner.train_from_iterator(ordered, trainer)
    learnt = json.loads(learner.to_str())["model"]["merges"]
    merges = [(pair[0], pair[1]) for pair in learnt]
    pieces = [*SPECIALS, *alphabet, *("".join(pair) for pair in merges)]
    pieces += ["".join(piece for piece, _ in byte_level.pre_tokenize_str(word)) for word in ordered]
    return {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}, merges
