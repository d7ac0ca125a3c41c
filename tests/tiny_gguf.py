"""GGUF files with random weights, laid out as llama.cpp's converter does, small enough for tests.

Byte-level vocabulary of 256 bytes, two merges and three special tokens.
"""

from pathlib import Path

import numpy as np

WIDTH, HEADS, KV_HEADS, FEED, LAYERS, CONTEXT = 64, 4, 2, 96, 2, 128
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokens() -> list[str]:
    """The 256 bytes as GPT-2's byte-level alphabet spells them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    spelled = {byte: chr(byte) for byte in plain}
    spelled |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [spelled[byte] for byte in range(256)]


def write_gguf(
    file: Path,
    architecture: str = "llama",
    pre: str = "smollm",
    seed: int = 0,
    ids: tuple[int, int, int] = (1, 2, 2),
) -> Path:
    """A model of one architecture (llama, qwen2) with its tokenizer; `ids` begin, end and pad."""
    import gguf

    letters = byte_tokens()
    merges = ["1 2", "h e"]  # the first must never be used where digits stand alone
    tokens = [*SPECIALS, *letters, *(merge.replace(" ", "") for merge in merges)]
    kinds = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(tokens) - 3)
    out = gguf.GGUFWriter(file, architecture)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(LAYERS)
    out.add_feed_forward_length(FEED)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_freq_base(10000.0)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(pre)
    out.add_token_list(tokens)
    out.add_token_types(kinds)
    out.add_token_merges(merges)
    begin, end, pad = ids
    out.add_bos_token_id(begin)
    out.add_eos_token_id(end)
    out.add_pad_token_id(pad)
    out.add_unk_token_id(0)
    out.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(seed)

    def add(name: str, *shape: int, mean: float = 0.0) -> None:
        out.add_tensor(name, (mean + 0.1 * rng.standard_normal(shape)).astype(np.float32))

    add("token_embd.weight", len(tokens), WIDTH)
    add("output_norm.weight", WIDTH, mean=1.0)
    of_values = WIDTH * KV_HEADS // HEADS
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        add(f"{block}.attn_norm.weight", WIDTH, mean=1.0)
        add(f"{block}.ffn_norm.weight", WIDTH, mean=1.0)
        for name, size in (("q", WIDTH), ("k", of_values), ("v", of_values)):
            add(f"{block}.attn_{name}.weight", size, WIDTH)
            if architecture == "qwen2":
                add(f"{block}.attn_{name}.bias", size)
        add(f"{block}.attn_output.weight", WIDTH, WIDTH)
        add(f"{block}.ffn_gate.weight", FEED, WIDTH)
        add(f"{block}.ffn_up.weight", FEED, WIDTH)
        add(f"{block}.ffn_down.weight", WIDTH, FEED)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return file
