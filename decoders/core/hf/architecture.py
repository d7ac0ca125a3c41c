"""Find out how a transformers module runs with this project's KV cache and masks, or refuse it.

The facts come from the module's config and from a forward pass over two tokens.
Letters: H key-value heads, D head dimension, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache

from decoders.core.adapter.gating import cache_argument, text_model
from decoders.core.hf.checkpoint import first_line, is_of_memory

_ADVICE = (
    "choose a model with a plain KV cache and full or sliding attention, "
    "e.g. Llama, Qwen, Mistral, Gemma, GPT-NeoX or GPT-2"
)
_PROCESSORS = (
    *("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "sequence_bias"),
    *("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    *("min_length", "min_new_tokens", "exponential_decay_length_penalty", "guidance_scale"),
    *("min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "penalty_alpha", "num_beams"),
)
"""Generation settings of transformers that change the logits or the choice of tokens. Temperature,
top-k and top-p are left out, because a run sets them itself."""
_SAMPLED = ("do_sample", "temperature", "top_p", "top_k")
_ENDS = ("stop_strings", "max_length", "max_new_tokens", "eos_token_id")
"""Generation settings that decide how answers are drawn, and where they end."""
_NEUTRAL: tuple[Any, ...] = (None, False, 0, 1, 1.0, [], {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Facts of one module.

    Attributes:
        planes: shape (H, D) of each plane: keys of layer 0, values of layer 0, keys of layer 1, …
        devices: device of each plane.
        device: device of inputs and logits (`main_device`).
        dtype: dtype of the weights.
        windows: attention window of each kind of layer (None: none), "" without kinds.
        max_length: longest sequence that the model was made for and that keeps rope's frequencies.
        reads_hidden: the logits are exactly the head applied to the base model's output.
        sdpa: attention is torch's own, which needs no mask for a causal prefill.
    """

    planes: tuple[tuple[int, int], ...]
    devices: tuple[torch.device, ...]
    device: torch.device
    dtype: torch.dtype
    windows: dict[str, int | None]
    vocab_size: int
    max_length: int
    reads_hidden: bool
    sdpa: bool

    @classmethod
    def of(cls, module: Any) -> Architecture:
        """Study a module, or raise `ValueError` if it is unfit."""
        _refuse_other_memories(module)
        config = module.config.get_text_config()
        length = max_sequence_length(config)
        if length is None:
            raise ValueError(f"{config.model_type} names no max_position_embeddings; {_ADVICE}")
        windows = _windows(config)
        planes, devices = _planes(module, windows)
        vocab_size, reads_hidden = _study_head(module)
        return cls(
            planes=planes,
            devices=devices,
            device=main_device(module),
            dtype=module.dtype,
            windows=windows,
            vocab_size=vocab_size,
            max_length=length,
            reads_hidden=reads_hidden,
            sdpa=config._attn_implementation == "sdpa" and getattr(config, "is_causal", True),
        )


def main_device(module: Any) -> torch.device:
    """Return the device of a module's inputs.

    On several devices it is the first GPU, which also runs parts kept in CPU memory, or the CPU.
    """
    devices = list(dict.fromkeys(getattr(module, "hf_device_map", {}).values()))
    if len(devices) < 2:
        device: torch.device = module.device
        return device
    computing = [device for device in devices if device not in ("cpu", "disk")]
    first = computing[0] if computing else "cpu"
    return torch.device("cuda", first) if isinstance(first, int) else torch.device(first)


def _refuse_other_memories(module: Any) -> None:
    name, config = type(module).__name__, module.config.get_text_config()
    takes = inspect.signature(text_model(module).forward).parameters
    recurs = {*(getattr(config, "layer_types", None) or [""])} != {"full_attention"}
    if (recurs and getattr(module, "_is_stateful", False)) or "state" in takes:
        why = "keeps a running state of the text (a state space or recurrence)"
    elif getattr(config, "alibi", config.model_type in ("bloom", "mpt")):
        why = "adds a bias by distance (alibi), which takes no explicit positions"
    elif config.model_type == "gpt_neo":
        why = "cuts its local layers by tables that are equal for all sequences of a batch"
    elif cache_argument(text_model(module)) not in takes:
        why = "has no KV cache"
    else:
        return
    raise ValueError(f"{name} {why}; {_ADVICE}")


def max_sequence_length(config: Any) -> int | None:
    """Return the longest sequence that a text config allows, or None if it names none."""
    length = getattr(config, "max_position_embeddings", None)
    if not isinstance(length, int):
        return None
    # beyond its original length longrope changes the frequencies of all rows
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope] if "rope_type" in rope else [kind for kind in rope.values() if kind]
    long = [kind for kind in kinds if kind["rope_type"] == "longrope"]
    unchanged: list[int] = [kind["original_max_position_embeddings"] for kind in long]
    return min([length, *unchanged])


