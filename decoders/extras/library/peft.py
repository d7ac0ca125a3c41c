"""Write an adapter in PEFT's format: a LoRA of its factors, and ``slots.*`` for other weights.

Activated LoRA (aLoRA, arXiv 2504.12397) adds B A after an offset from the end of a sequence. This
equals our gate if slots come last in ``inputs_embeds`` and ``alora_offsets`` is their number. PEFT
finds the offset in a text by an invocation token; the one set here occurs in no text.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import load_file, save_file

from decoders.core.adapter.module import SlotAdapter
from decoders.core.adapter_config import CONFIG_FILE, WEIGHTS_FILE

PEFT_CONFIG, PEFT_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
SLOTS_CONFIG, SLOTS_WEIGHTS = "slots.json", "slots.safetensors"


def to_peft(folder: Path, output: Path) -> list[Path]:
    """Write an adapter's folder in PEFT's format and return the files.

    `ValueError` for an unusable folder or output, or an adapter that PEFT's format cannot hold.
    """
    adapter = SlotAdapter.load(folder)
    config = adapter.config
    if not config.rank:
        raise ValueError(
            "the adapter's delta is of full rank (rank 0), and PEFT's LoRA has none; train one "
            "with `--set adapter.rank=64`"
        )
    if config.enter:
        raise ValueError(
            f"the adapter's slots enter at layer {config.enter}, and PEFT runs all rows through "
            "all layers; only adapters whose slots enter with the tokens (enter 0) have its format"
        )
    if output.is_file() or any((output / name).exists() for name in (PEFT_CONFIG, CONFIG_FILE)):
        raise ValueError(f"output {str(output)!r} is in use; give a new folder")
    dtype = next(iter(load_file(folder / WEIGHTS_FILE).values())).dtype
    slots = {name: value.to(dtype).contiguous() for name, value in adapter.state_dict().items()}
    factors = {}
    for layer in config.layers:
        for side, letter in (("lora_a", "A"), ("lora_b", "B")):
            key = f"base_model.model.{layer}.lora_{letter}.weight"
            factors[key] = slots.pop(f"{side}.{layer.replace('.', '/')}")
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config.base.get("model"),
        "inference_mode": True,
        "r": config.rank,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(config.layers),
        "alora_invocation_tokens": [-1],  # an id that no tokenizer gives
    }
    try:
        output.mkdir(parents=True, exist_ok=True)
        text = json.dumps(settings, indent=2) + "\n"
        (output / PEFT_CONFIG).write_text(text, encoding="utf-8")
        (output / SLOTS_CONFIG).write_text(config.to_json(), encoding="utf-8")
        save_file(factors, output / PEFT_WEIGHTS, {"format": "pt"})
        save_file(slots, output / SLOTS_WEIGHTS)
    except OSError as error:
        raise ValueError(f"output {str(output)!r} cannot be written: {error}") from error
    return [output / name for name in (PEFT_CONFIG, PEFT_WEIGHTS, SLOTS_CONFIG, SLOTS_WEIGHTS)]
