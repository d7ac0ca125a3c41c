"""Folders of tiny random checkpoints with an MTP layer, as DeepSeek-V3 and Qwen3-Next store one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB, WIDTH = 7, 32
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "first_k_dense_replace": 1,
}
KINDS: dict[str, Any] = {
    "deepseek": (DeepseekV3ForCausalLM, DeepseekV3Config, _EXPERTS | _LATENT),
    "glm": (
        Glm4MoeForCausalLM,
        Glm4MoeConfig,
        _EXPERTS | {"head_dim": 8, "n_routed_experts": 4, "first_k_dense_replace": 1},
    ),
    "qwen": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 16}),
    "qwen-moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, _EXPERTS | {"head_dim": 8, "num_experts": 4}),
}
NAMES: dict[str, dict[str, str]] = {
    "deepseek": {
        "token_norm": "model.layers.2.enorm.weight",
        "state_norm": "model.layers.2.hnorm.weight",
        "join": "model.layers.2.eh_proj.weight",
        "norm": "model.layers.2.shared_head.norm.weight",
        "layer": "model.layers.2.",
    },
    "qwen": {
        "token_norm": "mtp.pre_fc_norm_embedding.weight",
        "state_norm": "mtp.pre_fc_norm_hidden.weight",
        "join": "mtp.fc.weight",
        "norm": "mtp.norm.weight",
        "layer": "mtp.layers.0.",
    },
}
NAMES["glm"] = NAMES["deepseek"]


def noise(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def save_mtp(folder: Path, kind: str, vocab_size: int = VOCAB) -> dict[str, Any]:
    """Write a checkpoint of a `KINDS`, and return its target and the parts of its MTP layer."""
    make, config_kind, extra = KINDS[kind]
    config = config_kind(**_SIZES | extra | {"vocab_size": vocab_size})
    with torch.random.fork_rng():
        torch.manual_seed(5)
        target = make(config).eval()
        layer = type(target.model.layers[1])(config, 1).eval()
    for number, (_, parameter) in enumerate(sorted(layer.named_parameters())):
        wide = 1.0 if parameter.ndim == 1 else 0.3
        parameter.data = wide * noise(*parameter.shape, seed=number) + (parameter.ndim == 1)
    for name, buffer in layer.named_buffers():
        buffer.copy_(0.1 * noise(*buffer.shape, seed=len(name)))
    norms = ("token_norm", "state_norm", "norm")
    parts: dict[str, Any] = {
        name: 1 + 0.5 * noise(WIDTH, seed=60 + n) for n, name in enumerate(norms)
    }
    parts["join"] = 0.3 * noise(WIDTH, 2 * WIDTH, seed=70)
    target.save_pretrained(folder)
    names = NAMES[kind.partition("-")[0]]
    stored = {names[name]: tensor for name, tensor in parts.items()}
    for name, tensor in layer.state_dict().items():
        stored |= {names["layer"] + each: part for each, part in _split(name, tensor).items()}
    if kind == "deepseek":  # copies, as the published files have them
        stored[f"{names['layer']}embed_tokens.weight"] = target.model.embed_tokens.weight.clone()
        stored[f"{names['layer']}shared_head.head.weight"] = target.lm_head.weight.clone()
    file = folder / "model.safetensors"
    save_file({**load_file(file), **stored}, file, {"format": "pt"})
    return {"target": target, "layer": layer, **parts}


def _split(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Name the weights of experts one by one, as checkpoints have them."""
    place, _, last = name.rpartition(".")
    if last not in ("gate_up_proj", "down_proj"):
        return {name: tensor}
    weights = {}
    for number, each in enumerate(tensor):
        halves = dict(zip(("gate", "up"), each.chunk(2), strict=True))
        for part, weight in ({"down": each} if last == "down_proj" else halves).items():
            weights[f"{place}.{number}.{part}_proj.weight"] = weight.contiguous()
    return weights


def in_shards(folder: Path) -> None:
    """Split a folder's weights into two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = dict[str, str]()
    for shard in range(2):
        file = f"model-0000{shard + 1}-of-00002.safetensors"
        names = sorted(tensors)[shard::2]
        save_file({name: tensors[name] for name in names}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(names, file)
    index = json.dumps({"metadata": {}, "weight_map": places})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


@torch.no_grad()
def plain_drafts(parts: dict[str, Any], tokens: list[int], k: int) -> Tensor:
    """Return logits ``[k, V]`` of the drafts after a text: one pass over all rows for each.

    Nothing is cached: row i joins the target's state at i with token i + 1.
    """
    target, drafted, logits = parts["target"], list(tokens), list[Tensor]()
    ids = torch.tensor([tokens])
    states = target.model(ids, use_cache=False).last_hidden_state[0, :-1]

    def norm(rows: Tensor, weight: Tensor) -> Tensor:
        squares = rows.square().mean(-1, keepdim=True)
        return rows * (squares + target.config.rms_norm_eps).rsqrt() * weight

    for _ in range(k):
        embedded = target.model.embed_tokens.weight[torch.tensor(drafted[1:])]
        both = [norm(embedded, parts["token_norm"]), norm(states, parts["state_norm"])]
        rows = (torch.cat(both, -1) @ parts["join"].T)[None]
        count = rows.shape[1]
        mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
        turn = target.model.rotary_emb(rows, torch.arange(count)[None])
        out = parts["layer"](rows, attention_mask=mask, position_embeddings=turn)
        states = torch.cat([states, norm(out[0, -1:], parts["norm"])])
        logits.append(target.lm_head.weight @ states[-1])
        drafted.append(int(logits[-1].argmax()))
    return torch.stack(logits)
