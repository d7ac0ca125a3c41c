"""Folders of tiny random checkpoints over characters, which every command can open."""

from __future__ import annotations

import zlib
from pathlib import Path

LETTERS = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,?!'\n-:;()"]


def save_tokenizer(folder: Path, num_extra: int = 0) -> int:
    """Write a tokenizer of letters and `num_extra` tokens more; returns how many it knows."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "</s>", "<unk>", *LETTERS, *(f"<{i}>" for i in range(num_extra))]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return len(words)


def save_checkpoint(folder: Path, num_extra: int = 0) -> Path:
    """Write a random Llama and its tokenizer, of `num_extra` tokens more than letters.

    Its weights depend on the folder's name alone, not on what was drawn before.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=save_tokenizer(folder, num_extra),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(zlib.crc32(folder.name.encode()))
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder
