"""Tell from a checkpoint's configuration whether its model predicts masked tokens, and how.

transformers has no class for most published diffusion models. Those of `_TYPES` have the weights of
the architecture that they were trained from, whose class runs them with our masks. No checkpoint of
these types was at hand: tests rename tiny random ones. LLaDA's weights have names of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from decoders.core.hf.checkpoint import cached
from decoders.core.types import MaskedForm

_TYPES: Mapping[str, tuple[str, bool, int]] = {
    "Dream": ("qwen2", True, 0),  # arXiv 2508.15487
    "sdar": ("qwen3", False, 4),  # arXiv 2510.06303
    "Fast_dLLM_Qwen": ("qwen2", True, 32),  # v2, arXiv 2509.26328
    "a2d-qwen3": ("qwen3", False, 0),  # github.com/ZHZisZZ/dllm
    "a2d-llama": ("llama", False, 0),
}
"""Published types: base architecture, `MaskedForm.shifted`, and `MaskedForm.block`."""
_BLOCKS = ("block_size", "block_length", "bd_size")


def masked_form(config: Mapping[str, Any]) -> MaskedForm | None:
    """Return the form of a masked model from its configuration, or None of a causal one.

    A model is masked if ``is_causal`` is false, if there is a ``mask_token_id``, or by its type.
    """
    mask_id = config.get("mask_token_id")
    base, shifted, block = _TYPES.get(str(config.get("model_type")), ("", False, 0))
    if config.get("is_causal") is not False and mask_id is None and not base:
        return None
    blocks = [size for name in _BLOCKS if isinstance(size := config.get(name), int)]
    shifted = bool(config.get("shifted_logits", shifted))
    return MaskedForm(mask_id=mask_id, shifted=shifted, block=blocks[0] if blocks else block)


def is_masked(path_or_id: str) -> bool:
    """Tell whether a checkpoint on this machine is a masked model (False if none is there)."""
    folder = Path(path_or_id).expanduser()
    file = (folder if folder.is_dir() else cached(path_or_id) or folder) / "config.json"
    try:
        return masked_form(json.loads(file.read_text(encoding="utf-8"))) is not None
    except (OSError, ValueError, AttributeError):  # opening it says what is wrong
        return False


def base_config(source: str) -> Any:
    """Return the configuration of a published type as one of its base, or None of other types."""
    from transformers import AutoConfig, PretrainedConfig

    config, _ = PretrainedConfig.get_config_dict(source)
    base, form = _TYPES.get(str(config.get("model_type")), ("",))[0], masked_form(config)
    if not base or form is None:
        return None
    kept = {name: each for name, each in config.items() if name not in ("auto_map", "model_type")}
    kept |= {"is_causal": False, "shifted_logits": form.shifted, "block_size": form.block}
    return AutoConfig.for_model(base, **kept)
