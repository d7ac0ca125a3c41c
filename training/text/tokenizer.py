"""Build the zoo's tokenizer: byte-level BPE in which every generator word is one token.

The vocabulary has special tokens, 256 bytes, a few hundred merges learnt from the generators' text
(so that foreign words do not fall back to single bytes), and all whole words. ``ignore_merges`` (as
in Llama 3) makes a known word one token without merging. Each digit is a separate token.
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
# before BPE, split text into words with their leading space, single digits, and punctuation
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
"""Each text starts with a space, so that a word is the same token at every place."""


def build_tokenizer(num_examples: int, num_merges: int, seed: int) -> Any:
    """Return a `transformers` fast tokenizer made from `num_examples` examples of each family.

    Every word seen becomes a token. Equal arguments give equal tokenizers.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    counts: Counter[str] = Counter()
    split = pre_tokenizers.Split(Regex(_SPLIT_PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for family in FAMILIES:
        for example in itertools.islice(generate(family, "train", seed), num_examples):
            for text in (*example.turns, *example.responses):
                # as the chat template renders it
                counts.update(word for word, _ in split.pre_tokenize_str(f" {text}"))
    vocab, merges = _vocabulary(counts, num_merges, split, byte_level)
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


def _vocabulary(
    counts: Counter[str], num_merges: int, split: Any, byte_level: Any
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return the ids of specials, bytes, merged pieces and byte-level words, and the merges."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

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