def _windows(config: Any) -> dict[str, int | None]:
    window: int | None = getattr(config, "sliding_window", None)
    kept = getattr(config, "keep_window_size", None)
    if kept is not None and kept < config.max_position_embeddings:
        raise ValueError(
            f"{config.model_type} drops tokens of its choice beyond {kept:,} "
            f"(keep_window_size); {_ADVICE}"
        )
    kinds: list[str] | None = getattr(config, "layer_types", None)
    if kinds is None:
        return {"": window}
    spans = {"full_attention": None, "sliding_attention": window}
    strange = [k for k in dict.fromkeys(kinds) if k not in spans]
    if strange or ("sliding_attention" in kinds and window is None):
        names = ", ".join(strange) or "sliding_attention without a sliding_window"
        raise ValueError(f"{config.model_type} has layers of {names}; {_ADVICE}")
    return {kind: spans[kind] for kind in dict.fromkeys(kinds)}


@contextmanager
def _refusing(refusal: str) -> Iterator[None]:
    """Raise a `ValueError` that begins with `refusal` and says why a module fails."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if is_of_memory(error):
            raise
        raise ValueError(f"{refusal} ({first_line(error)}); {_ADVICE}") from error


@torch.inference_mode()
def _planes(
    module: Any, windows: dict[str, int | None]
) -> tuple[tuple[tuple[int, int], ...], tuple[torch.device, ...]]:
    name = type(module).__name__
    base = text_model(module)
    if "position_ids" not in inspect.signature(base.forward).parameters:
        raise ValueError(f"{name} takes no explicit positions; {_ADVICE}")
    device = main_device(module)
    cache: Any = DynamicCache()
    two = torch.arange(2, device=device)[None]
    mask = torch.zeros(1, 1, 2, 2, dtype=module.dtype, device=device)
    mask[..., 0, 1] = torch.finfo(module.dtype).min
    masks = mask if len(windows) == 1 else dict.fromkeys(windows, mask)
    fed = {"attention_mask": masks, cache_argument(base): cache, "use_cache": True}
    with _refusing(f"{name} does not run with given masks and a KV cache"):
        base(input_ids=two, position_ids=two, **fed)
        states = [state for layer in cache.layers for state in (layer.keys, layer.values)]
        planes = tuple((int(state.shape[1]), int(state.shape[3])) for state in states)
    if not planes:
        raise ValueError(f"{name} cached nothing; {_ADVICE}")
    return planes, tuple(state.device for state in states)


@torch.inference_mode()
def _study_head(module: Any) -> tuple[int, bool]:
    """Return V and `reads_hidden`, scaling the head's output up to expose a soft cap."""
    base, head = text_model(module), module.get_output_embeddings()
    seen: dict[str, Tensor] = {}

    def on_base(_module: nn.Module, _args: Any, output: Any) -> None:
        seen["hidden"] = output.last_hidden_state

    def on_head(_module: nn.Module, args: Any, output: Tensor) -> Tensor:
        seen["fed"], seen["scaled"] = args[0], output * 1000
        return seen["scaled"]

    with ExitStack() as hooks, _refusing(f"{type(module).__name__} does not run on tokens"):
        if head is not None and base is not module:
            hooks.enter_context(base.register_forward_hook(on_base))
            hooks.enter_context(head.register_forward_hook(on_head))
        two = torch.arange(2, device=main_device(module))[None]
        logits: Tensor = module(two, use_cache=False).logits
    exact = (
        len(seen) == 3
        and torch.equal(seen["fed"], seen["hidden"])
        and torch.equal(logits, seen["scaled"].to(logits.device))
    )
    return int(logits.shape[-1]), exact


def model_settings(module: Any) -> dict[str, Any]:
    """Return the settings of a model's generation config that differ from transformers' own."""
    generation = getattr(module, "generation_config", None)
    settings = generation.to_diff_dict() if generation is not None else {}
    names = (*_SAMPLED, *_PROCESSORS, *_ENDS)
    return {name: settings[name] for name in names if settings.get(name) is not None}


def generation_notes(module: Any) -> tuple[str, ...]:
    """List generation settings that are not applied."""
    settings = model_settings(module)
    ignored = [
        f"{name}={value}"
        for name, value in settings.items()
        if (name in _PROCESSORS and value not in _NEUTRAL)
        or (name in _SAMPLED and settings.get("do_sample"))
        or name == "stop_strings"
    ]
    if not ignored:
        return ()
    return (
        f"its generation config asks for {', '.join(ignored)}, which no decoder here applies: "
        "a run samples by its own options and ends answers only at stop ids",
    )
